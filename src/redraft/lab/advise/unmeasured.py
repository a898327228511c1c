"""Methods that need a trained or quantised drafter: measured acceptance if the run has it, else a range.

The range is from nothing saved, as with a toggle that never switches on, to all proposals kept. A learned head's own
passes are not counted in it, since its size is not known.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from redraft.lab.advise.replayed import Drafters, perfect_rows, plain_rows
from redraft.lab.advise.sample import PromptSample
from redraft.lab.advise.work import Device, RowWork, Work
from redraft.lab.predict.jackknife import IntervalEstimate
from redraft.lab.predict.saved_run import SavedRun
from redraft.lab.selfspec.simulate import (
    Acceptance,
    SimulatedEngine,
    Speculation,
    measured_acceptance,
    simulate_rollout,
)
from redraft.result_files import read_steps
from redraft.rollout.streams import stream
from redraft.train.run_folder import RunFolder

SELF_SPECULATION, HEAD = "self-speculation", "head"
REPLICATES = 100


@dataclass(frozen=True)
class DrafterSavings:
    """Savings of a method with a drafter.

    Attributes:
        saved: share of plain decoding's seconds; its value is NaN if acceptance is unknown.
        unknown: why, or empty.
    """

    method: str
    saved: IntervalEstimate
    unknown: str


def savings(
    run: SavedRun, samples: Sequence[PromptSample], device: Device, batch: int, drafters: Drafters
) -> list[DrafterSavings]:
    """Savings of self-speculation and of a learned head, with drafts of their own lengths."""
    of_copy, of_head = drafters.self_speculation.draft_lengths[0], drafters.head.draft_lengths[0]
    rng = stream(0, "advise drafters")
    batches = [rng.integers(len(samples), size=batch) for _ in range(REPLICATES)]
    file = RunFolder(run.path).records
    quantised = run.configuration.decoding.kind == "self_speculation"
    measured = quantised and any("proposed_from" in record for record in read_steps(file))
    acceptance = measured_acceptance(file) if measured else Acceptance((1.0,))
    of_self = np.array([_self_speculation([samples[p] for p in each], device, acceptance, of_copy) for each in batches])
    best = np.array([_perfect([samples[p] for p in each], device, of_head) for each in batches])
    low, high = np.quantile(of_self, [0.025, 0.975])
    why = "its acceptance was not measured in this run; from never used to all proposals kept"
    head = f"{why}, without the head's own time"
    return [
        DrafterSavings(SELF_SPECULATION, IntervalEstimate(float(of_self.mean()), float(low), float(high)), "")
        if measured
        else DrafterSavings(SELF_SPECULATION, IntervalEstimate(np.nan, 0.0, max(0.0, float(of_self.mean()))), why),
        DrafterSavings(HEAD, IntervalEstimate(np.nan, 0.0, max(0.0, float(best.mean()))), head),
    ]


def _self_speculation(samples: Sequence[PromptSample], device: Device, acceptance: Acceptance, length: int) -> float:
    """Saved share of a rollout with the roofline's toggle, by the simulator of self-speculation."""
    lengths = np.array([len(tokens) for sample in samples for tokens in sample.responses], float)
    prompt = float(np.mean([len(sample.prompt) for sample in samples]))
    engine = SimulatedEngine(device.calibration, prompt, slots=len(lengths))
    off, on = (
        simulate_rollout(lengths, engine, Speculation(mode, length, acceptance, ramp=0)).seconds
        for mode in ("off", "roofline")
    )
    return (off - on) / _seconds([plain_rows(s.prompt, s.responses) for s in samples], device)


def _perfect(samples: Sequence[PromptSample], device: Device, length: int) -> float:
    plain = _seconds([plain_rows(s.prompt, s.responses) for s in samples], device)
    return 1 - _seconds([perfect_rows(s.prompt, s.responses, length) for s in samples], device) / plain


def _seconds(groups: Sequence[Sequence[RowWork]], device: Device) -> float:
    return device.seconds(Work.of_groups([[rows] for rows in groups]).passes.sum((0, 1)))
