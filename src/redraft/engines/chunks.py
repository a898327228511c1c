"""Where chunks of a draft end."""


def chunk_end(length: int, behind: int | None, chunk: int | None) -> int:
    """End of the part of a draft that is scored next, tokens of the draft.

    What is left behind a chunk goes with it if it is less than half of one, since a pass over few tokens costs more
    than they.

    Args:
        length: of the draft, tokens.
        behind: tokens that were scored before; None to score all in one.
        chunk: tokens of a chunk; None for the whole draft.

    Raises:
        ValueError: if nothing is left to score.
    """
    if not 0 <= (behind or 0) < length:
        raise ValueError(f"a draft of {length} tokens has nothing to score behind {behind or 0}")
    if behind is None or chunk is None:
        return length
    end = behind + chunk
    return end if 2 * (length - end) >= chunk else length
