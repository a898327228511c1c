"""Cost of scoring drafts in vLLM, against its minimum: the forward pass, and the head's product for drafts.

Each draft is one request. The alternatives differ in the request and in the worker that serves it:

- bare: one new token only, so the forward pass and vLLM's scheduling alone;
- head: the product of the head with as many hidden states as the drafts have tokens, without requests; bare and head
  together are the limit;
- worker: `prompt_logprobs=0`, served by `redraft.engines.vllm.worker` and read as the engine in this process does;
- worker, read by rows: the same, read as a sequence of dictionaries, like verl's servers do;
- worker, top 32: the distribution's top as well, for exact rules;
- stock, and with the top 32: the same requests, served by the method of vLLM's runner that the worker replaces.

Where drafts of a group share their prompt, the worker's requests read it from the prefix cache and the others do not.
Memory is the growth of the process's peak over that of bare requests.
"""

import os
import resource
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from types import MethodType
from typing import Any

import numpy as np

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.side_by_side import line, ratio, seconds
from benchmarks.vllm_rollout import TINY_VOCABULARY, save
from redraft.config import TinyModel
from redraft.engines.torch.head import LOGITS_AT_ONCE
from redraft.engines.vllm import local as vllm_local
from redraft.engines.vllm.in_process import to_output
from redraft.methods.acceptance.ratio import SpecRLRule
from redraft.methods.acceptance.rule import Distributions

from vllm import SamplingParams  # isort: skip  # after the environment variables of vllm_local
from vllm.inputs.engine import tokens_input  # isort: skip
from vllm.sampling_params import RequestOutputKind  # isort: skip

TOP = 32
LARGER = TinyModel(hidden_size=384, layers=4, heads=6, head_dim=64, intermediate_size=1152)


@dataclass(frozen=True)
class Case:
    """Drafts to score; each has its own prompt, or all share one, which then does not end at a block boundary."""

    shape: TinyModel
    vocabulary: int
    count: int
    rounds: int
    prompt: int = 21
    draft: int = 1024
    shared: bool = False


CASES = {
    "tiny preset's model": Case(TinyModel(), TINY_VOCABULARY, 64, 5),
    "hidden 384": Case(LARGER, 32_768, 8, 3),
    "hidden 384, Qwen3's vocabulary": Case(LARGER, 151_936, 2, 3),
    "a group of 8 with one prompt": Case(LARGER, 32_768, 8, 2, prompt=500, draft=512, shared=True),
}
LENIENCE = float(np.exp(0.5))
BARE = {"max_tokens": 1, "detokenize": False, "skip_reading_prefix_cache": True}


def use_stock(worker: Any, stock: bool) -> None:
    """Serve by the method that the worker's runner replaces, or by its own again."""
    runner = worker.model_runner
    if stock:
        runner._get_prompt_logprobs_dict = MethodType(type(runner).__bases__[0]._get_prompt_logprobs_dict, runner)
    else:
        del runner._get_prompt_logprobs_dict


def multiply(worker: Any, rows: int) -> None:
    """Logits of `rows` hidden states, in chunks of the worker's size."""
    runner = worker.model_runner
    hidden = torch.randn(rows, runner.model_config.get_hidden_size(), dtype=runner.dtype, device=runner.device)
    size = max(1, LOGITS_AT_ONCE[hidden.device.type] // runner.model_config.get_vocab_size())
    with torch.inference_mode():
        for chunk in hidden.split(size):
            runner.model.compute_logits(chunk)


class Work:
    """The same drafts for each alternative, and the same decision on them."""

    def __init__(self, folder: Path, case: Case) -> None:
        rng = np.random.default_rng(0)
        self.case, count = case, case.count
        prompts = rng.integers(2, case.vocabulary, (count, case.prompt))
        drafts = rng.integers(2, case.vocabulary, (count, case.draft))
        self.sequences = np.hstack([prompts[:1].repeat(count, 0) if case.shared else prompts, drafts]).tolist()
        self.old = -rng.standard_exponential(drafts.shape).astype(np.float32) - np.float32(np.log(case.vocabulary))
        self.uniforms = 1.0 - rng.random(drafts.shape)
        shape, length = case.shape, case.prompt + case.draft
        size = 2 * shape.layers * shape.heads * shape.head_dim * 4 * (count + 1) * 2 * length  # with room to spare
        self.vllm = vllm_local.LocalVLLM(folder, length + 1, count, cache_bytes=size)
        self.prefixes: dict[str, list[int]] = {}

    def serve(self, **settings: Any) -> list[Any]:
        """Serve all drafts, with an empty cache first; returns vLLM's answers in order."""
        engine, answers = self.vllm.engine, {}
        engine.reset_prefix_cache()
        params = SamplingParams(**(BARE | settings), output_kind=RequestOutputKind.FINAL_ONLY)
        for i, sequence in enumerate(self.sequences):
            engine.add_request(str(i), tokens_input(sequence), params)
        while engine.has_unfinished_requests():
            answers.update({output.request_id: output for output in engine.step()})
        return [answers[str(i)] for i in range(len(self.sequences))]

    def head(self) -> None:
        """Run the alternative "head"."""
        self.vllm.engine.collective_rpc(multiply, args=(self.case.count * self.case.draft,))

    def scored(self, name: str, read: Callable[[Any], list[float]], top: int = 0) -> Callable[[], None]:
        """An alternative that serves by the worker."""

        def run() -> None:
            options = {"extra_args": {"scored_from": self.case.prompt - 1}, "skip_reading_prefix_cache": False}
            self._decide(name, [read(a) for a in self.serve(prompt_logprobs=top, flat_logprobs=True, **options)])

        return run

    def stock(self, name: str, read: Callable[[Any], list[float]], top: int = 0) -> Callable[[], None]:
        """An alternative that serves by vLLM's own method."""

        def run() -> None:
            engine = self.vllm.engine
            engine.collective_rpc(use_stock, args=(True,))
            self._decide(name, [read(answer) for answer in self.serve(prompt_logprobs=top, flat_logprobs=True)])
            engine.collective_rpc(use_stock, args=(False,))

        return run

    def _decide(self, name: str, log_probs: list[list[float]]) -> None:
        length = self.case.draft
        new = np.array([row[-length:] for row in log_probs], dtype=np.float32)
        rule, tokens = SpecRLRule(LENIENCE), np.zeros(length, np.int32)
        drafts = (Distributions.of_tokens(tokens, *rows) for rows in zip(new, self.old, strict=True))
        judged = zip(drafts, self.uniforms, strict=True)
        self.prefixes[name] = [rule.kept(rule.accepts(draft, u)) for draft, u in judged]


def flat(answer: Any) -> list[float]:
    """Log-probs of the prompt's own tokens, out of the list of floats."""
    return [row[0] for row in to_output(answer).extra_fields["prompt_logprobs"][:-1]]


def of_tops(answer: Any) -> list[float]:
    """Log-probs of the prompt's own tokens beside the most probable ones."""
    log_probs: list[float] = answer.prompt_logprobs.logprobs
    return log_probs[:: TOP + 1]


def by_rows(answer: Any) -> list[float]:
    """Log-prob of the first entry of each row's dictionary."""
    return [row[next(iter(row))].logprob for row in answer.prompt_logprobs[1:]]


def peak() -> float:
    """Largest memory of this process so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def growth(work: Work, alternatives: dict[str, Callable[[], object]]) -> dict[str, float]:
    """MiB by which the peak grows with each alternative over what came before; the smallest comes first."""
    work.serve()
    found, before = {}, peak()
    for name in ("worker", "worker, top 32", "stock"):
        alternatives[name]()
        found[name] = peak() - before
    return found


def report(case: Case, measured: dict[str, list[float]], memory: dict[str, float]) -> None:
    """Print seconds, tokens a second, and ratios to the bare request and to the limit."""
    limit = [a + b for a, b in zip(measured["bare"], measured["head"], strict=True)]
    for name, values in (measured | {"limit: bare and head": limit}).items():
        speed = f"{case.count * case.draft / float(np.median(values)):9.0f} tokens/s"
        ratios = f"{ratio(values, measured['bare']):6.2f} of bare {ratio(values, limit):6.2f} of the limit"
        print(f"{line(name, values)}  {speed}  {ratios}" + (f"  {memory[name]:6.0f} MiB" if name in memory else ""))


def main() -> None:
    """Print a table for each case; fails if two alternatives cut a draft at different tokens."""
    for title, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            work = Work(save(case.shape, Path(folder), case.vocabulary), case)
            alternatives: dict[str, Callable[[], object]] = {
                "bare": work.serve,
                "head": work.head,
                "worker": work.scored("worker", flat),
                "worker, read by rows": work.scored("worker, read by rows", by_rows),
                "worker, top 32": work.scored("worker, top 32", of_tops, TOP),
                "stock": work.stock("stock", flat),
                "stock, top 32": work.stock("stock, top 32", of_tops, TOP),
            }
            memory = growth(work, alternatives)
            measured = seconds(f"vLLM scoring, {title}", alternatives, case.rounds, process_time)
            work.vllm.close()
        print(f"vLLM, {title}: {case.count} drafts x {case.draft} tokens, vocabulary {case.vocabulary}: CPU seconds")
        report(case, measured, memory)
        assert len({tuple(cut) for cut in work.prefixes.values()}) == 1, "the alternatives decide differently"
