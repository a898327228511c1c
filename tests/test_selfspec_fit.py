"""Fits: parameters that are known, the published ones, and what is refused."""

import time
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import OptimizeResult

from benchmarks.self_speculation import CONFIGURATIONS, PEAK_BANDWIDTH, RELEASED, SWEEP, TFLOPS
from redraft.errors import UserError
from redraft.files import read_json
from redraft.lab.selfspec import fit as fits
from redraft.lab.selfspec.command_results import parameters
from redraft.lab.selfspec.fit import agreement, fit, ranges_of_device, ranges_of_sweep
from redraft.lab.selfspec.sweep import VERIFY, make_sweep, read_sweep
from redraft.selfspec.calibration import read_calibration
from redraft.selfspec.constants import model_constants
from redraft.selfspec.roofline import block_seconds, target_seconds
from tests.selfspec import BATCHES, CALIBRATIONS, DATA, GAMMAS, LENGTHS, QWEN, measurements, needs_data

FITTED = ("bandwidth", "kv_bytes", "draft_factor", "target_overhead", "draft_overhead", "verify_overhead")
DEVICE = ranges_of_device(PEAK_BANDWIDTH)


def fitted(lines, ranges=None):
    sweep = make_sweep(lines)
    costs = CALIBRATIONS[sweep.model].costs
    return fit(sweep, costs, TFLOPS, ranges or ranges_of_sweep(sweep, costs))


def errors(found, truth):
    return {name: getattr(found.calibration, name) / getattr(truth, name) - 1 for name in FITTED}


# Parameters that are known


@pytest.mark.parametrize("ranges", [DEVICE, None], ids=["device", "sweep"])
@pytest.mark.parametrize("name", CALIBRATIONS)
def test_a_sweep_without_noise_gives_its_parameters(name, ranges):
    truth = CALIBRATIONS[name]
    found = fitted(measurements(truth), ranges)
    assert max(map(abs, errors(found, truth).values())) < 1e-3
    assert max(found.losses) < 1e-8
    assert found.agreeing == found.points == len(BATCHES) * len(LENGTHS) * len(GAMMAS)


@pytest.mark.parametrize("seed", range(3))
def test_a_noisy_sweep_gives_them_nearly(seed):
    """Errors of 2 % in each time."""
    found = errors(fitted(measurements(QWEN, noise=0.02, seed=seed)), QWEN)
    limits = dict(zip(FITTED, (0.01, 0.15, 0.01, 0.15, 0.1, 0.05), strict=True))
    assert all(abs(found[name]) < limit for name, limit in limits.items()), found


def test_a_device_a_hundred_times_slower_is_found_by_ranges_of_the_sweep():
    slower = ("bandwidth", "flops")
    slow = replace(
        QWEN,
        **{name: getattr(QWEN, name) / 100 for name in slower},
        **{name: getattr(QWEN, name) * 100 for name in FITTED if name.endswith("overhead")},
    )
    sweep = make_sweep(measurements(slow))
    found = fit(sweep, slow.costs, slow.flops, ranges_of_sweep(sweep, slow.costs))
    assert max(map(abs, errors(found, slow).values())) < 1e-3


def test_agreement_counts_points_on_the_same_side_of_1():
    lines = measurements(QWEN)
    sweep = make_sweep(lines)
    assert agreement(QWEN, sweep) == (180, 180)
    never = replace(QWEN, draft_factor=100.0)
    pays = 0
    for gamma in GAMMAS:
        batches, lengths = np.meshgrid(BATCHES, LENGTHS)
        speedups = (gamma + 1) * target_seconds(QWEN, batches, lengths) / block_seconds(QWEN, batches, lengths, gamma)
        pays += int(np.sum(speedups >= 1))
    assert agreement(never, sweep) == (180 - pays, 180)
    without = [m for m in lines if (m.mode, m.gamma, m.batch, m.seq) != (VERIFY, 7, 64, 4096)]
    assert agreement(QWEN, make_sweep(without)) == (179, 179)


# The published sweep


@needs_data
def test_the_published_sweep_gives_the_published_parameters():
    began = time.process_time()
    sweep = read_sweep(DATA / SWEEP)
    costs = model_constants(CONFIGURATIONS[sweep.model]).costs
    found = fit(sweep, costs, TFLOPS, DEVICE)
    assert time.process_time() - began < 30
    published = read_calibration(DATA / RELEASED)
    assert (published.costs, published.flops) == (costs, TFLOPS)
    assert parameters(found.calibration) == parameters(published)
    assert found.calibration.bandwidth == pytest.approx(published.bandwidth, rel=1e-6)
    diagnostics = read_json(DATA / RELEASED)["metadata"]["s2_diagnostics"]
    assert f"{found.losses[1]:.6f}" == f"{diagnostics['loss']:.6f}"
    assert (found.agreeing, found.points) == agreement(published, sweep) == (173, 178)


@needs_data
def test_ranges_of_the_published_sweep_itself_change_the_fifth_digit_at_most():
    sweep = read_sweep(DATA / SWEEP)
    found = fitted(sweep.measurements)
    assert max(map(abs, errors(found, read_calibration(DATA / RELEASED)).values())) < 1e-3


# Fits that fail


def test_times_that_no_roofline_gives_raise():
    rng = np.random.default_rng(0)
    lines = [replace(m, median_ms=m.median_ms * 10 ** rng.uniform(-1.5, 1.5)) for m in measurements(QWEN)]
    lines = [m for m in lines if m.mode != VERIFY] + [m for m in measurements(QWEN) if m.mode == VERIFY]
    with pytest.raises(UserError, match=r"does not describe these times[\s\S]*bandwidth[\s\S]*loss [1-9]"):
        fitted(lines)


def test_a_device_that_is_not_the_one_of_the_sweep_raises():
    lines = [replace(m, median_ms=m.median_ms * 2.5) for m in measurements(QWEN)]
    with pytest.raises(UserError, match=r"bound of its search range[\s\S]*bandwidth"):
        fitted(lines, DEVICE)


def test_a_drafter_beyond_its_range_raises():
    with pytest.raises(UserError, match=r"bound of its search range[\s\S]*draft_factor"):
        fitted(measurements(replace(QWEN, draft_factor=6.0)), DEVICE)


def test_overheads_may_be_zero():
    free = replace(QWEN, target_overhead=0.0, draft_overhead=0.0, verify_overhead=0.0)
    found = fitted(measurements(free)).calibration
    assert max(found.target_overhead, found.draft_overhead, found.verify_overhead) < 0.1


@pytest.mark.parametrize(("better", "other"), [((False, 0.1), (True, 0.2)), ((True, np.nan), (True, np.nan))])
def test_a_fit_that_does_not_converge_raises(better, other, monkeypatch):
    for name, (success, loss) in (("differential_evolution", better), ("minimize", other)):
        result = OptimizeResult(success=success, fun=loss, x=np.ones(3), message="too many steps")
        monkeypatch.setattr(fits, name, lambda *_, result=result, **__: result)
    with pytest.raises(UserError, match=r"does not converge[\s\S]*bandwidth, kv_share[\s\S]*too many steps"):
        fitted(measurements(QWEN))


@pytest.mark.parametrize("best", ["differential_evolution", "minimize"])
def test_the_better_of_two_searches_is_taken(best, monkeypatch):
    stages = ("bandwidth", "kv_share", "target_overhead"), ("draft_factor", "draft_overhead", "verify_overhead")
    middles = [np.array([sum(pair) / 2 for pair in DEVICE.of(*stage).values()]) for stage in stages]
    for name in ("differential_evolution", "minimize"):
        loss, factor = (0.1, 1.1) if name == best else (0.2, 1.0)
        results = iter([OptimizeResult(success=True, fun=loss, x=factor * x) for x in middles])
        monkeypatch.setattr(fits, name, lambda *_, results=results, **__: next(results))
    found = fitted(measurements(QWEN), DEVICE)
    assert found.losses == (0.1, 0.1)
    assert found.calibration.bandwidth == pytest.approx(1.1 * middles[0][0])
    assert found.calibration.draft_factor == pytest.approx(1.1 * middles[1][0])
