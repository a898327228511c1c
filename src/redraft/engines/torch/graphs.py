"""Decoding steps as CUDA graphs: a step's work is captured once for each shape, and replayed as often as it is needed.

A pass over a model is hundreds of small kernels; started one by one, as Python asks for them, they keep a GPU waiting
while few responses decode. A graph starts them all at once. It repeats exactly what was captured, on the same memory:
so a step must wait for nothing, decide nothing by what it computed, and have all that changes in tensors that stay
where they are. Few shapes are captured, since a step takes the next larger one.

Source: PyTorch's notes on CUDA semantics, section "CUDA Graphs": a side stream for warming up and capturing, and one
memory pool for graphs that never run at once and hand nothing to each other.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

ROWS, SPAN = 8, 128
"""Smallest steps between shapes; larger ones are half a power of two. Beyond the smallest, a third of the rows, and of
the slots, is padding at most."""
WARM_UP = 2
"""Steps of a shape before it is captured, in which libraries choose kernels and allocate their workspace."""

Work = Callable[[], None]


class Shape(NamedTuple):
    """What a step depends on beside tensors.

    Attributes:
        span: slots that it attends to.
        noisy: whether a row draws by Gumbel noise.
        top: most probable tokens noted of each distribution.
    """

    rows: int
    span: int
    noisy: bool
    top: int

    def padded(self, rows: int, span: int) -> "Shape":
        """The next larger of few shapes, with at most so many rows and so large a span."""
        return self._replace(rows=min(_next(self.rows, ROWS), rows), span=min(_next(self.span, SPAN), span))


def _next(number: int, least: int) -> int:
    """The next multiple of the smallest step, or of half a power of two if that is larger."""
    step = max(least, 1 << max((number - 1).bit_length() - 2, 0))
    return -(-number // step) * step


def capturable(model: PreTrainedModel) -> bool:
    """Whether a pass of a model can be captured: not if it looks at positions, as some rotary embeddings do, or at who
    goes to which expert.
    """
    kinds: set[str] = set()
    for module in model.modules():
        kind = getattr(module, "rope_type", ())
        kinds |= {kind} if isinstance(kind, str) else set(dict(kind).values())
    looks = any("dynamic" in kind or kind == "longrope" for kind in kinds)
    return not looks and not any("experts" in key and value for key, value in model.config.to_dict().items())


class CudaCapture:
    """Captures work as CUDA graphs that share memory; of these only one may run at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Work) -> None:
        """Do work on the stream that captures."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            work()
        current.wait_stream(self._stream)

    def capture(self, work: Work) -> Work:
        """Capture work that was done on the same stream before."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        return graph.replay


class Graphs:
    """The captured steps of a model.

    Args:
        model: whose weights are updated in place; graphs are dropped if they have moved.

    Attributes:
        captured: captures so far, those of dropped graphs included.
    """

    def __init__(self, model: PreTrainedModel, capture: Callable[[], CudaCapture]) -> None:
        self._model, self._make, self.captured = model, capture, 0
        self._places: list[int] = []
        self.check()

    def check(self) -> None:
        """Drop all graphs if any of the model's tensors lies elsewhere now."""
        places = [tensor.data_ptr() for tensor in (*self._model.parameters(), *self._model.buffers())]
        if places != self._places:
            self._places, self._capture = places, self._make()
            self._warmed: dict[Shape, int] = {}
            self._replays: dict[Shape, Work] = {}

    def run(self, shape: Shape, work: Work) -> None:
        """Do a step.

        Args:
            shape: two steps of equal shape do the same, but for what is in the tensors.
        """
        if shape not in self._replays:
            if self._warmed.get(shape, 0) < WARM_UP:
                self._warmed[shape] = self._warmed.get(shape, 0) + 1
                self._capture.warm_up(work)  # a step as any other: its tokens count
                return
            self._replays[shape] = self._capture.capture(work)
            self.captured += 1
        self._replays[shape]()
