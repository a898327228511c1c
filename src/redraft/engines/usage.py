"""Work of an engine, for the cost of each stage."""

from dataclasses import dataclass


@dataclass
class Usage:
    """Cost of an engine's work so far.

    Attributes:
        verification_seconds: busy with scoring drafts, or waited for it, as the engine says.
        decoding_seconds: the same of decoding; 0 where the engine does not measure it.
        scored_tokens: draft tokens that were scored.
    """

    verification_seconds: float = 0.0
    decoding_seconds: float = 0.0
    scored_tokens: int = 0
