"""The draft store: earlier rollouts by prompt and sample, for two epochs, as one file in the checkpoint.

The file is safetensors (flat arrays and offsets), so that loading one never executes code. Memory is 12 bytes a
token and a few dozen a rollout.
"""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from redraft.errors import UserError
from redraft.files import write_atomically
from redraft.rollout.types import Finish, Rollout

_FINISHES = list(Finish)


class DraftStore:
    """Rollouts of the last epochs, keyed by (prompt, sample).

    Args:
        epochs: how many epochs' rollouts are kept of each key; the oldest is dropped beyond that.
    """

    def __init__(self, epochs: int = 2) -> None:
        if epochs < 1:
            raise ValueError(f"a draft store keeps at least one epoch, got {epochs}")
        self.epochs = epochs
        self._rollouts: dict[tuple[int, int], dict[int, Rollout]] = {}

    def __len__(self) -> int:
        return sum(len(by_epoch) for by_epoch in self._rollouts.values())

    def put(self, rollout: Rollout, epoch: int) -> None:
        """Keep a rollout of an epoch; one of the same key and epoch is replaced."""
        by_epoch = self._rollouts.setdefault((rollout.prompt, rollout.sample), {})
        by_epoch[epoch] = rollout
        for old in sorted(by_epoch)[: -self.epochs]:
            del by_epoch[old]

    def get(self, prompt: int, sample: int, epoch: int) -> Rollout | None:
        """The rollout that key had in that epoch, or None."""
        return self._rollouts.get((prompt, sample), {}).get(epoch)

    def save(self, file: Path) -> None:
        """Write everything to one file, atomically."""
        write_atomically(file, save(self._arrays()))

    def _arrays(self) -> dict[str, np.ndarray]:
        entries = [(e, r) for _, by_epoch in sorted(self._rollouts.items()) for e, r in sorted(by_epoch.items())]
        keys = [
            (e, r.prompt, r.sample, r.length, r.prefix_length, r.draft_length, r.verified, _FINISHES.index(r.finish))
            for e, r in entries
        ]
        empty = np.zeros(0, dtype=np.int32)
        return {
            "entries": np.asarray(keys, dtype=np.int64).reshape(len(keys), 8),
            "tokens": np.concatenate([empty, *(r.tokens for _, r in entries)]).astype(np.int32),
            "log_probs": np.concatenate([empty, *(r.log_probs for _, r in entries)]).astype(np.float32),
            "sampled_at": np.concatenate([empty, *(r.sampled_at for _, r in entries)]).astype(np.int32),
        }

    @classmethod
    def load(cls, file: Path, epochs: int = 2) -> "DraftStore":
        """Read a store written by `save`.

        Raises:
            UserError: if the file is missing, truncated or inconsistent.
        """
        try:
            return cls(epochs)._filled(load_file(file))
        except FileNotFoundError:
            raise UserError("the draft store is missing", file=file) from None
        except (SafetensorError, KeyError, ValueError, IndexError) as error:
            raise UserError(f"the draft store is damaged ({error})", file=file) from None

    def _filled(self, arrays: dict[str, np.ndarray]) -> "DraftStore":
        entries, finishes = arrays["entries"], dict(enumerate(_FINISHES))
        ends = np.cumsum(entries[:, 3])
        tokens = int(ends[-1]) if len(ends) else 0
        if any(len(arrays[name]) != tokens for name in ("tokens", "log_probs", "sampled_at")):
            raise ValueError("lengths do not add up")
        for (epoch, prompt, sample, length, prefix, draft, verified, finish), end in zip(entries, ends, strict=True):
            part = slice(int(end - length), int(end))
            rollout = Rollout(
                int(prompt), int(sample), arrays["tokens"][part], arrays["log_probs"][part],
                arrays["sampled_at"][part], finishes[int(finish)], int(prefix), int(draft), int(verified),
            )  # fmt: skip
            self.put(rollout, int(epoch))
        return self
