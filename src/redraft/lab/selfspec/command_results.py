"""Results of `redraft calibrate`, `redraft simulate` and `redraft replay`, as rows of tables up to 80 columns wide."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from redraft.config.decoding import LONGEST_DRAFT
from redraft.errors import UserError
from redraft.files import sha256
from redraft.lab.selfspec.fit import Fit, fit, ranges_of_device, ranges_of_sweep
from redraft.lab.selfspec.replay import TracedRollout, read_rollouts, replay
from redraft.lab.selfspec.simulate import (
    MODES,
    Acceptance,
    Mode,
    RolloutTime,
    SimulatedEngine,
    Speculation,
    measured_acceptance,
    parse_quantiles,
    read_lengths,
    simulate_rollout,
    simulate_training,
)
from redraft.lab.selfspec.sweep import Sweep, read_sweep
from redraft.result_files import check_own_hash
from redraft.selfspec.calibration import Calibration, read_calibration, write_calibration
from redraft.selfspec.constants import read_model
from redraft.selfspec.controller import Control, Ladder, Roofline, SwitchRule, Threshold
from redraft.selfspec.roofline import boundary

Rows = list[list[str]]
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
"""Sequence lengths of the table of boundaries, its columns."""
LARGEST_BATCH = 4096
"""Largest batch that the table of boundaries considers."""


def calibrate(
    sweep_file: Path, model: Path, tflops: float, peak_bandwidth: float | None, draft_bits: int, out: Path
) -> tuple[Sweep, Fit]:
    """Fit a sweep and write the calibration.

    Args:
        sweep_file: CSV of measured times.
        model: folder or `config.json` of the model.
        tflops: effective throughput, 10^12 operations/s.
        peak_bandwidth: data sheet's bandwidth, TB/s; None for search ranges from the sweep.
        draft_bits: bits of the drafter's quantised weights.
        out: file of the calibration.

    Raises:
        UserError: for an invalid sweep, an unsupported model or a failed fit.
    """
    # NaN is in no range, so it is rejected too.
    for key, value in (("--tflops", tflops), ("--bandwidth", peak_bandwidth)):
        if value is not None and not 0 < value < np.inf:
            raise UserError("a device's throughput is above 0", key=key, value=value, allowed="more than 0")
    # Of a sweep that `redraft calibrate` measured; a file cut between two lines looks like a smaller sweep.
    check_own_hash(sweep_file, optional=True)
    sweep, costs = read_sweep(sweep_file), read_model(model, draft_bits=draft_bits).costs
    # The released ranges suit GPUs like the A100 only; those of the sweep suit any device.
    ranges = ranges_of_device(peak_bandwidth * 1e12) if peak_bandwidth else ranges_of_sweep(sweep, costs)
    fitted = fit(sweep, costs, tflops * 1e12, ranges)
    metadata = {
        "sweep": sweep_file.name,
        "sweep_sha256": sha256(sweep_file),
        "gammas": sweep.gammas,
        "losses": list(fitted.losses),
        "agreeing": fitted.agreeing,
        "points": fitted.points,
    }
    write_calibration(out, fitted.calibration, metadata)
    return sweep, fitted


def parameters(calibration: Calibration) -> Rows:
    """Fitted parameters, at the precision of the paper's values."""
    return [
        ["bandwidth BW_eff, TB/s", f"{calibration.bandwidth / 1e12:.4g}"],
        ["keys and values κ_eff, bytes a position", f"{calibration.kv_bytes:.0f}"],
        ["  share λ of all their bytes", f"{calibration.kv_share:.2f}"],
        ["drafter's factor η_d", f"{calibration.draft_factor:.3f}"],
        ["overhead of the target c_T, µs a sequence", f"{calibration.target_overhead:.1f}"],
        ["  of the drafter c_D", f"{calibration.draft_overhead:.1f}"],
        ["  of a verification c_V", f"{calibration.verify_overhead:.1f}"],
    ]


def quality(fitted: Fit, sweep: Sweep) -> str:
    """Losses of the fit, its agreement with the sweep, and the sweep's number of points next to that of its grid."""
    share = fitted.agreeing / fitted.points
    return (
        f"loss {fitted.losses[0]:.6f} of plain decoding, {fitted.losses[1]:.6f} of speculation\n"
        f"speedup on the measured side of 1 at {fitted.agreeing} of {fitted.points} points ({share:.1%})\n"
        f"all modes at {fitted.points} of {sweep.grid} points of batch size, length and gamma"
    )


def boundaries(calibration: Calibration, gammas: Sequence[int]) -> Rows:
    """Largest batch at which speculation pays if all draft tokens are accepted, by draft and sequence length."""
    lengths = np.array(LENGTHS, float)
    by_gamma = {gamma: boundary(calibration, lengths, gamma, gamma + 1, largest=LARGEST_BATCH) for gamma in gammas}
    return [[f"gamma {gamma}", *(f"{batch:d}" for batch in batches)] for gamma, batches in by_gamma.items()]


@dataclass(frozen=True)
class SimulationOptions:
    """Options of `redraft simulate`, documented in `redraft.cli.selfspec`; None where one was not given."""

    calibration: Path
    lengths: str
    gamma: str
    alpha: str
    model: Path | None = None
    responses: int | None = None
    engines: int = 1
    slots: int = 256
    prompt: float = 200.0
    threshold: int = 32
    rollouts: int | None = None
    last_alpha: float | None = None


def completed(options: SimulationOptions) -> SimulationOptions:
    """The options with defaults where they have an effect.

    Raises:
        UserError: for an option without an effect.
    """
    if ":" in options.lengths:
        options = replace(options, responses=1024 if options.responses is None else options.responses)
    else:
        require_unset("--responses", options.responses, "with quantiles in --lengths; a file has its own number")
    if len(_gammas(options.gamma)) > 1:
        options = replace(options, rollouts=20 if options.rollouts is None else options.rollouts)
    else:
        ladder = "with several draft lengths in --gamma; a single one has one rollout"
        require_unset("--last-alpha", options.last_alpha, ladder)
        require_unset("--rollouts", options.rollouts, ladder)
    if options.rollouts == 1:
        require_unset("--last-alpha", options.last_alpha, "with two --rollouts or more")
    return options


def simulation(options: SimulationOptions) -> tuple[list[str], Rows]:
    """Header, and a row for each mode, of `completed` options.

    Raises:
        UserError: for an invalid option.
    """
    calibration = read_calibration(options.calibration)
    if options.model:
        # An estimate: factor and overheads are those of the calibrated model.
        calibration = calibration.of_model(read_model(options.model))
    if not 0 <= options.prompt < np.inf:
        raise UserError("invalid length of prompts", key="--prompt", value=options.prompt, allowed="0 or more")
    engine = SimulatedEngine(calibration, options.prompt, options.slots, options.engines)
    if ":" in options.lengths:
        assert options.responses is not None
        lengths = _in_random_order(parse_quantiles(options.lengths).lengths(options.responses), options.engines)
    else:
        lengths = read_lengths(Path(options.lengths))
    gammas, acceptance = _gammas(options.gamma), _acceptance(options.alpha)
    speculation = Speculation("off", gammas[0], acceptance, options.threshold)
    if len(gammas) > 1:
        return _training(lengths, engine, speculation, Ladder(gammas), _alphas(options, acceptance))
    times = {mode: simulate_rollout(lengths, engine, replace(speculation, mode=mode)) for mode in MODES}
    rows = []
    for mode, time in times.items():
        active = time.slowest.turned_on_at
        # Of the slowest engine, which decides the rollout's time.
        on = ["never", "-"] if active is None else [f"{active} active", f"{time.slowest.plain_seconds:.1f}"]
        rows.append([mode, *_seconds(time.seconds, times["off"].seconds), *on, f"{time.speculated:.0%} of tokens"])
    return ["mode", "seconds", "against off", "on at", "after s", "by speculation"], rows


def require_unset(option: str, value: float | None, allowed: str) -> None:
    """Raise a UserError if an option without an effect was given."""
    if value is not None:
        raise UserError("this option has no effect here", key=option, value=value, allowed=allowed)


def _in_random_order(lengths: np.ndarray, engines: int) -> np.ndarray:
    """Ascending lengths in the order in which their responses begin, float64 (n,), the same in every call.

    A prompt's place in a batch says nothing about its response. In ascending order the longest responses would begin
    last, when other slots are free already. Each engine keeps an equal share of short and long ones: whole rows are
    permuted, of one response per engine (`simulate_rollout`).
    """
    rows = [lengths[i : i + engines] for i in range(0, len(lengths), engines)]
    return np.concatenate([rows[i] for i in np.random.default_rng(0).permutation(len(rows))])


def _gammas(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    # Digits first: Python converts no number of thousands of them.
    gammas = [int(part) for part in parts if part.isdecimal() and len(part) <= 9]
    # Ascending, distinct and above 0 in one comparison.
    if len(gammas) < len(parts) or sorted({0, *gammas}) != [0, *gammas] or gammas[-1] > LONGEST_DRAFT:
        raise UserError(
            "invalid draft lengths",
            key="--gamma",
            value=text,
            allowed=f"1 to {LONGEST_DRAFT}, such as 7, or ascending ones for a ladder such as 5,7,9,11",
        )
    return tuple(gammas)


def _acceptance(text: str) -> Acceptance:
    if text.endswith(".jsonl"):
        return measured_acceptance(Path(text))
    try:
        pairs = [part.split(":") if ":" in part else ["0", part] for part in text.split(",")]
        starts, alpha = zip(*((float(start), float(value)) for start, value in pairs), strict=True)
        return Acceptance(alpha, starts)
    except ValueError:
        raise UserError(
            "invalid acceptance",
            key="--alpha",
            value=text,
            allowed="0 to 1, by position from 0 on, such as 0:0.98,2048:0.95, or a run's steps.jsonl",
        ) from None


def _alphas(options: SimulationOptions, acceptance: Acceptance) -> list[float]:
    """Acceptance in each rollout, interpolated from the first to the last."""
    if len(acceptance.alpha) > 1:
        raise UserError(
            "a ladder takes one acceptance for all positions", key="--alpha", value=options.alpha, allowed="0 to 1"
        )
    # Without an end the acceptance is constant.
    last = acceptance.alpha[0] if options.last_alpha is None else options.last_alpha
    if not 0 <= last <= 1:
        raise UserError("invalid acceptance", key="--last-alpha", value=last, allowed="0 to 1")
    assert options.rollouts is not None
    return np.linspace(acceptance.alpha[0], last, options.rollouts).tolist()


def _training(
    lengths: np.ndarray, engine: SimulatedEngine, speculation: Speculation, ladder: Ladder, alphas: Sequence[float]
) -> tuple[list[str], Rows]:
    modes: dict[Mode, list[tuple[int, RolloutTime]]] = {
        mode: simulate_training(lengths, engine, replace(speculation, mode=mode), alphas, ladder) for mode in MODES
    }
    means = {mode: float(np.mean([time.seconds for _, time in rollouts])) for mode, rollouts in modes.items()}
    rows = []
    for mode, rollouts in modes.items():
        gammas = [gamma for gamma, _ in rollouts]
        used = ["-", "-"] if mode == "off" else [f"{np.mean(gammas):.1f}", str(gammas[-1])]
        rows.append([mode, *_seconds(means[mode], means["off"]), *used])
    return ["mode", "seconds", "against off", "mean gamma", "last gamma"], rows


def _seconds(seconds: float, plain: float) -> tuple[str, str]:
    return f"{seconds:.1f}", "-" if seconds == plain else f"{seconds / plain - 1:+.1%}"


def replayed(
    records: Path, gamma: str, calibration: Path | None, threshold: int | None, ramp: int
) -> tuple[list[str], Rows]:
    """Header, and a row for each recorded rollout with its own control and another one.

    The other control uses the roofline if there is a calibration, else the threshold; one of them is given.

    Raises:
        UserError: for an invalid option or file.
    """
    roofline = read_calibration(calibration) if calibration else None

    def rule(gamma: int, accepted: float | None) -> SwitchRule:
        if roofline:
            return Roofline(roofline, gamma, accepted)
        assert threshold is not None
        return Threshold(threshold)

    before = read_rollouts(records)
    after = replay(Control(Ladder(_gammas(gamma)), rule, ramp), before)
    header = ["step", "gamma", "on at", "after", "blocks", "replayed: gamma", "on at", "after", "blocks"]
    return header, [[str(a.step + 1), *_switched(a), *_switched(b)] for a, b in zip(before, after, strict=True)]


def _switched(rollout: TracedRollout) -> Iterator[str]:
    yield str(rollout.gamma)
    yield "never" if rollout.switch is None else str(rollout.switch.active)
    yield "-" if rollout.switch is None else str(rollout.plain)
    yield str(rollout.speculated)
