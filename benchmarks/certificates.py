"""Certificates of real samplers over a small transformers model with random weights.

`python -m benchmarks certificates`, or `python -m benchmarks.certificates NAME ...` for some of them: transformers'
`generate`, this project's engine with and without reuse of drafts and self-speculation, rollouts of TRL's GRPOTrainer
by its own loop and by the rollout function for it, in process and with TRL's vLLM, and vLLM with and without its own
speculation. The reference is plain forward passes of the same weights. Settings are the command's defaults. Drafts are
responses of an earlier policy, which is known to the certificate.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from redraft.certify import Certificate, Sampled, Sampler, certify
from redraft.certify.engine import EngineSampler
from redraft.certify.transformers_policy import Generate, TransformersPolicy
from redraft.cli.terminal import table
from redraft.engines.torch.drafter import QuantisedDrafter
from redraft.engines.torch.engine import TorchEngine
from redraft.engines.torch.speculation import Fixed, SpeculativeEngine
from redraft.lab.audit.enumeration import Space
from redraft.lab.audit.samplers import METHODS
from redraft.lab.audit.tiny_models import drifting
from redraft.messages import echo
from redraft.rollout.context import Meter, RolloutContext, Streams, no_reward
from redraft.rollout.memory import Memory
from redraft.rollout.types import Task

TRL = Path(__file__).parents[1] / ".venv-trl/bin/python"
"""Python of TRL's environment."""
VOCABULARY, PROMPTS, LONGEST, DRIFT = 32, 32, 48, 0.015
"""Tokens of the model, prompts, prompt and response together, and noise of the weights between the two policies."""


def models() -> tuple[Any, Any]:
    """Earlier and current policy; token 0 ends a response."""
    earlier, current = drifting(Space(VOCABULARY, 1), 2, DRIFT, seed=3, scale=0.3, head_scale=0.35)
    return earlier, current


def prompts() -> list[list[int]]:
    """Random prompts of 4 to 12 tokens."""
    rng = np.random.default_rng(0)
    return [rng.integers(1, VOCABULARY, rng.integers(4, 13)).tolist() for _ in range(PROMPTS)]


class Reuse:
    """The engine with a strategy that reuses drafts; each call begins with new drafts of the earlier policy."""

    def __init__(self, name: str, earlier: TorchEngine, current: TorchEngine) -> None:
        self.method, self.engines, self.calls, self.name = METHODS[name], (earlier, current), 0, name

    def __call__(self, prompts: list[list[int]], samples: int, max_tokens: int) -> list[list[Sampled]]:
        """Sample responses in the second of two visits."""
        memory, self.calls = Memory(self.method.retention), self.calls + 1
        for visit, engine in enumerate(self.engines):
            # A new seed: Gumbel noise is the same in all steps of a seed, so that calls would not be independent.
            streams = Streams(self.calls, visit)
            context = RolloutContext(engine, no_reward, memory, Meter(), streams, prompts, max_tokens)
            strategy = self.method.strategy()
            groups = engine.run(*(strategy(Task(i, visit, samples), context) for i in range(len(prompts))))
            for group in groups:
                memory.put(group)
        return [[Sampled(each.tokens.tolist(), each.log_probs.tolist()) for each in g.rollouts] for g in groups]


class TRLRollouts:
    """A training batch's rollouts by TRL's GRPOTrainer, in its environment (`benchmarks.trl_rollouts`)."""

    def __init__(self, rule: str, earlier: Any, current: Any, engine: str) -> None:
        folder, self.name = Path(tempfile.mkdtemp()), f"TRL, {rule}, {engine}"
        for name, model in (("earlier", earlier), ("current", current)):
            model.save_pretrained(folder / name)
        command = [TRL, "-m", "benchmarks.trl_rollouts", rule, folder / "current", folder / "earlier", engine]
        root = TRL.parents[2]
        paths = os.pathsep.join(map(str, (root, root / "src")))
        self._process = subprocess.Popen(
            list(map(str, command)),
            env=os.environ | {"PYTHONPATH": paths},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, prompts: list[list[int]], samples: int, max_tokens: int) -> list[list[Sampled]]:
        """Sample responses, all in one generation batch."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"prompts": prompts, "samples": samples, "max_tokens": max_tokens}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        tokens, log_probs = json.loads(self._process.stdout.readline())
        found = list(map(Sampled, tokens, log_probs or [None] * len(tokens)))
        return [found[i : i + samples] for i in range(0, len(found), samples)]

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


class VLLM:
    """vLLM in this process with its own worker."""

    def __init__(self, folder: Path, speculation: dict[str, Any] | None) -> None:
        from redraft.engines.vllm.local import LocalVLLM  # takes seconds

        settings = {"worker_cls": "auto", "speculative_config": speculation}
        self.vllm = LocalVLLM(folder, LONGEST, max_rows=256, **settings)

    def __call__(self, prompts: list[list[int]], samples: int, max_tokens: int) -> list[list[Sampled]]:
        """Sample responses, all in one batch."""
        request = {"temperature": 1.0, "max_tokens": max_tokens, "stop_token_ids": [0], "logprobs": True}

        async def one(prompt: list[int]) -> Sampled:
            answer = await self.vllm.generate("x", prompt_ids=prompt, sampling_params=request | {"detokenize": False})
            return Sampled(answer.token_ids, answer.log_probs)

        found = self.vllm.run(*(one(prompt) for prompt in prompts for _ in range(samples)))
        return [found[i : i + samples] for i in range(0, len(found), samples)]

    def close(self) -> None:
        """Stop vLLM."""
        self.vllm.close()


def vllm(mode: str) -> Callable[[Any, Any], Sampler]:
    """Function that starts vLLM with a way of speculation of `redraft audit vllm`."""
    from redraft.lab.audit.vllm_speculation import MODES

    def make(earlier: Any, current: Any) -> Sampler:
        folder = Path(tempfile.mkdtemp())
        for name, model in (("policy", current), ("drafter", earlier)):
            model.save_pretrained(folder / name)
        return VLLM(folder / "policy", MODES[mode](folder / "drafter"))

    return make


def engine(model: Any) -> TorchEngine:
    """The in-process engine."""
    return TorchEngine(model, stops={0}, max_length=LONGEST)


def speculating(model: Any) -> TorchEngine:
    """The in-process engine, whose drafter is a 4-bit copy of the policy."""
    return SpeculativeEngine(model, QuantisedDrafter(model, 4, 32), Fixed(2), 2, stops={0}, max_length=LONGEST)


REUSE = ("residual", "block", "one-hot", "Gumbel", "published, l = 1", "published, l = e^0.5")
RULES_IN_TRL = ("own", "none", "one_hot", "residual", "block", "published")
"""TRL's own loop, and rules of the rollout function."""
SAMPLERS: dict[str, Callable[[Any, Any], Sampler]] = {
    "transformers generate, top-k off": lambda e, c: Generate(TransformersPolicy(c, frozenset({0})), top_k=0),
    "transformers generate, top-k 20": lambda e, c: Generate(TransformersPolicy(c, frozenset({0})), top_k=20),
    "engine": lambda e, c: EngineSampler(engine(c)),
    "engine, self-speculation": lambda e, c: EngineSampler(speculating(c)),
    **{f"engine, reuse: {name}": lambda e, c, name=name: Reuse(name, engine(e), engine(c)) for name in REUSE},
    **{f"TRL, {rule}": lambda e, c, rule=rule: TRLRollouts(rule, e, c, "in-process") for rule in RULES_IN_TRL},
    **{f"TRL's vLLM, {rule}": lambda e, c, rule=rule: TRLRollouts(rule, e, c, "vllm") for rule in RULES_IN_TRL},
    **{
        f"vLLM, {mode}": lambda e, c, mode=mode: vllm(mode)(e, c)
        for mode in ("without speculation", "ngram", "draft model, drafts sampled", "draft model, drafts by argmax")
    },
}
"""By name, a function from the earlier and the current model to the sampler."""


def certificate(name: str) -> Certificate:
    """Certificate of a sampler with the command's default settings."""
    torch.manual_seed(0)
    earlier, current = (model.eval() for model in models())
    sampler = SAMPLERS[name](earlier, current)
    try:
        policy, other = (TransformersPolicy(model, frozenset({0})) for model in (current, earlier))
        return certify(sampler, policy, prompts(), others={"the earlier policy": other})
    finally:
        if isinstance(sampler, VLLM | TRLRollouts):
            sampler.close()


def main(names: Sequence[str] = ()) -> None:
    """Print a row for each sampler, and the failures' findings."""
    header = ["sampler", "verdict", "responses", "tokens", "temperature error found from", "failed by", "seconds"]
    rows = []
    for name in names or SAMPLERS:
        if name.startswith("TRL") and not TRL.exists():
            echo(f"{name}: TRL is not installed; `make trl` installs it")
            continue
        began = time.perf_counter()
        try:
            # A new process each: vLLM can be started once in a process.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                found = pool.submit(certificate, name).result()
        except ModuleNotFoundError as error:
            if error.name != "vllm":
                raise
            echo(f"{name}: vLLM is not installed")
            continue
        size, tests = found.power[0].size, found.failures
        failed = ", ".join(test.name for test in tests[:3]) + ", …" * (len(tests) > 3)
        row = [str(found.verdict), f"{found.responses:,}", f"{found.tokens:,}"]
        rows.append([name, *row, "-" if size is None else f"{size:.3f}", failed, f"{time.perf_counter() - began:.0f}"])
        echo(f"{name} {found.verdict}: {found.tokens:,} tokens")
        for test in tests:
            echo(f"  {test.name} (p = {test.p_value:.1g}): {test.finding}")
        for result in found.results:
            if result.test.name == "reported log-probabilities":
                echo(f"  {result.test.finding}")
    print(table(header, rows, left=["verdict", "failed by"], wraps=["sampler", "failed by"]))


if __name__ == "__main__":
    main(sys.argv[1:])
