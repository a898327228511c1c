"""Counts of a step's responses, as metrics of verl's logger."""

from collections import Counter
from dataclasses import dataclass, field

OTHER_END = "other_end"
"""Why a response is verl's own if its end shows that the plan does not know the servers' ends."""


@dataclass(frozen=True)
class Outcome:
    """Counts of one response.

    Attributes:
        tokens: of the response.
        draft: tokens of its draft, 0 without one.
        kept: leading tokens of the draft that were kept.
        verified: tokens of the draft that were scored.
        drift: nats, an estimate of the KL divergence from the policies that sampled the kept tokens to the policy,
            summed over them; None if they were not scored.
        own: why verl sampled the response itself, without a draft; empty otherwise.
    """

    tokens: int
    draft: int = 0
    kept: int = 0
    verified: int = 0
    drift: float | None = 0.0
    own: str = ""


@dataclass
class Tally:
    """Sums over the responses of a step.

    Attributes:
        evicted: drafts that were dropped at the beginning of the step.
        replaced: true if another rule runs than the configured one.
    """

    evicted: int = 0
    replaced: bool = False
    responses: int = 0
    cuts: list[int] = field(default_factory=list)
    own: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    draft: int = 0
    verified: int = 0
    whole: int = 0
    drift: float | None = 0.0

    def add(self, outcome: Outcome) -> None:
        """Count a response."""
        self.responses += 1
        self.tokens += outcome.tokens
        self.verified += outcome.verified
        self.own[outcome.own] += bool(outcome.own)
        if outcome.draft:
            self.draft += outcome.draft
            self.cuts.append(outcome.kept)
            self.whole += outcome.kept == outcome.draft
        if outcome.drift is None or self.drift is None:
            self.drift = None
        else:
            self.drift += outcome.drift

    def metrics(self, stored: int) -> dict[str, float]:
        """Metrics by name; `stored` counts the drafts in memory."""
        kept, drafts = sum(self.cuts), len(self.cuts)
        found = {
            "responses": self.responses,
            "with_draft": drafts / max(self.responses, 1),
            "kept_share": kept / max(self.tokens, 1),
            "tokens_saved": kept,
            "tokens_sampled": self.tokens - kept,
            "tokens_verified": self.verified,
            "rule_replaced": self.replaced,
            "memory/drafts": stored,
            "memory/evicted": self.evicted,
        } | {f"own_response/{why}": count for why, count in self.own.items() if count}
        if drafts:
            found |= {
                "kept_of_draft": kept / self.draft,
                "kept_whole": self.whole / drafts,
                "cut/mean": kept / drafts,
                "cut/min": min(self.cuts),
                "cut/max": max(self.cuts),
            }
        if self.drift is not None:
            found["drift"] = self.drift / max(self.tokens, 1)
        return {f"redraft/{name}": float(value) for name, value in found.items()}
