"""EfficientRollout's printed numbers next to the predictions of the roofline and the simulator.

`python -m benchmarks self_speculation`. Without the published sweep (REDRAFT_PUBLISHED) its fit is left out. Nothing is
tuned to a printed reduction; docs/selfspec.md says what is assumed.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from redraft.analysis.figures.roofline_points import published_fit
from redraft.cli.terminal import table
from redraft.config import Experiments
from redraft.lab.selfspec.command_results import parameters
from redraft.lab.selfspec.simulate import Acceptance, Quantiles, SimulatedEngine, Speculation, simulate_rollout
from redraft.layout import published_data
from redraft.selfspec.calibration import Calibration, read_calibration
from redraft.selfspec.constants import ModelConstants, model_constants
from redraft.selfspec.roofline import target_seconds

EXPERIMENTS, PAPER = Experiments(Path(__file__).parents[1]), "efficient_rollout"
SOURCE = next(p.roofline for f in EXPERIMENTS.figures(PAPER).figures for p in f.panels if p.roofline)
"""The published sweep, as the paper's figures declare it."""
FOLDER, SWEEP = Path(SOURCE.file).parts
RELEASED = "a100_tp1_qwen257b.json"
TABLE, _ = EXPERIMENTS.measured_model(PAPER, SOURCE)
TFLOPS, PEAK_BANDWIDTH = SOURCE.flops, TABLE.bandwidth
"""Throughput by the authors' benchmark of matrix products, and the A100's data sheet; operations/s and bytes/s."""

CONFIGURATIONS: dict[str, dict[str, object]] = {model.label: model.configuration for model in TABLE.models}
"""What roofline and simulator need of the models' config.json, as the paper's Table 3 declares it."""
MODELS: dict[str, ModelConstants] = {name: model_constants(config) for name, config in CONFIGURATIONS.items()}
FITTED = {
    "Qwen2.5-7B": (1.617, 26205, 1.334, 39.0, 69.0, 152.3),
    "Qwen2.5-14B": (1.564, 48070, 1.271, 50.0, 153.9, 232.3),
    "Llama3.1-8B": (1.566, 25163, 1.405, 74.0, 86.1, 214.2),
}
"""The authors' calibrations: TB/s, κ_eff, η_d, c_T, c_D, c_V."""

CURVES = {
    "Qwen2.5-7B": ((0.5, 13.0), (0.9, 22.0), (0.99, 30.0), (1.0, 88.0)),
    "Llama3.1-8B": ((0.5, 10.0), (0.9, 16.0), (0.99, 30.0), (1.0, 123.0)),
}
"""Shares of requests that have finished, and seconds (Appendix A). None is printed for Qwen2.5-14B."""
RESPONSES, ENGINES = 1024, 8
"""128 prompts with 8 responses each, on 8 GPUs (section 5.1)."""
LONGEST = 8192
SHORTEST, PROMPT = 100, 200
"""Tokens, assumed."""


@dataclass(frozen=True)
class Printed:
    """A model's row of Table 2.

    Attributes:
        plain: seconds of a rollout without speculation.
        always: α, γ and change (%) of quantised self-speculation that is always on.
        efficient: α, mean γ and change (%) of EfficientRollout.
        pass_ms: T_T within a rollout (Table 6), ms.
    """

    plain: float
    always: tuple[float, int, float]
    efficient: tuple[float, float, float]
    pass_ms: float


TABLE_2 = {
    "Qwen2.5-7B": Printed(82.4, (0.982, 7, -8.2), (0.982, 8.2, -19.6), 10.45),
    "Qwen2.5-14B": Printed(126.6, (0.973, 5, 6.7), (0.976, 6.6, -16.8), 20.31),
    "Llama3.1-8B": Printed(126.4, (0.963, 5, -5.9), (0.958, 5.0, -10.7), 13.66),
}
LADDER = (5, 7, 9, 11)
CASES = (
    ("Qwen2.5-7B", "Qwen2.5-7B", LONGEST),
    ("Qwen2.5-14B", "Qwen2.5-7B", LONGEST),
    ("Qwen2.5-14B", "Qwen2.5-7B", 4108),
    ("Llama3.1-8B", "Llama3.1-8B", LONGEST),
)
"""Model, whose completion curve, and longest response; 4108 is the longest that is printed for the 14B (F.1)."""


def calibration(name: str) -> Calibration:
    """The authors' calibration of a model, as printed."""
    bandwidth, *others = FITTED[name]
    return Calibration(name, MODELS[name].costs, bandwidth * 1e12, TFLOPS, *others)


def lengths_of_curve(name: str, longest: int = LONGEST) -> Quantiles:
    """Lengths of responses whose completion curve is the printed one if each pass takes the calibrated T_T.

    Between its points the curve is straight. What has not finished by a second is active, evenly on all engines.
    """
    of_model, step = calibration(name), 0.01
    shares, seconds = (np.array(column) for column in zip(*((0.0, 0.0), *CURVES[name]), strict=True))
    times = np.arange(0, seconds[-1], step)
    active = np.maximum(RESPONSES / ENGINES * (1 - np.interp(times, seconds, shares)), 1)
    made = [0.0]
    for batch in active:
        made.append(made[-1] + step / float(target_seconds(of_model, batch, PROMPT + made[-1])))
    tokens = np.interp(seconds[1:-1], [*times, seconds[-1]], made).round()
    return Quantiles(tuple(shares.tolist()), (SHORTEST, *np.minimum(tokens, longest).tolist(), longest))


def mixture(gamma: float) -> Mapping[int, float]:
    """Shares of the two rungs around a mean γ."""
    low = max(rung for rung in LADDER if rung <= gamma)
    high = min((rung for rung in LADDER if rung > gamma), default=low)
    share = (gamma - low) / (high - low) if high > low else 0.0
    return {low: 1 - share, high: share} if share else {low: 1.0}


def table_2() -> list[list[str]]:
    """Rows of Table 2: seconds without speculation and changes in percent, printed and simulated."""
    rows = []
    for name, curve, longest in CASES:
        printed, lengths = TABLE_2[name], lengths_of_curve(curve, longest).lengths(RESPONSES)
        engine = SimulatedEngine(calibration(name), PROMPT, count=ENGINES)
        plain = simulate_rollout(lengths, engine, Speculation("off", 1, Acceptance((0.0,))))
        changes = []
        for mode, (alpha, gamma, change) in (("always", printed.always), ("roofline", printed.efficient)):
            seconds = sum(
                share * simulate_rollout(lengths, engine, Speculation(mode, rung, Acceptance((alpha,)))).seconds
                for rung, share in mixture(gamma).items()
            )
            simulated = 100 * (seconds / plain.seconds - 1)
            changes += [f"{change:+.1f}", f"{simulated:+.1f}", f"{simulated - change:+.1f}"]
        pass_ms = 1e3 * sum(one.seconds for one in plain.engines) / sum(one.passes for one in plain.engines)
        rows.append(
            [
                f"{name}, to {longest}",
                f"{printed.plain:.1f}",
                f"{plain.seconds:.1f}",
                *changes,
                f"{printed.pass_ms:.2f}",
                f"{pass_ms:.2f}",
            ]
        )
    return rows


def fit_published() -> None:
    """Fit the published sweep beside the published parameters."""
    began = time.process_time()
    fitted = published_fit(EXPERIMENTS, PAPER, SOURCE)
    if fitted is None:
        print("no published sweep (REDRAFT_PUBLISHED)")
        return
    (sweep, found), seconds = fitted, time.process_time() - began
    folder = published_data() / FOLDER
    pairs = zip(parameters(read_calibration(folder / RELEASED)), parameters(found.calibration), strict=True)
    print(table([sweep.model, "published", "fitted"], [[name, value, ours] for (name, value), (_, ours) in pairs]))
    print(f"{found.agreeing} of {found.points} points agree in sign; {seconds:.2f} s of processor")


def main() -> None:
    """Print all comparisons."""
    fit_published()
    header = ["Table 2", "off s", "sim", "always %", "sim", "error", "efficient %", "sim", "error", "T_T ms", "sim"]
    print("\n" + table(header, table_2()))
