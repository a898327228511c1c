"""Memory: the earlier rollouts of each prompt that the method's retention covers.

Rollouts are found by the prompt's visit, not by an epoch's number, so that a prompt which was skipped keeps its
drafts. Content is bounded by the retention: `put` drops what it no longer covers. A token takes 12 bytes and 8
more for each token of its top distribution; a rollout takes about two kilobytes.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from redraft.config.retention import Retention
from redraft.rollout.storage import described, load_groups, pack_groups, save_groups, unpack_groups
from redraft.rollout.types import Group, Rollout, Sample, TopLogProbs


class Memory:
    """Earlier rollouts by prompt and visit.

    Visits count the groups that were put for a prompt. Of each sample the latest `retention.visits` rollouts are kept
    as drafts: groups differ in size, and a visit that made fewer samples leaves the others' drafts as they were. Of
    earlier ones only what is among the `retention.correct` correct responses stays. A correct response that repeats one
    of an earlier visit, token by token and with the same steps, is no new one: a reused response enters once.
    """

    def __init__(self, retention: Retention) -> None:
        self.retention = retention
        # Groups by visit, earlier ones cut down to correct samples. A sample that repeats a response is `carried` here.
        self._groups: dict[int, list[Group]] = {}

    def __len__(self) -> int:
        """Rollouts that are kept."""
        return sum(len(group.samples) for group in self._all())

    def prompts(self) -> list[int]:
        """Prompts of which anything is kept, in ascending order."""
        return sorted(self._groups)

    def put(self, group: Group) -> None:
        """Store a group as far as the retention covers it; it replaces one of the same prompt and visit.

        Raises:
            ValueError: if a sample occurs twice in the group.
        """
        earlier = (g for g in self._groups.get(group.prompt, []) if g.visit < group.visit)
        # Also what is carried: the response that it repeats may have been evicted.
        known = [s.rollout for g in earlier for s in g.samples if s.correct] if self.retention.correct else []
        samples = (replace(s, carried=any(_same(s.rollout, old) for old in known)) for s in group.samples)
        self._add(replace(group, samples=tuple(samples)))

    def drafts(self, prompt: int, visits_ago: int = 1, before: int | None = None) -> dict[int, Rollout]:
        """Rollouts of a prompt by sample, from `visits_ago` visits ago; the oldest one if the sample has fewer.

        Args:
            visits_ago: counts the visits that made the sample, from 1.
            before: leaves out this visit and later ones; a prompt that is continued has been put in its visit already.

        Returns:
            Nothing before the prompt's first visit, and where the retention keeps no visits.

        Raises:
            ValueError: if the visit is not an earlier one.
        """
        if visits_ago < 1:
            raise ValueError(f"drafts are of an earlier visit, not of {visits_ago} visits ago")
        groups = [g for g in self._groups.get(prompt, []) if before is None or g.visit < before]
        kept = self._latest(groups)
        return {sample: rollouts[-min(visits_ago, len(rollouts))] for sample, rollouts in sorted(kept.items())}

    def correct(self, prompt: int) -> list[Rollout]:
        """Correct responses to a prompt that are kept, at most `retention.correct`, the oldest first."""
        return [sample.rollout for sample in self._kept_correct(self._groups.get(prompt, []))]

    def drop(self, prompt: int) -> None:
        """Forget a prompt."""
        self._groups.pop(prompt, None)

    def part(self, prompt: int) -> "Memory":
        """A memory with the content of one prompt, for the process that rolls it out; the rollouts are not copied."""
        part = Memory(self.retention)
        if prompt in self._groups:
            part._groups[prompt] = list(self._groups[prompt])
        return part

    def take(self, other: "Memory", keep: Callable[[int], bool]) -> None:
        """Add another memory's content of the prompts for which `keep` is true; its visits replace the same here."""
        for group in other._all():
            if keep(group.prompt):
                self._add(group)

    def save(self, file: Path) -> None:
        """Write everything to one file, atomically.

        Raises:
            UserError: if there is no space left.
        """
        save_groups(file, self._all())

    @classmethod
    def load(cls, file: Path, retention: Retention) -> "Memory":
        """Read a memory that `save` wrote.

        Raises:
            UserError: if the file is missing, damaged or in the format of an earlier version.
        """
        groups = load_groups(file)
        with described(file):
            return cls(retention)._filled(groups)

    def packed(self) -> bytes:
        """Everything as bytes, which processes exchange without pickling every rollout."""
        return pack_groups(self._all())

    @classmethod
    def unpacked(cls, content: bytes, retention: Retention) -> "Memory":
        """Read the bytes of `packed`.

        Raises:
            ValueError: if they are damaged.
        """
        return cls(retention)._filled(unpack_groups(content))

    def _all(self) -> list[Group]:
        """Everything, by prompt and visit."""
        return [group for prompt in self.prompts() for group in self._groups[prompt]]

    def _filled(self, groups: Sequence[Group]) -> "Memory":
        if len({(group.prompt, group.visit) for group in groups}) < len(groups):
            raise ValueError("a visit occurs twice")
        for group in groups:
            self._add(group)
        return self

    def _add(self, group: Group) -> None:
        """Add a group, which replaces an earlier one of the same visit, and drop what the retention does not cover."""
        if len({r.sample for r in group.rollouts}) < len(group.samples):
            raise ValueError(f"a sample occurs twice in visit {group.visit} of prompt {group.prompt}")
        samples = (replace(s, rollout=self._retained(s.rollout)) for s in group.samples)
        others = (g for g in self._groups.get(group.prompt, []) if g.visit != group.visit)
        groups = sorted([*others, replace(group, samples=tuple(samples))], key=lambda g: g.visit)
        # By identity, since rollouts have no equality; `groups` keeps the objects alive.
        drafts = {id(rollout) for of_sample in self._latest(groups).values() for rollout in of_sample}
        kept = drafts
        if self.retention.correct:
            kept |= {id(sample.rollout) for sample in self._kept_correct(groups)}
        bounded = [replace(g, samples=tuple(s for s in g.samples if id(s.rollout) in kept)) for g in groups]
        self._groups[group.prompt] = [group for group in bounded if group.samples]
        if not self._groups[group.prompt]:
            del self._groups[group.prompt]

    def _retained(self, rollout: Rollout) -> Rollout:
        """The rollout with its top-k log-probs cut to the retained k, in arrays that no other object shares."""
        k, top = self.retention.top, rollout.top
        arrays = {name: getattr(rollout, name) for name in ("tokens", "log_probs", "sampled_at", "log_weights")}
        # a view is copied, since it would keep the whole array that it is part of alive
        owned = {name: a if a is None or a.base is None else a.copy() for name, a in arrays.items()}
        kept = TopLogProbs(top.tokens[:, :k].copy(), top.log_probs[:, :k].copy()) if k and top else None
        return replace(rollout, **owned, top=kept)

    def _latest(self, groups: Iterable[Group]) -> dict[int, list[Rollout]]:
        """Rollouts that are kept as drafts, by sample, the oldest first."""
        if not self.retention.visits:
            return {}
        made: dict[int, list[Rollout]] = {}
        for rollout in (rollout for group in groups for rollout in group.rollouts):
            made.setdefault(rollout.sample, []).append(rollout)
        return {sample: rollouts[-self.retention.visits :] for sample, rollouts in made.items()}

    def _kept_correct(self, groups: Iterable[Group]) -> list[Sample]:
        """Correct responses that are kept."""
        found, most = [sample for group in groups for sample in _correct(group)], self.retention.correct
        # In the order of visits: the newest are at the end. Not `[-most:]`, which is everything if `most` is 0.
        return found[:most] if self.retention.evict == "newest" else found[max(0, len(found) - most) :]


def _correct(group: Group) -> list[Sample]:
    """Correct responses of a group that repeat none of an earlier visit."""
    return [sample for sample in group.samples if sample.correct and not sample.carried]


def _same(one: Rollout, other: Rollout) -> bool:
    return np.array_equal(one.tokens, other.tokens) and np.array_equal(one.sampled_at, other.sampled_at)
