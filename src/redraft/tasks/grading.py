"""The one grader: training reward and evaluation both ask it. math-verify compares what is boxed with the answer."""

from functools import lru_cache

from math_verify import LatexExtractionConfig, parse, verify


def boxed(text: str) -> str | None:
    """The content of the last `\\boxed{...}` with balanced braces, or None."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for position in range(start + len("\\boxed"), len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start + len("\\boxed{") : position]
    return None


def is_correct(text: str, answer: str) -> bool:
    """Whether the last box of a response holds the answer (SPEC-RL, Appendix A.1: 1 if it matches, else 0)."""
    content = boxed(text)
    return content is not None and _equal(content.strip(), answer)


@lru_cache(maxsize=1 << 16)
def _equal(content: str, answer: str) -> bool:
    """math-verify's verdict, with its own time limits (an alarm, so in a main thread only); a time-out is False."""
    if not content:
        return False
    latex = [LatexExtractionConfig(boxed_match_priority=0)]
    gold = parse(f"\\boxed{{{answer}}}", extraction_config=latex)
    return bool(verify(gold, parse(f"\\boxed{{{content}}}", extraction_config=latex)))
