"""Decoding steps as CUDA graphs: a step's work is captured once for each shape, and replayed as often as it is needed.

A pass over a model is hundreds of small kernels. Launched one by one from Python, they leave a GPU idle while few
responses decode; a graph launches them all at once. It repeats exactly the captured kernels on the same memory, so a
step must never wait for the device, must not branch on computed values, and must keep all state in tensors with fixed
addresses. Few shapes are captured: a step is padded to the next larger one.

Source: PyTorch's notes on CUDA semantics, section "CUDA Graphs": a side stream for warming up and capturing, and one
memory pool for graphs that never run at once and hand nothing to each other.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

ROWS, SPAN = 8, 128
"""Smallest steps between shapes, in rows and slots; larger steps are half a power of two. Above the smallest shapes at
most a third of the rows, and of the slots, is padding."""
WARM_UP = 2
"""Steps of a shape before its capture, in which libraries choose kernels and allocate their workspace."""

Work = Callable[[], None]


class Shape(NamedTuple):
    """What a step depends on besides tensors.

    Attributes:
        rows: rows of the pass.
        span: slots that it attends to.
        noisy: whether a row samples by Gumbel noise.
        top: most probable tokens stored of each distribution.
    """

    rows: int
    span: int
    noisy: bool
    top: int

    def padded(self, rows: int, span: int) -> "Shape":
        """The next larger of few shapes, with at most `rows` rows and `span` slots."""
        return self._replace(rows=min(_round_up(self.rows, ROWS), rows), span=min(_round_up(self.span, SPAN), span))


def _round_up(number: int, least: int) -> int:
    """The next multiple of the smallest step, or of half a power of two if that is larger."""
    step = max(least, 1 << max((number - 1).bit_length() - 2, 0))
    return -(-number // step) * step


def capturable(model: PreTrainedModel) -> bool:
    """Whether a pass of a model can be captured: not if it branches on positions, as some rotary embeddings do, or
    routes tokens to experts.
    """
    kinds: set[str] = set()
    for module in model.modules():
        kind = getattr(module, "rope_type", ())
        kinds |= {kind} if isinstance(kind, str) else set(dict(kind).values())
    branches = any("dynamic" in kind or kind == "longrope" for kind in kinds)
    return not branches and not any("experts" in key and value for key, value in model.config.to_dict().items())


class CudaCapture:
    """Captures work as CUDA graphs that share memory, so that only one may run at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._stream = device, torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def warm_up(self, work: Work) -> None:
        """Do work on the capturing stream."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            work()
        current.wait_stream(self._stream)

    def capture(self, work: Work) -> Work:
        """Capture work that `warm_up` has done before; the result replays it."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        return graph.replay


class Graphs:
    """The captured steps of a model.

    Args:
        model: its weights may change in place; graphs are dropped if a tensor has another address.
        capture: creates the object that captures; called again whenever graphs are dropped.

    Attributes:
        captured: number of captures so far, including those of dropped graphs.
    """

    def __init__(self, model: PreTrainedModel, capture: Callable[[], CudaCapture]) -> None:
        self._model, self._make, self.captured = model, capture, 0
        self._addresses: list[int] = []
        self.check()

    def check(self) -> None:
        """Drop all graphs if any of the model's tensors has another address."""
        addresses = [tensor.data_ptr() for tensor in (*self._model.parameters(), *self._model.buffers())]
        if addresses != self._addresses:
            self._addresses, self._capture = addresses, self._make()
            self._warmed: dict[Shape, int] = {}
            self._replays: dict[Shape, Work] = {}

    def run(self, shape: Shape, work: Work) -> None:
        """Do a step.

        Args:
            shape: steps of equal shape run the same kernels; only the content of the tensors differs.
        """
        if shape not in self._replays:
            if self._warmed.get(shape, 0) < WARM_UP:
                self._warmed[shape] = self._warmed.get(shape, 0) + 1
                self._capture.warm_up(work)  # this is a real step, whose tokens count
                return
            # A capture only records the kernels; the replay below computes the step.
            self._replays[shape] = self._capture.capture(work)
            self.captured += 1
        self._replays[shape]()
