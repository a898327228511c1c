"""SPEED-RL, AR3PO and EfficientRollout from model to report: their cells of the smoke preset, with one seed.

SPEC-RL's go the same way in the campaign that many tests read; here no other test reads what is made.
"""

import math
import re

import pandas as pd
import pytest

from redraft.analysis.claims.verdicts import CONTRADICTED, INCONCLUSIVE, NOT_RUN, REPRODUCED
from redraft.config import Experiments, Unmeasured
from redraft.files import read_json, read_json_lines
from redraft.layout import Layout
from tests.checkout import ROOT, copy_to, snakemake
from tests.forked_commands import forked_commands

pytestmark = pytest.mark.servers  # for its time: it starts none

LAYOUT, EXPERIMENTS = Layout("smoke"), Experiments(ROOT)
PLAIN = {"speed_rl": "dapo17k-rloo", "ar3po": "grpo", "efficient_rollout": "ar"}
METHOD = {"speed_rl": "dapo17k-rloo-speed4", "ar3po": "ar3po", "efficient_rollout": "threshold"}
SHOWN = {"speed_rl": (104, "responses"), "ar3po": (1, "rollouts"), "efficient_rollout": (103, "generation_s")}
"""A table that compares the two, and one of its columns."""
NOTHING_TO_MEASURE = {
    *("difficult-prompts-get-most", "difficult-before-get-most", "easy-prompts-about-4"),
    *("a-third-never-solved-1.5b", "a-quarter-never-solved-7b"),
}
"""Claims about prompts that are solved eight times in ten, of which a policy of this scale may have none, and about
samples of the initial policy, which this preset does not take."""


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """The folder of a finished campaign of the three papers."""
    folder = copy_to(tmp_path_factory.mktemp("campaign"))
    with forked_commands(tmp_path_factory.mktemp("commands")):
        result = snakemake(folder, f"papers={','.join(PLAIN)}", "seeds=1", limit=1800)
    assert result.returncode == 0, result.stderr[-3000:]
    return folder


def records(campaign, paper, cells):
    return read_json_lines(campaign / LAYOUT.run(f"{paper}/{cells[paper]}", 0) / "steps.jsonl")


@pytest.mark.parametrize("cells", [PLAIN, METHOD], ids=["plain", "method"])
@pytest.mark.parametrize("paper", PLAIN)
def test_every_step_is_recorded_and_the_last_policy_is_evaluated(campaign, paper, cells):
    cell = f"{paper}/{cells[paper]}"
    run, steps = EXPERIMENTS.run(cell, 0, "smoke"), records(campaign, paper, cells)
    assert [record["step"] for record in steps] == list(range(run.steps))
    assert all(record["rollouts"] > 0 and record["seconds"]["total"] > 0 for record in steps)
    assert any(record["updated"] and record["gradient_norm"] > 0 for record in steps), "the policy was trained"
    scores = read_json(campaign / LAYOUT.run(cell, 0) / "scores.json")[str(run.steps)]
    asked = EXPERIMENTS.preset_of("smoke", paper).benchmarks
    assert {name: score["total"] for name, score in scores.items()} == {
        name: benchmark.data.size * benchmark.samples for name, benchmark in asked.items()
    }


def test_each_method_does_what_it_is_for(campaign):
    speed, plain = (records(campaign, "speed_rl", cells) for cells in (METHOD, PLAIN))
    assert len({record["rollouts"] for record in plain}) == 1
    assert len({record["rollouts"] for record in speed}) > 1, "prompts that qualify are continued, others are not"
    ar3po, grpo = (sum(r["rollouts"] for r in records(campaign, "ar3po", cells)) for cells in (METHOD, PLAIN))
    assert ar3po < grpo, "a prompt that is solved gets no further responses"
    assert any(record["replayed"] > 0 for record in records(campaign, "ar3po", METHOD))
    assert all(
        0 < r["speculated_passes"] < 1 < r["block_efficiency"] for r in records(campaign, "efficient_rollout", METHOD)
    )


@pytest.mark.parametrize("paper", PLAIN)
def test_its_table_has_reproduced_values_and_the_report_shows_them(campaign, paper):
    number, column = SHOWN[paper]
    table = pd.read_csv((campaign / LAYOUT.table(paper, number)).with_suffix(".csv"))
    for cells in (PLAIN, METHOD):
        run = f"runs/{paper}/{cells[paper]}/seed0/"
        shown = table[table["manifests"].str.contains(run, na=False) & (table["column"] == column)]
        assert len(shown) == 1
        assert shown["n_seeds"].item() == 1
        assert math.isfinite(shown["reproduced"].item())
    pages = campaign / LAYOUT.pages
    for page in ("index", "tables", "figures"):
        assert f'<section id="{paper}"' in (pages / f"{page}.html").read_text(encoding="utf-8")
    shown = (pages / "tables.html").read_text(encoding="utf-8")
    assert re.search(rf"runs/{paper}/{METHOD[paper]}/seed0/manifest\.json", shown), "with links to its runs"


@pytest.mark.parametrize("paper", PLAIN)
def test_claims_about_cells_that_were_run_have_a_verdict(campaign, paper):
    claims = read_json(campaign / LAYOUT.claims(paper))
    unmeasured = {claim.id for claim in EXPERIMENTS.claims(paper).claims if isinstance(claim.test, Unmeasured)}
    verdicts = {claim["id"]: claim["verdict"] for claim in claims if all(claim["manifests"].values())}
    assert {verdicts.pop(name) for name in unmeasured & verdicts.keys()} <= {NOT_RUN}
    assert len(verdicts) >= 5
    assert {name for name, verdict in verdicts.items() if verdict == NOT_RUN} <= NOTHING_TO_MEASURE
    assert set(verdicts.values()) <= {REPRODUCED, CONTRADICTED, INCONCLUSIVE, NOT_RUN}
