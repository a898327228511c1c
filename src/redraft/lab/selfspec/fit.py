"""Fit of the roofline to a sweep, in two stages (EfficientRollout, arXiv 2606.18967, Appendix D.2).

Stage 1 fits bandwidth, effective bytes of keys and values, and the target's overhead (BW_eff, λ, c_T) to plain
decoding; stage 2 the drafter's factor and the other overheads (η_d, c_D, c_V) to drafting and verification of all γ at
once. F_eff is an input. The paper names parameters and stages; the objectives and ranges are those of the released
code:

    stage 1   mean of log(predicted / measured)²
    stage 2   half the mean for drafting plus that for verification, and half that for whole blocks γ T_D + T_V plus
              the mean squared error of T_T / (γ T_D + T_V); means over points, then over γ

Each stage takes the better result of differential evolution and L-BFGS-B. Parameters are searched in their own units,
as in the released code. With rescaled parameters the search would stop later than the published one, and κ_eff would
differ in its fifth digit.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import OptimizeResult, differential_evolution, minimize

from redraft.errors import UserError
from redraft.lab.selfspec.sweep import DRAFT, TARGET, VERIFY, PassTimes, Sweep
from redraft.selfspec.calibration import Calibration
from redraft.selfspec.constants import Costs
from redraft.selfspec.roofline import MICROSECOND, block_seconds, draft_seconds, speedup, target_seconds, verify_seconds

SEED = 42
"""Seed of differential evolution, as in the released code."""
LARGEST_LOSS = 0.25
"""Largest loss of a stage at which a fit is accepted; the published sweeps have 0.0006 to 0.03."""
NOT_FITTED = "a sweep that a roofline describes, of this model on this device, with its --tflops"

MAY_BE_AT_LOWER_BOUND = {"kv_share", "target_overhead", "draft_overhead", "verify_overhead"}
"""Parameters that may end at the lower bound of their range."""

Range = tuple[float, float]
Loss = Callable[[Calibration], float]


@dataclass(frozen=True)
class Ranges:
    """Search ranges of the parameters of a `Calibration`, in its units; `kv_share` is λ."""

    bandwidth: Range
    kv_share: Range = (0.1, 2.5)
    target_overhead: Range = (0.0, 200.0)
    draft_factor: Range = (1.0, 4.0)
    draft_overhead: Range = (0.0, 200.0)
    verify_overhead: Range = (0.0, 500.0)

    def of(self, *names: str) -> dict[str, Range]:
        """Ranges of these parameters."""
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Fit:
    """A fitted roofline.

    Attributes:
        losses: losses of the two stages.
        agreeing: points at which predicted and measured speedup are both at least 1 or both below, with every draft
            token accepted (equation 4).
        points: points with measurements of all three modes.
    """

    calibration: Calibration
    losses: tuple[float, float]
    agreeing: int
    points: int


def ranges_of_device(peak_bandwidth: float) -> Ranges:
    """Ranges of the released code, suited to GPUs like the A100, from the data sheet's bandwidth in bytes/s."""
    return Ranges(bandwidth=(0.4 * peak_bandwidth, 1.05 * peak_bandwidth))


def ranges_of_sweep(sweep: Sweep, costs: Costs) -> Ranges:
    """Ranges for any device, from the measured times.

    The target's fastest pass reads at least its weights, so their bytes over its time is about a lower bound of the
    bandwidth. An overhead per sequence is at most a pass's whole time over its sequences, at the largest batch size.
    """
    target = sweep.times(TARGET)
    bandwidth = costs.target_bytes / float(np.min(target.seconds))
    largest = {
        mode: max(_largest_overhead(sweep.times(mode, gamma)) for gamma in sweep.gammas) for mode in (DRAFT, VERIFY)
    }
    return Ranges(
        # Mostly upwards: the fastest pass has overhead too, so the estimate is too low.
        bandwidth=(0.5 * bandwidth, 4 * bandwidth),
        kv_share=(0.0, 10.0),
        target_overhead=(0.0, _largest_overhead(target)),
        draft_factor=(0.25, 16.0),
        draft_overhead=(0.0, largest[DRAFT]),
        verify_overhead=(0.0, largest[VERIFY]),
    )


def _largest_overhead(times: PassTimes) -> float:
    """Upper bound of the overhead per sequence, µs: the slowest pass at the largest batch size, per sequence."""
    at_largest = times.batch == np.max(times.batch)
    return float(np.max(times.seconds[at_largest]) / np.max(times.batch) / MICROSECOND)


def fit(sweep: Sweep, costs: Costs, flops: float, ranges: Ranges) -> Fit:
    """Fit a roofline to a sweep; `flops` is the effective throughput F_eff, operations/s.

    Raises:
        UserError: if the better search does not converge, a parameter ends at a bound of its range, or the loss is
            above `LARGEST_LOSS`.
    """
    # Placeholders except F_eff: the two stages set all other parameters.
    start = Calibration(sweep.model, costs, 1.0, flops, costs.kv_bytes, 1.0, 0.0, 0.0, 0.0)
    measured = sweep.times(TARGET)

    def loss_of_decoding(c: Calibration) -> float:
        return float(np.mean(_errors(target_seconds(c, measured.batch, measured.length), measured.seconds)))

    first = ranges.of("bandwidth", "kv_share", "target_overhead")
    second = ranges.of("draft_factor", "draft_overhead", "verify_overhead")
    plain, target_loss = _search(start, first, loss_of_decoding, iterations=300, tolerance=1e-8)
    # The target's parameters stay those of stage 1.
    fitted, block_loss = _search(plain, second, _block_loss(sweep), iterations=500, tolerance=1e-10)
    return Fit(fitted, (target_loss, block_loss), *agreement(fitted, sweep))


def agreement(calibration: Calibration, sweep: Sweep) -> tuple[int, int]:
    """Number of points at which predicted and measured speedup agree about reaching 1, and of all points.

    All draft tokens count as accepted, τ = γ + 1, so that only times are compared (Appendix D.3, equation 4).
    """
    agreeing = points = 0
    for gamma in sweep.gammas:
        target, draft, verify = sweep.blocks(gamma)
        measured = (gamma + 1) * target.seconds / (gamma * draft.seconds + verify.seconds)
        predicted = speedup(calibration, target.batch, target.length, gamma, gamma + 1)
        agreeing += int(np.sum((predicted >= 1) == (measured >= 1)))
        points += len(measured)
    return agreeing, points


def _block_loss(sweep: Sweep) -> Loss:
    modes = (DRAFT, VERIFY)
    drafts, verifications = (_joined({gamma: sweep.times(mode, gamma) for gamma in sweep.gammas}) for mode in modes)
    of_targets, of_blocks = {}, {}
    for gamma in sweep.gammas:
        of_targets[gamma], draft, verify = sweep.blocks(gamma)
        of_blocks[gamma] = PassTimes(draft.batch, draft.length, gamma * draft.seconds + verify.seconds)
    targets, blocks = _joined(of_targets), _joined(of_blocks)
    ratios = targets.seconds / blocks.seconds

    def loss(c: Calibration) -> float:
        single = drafts.mean(_errors(draft_seconds(c, drafts.batch, drafts.length), drafts.seconds))
        single += verifications.mean(
            _errors(
                verify_seconds(c, verifications.batch, verifications.length, verifications.gamma), verifications.seconds
            )
        )
        predicted = block_seconds(c, blocks.batch, blocks.length, blocks.gamma)
        ratio = target_seconds(c, blocks.batch, blocks.length) / predicted
        return 0.5 * single + 0.5 * blocks.mean(_errors(predicted, blocks.seconds) + (ratio - ratios) ** 2)

    return loss


def _errors(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    # Of the logarithm, so that short and long passes count alike.
    return np.log(predicted / measured) ** 2


@dataclass(frozen=True)
class _ConcatenatedTimes:
    """Times of all γ concatenated; the weights turn a sum into the mean over γ of means over points."""

    batch: np.ndarray
    length: np.ndarray
    seconds: np.ndarray
    gamma: np.ndarray
    weight: np.ndarray

    def mean(self, values: np.ndarray) -> float:
        return float(self.weight @ values)


def _joined(by_gamma: Mapping[int, PassTimes]) -> _ConcatenatedTimes:
    batch, length, seconds = map(np.concatenate, zip(*(astuple(times) for times in by_gamma.values()), strict=True))
    sizes = [len(times.seconds) for times in by_gamma.values()]
    gamma = np.repeat(list(by_gamma), sizes)
    # Each γ counts alike, however many points it has.
    weight = np.repeat([1 / size / len(sizes) for size in sizes], sizes)
    return _ConcatenatedTimes(batch, length, seconds, gamma, weight)


def _search(
    start: Calibration, ranges: Mapping[str, Range], loss: Loss, *, iterations: int, tolerance: float
) -> tuple[Calibration, float]:
    """Calibration with the lower loss of two searches, and the loss."""

    def loss_of(values: np.ndarray) -> float:
        return loss(_with(start, ranges, values))

    bounds = list(ranges.values())
    middle = [(low + high) / 2 for low, high in bounds]
    results = [
        differential_evolution(loss_of, bounds, seed=SEED, maxiter=iterations, tol=tolerance),
        minimize(loss_of, middle, bounds=bounds, method="L-BFGS-B"),
    ]
    # Differential evolution may stop early, L-BFGS-B in a local minimum.
    best = min(results, key=lambda result: result.fun)
    _check(best, ranges)
    return _with(start, ranges, best.x), float(best.fun)


def _with(calibration: Calibration, names: Iterable[str], values: Iterable[float]) -> Calibration:
    """The calibration with other parameters; λ (`kv_share`) determines `kv_bytes`."""
    parameters: dict[str, Any] = dict(zip(names, map(float, values), strict=True))
    if "kv_share" in parameters:
        parameters["kv_bytes"] = parameters.pop("kv_share") * calibration.costs.kv_bytes
    return replace(calibration, **parameters)


def _check(best: OptimizeResult, ranges: Mapping[str, Range]) -> None:
    if not (best.success and np.isfinite(best.fun)):
        raise UserError(
            "the fit does not converge", key=", ".join(ranges), value=str(best.message), hint=f"take {NOT_FITTED}"
        )
    if best.fun > LARGEST_LOSS:
        raise UserError(
            "the roofline does not describe these times",
            key=", ".join(ranges),
            value=f"loss {best.fun:.3g}",
            allowed=f"at most {LARGEST_LOSS}",
            hint=f"take {NOT_FITTED}",
        )
    for (name, (low, high)), value in zip(ranges.items(), best.x, strict=True):
        near = 1e-3 * (high - low)  # a search stops just inside a bound
        # An overhead may be 0, but any value at the upper bound says that the range is too small.
        if value > high - near or (value < low + near and name not in MAY_BE_AT_LOWER_BOUND):
            raise UserError(
                "the fit ends at a bound of its search range",
                key=name,
                value=float(value),
                allowed=f"between {low:g} and {high:g}",
                hint=f"take {NOT_FITTED}",
            )
