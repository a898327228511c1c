"""The smoke preset with every paper but SPEC-RL, whose campaign other tests run: from models to one report.

It starts no server, but takes minutes, which is why it is marked as if it did.
"""

import json

import pandas as pd
import pytest

from redraft.config import Experiments
from redraft.layout import Layout
from tests.checkout import copy_to, snakemake

pytestmark = pytest.mark.servers
PAPERS = ("speed_rl", "ar3po", "equal_budget")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = copy_to(tmp_path_factory.mktemp("papers"))
    result = snakemake(folder, f"papers={','.join(PAPERS)}", limit=1500)
    assert result.returncode == 0, result.stderr[-3000:]
    return folder


def test_every_paper_s_tables_figures_and_claims_are_made_and_in_the_report(folder):
    experiments, layout = Experiments(folder), Layout("smoke", folder / "results")
    page = layout.report.read_text()
    for paper in PAPERS:
        assert experiments.cell_file(paper).title in page
        for table in experiments.tables(paper).tables:
            assert len(pd.read_csv(layout.table(paper, table.number).with_suffix(".csv")))
            assert table.title in page
        for figure in experiments.figures(paper).figures:
            assert (layout.figures(paper) / f"figure{figure.number:02d}.png").exists()
        claims = json.loads(layout.claims(paper).read_text())
        assert len(claims if isinstance(claims, list) else claims["claims"]) == len(experiments.claims(paper).claims)


def test_methods_are_compared_at_an_equal_budget_with_a_verdict(folder):
    layout = Layout("smoke", folder / "results")
    cells = pd.read_csv(layout.table("equal_budget", 101).with_suffix(".csv"))
    run = cells[cells["reproduced"].notna()]
    assert {"GRPO", "SPEED"} <= set(run["row"])
    spent = run[run["column"] == "updates_spent"].set_index("row")["reproduced"]
    assert spent["GRPO"] == 6


def test_screening_and_stages_show_in_the_records(folder):
    layout = Layout("smoke", folder / "results")
    speed, staged = (
        pd.read_json(layout.run(cell, 0) / "steps.jsonl", lines=True)
        for cell in ("speed_rl/dapo17k-rloo-speed4", "ar3po/ar3po")
    )
    assert speed["prompts_screened"].max() > 0
    assert staged["rollouts_per_prompt"].between(4, 8).all()
