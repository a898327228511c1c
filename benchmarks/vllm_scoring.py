"""Cost of reading the log-probs of drafts out of vLLM, against the forward pass that computes them.

Each draft has 1,024 tokens and is one request. The alternatives differ in the request and in the reading of its answer:

- bare: one new token only, so the forward pass and vLLM's scheduling alone;
- objects: `prompt_logprobs=0`, with one dictionary and one object per token;
- flat, row by row: `flat_logprobs=True`, read as a sequence of dictionaries, like verl's server does;
- flat: `flat_logprobs=True`, its list of floats read directly;
- in the worker: a bare request, and a hook on the model's forward pass. The hook scores the draft's rows, decides on
  them and keeps one number per draft, which is fetched at the end. `collective_rpc` installs it, so vLLM is not
  changed. It needs an eager model and reads the runner's batch, which is no public interface.

Two other ways fail in plain vLLM 0.31. Logits processors see only the last row of a prompt. `prompt_logprob_token_ids`
gives arrays instead of objects, but only for at most 128 tokens that are the same in every row, and only with the
runner that needs Triton.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.side_by_side import line, ratio, seconds
from redraft.config import TinyModel
from redraft.engines import vllm_local
from redraft.rollout.acceptance.ratio import first_rejection
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import models

from vllm import SamplingParams  # isort: skip  # after the environment variables of vllm_local
from vllm.inputs.engine import tokens_input  # isort: skip
from vllm.sampling_params import RequestOutputKind  # isort: skip

PROMPT, DRAFT = 21, 1024
TINY_VOCABULARY = 44
CASES = ((TINY_VOCABULARY, 64, 5), (TINY_VOCABULARY, 256, 3), (32_768, 8, 2))
"""Size of the vocabulary, number of drafts, number of rounds."""
LENIENCE = np.exp(0.5)
BARE = {"max_tokens": 1, "detokenize": False, "skip_reading_prefix_cache": True}


def save(vocabulary: int, folder: Path) -> Path:
    """Save the tiny preset's model with random weights, another vocabulary size and more positions."""
    model = models.initialise(TinyModel(), make_tokenizer())
    if vocabulary != TINY_VOCABULARY:
        model.resize_token_embeddings(vocabulary, mean_resizing=False)
    model.config.max_position_embeddings = 2048
    model.save_pretrained(folder)
    return folder


def install_acceptance(worker: Any) -> None:
    """Install the hook on a worker's model; it decides on drafts by the `extra_args` of their requests."""
    runner, model = worker.model_runner, worker.model_runner.get_model()
    worker.prefixes = {}

    def decide(_: torch.nn.Module, __: Any, hidden: torch.Tensor) -> None:
        starts = runner.query_start_loc.np
        for row, name in enumerate(runner.input_batch.req_ids):
            request = runner.requests[name]
            given = request.sampling_params.extra_args
            if not given or name in worker.prefixes:
                continue
            first, old, u = given["first"], given["old_log_probs"], given["uniforms"]
            rows = hidden[starts[row] + first : starts[row] + first + len(old)]
            law = model.compute_logits(rows).float().log_softmax(-1)
            draft = torch.tensor(request.prompt_token_ids[first + 1 :])
            new = law.gather(1, draft[:, None])[:, 0].numpy()
            worker.prefixes[name] = int(first_rejection(new[None], old[None], u[None], [len(old)], LENIENCE)[0])

    worker.decide = model.register_forward_hook(decide)


def take_prefixes(worker: Any) -> dict[str, int]:
    """Return and reset the prefix lengths by request."""
    taken, worker.prefixes = worker.prefixes, {}
    return taken


def remove_acceptance(worker: Any) -> None:
    """Remove the hook."""
    worker.decide.remove()


class Work:
    """The same drafts for each alternative, and the same decision on them."""

    def __init__(self, folder: Path, vocabulary: int, count: int) -> None:
        rng = np.random.default_rng(0)
        self.sequences = rng.integers(2, vocabulary, (count, PROMPT + DRAFT)).tolist()
        self.old = -rng.standard_exponential((count, DRAFT)).astype(np.float32) - np.float32(np.log(vocabulary))
        self.uniforms = 1.0 - rng.random((count, DRAFT))
        size = 2 * 2 * 96 * 4 * (count + 1) * 2 * DRAFT  # two layers' keys and values, with room to spare
        self.vllm = vllm_local.LocalVLLM(folder, PROMPT + DRAFT + 1, count, cache_bytes=size)
        self.prefixes: dict[str, list[int]] = {}

    def _serve(self, settings: Callable[[int], dict[str, Any]]) -> list[Any]:
        """Serve all drafts; returns vLLM's answers in order."""
        engine, answers = self.vllm.engine, {}
        engine.reset_prefix_cache()
        for i, sequence in enumerate(self.sequences):
            params = SamplingParams(**settings(i), output_kind=RequestOutputKind.FINAL_ONLY)
            engine.add_request(str(i), tokens_input(sequence), params)
        while engine.has_unfinished_requests():
            answers.update({output.request_id: output for output in engine.step()})
        return [answers[str(i)] for i in range(len(self.sequences))]

    def _decide(self, name: str, log_probs: list[list[float]]) -> None:
        new = np.array([row[-DRAFT:] for row in log_probs], dtype=np.float32)
        cut = first_rejection(new, self.old, self.uniforms, [DRAFT] * len(new), float(LENIENCE))
        self.prefixes[name] = cut.tolist()

    def bare(self) -> None:
        """Run the alternative "bare"."""
        self._serve(lambda _: BARE)

    def objects(self) -> None:
        """Run the alternative "objects"."""
        answers = self._serve(lambda _: BARE | {"prompt_logprobs": 0})
        self._decide("objects", [_row_by_row(answer) for answer in answers])

    def flat_row_by_row(self) -> None:
        """Run the alternative "flat, row by row"."""
        answers = self._serve(lambda _: BARE | {"prompt_logprobs": 0, "flat_logprobs": True})
        self._decide("flat, row by row", [_row_by_row(answer) for answer in answers])

    def flat(self) -> None:
        """Run the alternative "flat"."""
        answers = self._serve(lambda _: BARE | {"prompt_logprobs": 0, "flat_logprobs": True})
        self._decide("flat", [answer.prompt_logprobs.logprobs for answer in answers])

    def in_the_worker(self) -> None:
        """Run the alternative "in the worker"."""
        engine = self.vllm.engine
        engine.collective_rpc(install_acceptance)
        self._serve(
            lambda i: (
                BARE | {"extra_args": {"first": PROMPT - 1, "old_log_probs": self.old[i], "uniforms": self.uniforms[i]}}
            )
        )
        (taken,) = engine.collective_rpc(take_prefixes)
        engine.collective_rpc(remove_acceptance)
        by_request = {name.split("-")[0]: prefix for name, prefix in taken.items()}
        self.prefixes["in the worker"] = [by_request[str(i)] for i in range(len(self.sequences))]


def _row_by_row(answer: Any) -> list[float]:
    """Log-prob of the first entry of each row's dictionary."""
    return [row[next(iter(row))].logprob for row in answer.prompt_logprobs[1:]]


def main() -> None:
    """Print seconds and ratios to the bare request; fails if two alternatives cut a draft at different tokens."""
    for vocabulary, count, rounds in CASES:
        with tempfile.TemporaryDirectory() as folder:
            work = Work(save(vocabulary, Path(folder)), vocabulary, count)
            alternatives: dict[str, Callable[[], object]] = {
                "bare forward pass": work.bare, "objects": work.objects, "flat, row by row": work.flat_row_by_row,
                "flat": work.flat, "in the worker": work.in_the_worker,
            }  # fmt: skip
            measured = seconds(alternatives, rounds, process_time)
            work.vllm.close()
        print(f"vLLM, scoring {count} drafts x {DRAFT} tokens, vocabulary {vocabulary}: CPU seconds")
        for name, values in measured.items():
            print(f"{line(name, values)}  {ratio(values, measured['bare forward pass']):.2f} of bare")
        assert len({tuple(cut) for cut in work.prefixes.values()}) == 1, "the alternatives decide differently"


if __name__ == "__main__":
    main()
