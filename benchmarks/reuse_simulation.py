"""SPEC-RL's printed seconds (Table 4) next to the simulator's prediction from published data alone; nothing is tuned.

`python -m benchmarks reuse_simulation`. A step of SPEC-RL scores the last epoch's responses in one pass, which counts
as computing alone, and decodes what was rejected. What is known: tokens of a run (Table 1), 1024 prompts a step, 4096
tokens at most, steps of an epoch, the models, "a single node with NVIDIA H100 GPUs". What is assumed, and what follows
from assuming otherwise, is in docs/selfspec.md.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from benchmarks.self_speculation import PROMPT, calibration, lengths_of_curve
from redraft.cli.terminal import table
from redraft.lab.selfspec.simulate import Acceptance, SimulatedEngine, Speculation, simulate_rollout
from redraft.selfspec.calibration import Calibration
from redraft.selfspec.constants import ModelConstants, model_constants

REPORTED = Path(__file__).parents[1] / "experiments/spec_rl/reported"
ROLLOUTS, LONGEST, FIRST_EPOCH = 8192, 4096, 6
"""1024 prompts with 8 responses each in a step; tokens; steps of 1024 of 6,144 prompts, in which nothing is reused."""

CONFIGURATIONS: dict[str, dict[str, object]] = {
    "qwen3-1.7b-base": {
        "model_type": "qwen3",
        "hidden_size": 2048,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 6144,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "qwen3-8b-base": {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
    },
    "llama-3.2-1b-instruct": {
        "model_type": "llama",
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "intermediate_size": 8192,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
}
"""What roofline and simulator need of the models' config.json."""
MODELS: dict[str, ModelConstants] = {name: model_constants(config) for name, config in CONFIGURATIONS.items()}
CALIBRATED = {"qwen3-1.7b-base": "Qwen2.5-7B", "qwen3-8b-base": "Qwen2.5-7B", "llama-3.2-1b-instruct": "Llama3.1-8B"}
"""EfficientRollout's nearest model, whose calibration is used."""
PEAKS = {"A100": (2.039e12, 312e12), "H100": (3.35e12, 989.4e12)}
"""Data sheets: bytes/s of memory, dense 16-bit operations/s."""


@dataclass(frozen=True)
class Assumed:
    """What the paper does not say.

    Attributes:
        device: whose effective bandwidth and throughput; an H100's are the A100's times the ratio of the data sheets.
        gpus: engines that share a rollout.
        slots: responses that an engine decodes at once.
        tail: whether lengths spread as EfficientRollout's for Qwen2.5-7B, instead of being all the same.
    """

    device: str = "H100"
    gpus: int = 8
    slots: int = 256
    tail: bool = True

    def calibration(self, model: str) -> Calibration:
        """The roofline of a model."""
        fitted = calibration(CALIBRATED[model]).of_model(MODELS[model])
        bandwidth, flops = (new / old for new, old in zip(PEAKS[self.device], PEAKS["A100"], strict=True))
        return replace(fitted, bandwidth=fitted.bandwidth * bandwidth, flops=fitted.flops * flops)

    def lengths(self, mean: float) -> np.ndarray:
        """Lengths of one engine's responses with this mean, in the order in which they begin; float64 (n,)."""
        count = ROLLOUTS // self.gpus
        shape = lengths_of_curve("Qwen2.5-7B").lengths(count)

        def scaled(factor: float) -> np.ndarray:
            return np.clip(np.round(shape * factor), 1, LONGEST)

        factor = brentq(lambda factor: float(scaled(factor).mean()) - mean, 0.001, 10, xtol=1e-6)
        lengths = scaled(float(factor)) if self.tail else np.full(count, round(mean, 0))
        return np.random.default_rng(0).permutation(lengths)


@dataclass(frozen=True)
class Setting:
    """A model and algorithm of Table 4.

    Attributes:
        model: its name in the tables.
        algorithm: the same.
        printed: seconds of a step: `vanilla`, `rollout`, `verification` (of SPEC-RL).
        tokens: mean decoded tokens of a response over the run, without and with reuse.
        steps: of the run.
    """

    model: str
    algorithm: str
    printed: dict[str, float]
    tokens: tuple[float, float]
    steps: tuple[int, int]


def settings() -> Iterator[Setting]:
    """The nine settings of Table 4, with the tokens of Table 1."""
    keys = ["model", "algorithm", "method", "column"]
    seconds = pd.read_csv(REPORTED / "table04.csv").set_index(keys)["value"]
    counts = pd.read_csv(REPORTED / "table01.csv").dropna(subset="algorithm")
    counts = counts[counts["column"] == "tokens_m"].set_index(keys[:3])
    for model, algorithm in dict.fromkeys((one[0], one[1]) for one in seconds.index):
        of_both = [counts.loc[(model, algorithm, method)] for method in ("vanilla", "spec-rl")]
        steps = [int(one["step"] if np.isnan(one["gen_step"]) else one["gen_step"]) for one in of_both]
        tokens = [1e6 * one["value"] / step / ROLLOUTS for one, step in zip(of_both, steps, strict=True)]
        printed = {
            "vanilla": seconds[model, algorithm, "vanilla", "rollout_s"],
            "rollout": seconds[model, algorithm, "spec-rl", "rollout_s"],
            "verification": seconds[model, algorithm, "spec-rl", "verification_s"],
        }
        yield Setting(model, algorithm, printed, (tokens[0], tokens[1]), (steps[0], steps[1]))


def scoring_seconds(of_model: Calibration, lengths: np.ndarray) -> float:
    """Seconds in which a device scores sequences of these lengths: computing alone; each position sees those before."""
    operations = of_model.costs.dense_flops * lengths + of_model.costs.attention_flops * lengths**2 / 2
    return float(np.sum(operations)) / of_model.flops


def decoding_seconds(of_model: Calibration, lengths: np.ndarray, before: float, slots: int) -> float:
    """Decoding time in seconds of responses of these lengths, after a context of this mean length."""
    plain = Speculation("off", 1, Acceptance((0.0,)))
    return simulate_rollout(lengths[lengths >= 1], SimulatedEngine(of_model, before, slots), plain).seconds


def shortened(lengths: np.ndarray, share: float) -> np.ndarray:
    """Decoded lengths if every response keeps the same share of its tokens."""
    return np.round(lengths * share)


def reused_whole(lengths: np.ndarray, share: float) -> np.ndarray:
    """Decoded lengths if some responses of every length are reused completely and the others not at all."""
    order = np.argsort(lengths, kind="stable")  # the default orders ties otherwise on another processor
    ranks = np.argsort(order)
    return lengths * (np.floor((ranks + 1) * share) > np.floor(ranks * share))


Reuse = Callable[[np.ndarray, float], np.ndarray]
REUSE: dict[str, Reuse] = {"each shortened": shortened, "some taken whole": reused_whole}
"""Two ways to reuse the same number of tokens; the paper's full reuse ratio of 0.6 to 0.85 is between them."""


def simulated(setting: Setting, assumed: Assumed, reuse: Reuse) -> dict[str, float]:
    """Mean seconds of a step of `vanilla`, `rollout` and `verification`.

    Steps of the first epoch decode everything; later steps decode the rest of the run's tokens.
    """
    of_model, (plain, with_reuse), steps = assumed.calibration(setting.model), setting.tokens, setting.steps[1]
    lengths = assumed.lengths(plain)
    reused_steps = steps - FIRST_EPOCH
    share = (with_reuse * steps - plain * FIRST_EPOCH) / reused_steps / plain
    rest = reuse(lengths, share)
    prefix = float(np.mean((lengths - rest)[rest >= 1]))
    vanilla = decoding_seconds(of_model, lengths, PROMPT, assumed.slots)
    later = decoding_seconds(of_model, rest, PROMPT + prefix, assumed.slots)
    return {
        "vanilla": vanilla,
        "rollout": (FIRST_EPOCH * vanilla + reused_steps * later) / steps,
        "verification": reused_steps / steps * scoring_seconds(of_model, PROMPT + lengths),
    }


def speedups(seconds: dict[str, float]) -> tuple[float, float]:
    """Of the rollout alone, as the paper prints it, and with verification."""
    rollout, verification = seconds["rollout"], seconds["verification"]
    return seconds["vanilla"] / rollout, seconds["vanilla"] / (rollout + verification)


def table_4() -> list[list[str]]:
    """Rows of Table 4: printed seconds and speedups, and ours for both models of reuse."""
    rows = []
    for setting in settings():
        both = [simulated(setting, Assumed(), reuse) for reuse in REUSE.values()]
        row = [f"{setting.model}, {setting.algorithm.upper()}"]
        for stage in ("vanilla", "rollout", "verification"):
            found = dict.fromkeys(f"{one[stage]:.1f}" for one in both)
            row += [f"{setting.printed[stage]:.1f}", " to ".join(found)]
        for printed, *ours in zip(speedups(setting.printed), *map(speedups, both), strict=True):
            row += [f"{printed:.2f}", " to ".join(f"{one:.2f}" for one in ours)]
        rows.append(row)
    return rows


VARIANTS = {
    "as above": Assumed(),
    "the A100 that was calibrated": Assumed(device="A100"),
    "4 GPUs": Assumed(gpus=4),
    "1024 responses at once": Assumed(slots=1024),
    "all responses equally long": Assumed(tail=False),
}


def variants() -> list[list[str]]:
    """Rows of assumptions: means over settings of simulated over printed of each stage, and errors of both speedups."""
    rows = []
    for name, assumed in VARIANTS.items():
        for end, reuse in REUSE.items():
            ratios, errors = [], []
            for setting in settings():
                ours = simulated(setting, assumed, reuse)
                ratios.append([ours[stage] / seconds for stage, seconds in setting.printed.items()])
                pairs = zip(speedups(ours), speedups(setting.printed), strict=True)
                errors.append([100 * (one / printed - 1) for one, printed in pairs])
            rows.append(
                [
                    name,
                    end,
                    *(f"{ratio:.2f}" for ratio in np.mean(ratios, 0)),
                    *(f"{error:+.0f}" for error in np.mean(errors, 0)),
                ]
            )
    return rows


def main() -> None:
    """Print both comparisons."""
    header = [
        "Table 4",
        "vanilla s",
        "sim",
        "rollout s",
        "sim",
        "verification s",
        "sim",
        "speedup",
        "sim",
        "with verification",
        "sim",
    ]
    print(table(header, table_4()))
    stages = ["vanilla", "rollout", "verification", "speedup %", "with verification %"]
    print("\n" + table(["sim / printed", "reuse", *stages], variants()))
