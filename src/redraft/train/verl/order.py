"""In which order verl trains on the problems: each pass in an order of its own, the same as the local trainer's.

verl 0.9.1 shuffles with one generator for all passes and offers no sampler in its configuration. `in_epoch_order` puts
this one into the loader that it made.
"""

from collections.abc import Iterator

from torch.utils.data import Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from redraft.rollout.streams import stream


class EpochOrder(Sampler[int]):
    """Indices of one pass after the other. A pass begins when an iterator is asked for after the last was used up.

    Args:
        size: number of problems.
        seed: of the run.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed, self.epoch = size, seed, 0

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> "Pass":
        return Pass(self, self.epoch)

    def of_epoch(self, epoch: int) -> list[int]:
        """Indices of one pass, in order."""
        return stream(self.seed, "order", epoch).permutation(self.size).tolist()


class Pass(Iterator[int]):
    """What is left of one pass; torchdata saves and restores it with the loader's state.

    The pass ends when it is asked for more than there is, and not when the loader makes another iterator, which it also
    does to look at a state or to restore one.
    """

    def __init__(self, sampler: EpochOrder, epoch: int) -> None:
        self.sampler = sampler
        self._go_to(epoch, 0)

    def _go_to(self, epoch: int, done: int) -> None:
        self.epoch, self.done, self.order = epoch, done, self.sampler.of_epoch(epoch)

    def __next__(self) -> int:
        if self.done == len(self.order):
            self.sampler.epoch = self.epoch + 1
            raise StopIteration
        self.done += 1
        return self.order[self.done - 1]

    def state_dict(self) -> dict[str, int]:
        """Which pass, and how many of its indices were given out."""
        return {"epoch": self.epoch, "done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on from there; where all were given out, an iterator that is made afresh begins the next pass."""
        self._go_to(state["epoch"], state["done"])
        self.sampler.epoch = self.epoch + (self.done == len(self.order))


def in_epoch_order(loader: StatefulDataLoader, seed: int) -> StatefulDataLoader:
    """A loader of the same batches' size, whose state can be saved and restored, over the same data in this order."""
    return StatefulDataLoader(
        loader.dataset, batch_size=loader.batch_size, sampler=EpochOrder(len(loader.dataset), seed), drop_last=True,
        num_workers=0, collate_fn=loader.collate_fn,
    )  # fmt: skip
