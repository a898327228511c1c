"""How often does `redraft check` find two faults of sampling by its numbers, and how often does it find honest runs?

`python -m benchmarks check_faults` trains small runs of GRPO, without reuse and with the residual rule, on the preset
smoke, with a learning rate at which policies drift. Eight seeds are the published results. Campaigns of one, two or
four further seeds are compared with them, by the numbers of the tables of `exact_reuse` that need no evaluation and no
time:

- honest: nothing is changed;
- half the residual: after a rejection half of what verification accepts is taken from the policy's probabilities, not
  all of it, so responses have another distribution;
- stale weights: rollouts, drafts' scores and fresh samples are made by the weights before the last update.

Runs of equal seeds, which the check compares bit by bit, are counted too. A run takes about four processor seconds,
and all 36 runs less than three minutes. Runs that a folder has are not repeated.
"""

import copy
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, chdir, nullcontext
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.quantities import by_seed
from redraft.analysis.data.statistics import RATIOS, paired
from redraft.analysis.data.timing import is_timed
from redraft.analysis.reference.numbers import DIFFERS, ComparedNumber, judged, least_deviation, predicted
from redraft.cli.terminal import table
from redraft.config import Experiments, Run
from redraft.config.quantities import ACCURACY
from redraft.config.tables import Column
from redraft.files import numbers_of_records, sha256, steps_in
from redraft.methods.acceptance.residual import ResidualRule
from redraft.methods.acceptance.rule import Distributions
from redraft.result_files import read_steps
from redraft.rollout.engine import Residual
from redraft.train.initial_policy import make_model
from redraft.train.local import trainer
from redraft.train.local.decoding import Decoding, open_decoding
from redraft.train.local.trainer import LocalTrainer

PAPER, PRESET, BASELINE, REUSE = "exact_reuse", "smoke", "vanilla", "residual"
PUBLISHED, FURTHER = 8, 4
"""Published seeds, and further ones. Each choice of one, two or all further seeds is a campaign."""
RATE = 1e-3
"""Learning rate, ten times that of the preset."""
BLOCKS = PUBLISHED + FURTHER
"""Blocks of seeds: each seed has its own initial policy and problems, which no published run has."""
FOLDER = Path("build/check_faults")
"""Folder of the runs, with a copy of the experiments in which the preset has so many blocks."""
HONEST, HALF, STALE = "honest", "half the residual", "stale weights"


def half_residual() -> AbstractContextManager[Any]:
    """Half of what was accepted stays in the distribution after a rejection."""
    exact = ResidualRule.residual

    def half(self: ResidualRule, drafts: Distributions, kept: int) -> Residual | None:
        found = exact(self, drafts, kept)
        return found and Residual(found.tokens, 0.5 + 0.5 * found.left)

    return patch.object(ResidualRule, "residual", half)


def stale_weights() -> AbstractContextManager[Any]:
    """The engine gets the weights of the policy before its last update."""

    def stale(run: Run, policy: Any, longest: int) -> Decoding:
        decoding = open_decoding(run, copy.deepcopy(policy).requires_grad_(False), longest)
        before = [weight.detach().clone() for weight in policy.parameters()]

        def publish() -> None:
            with torch.no_grad():
                parts = zip(decoding.engine.model.parameters(), before, policy.parameters(), strict=True)
                for own, last, now in parts:
                    own.copy_(last)
                    last.copy_(now)

        decoding.publish = publish  # type: ignore[method-assign]
        return decoding

    return patch.object(trainer, "open_decoding", stale)


TOUCHED: dict[str, Sequence[str]] = {HONEST: (), HALF: (REUSE,), STALE: (BASELINE, REUSE)}
"""Cells that a fault touches; the others are those of honest campaigns."""
FAULTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    HONEST: nullcontext,
    HALF: half_residual,
    STALE: stale_weights,
}


def trained(kind: str, cell: str, seed: int, experiments: Experiments) -> Path:
    """Folder of a run, which is trained now unless it is there."""
    run = experiments.run(f"{PAPER}/{cell}", seed, PRESET)
    run = run.model_copy(update={"trainer": run.trainer.model_copy(update={"learning_rate": RATE})})
    folder, model = Path(kind.replace(" ", "-"), cell, f"seed{seed}"), Path("models", run.model_role)
    if not model.exists():
        make_model(PRESET, run.model_role, model)
    records = folder / "steps.jsonl"
    if not records.exists() or len(read_steps(records)) < run.steps:
        with FAULTS[kind]():
            LocalTrainer(run, model, folder).train()
    return folder


def collected(folders: dict[tuple[str, int], Path]) -> Runs:
    """Records of runs, by cell and seed, as a paper's collected runs."""
    keys = [{"cell": cell, "seed": seed} for cell, seed in folders]
    frames = [
        numbers_of_records(read_steps(folder / "steps.jsonl")).assign(**key)
        for key, folder in zip(keys, folders.values(), strict=True)
    ]
    return Runs(pd.DataFrame(keys), pd.concat(frames, ignore_index=True), pd.DataFrame())


def numbers(runs: Runs, experiments: Experiments) -> Iterator[tuple[str, Column, dict[int, float], bool]]:
    """Cell, column and values by seed of the tables' numbers, and whether they are ratios."""
    for each in experiments.tables(PAPER).tables:
        for column in getattr(each, "columns", []):
            if is_timed(column.quantity) or column.quantity.startswith(ACCURACY):
                continue
            base = by_seed(runs, column.quantity, BASELINE)
            for cell in (BASELINE, REUSE):
                values = by_seed(runs, column.quantity, cell)
                if not column.relative:
                    yield cell, column, values, False
                elif cell != BASELINE:
                    yield cell, column, paired(values, base, column.relative), column.relative in RATIOS


def differing(own: Runs, published: Runs, experiments: Experiments) -> list[str]:
    """Numbers that differ by the rule of the check."""
    compared = []
    both = zip(numbers(own, experiments), numbers(published, experiments), strict=True)
    for (cell, column, values, is_ratio), (_, _, known, _) in both:
        if not values or not known:
            continue
        means = (float(np.mean([*side.values()])) for side in (values, known))
        least = 0.0 if column.relative else least_deviation(column)
        number = ComparedNumber(0, cell, column.name, cell, next(means), 0, next(means), 0, least=least)
        sides = ({seed: [value] for seed, value in side.items()} for side in (values, known))
        compared.append(predicted(number, *sides, is_ratio))
    return [f"{each.column} of {each.row}" for each in judged(compared)[0] if each.outcome == DIFFERS]


def first_difference(folder: Path, honest: Path) -> int | None:
    """First step whose rollouts differ from those of the honest run of the same seed."""
    files = [steps_in(each / "rollouts", ".parquet") for each in (folder, honest)]
    return next((step for step, file in files[0].items() if sha256(file) != sha256(files[1][step])), None)


def chosen(runs: dict[tuple[str, int], Path], seeds: Sequence[int]) -> Runs:
    """Records of the runs of some seeds."""
    return collected({key: folder for key, folder in runs.items() if key[1] in seeds})


def main() -> None:
    """Train what is missing, compare, and print how often each fault is found."""
    torch.set_num_threads(1)
    shutil.copytree("experiments", FOLDER / "experiments", dirs_exist_ok=True)
    preset = FOLDER / "experiments" / "presets" / f"{PRESET}.yaml"
    preset.write_text(preset.read_text().replace("blocks: 10", f"blocks: {BLOCKS}"))
    with chdir(FOLDER):
        _compare()


def _compare() -> None:
    experiments, rows = Experiments(), []
    assert experiments.preset(PRESET).blocks == BLOCKS
    known = {(c, s): trained(HONEST, c, s, experiments) for c in (BASELINE, REUSE) for s in range(PUBLISHED)}
    published = collected(known)
    further = range(PUBLISHED, BLOCKS)
    honest = {(c, s): trained(HONEST, c, s, experiments) for c in (BASELINE, REUSE) for s in further}
    for kind in FAULTS:
        cells = TOUCHED[kind]
        made = {key: trained(kind, *key, experiments) if key[0] in cells else honest[key] for key in honest}
        steps = [first_difference(folder, honest[key]) for key, folder in made.items() if key[0] in cells]
        by_runs = f"{sum(step is not None for step in steps)} of {len(steps)}" if steps else "-"
        for number in (1, 2, FURTHER):
            campaigns = list(combinations(further, number))
            found = [differing(chosen(made, seeds), published, experiments) for seeds in campaigns]
            names = ", ".join(sorted({name for each in found for name in each})) or "-"
            rows.append([kind, str(number), f"{sum(map(bool, found))} of {len(found)}", names, by_runs])
    residual = published.steps_of(REUSE)
    print(f"kept share of drafts in honest runs: {residual['prefix_share'].mean():.2f}")
    header = ["fault", "seeds", "campaigns that differ by numbers", "numbers", "runs that differ, equal seeds"]
    print(table(header, rows, wide=True))


if __name__ == "__main__":
    main()
