"""The drafts of a run under stock verl: memory, files beside verl's checkpoints, and counts for verl's logger.

The key of a draft is a hash of its prompt's tokens and its sample's index, so after a change of prompts, data or
tokenizer there is none. A draft is used once per step, in a later step than its own. `visit` of
`redraft.rollout.memory` is verl's step here.

*Files.* Whenever no response is in progress, the responses of the step are in one file, whose name has their hash. So
the file is complete before verl saves the step's checkpoint. A run that resumes after step N reads the files up to N
and removes later ones, without verl. A file is removed once none of its drafts is in use and verl has a checkpoint that
needs none of them.
"""

import hashlib
import re
from pathlib import Path

import numpy as np

from redraft.errors import UserError
from redraft.files import read_json, write_atomically, write_json
from redraft.integrations.verl.plan import Plan, setup_text
from redraft.integrations.verl.tally import OTHER_END, Outcome, Tally
from redraft.rollout.memory import Memory
from redraft.rollout.storage import described, pack_groups, unpack_groups
from redraft.rollout.types import Group, Rollout, Sample

NAME = "redraft-drafts"
"""Ray's name of the store."""
FILE = re.compile(r"step-(\d+)-([0-9a-f]{16})\.arrow")
LATEST = "latest_checkpointed_iteration.txt"
"""verl's file with the step of its last checkpoint."""


class DraftStore:
    """Drafts of a run. Ray runs its methods one at a time."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.memory = plan, Memory(plan.reuse.retention)
        self._step: int | None = None
        self._stored_at: dict[int, int] = {}  # the step of each draft
        self._taken: set[int] = set()  # drafts that were asked for in this step
        self._new: dict[int, Group] = {}  # responses of this step, by key
        self._busy = 0
        self._trusted = True  # until a response ends otherwise than the plan says
        self._unused: dict[int, int] = {}  # steps whose drafts are not in use, and since when
        self._tallies: dict[int, Tally] = {}

    def settings(self) -> Plan:
        """The plan, for processes that sample responses."""
        return self.plan

    def begin(self, step: int, elsewhere: int = 0) -> None:
        """Begin a step, of which verl may dispatch several batches.

        Args:
            elsewhere: prompts of the batch whose data name another agent loop.

        Raises:
            UserError: in the first step, if saved drafts are damaged.
        """
        if step != self._step:
            if self._step is None:
                self._restore(step)
            self._step = step
            self._taken.clear()
            self._new.clear()
            evicted = self._evict()
            self._remove_unused(step)
            self._tallies[step] = Tally(evicted=evicted, replaced=bool(self.plan.replaced))
        self._tally.own["other_loop"] += elsewhere

    def find(self, key: int) -> tuple[Rollout | None, bool]:
        """Draft of an earlier step, if there is one, and whether the response becomes the next draft.

        If a prompt occurs twice in a step, the first one gets the draft, and only its response is stored. Storing the
        response that ends last instead would select by length.
        """
        self._busy += 1
        if key in self._taken:
            return None, False
        self._taken.add(key)
        if not self._trusted:
            return None, False
        return self.memory.drafts(key, before=self._step).get(0), True

    def put(self, key: int, rollout: Rollout | None, outcome: Outcome) -> None:
        """Count a response after `find`, and store it if it becomes a draft."""
        assert self._step is not None
        self._busy -= 1
        self._trusted &= outcome.own != OTHER_END
        if rollout is not None and self.memory.retention.visits:
            group = Group(key, self._step, (Sample(rollout, 0.0),))
            self.memory.put(group)
            self._stored_at[key], self._new[key] = self._step, group
        self._tally.add(outcome)
        if not self._busy and self._new and self.plan.folder:
            self._save(self.plan.folder)

    def count(self, outcome: Outcome) -> None:
        """Count a response that asked for no draft."""
        self._tally.add(outcome)

    @property
    def _tally(self) -> Tally:
        """Counts of this step; of a response that ends after verl logged the step, they are lost."""
        assert self._step is not None
        return self._tallies.get(self._step, Tally())

    def metrics(self, step: int) -> dict[str, float]:
        """Metrics of a step for verl's logger, in the first call; empty if the step has no responses."""
        tally = self._tallies.pop(step, None)
        return tally.metrics(len(self._stored_at)) if tally and (tally.responses or tally.own.total()) else {}

    def _evict(self) -> int:
        """Drop the oldest drafts above the capacity, in the order of step and key; returns how many."""
        excess = len(self._stored_at) - self.plan.capacity
        if excess > 0:
            for key in sorted(self._stored_at, key=lambda key: (self._stored_at[key], key))[:excess]:
                self.memory.drop(key)
                del self._stored_at[key]
        return max(excess, 0)

    def _save(self, folder: Path) -> None:
        """Write the responses of this step, and remove the file with fewer of them."""
        content = pack_groups([self._new[key] for key in sorted(self._new)])
        name = f"step-{self._step}-{_hash(content)}.arrow"
        write_atomically(folder / name, content)
        for other in files_of(folder).get(self._step or 0, []):
            if other.name != name:
                other.unlink()

    def _restore(self, step: int) -> None:
        """Read what earlier steps saved, and remove what this one and later ones did."""
        if self.plan.folder is None:
            return
        for saved_at, files in files_of(self.plan.folder).items():
            for file in files:
                if saved_at >= step:
                    file.unlink()
                    continue
                for group in _read(file):
                    self.memory.put(group)
                    self._stored_at[group.prompt] = saved_at

    def _remove_unused(self, step: int) -> None:
        """Remove files whose drafts are not in use since a step that verl has a checkpoint of."""
        if self.plan.folder is None:
            return
        used, files = set(self._stored_at.values()), files_of(self.plan.folder)
        self._unused = {s: self._unused.get(s, step) for s in files if s not in used}
        latest = self.plan.folder.parent / LATEST
        text = latest.read_text(encoding="utf-8").strip() if latest.exists() else ""
        for saved_at, since in self._unused.items():
            if text.isdecimal() and int(text) >= since:
                for file in files[saved_at]:
                    file.unlink()


def files_of(folder: Path) -> dict[int, list[Path]]:
    """Files of drafts by step, ascending."""
    found: dict[int, list[Path]] = {}
    for file in folder.glob("step-*.arrow"):
        if match := FILE.fullmatch(file.name):
            found.setdefault(int(match[1]), []).append(file)
    return dict(sorted(found.items()))


def prepare_folder(plan: Plan) -> None:
    """Make the folder of a run's drafts, with a file of their setup.

    Raises:
        UserError: if the folder has drafts of another setup, or of one that is not known.
    """
    if plan.folder is None:
        return
    file, setup = plan.folder / "setup.json", setup_text(plan.setup)
    if files_of(plan.folder):
        saved = saved if isinstance(saved := read_json(file), dict) else {}
        different = sorted(key for key in setup.keys() | saved.keys() if setup.get(key) != saved.get(key))
        if different:
            raise UserError(
                "the drafts in this folder are of another model, tokenizer or rule",
                file=file,
                key=different[0],
                value=setup.get(different[0]),
                allowed=str(saved.get(different[0])),
                hint=f"remove {plan.folder} to train without them, or set trainer.default_local_dir",
            )
    plan.folder.mkdir(parents=True, exist_ok=True)
    write_json(file, setup)


def key_of(prompt: list[int], sample: int) -> int:
    """Key of a draft, 63 bits: a hash of the prompt's tokens and the sample's index."""
    content = np.array([sample, *prompt], dtype=np.int64).tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 1


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _read(file: Path) -> list[Group]:
    """Groups of a file, whose name has the hash of its content."""
    content, match = file.read_bytes(), FILE.fullmatch(file.name)
    if match is None or _hash(content) != match[2]:
        raise UserError("this file of drafts is damaged", file=file, hint="remove it to train without these drafts")
    with described(file):
        return unpack_groups(content)
