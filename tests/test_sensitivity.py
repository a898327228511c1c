"""`redraft sensitivity`: one policy under several settings, from evaluations to the report's table."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml

from redraft.analysis.pages.sensitivity_table import sensitivities
from redraft.analysis.tables.render import TEMPLATES
from redraft.cli.app import main
from redraft.config import Evaluation, Experiments, InProcessEngine
from redraft.errors import UserError
from redraft.evaluate import sensitivity as module
from redraft.evaluate.agreement import agreements
from redraft.evaluate.evaluation_plan import EvaluationRequest
from redraft.evaluate.sensitivity import SETTINGS, VARIANTS, plan_sensitivity, sensitivity, varied
from redraft.files import read_json, write_json
from redraft.layout import Layout
from redraft.ops.workflow.plan import CampaignPlan
from redraft.result_files import write_with_hash
from tests.columns import same

ROOT = Path(__file__).parents[1]
COINS = {"kind": "file", "path": str(ROOT / "tests/data/coin_problems.jsonl"), "size": 8, "template": "{problem}"}
RUN = {"preset": "tiny", "paper": "spec_rl", "cell": "grpo-vanilla", "seed": 0}
VARIED = ["rows=3", "seed=1", "harness=lm-eval"]


@pytest.fixture(scope="module")
def project(tmp_path_factory, tiny_model):
    """A folder with a protocol of coin problems, a run whose last policy solves half of them, and the tables."""
    folder = tmp_path_factory.mktemp("sensitivity")
    shutil.copytree(ROOT / "experiments", folder / "experiments", ignore=shutil.ignore_patterns("own"))
    file = folder / "experiments/benchmarks.yaml"
    content = yaml.safe_load(file.read_text())
    content["sets"]["coins"] = {"data": COINS, "description": "coins"}
    content["protocols"]["coins"] = {
        "description": "coins",
        "sampling": {"samples": 4, "max_new_tokens": 12, "top_p": 1.0},
        "benchmarks": {"coins": {}},
    }
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    run = folder / "results/tiny/runs/spec_rl/grpo-vanilla/seed0"
    shutil.copytree(tiny_model, run / "policies/step-0008")
    write_json(run / "manifest.json", {"configuration": RUN})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        shutil.copytree(tiny_model, folder / "copy")
        asked = ("--protocol", "coins", "--threads", "1")
        call("evaluate", "copy", *asked, "--folder", "b", "--backend", "torch")
        model = str(run.relative_to(folder))
        call("sensitivity", model, *asked, *(f"--variant={each}" for each in VARIED))
        call("sensitivity", model, *asked, "--greedy", "--variant=seed=1")
    return folder


def call(*arguments):
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    assert end.value.code == 0


@pytest.fixture
def inside(project, monkeypatch):
    monkeypatch.chdir(project)
    return project


def a_request(**more):
    asked = EvaluationRequest(
        "results/tiny/runs/spec_rl/grpo-vanilla/seed0", "coins", [], Evaluation(), InProcessEngine()
    )
    return replace(asked, engine=InProcessEngine(threads=1), **more)


def planned(variants=("rows=3",), others=(), **more):
    return plan_sensitivity(a_request(**more), list(variants), list(others), Experiments(), Path("results/sensitivity"))


def table(decoding):
    (file,) = Layout("tiny").folder.glob(f"sensitivity/spec_rl/grpo-vanilla/seed0/*-{decoding}/sensitivity.csv")
    return pd.read_csv(file).set_index("variant")


def test_responses_with_the_same_random_numbers_are_equal_and_a_seed_samples_independently(inside):
    rows = table("sampled")
    equal, seed = rows.loc[["rows=3", "harness=lm-eval"]], rows.loc["seed=1"]
    assert set(equal["decoding"]) == {"sampled, same random numbers"}
    assert equal[["difference", "different_responses", "different_answers", "different_verdicts"]].eq(0).all(axis=None)
    assert equal["noise"].isna().all()
    assert (seed["decoding"], seed["problems"], seed["responses"]) == ("sampled, independently", 8, 32)
    assert 0 < seed["different_verdicts"] <= seed["different_answers"] <= seed["different_responses"] <= 32
    assert seed["difference"] == pytest.approx(seed["score"] - seed["reference"])
    assert list(rows.index) == VARIED
    assert same("sensitivity", rows.reset_index())
    assert rows["changed"].tolist() == ["rows 256 → 3", "seed 0 → 1", "harness redraft → lm-eval"]


def test_the_numbers_are_those_of_two_evaluations_side_by_side(inside):
    folder = planned(["seed=1"])
    (found,) = agreements(folder.reference.folder, folder.variants["seed=1"].folder)
    row = table("sampled").loc["seed=1"]
    assert (row["low"], row["high"]) == pytest.approx((100 * found.low, 100 * found.high))
    assert row["noise"] == pytest.approx(100 * found.noise)
    # The policy answers by a coin, so a difference of 32 coins twice has a standard deviation of 100 / sqrt(64) points.
    assert row["noise"] == pytest.approx(1.96 * 100 / 64**0.5, rel=0.35)


def test_greedy_responses_do_not_depend_on_the_seed(inside):
    rows = table("greedy")
    assert set(rows["decoding"]) == {"greedy"}
    assert set(rows["responses"]) == {8}
    assert rows["different_responses"].eq(0).all()
    assert rows["noise"].isna().all()
    assert (rows["low"] < 0).all(), "an interval for problems like these"


def elsewhere(inside, tmp_path, /, **changes):
    """The evaluation `b`, as if it came from another machine."""
    folder = shutil.copytree(inside / "b", tmp_path / "b")
    record = read_json(folder / "evaluation.json")
    for key, change in changes.items():
        record[key] = record[key] | change if isinstance(change, dict) else change
    sampled = changes.get("machine", {}) | {key: changes[key] for key in ("device",) if key in changes}
    record["machines"] = [each | sampled for each in record["machines"]]
    write_with_hash(folder / "evaluation.json", record)
    return folder


@pytest.fixture
def finished(monkeypatch):
    """Evaluations are finished, and are not graded again."""
    monkeypatch.setattr(module.command, "evaluate", lambda _: None)


def test_an_evaluation_by_another_processor_is_compared_and_named(inside, finished, tmp_path):
    other = elsewhere(inside, tmp_path, machine={"processor": "another"}, packages={"torch": "1.0"})
    rows = sensitivity(planned(VARIED, [other]))
    assert len(rows) == 4
    row = rows[-1]
    assert row["variant"] == "from b"
    assert row["processor"].startswith("another, ")
    assert f"→ {row['processor']}" in row["changed"]
    assert "→ 1.0" in row["changed"]
    assert (row["decoding"], row["different_responses"]) == ("sampled, same random numbers", 0)
    earlier = elsewhere(inside, tmp_path / "earlier", git={"commit": "0" * 40})
    assert f"→ {'0' * 40}" in sensitivity(planned(VARIED, [earlier]))[-1]["changed"], "other code is no equal setting"
    graphics = elsewhere(inside, tmp_path / "gpu", device="NVIDIA H100")
    assert sensitivity(planned(VARIED, [graphics]))[-1]["processor"] == "NVIDIA H100"
    sensitivity(planned(VARIED))  # as before, for the other tests


def test_an_evaluation_of_another_policy_benchmark_or_size_is_rejected_before_sampling(inside, tmp_path, monkeypatch):
    monkeypatch.setattr(module.command, "evaluate", pytest.fail)

    def error_of(folder, **more):
        with pytest.raises(UserError) as error:
            planned(others=[folder], **more)
        return str(error.value)

    for name, changes in {"w": {"weights": {"model.safetensors": "0" * 64}}, "m": {"asked": {"limit": 3}}}.items():
        assert "another policy or other benchmarks" in error_of(elsewhere(inside, tmp_path / name, **changes))
    assert "temperature" in error_of(inside / "b", greedy=True)
    assert "evaluation.json" in error_of(tmp_path / "none")
    with pytest.raises(UserError, match="same name"):
        planned(others=[inside / "b", tmp_path / "b"])
    damaged = elsewhere(inside, tmp_path / "d")
    record = read_json(damaged / "evaluation.json")
    (damaged / "evaluation.json").write_text(json.dumps(record | {"device": "another"}))
    assert "differs from the hash" in error_of(damaged)
    write_with_hash(damaged / "evaluation.json", record | {"sha256": {"generations.parquet": "0" * 64}})
    assert "made from other files" in error_of(damaged)


def test_a_reused_evaluation_of_another_processor_is_an_error(inside, finished):
    folder = planned(VARIED).variants["rows=3"].folder
    record = read_json(folder / "evaluation.json")
    (machine,) = record["machines"]
    for machines, words in (
        ([machine | {"instructions": "avx"}], "another model or other instruction sets"),
        ([machine, machine | {"processor": "X"}], f"processor {re.escape(machine['processor'])}, .* → .*, then X, "),
    ):
        write_with_hash(folder / "evaluation.json", record | {"machines": machines})
        with pytest.raises(UserError, match="another processor or by other versions") as error:
            sensitivity(planned(VARIED))
        assert re.search(words, error.value.value)
    write_with_hash(folder / "evaluation.json", record)


@pytest.mark.parametrize(
    ("variants", "words"),
    [
        (["rows"], ["no variant", "harness, backend"]),
        (["batch=3"], ["no variant", "batch=3"]),
        (["seed=1,seed=2"], ["no variant", "once"]),
        (["seed=-1"], ["no seed", "from 0 to 4294967295"]),
        (["seed=4294967296"], ["no seed"]),
        (["seed=x"], ["no seed"]),
        (["backend=sglang"], ["sglang", "transformers"]),
        (["rows=0"], ["max_rows", "0"]),
        (["rows=256"], ["equals the reference"]),
        (["rows=3", "rows=3,seed=0"], ["equals rows=3"]),
        (["backend=vllm"], ["head_dim", "8"]),
    ],
)
def test_a_variant_that_makes_no_sense_is_one_message(inside, mistake, variants, words):
    text = mistake(inside, "sensitivity", a_request().model, *(f"--variant={each}" for each in variants))
    for word in words:
        assert word in text


def test_variants_of_packages_that_are_not_installed_are_rejected(inside, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="lm-eval is not installed"):
        planned(["harness=lm-eval"])


def test_usual_variants_that_cannot_run_here_are_left_out_with_the_reason(inside, monkeypatch, capsys):
    assert [text for text in VARIANTS if "vllm" not in text] == list(planned([]).variants)
    assert "without backend=vllm: " in (text := capsys.readouterr().err)
    assert "head_dim" in text
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    assert "harness=lm-eval" not in planned([]).variants


def test_without_names_all_axes_are_varied_but_for_what_the_reference_is(inside, monkeypatch):
    monkeypatch.setattr("redraft.engines.vllm.local.check_head_size", lambda _: None)
    assert list(planned([]).variants) == list(VARIANTS)
    found = planned([], seed=1)
    assert set(VARIANTS) - set(found.variants) == {"seed=1", "backend=vllm,seed=1"}
    folders = {found.reference.folder, *(each.folder for each in found.variants.values())}
    assert len(folders) == 1 + len(found.variants), "no two settings share a folder"
    assert set(SETTINGS) >= {key.partition("=")[0] for text in VARIANTS for key in text.split(",")}
    assert varied(a_request(), "threads=2,dtype=bfloat16").engine.dtype == "bfloat16"


def test_greedy_decoding_has_one_response(inside, mistake):
    assert "one response per problem" in mistake(inside, "evaluate", "copy", "--greedy", "--samples", "2")


def test_the_report_has_a_table_of_each_policy(inside):
    shown = sensitivities(Layout("tiny"))
    assert [each["name"] for each in shown] == ["spec_rl/grpo-vanilla, seed 0, step-0008"] * 2
    assert [len(each["rows"]) for each in shown] == [1, 3]
    assert not any(each["stale"] for each in shown)
    assert all((inside / "results/tiny/report" / each["csv"]).resolve().exists() for each in shown)
    common = {"papers": [], "runs": [], "evaluations": [], "benchmarks": [], "preset": Experiments().preset("tiny")}
    page = TEMPLATES.get_template("runs.html.j2").render(**common, sensitivities=shown, root="", page="runs.html")
    assert "sampled, independently" in page
    assert "rows 256 → 3" in page
    assert "sensitivity.csv" in page
    assert set(Layout("tiny").sensitivities) <= set(CampaignPlan.report_parts(FakePlan()))


def test_a_copy_of_a_run_s_folder_has_no_table(inside):
    before = Layout("tiny").sensitivities
    folder = before[0].parents[1]
    copy = shutil.copytree(folder, folder.with_name("seed0.bak"))
    assert Layout("tiny").sensitivities == before
    shutil.rmtree(copy)


def test_a_policy_of_the_hub_without_a_commit_is_not_compared(inside, finished, tmp_path):
    with pytest.raises(UserError, match="commit of this policy is unknown"):
        planned(VARIED, [elsewhere(inside, tmp_path, weights={"commit": ""})])


class FakePlan:
    """A plan of no paper."""

    layout, experiments, papers = Layout("tiny"), None, ()

    @staticmethod
    def laboratory_files():
        return []


def test_the_report_rejects_changed_numbers_and_leaves_out_a_run_that_was_trained_again(inside):
    file = Layout("tiny").sensitivities[0]
    table_file = file.with_name("sensitivity.csv")
    before, rows = file.read_text(), table_file.read_text()
    table_file.write_text(rows.replace("coins", "dice"))
    with pytest.raises(UserError, match="differs from the hash"):
        sensitivities(Layout("tiny"))
    table_file.write_text(rows)
    file.write_text(before.replace('"problems": 8', '"problems": 9'))
    with pytest.raises(UserError, match="differs from the hash"):
        sensitivities(Layout("tiny"))
    file.write_text(before)
    manifest = Layout("tiny").run("spec_rl/grpo-vanilla", 0) / "manifest.json"
    content = read_json(manifest)
    write_json(manifest, content | {"seconds": 1.0})
    assert all(each["stale"] for each in sensitivities(Layout("tiny")))
    write_json(manifest, content)


def test_a_policy_of_no_run_here_is_compared_outside_the_report(inside):
    found = plan_sensitivity(
        replace(a_request(), model="copy"), ["rows=3"], [], Experiments(), Path("results/sensitivity")
    )
    assert found.run is None
    assert found.folder.parts[:2] == ("results", "sensitivity")
    assert found.folder.name == "coins-sampled"
