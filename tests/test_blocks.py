"""Blocks of seeds: what a block shares, and intervals that are over blocks."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from redraft.analysis.data.collect import Runs
from redraft.analysis.data.statistics import Family, estimate
from redraft.analysis.tables.comparison import make_table
from redraft.config import Experiments
from redraft.config.claims import ClaimFile
from redraft.config.preset import Preset, parted
from redraft.layout import Layout
from redraft.ops.workflow.status import run_statuses, target
from tests import uneven
from tests.measured import judge
from tests.test_one_verdict import source, table
from tests.uneven import PLAIN, REUSE

ROOT = Path(__file__).parents[1]
TWO = {0: 0, 5: 0, 1: 1, 6: 1}


def test_the_interval_and_the_test_are_over_the_means_of_blocks():
    found = estimate({0: 1.0, 5: 3.0, 1: 2.0, 6: 4.0}, TWO)
    assert (found.mean, found.units, found.values) == (2.5, (2.0, 3.0), (1.0, 2.0, 3.0, 4.0))
    reach = 12.7062 * 0.5  # Student's quantile of one degree of freedom
    assert (found.interval.low, found.interval.high) == pytest.approx((2.5 - reach, 2.5 + reach), rel=1e-5)
    assert found.p_value(2.0) == pytest.approx(stats.ttest_1samp([2.0, 3.0], 2.0).pvalue)
    assert Family([({0: 1.0, 5: 3.0, 1: 2.0, 6: 4.0}, 2.0, False)], TWO).corrected(
        {0: 1.0, 5: 3.0, 1: 2.0, 6: 4.0}, 2.0
    ) == pytest.approx(found.p_value(2.0))


def test_ratios_are_averaged_and_tested_by_their_logarithms():
    ratios = {0: 0.5, 5: 2.0, 1: 8.0, 6: 8.0}  # blocks of 1 and 8
    found, inverse = estimate(ratios, TWO, log=True), estimate({s: 1 / r for s, r in ratios.items()}, TWO, log=True)
    reach = 12.7062 * math.log(8) / 2
    assert found.mean == pytest.approx(math.sqrt(8))
    expected = tuple(math.exp(math.log(8) / 2 + side * reach) for side in (-1, 1))
    assert (found.interval.low, found.interval.high) == pytest.approx(expected, rel=1e-4)
    assert (1 / inverse.interval.high, inverse.p_value(1 / 3)) == pytest.approx(
        (expected[0], found.p_value(3)), rel=1e-4
    )
    assert found.p_value(3) == pytest.approx(stats.ttest_1samp([0.0, math.log(8)], math.log(3)).pvalue)
    assert 0.5 <= found.bootstrap.low < found.bootstrap.high <= 8.0
    assert estimate({0: 0.5, 1: 2.0}, log=True).iqm == pytest.approx(1.0)
    family = Family([(ratios, 3.0, True)], TWO)
    assert family.corrected(ratios, 3.0, True) == pytest.approx(found.p_value(3))
    assert math.isnan(family.corrected(ratios, 3.0)), "the same numbers as differences are another comparison"


@pytest.mark.parametrize("least", [0.0, -0.1])
def test_a_ratio_without_a_logarithm_allows_neither_interval_nor_test(least):
    found = estimate({0: least, 1: 1.0, 2: 2.0}, log=True)
    assert found.mean == pytest.approx((least + 3) / 3)
    assert all(map(math.isnan, (found.interval.low, found.bootstrap.low, found.p_value(1.0))))


def test_equal_ratios_of_zero_are_certain():
    found = estimate({0: 0.0, 1: 0.0, 2: 0.0}, log=True)
    assert (found.mean, found.interval.low, found.interval.high, found.p_value(1.0)) == (0.0, 0.0, 0.0, 0.0)


def test_the_mean_is_of_blocks_however_many_seeds_each_has():
    assert estimate({0: 1.0, 5: 3.0, 1: 5.0}, TWO).mean == 3.5


def test_seeds_of_one_block_say_nothing_of_others():
    found = estimate({0: 1.0, 5: 3.0}, TWO)
    assert found.mean == 2.0
    assert math.isnan(found.interval.low)
    assert math.isnan(found.p_value(0.0))


def test_the_bootstrap_draws_blocks_and_the_seeds_in_them():
    """Every resample of two blocks with two seeds each, by enumeration."""
    parts = [[0.0, 1.0], [10.0, 13.0]]
    means = [
        (sum(parts[a][i] for i in first) + sum(parts[b][i] for i in second)) / 4
        for a, b in itertools.product((0, 1), repeat=2)
        for first in itertools.product((0, 1), repeat=2)
        for second in itertools.product((0, 1), repeat=2)
    ]
    found = estimate({0: 0.0, 5: 1.0, 1: 10.0, 6: 13.0}, TWO).bootstrap
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(means, (0.025, 0.975))), abs=0.3)
    alike = estimate({0: 0.0, 5: 2.0, 1: 0.0, 6: 2.0, 2: 0.0, 7: 2.0}, TWO | {2: 2, 7: 2})
    assert (alike.bootstrap.low, alike.bootstrap.high) == pytest.approx((1 / 3, 5 / 3)), "seeds vary within blocks"
    assert (alike.interval.low, alike.interval.high) == (1.0, 1.0)


def test_intervals_over_blocks_cover_the_mean_and_those_over_seeds_do_not():
    rng, seeds = np.random.default_rng(0), range(25)
    blocks = {seed: seed % 5 for seed in seeds}
    hits = {"blocks": 0, "seeds": 0}
    for _ in range(300):
        shared = rng.normal(size=5)
        values = {seed: float(shared[seed % 5] + 0.5 * rng.normal()) for seed in seeds}
        units = [np.mean([v for s, v in values.items() if blocks[s] == b]) for b in range(5)]
        for name, of in (("blocks", blocks), ("seeds", {seed: seed for seed in seeds})):
            found = estimate(values, of).interval
            hits[name] += found.low <= 0 <= found.high
            if name == "blocks":
                assert found.high - found.low == pytest.approx(2 * stats.t.ppf(0.975, 4) * stats.sem(units))
    assert 0.91 < hits["blocks"] / 300 < 0.99
    assert hits["seeds"] / 300 < 0.75


def test_a_preset_s_seeds_share_what_is_drawn_with_their_block_only():
    experiments = Experiments(ROOT)
    runs = [experiments.run("spec_rl/grpo-vanilla", seed, "tiny") for seed in (0, 1, 30, 31)]
    assert [run.model_role for run in runs] == ["qwen3-1.7b-base", "qwen3-1.7b-base@1"] * 2
    assert [run.data_role for run in runs] == ["deepmath-6k", "deepmath-6k@1"] * 2
    assert (runs[0].model, runs[0].data) == (runs[2].model, runs[2].data)
    assert runs[0].model.warm_start.seed != runs[1].model.warm_start.seed
    assert runs[0].data.seed != runs[1].data.seed
    preset = experiments.preset("tiny")
    assert [preset.of_seed(s).benchmarks["arithmetic"].data.seed for s in (0, 1, 30, 31)] == [0, 1000, 0, 1000]
    assert preset.of_seed(0) == preset
    changed = preset.of_seed(1).model_dump(include={"trainer", "engine", "seeds", "protocol"})
    assert changed == preset.model_dump(include={"trainer", "engine", "seeds", "protocol"})


def test_no_two_models_of_a_preset_share_a_seed_by_being_of_other_blocks():
    preset = Experiments(ROOT).preset("tiny")
    made = [{model.warm_start.seed for model in preset.of_block(block).models.values()} for block in range(30)]
    assert sum(map(len, made)) == len(set().union(*made))


@pytest.mark.parametrize(("seed", "block"), [(0, 0), (4, 4), (30, 0), (103, 13)])
def test_names_of_roles_say_the_block(seed, block):
    preset = Experiments(ROOT).preset("tiny")
    assert parted(preset.role("qwen3-8b-base", seed)) == ("qwen3-8b-base", block)
    assert preset.unit(seed) == block
    assert preset.model_copy(update={"blocks": 1}).unit(seed) == seed


def test_models_of_files_have_no_blocks():
    content = Experiments(ROOT).preset("paper").model_dump(exclude={"benchmarks"}) | {"blocks": 2}
    with pytest.raises(ValueError, match="blocks need models of kind tiny; qwen3"):
        Preset.model_validate(content)


def test_tables_and_claims_are_over_the_blocks_that_runs_name():
    runs = uneven.runs()
    blocked = Runs(runs.runs.assign(block=runs.runs["seed"].map({0: 0, 1: 1, 2: 0})), runs.steps, runs.scores)
    experiments = Experiments(ROOT)
    claims = ClaimFile.model_validate(
        {
            "claims": [
                {
                    "id": "c",
                    "quotation": "q",
                    "section": "1",
                    "test": {
                        "kind": "compare",
                        "quantity": "tokens_decoded",
                        "cell": REUSE,
                        "baseline": PLAIN,
                        "relative": "ratio",
                        "expected": "below",
                        "threshold": 1.0,
                    },
                }
            ]
        }
    ).claims
    (free,), (bound,) = (judge(claims, each, paper_scale=True) for each in (runs, blocked))
    assert free["verdict"] != "not run"
    assert free["p"] is not None
    assert bound["verdict"] == "inconclusive", "both seeds of the pair are of one block"
    assert bound["evidence"].split("; ")[0].endswith("2 seeds in 1 block")
    assert "block" not in free["evidence"]
    frames = [make_table(table(), source(experiments, each)).set_index(["row", "column"]) for each in (runs, blocked)]
    cells = [frame.loc[("reuse", "tokens")] for frame in frames]
    assert cells[0]["reproduced"] == cells[1]["reproduced"]
    assert math.isnan(cells[1]["low"])
    assert not math.isnan(cells[0]["low"])


def test_runs_of_more_seeds_than_the_preset_s_are_in_the_status(tmp_path):
    layout = Layout("tiny", tmp_path)
    layout.run("spec_rl/grpo-vanilla", 7).mkdir(parents=True)
    found = run_statuses(layout, Experiments(ROOT), target(layout, Experiments(ROOT)))
    assert {run.seed for run in found if run.cell == "spec_rl/grpo-vanilla"} == {0, 1, 2, 7}
    assert {run.seed for run in found if run.cell != "spec_rl/grpo-vanilla"} == {0, 1, 2}
