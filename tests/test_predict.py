"""`redraft predict` and the stage `observe`: from a run's folder or a file to tables and JSON, and what is refused."""

import json
import math
import shutil
from contextlib import chdir
from copy import deepcopy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from redraft.cli.app import main
from redraft.config import Run, TinyModel
from redraft.config.algorithm import GRPO
from redraft.config.data import ProblemFile
from redraft.config.trainer import InProcessEngine
from redraft.errors import UserError
from redraft.evaluate.generate import _policies_of
from redraft.files import own_hash_file, read_json, sha256
from redraft.lab.predict import observations
from redraft.lab.predict.jackknife import IntervalEstimate
from redraft.lab.predict.observations import measure_pair
from redraft.lab.predict.prediction import _inverse
from redraft.lab.predict.saved_rollouts import read_file
from redraft.lab.predict.saved_run import SavedRun, open_run
from redraft.methods.epochs import Epochs
from redraft.methods.speculative import Speculative
from redraft.methods.vanilla import Vanilla
from redraft.provenance import write_manifest
from redraft.result_files import read_manifest, read_steps
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import models
from redraft.train.local.trainer import LocalTrainer
from tests.trainers import make_trainer

VOCABULARY = len(make_tokenizer())


def weakened(folder, factor):
    """The policy in a folder with its logits times a factor, and its tokenizer."""
    policy, tokenizer = models.load(folder)
    with torch.no_grad():
        policy.lm_head.weight.mul_(factor)
    return policy, tokenizer


def trained(results, tiny_model, reuse):
    """A finished run of three epochs of four steps, with policies after every second, in the workflow's folders.

    Its initial policy is less certain than the tiny model, so that responses differ in length.
    """
    trainer = make_trainer(
        epochs=3,
        prompts_per_step=2,
        group_size=4,
        prompts_per_update=2,
        learning_rate=0.003,
        max_response_tokens=12,
        evaluate_every=2,
    )
    problems = ProblemFile(path=str(Path(__file__).parent / "data/coin_problems.jsonl"), size=8, template="{problem}")
    run = Run(
        preset="test",
        paper="paper",
        cell=reuse.kind,
        seed=0,
        model_role="tiny",
        data_role="coins",
        model=TinyModel(),
        data=problems,
        algorithm=GRPO(),
        schedule=Epochs(),
        reuse=reuse,
        trainer=trainer,
        engine=InProcessEngine(device="cpu"),
    )
    initial, folder = results / "test/models/tiny", results / f"test/runs/paper/{reuse.kind}/seed0"
    models.save(*weakened(tiny_model, 0.6), initial)
    local = LocalTrainer(run, initial, folder)
    local.train()
    outputs = [*folder.glob("rollouts/*.parquet"), *folder.glob("policies/*/*.safetensors")]
    write_manifest(folder / "manifest.json", run, outputs, git={}, seconds=1.0, inputs=local.inputs, processes=[])
    return folder


@pytest.fixture(scope="module")
def run(tiny_model, tmp_path_factory):
    return trained(tmp_path_factory.mktemp("predict") / "results", tiny_model, Vanilla())


@pytest.fixture(scope="module")
def rollouts(run):
    """Rollouts of three epochs in the documented format, those of the middle one first; the first is not looked at."""
    opened = open_run(run)
    frames = []
    for step in (4, 8, 0):
        frame = pd.read_parquet(run / f"rollouts/step-{step:04d}.parquet")
        prompts = opened.prompts(opened.drafts(step))
        frame["prompt_tokens"] = [np.array(prompts[prompt], np.int32) for prompt in frame["prompt"]]
        frames.append(frame)
    return pd.concat(frames)[["prompt", "sample", "epoch", "tokens", "log_probs", "prompt_tokens"]]


@pytest.fixture
def file(rollouts, tmp_path):
    rollouts.to_parquet(tmp_path / "rollouts.parquet", index=False)
    return tmp_path / "rollouts.parquet"


def predicted(capsys, *arguments):
    """The JSON document, with rows by rule."""
    with pytest.raises(SystemExit) as end:
        main(["predict", *map(str, arguments), "--json"])
    assert not end.value.code
    content = json.loads(capsys.readouterr().out)
    return content | {"rows": {row["rule"]: row for row in content["rows"]}}


def test_a_run_is_predicted_from_its_last_policy_and_the_one_an_epoch_before(run, capsys):
    found = predicted(capsys, run, "--top", "3")
    assert found["asked"]["policy"] == str(run / "policies/step-0012")
    assert found["asked"]["drafter"] == str(run / "policies/step-0008")
    drafts = pd.read_parquet(run / "rollouts/step-0008.parquet")
    length = drafts["tokens"].map(len).mean()
    new = pd.read_parquet(run / "rollouts/step-0011.parquet")["tokens"].map(len).mean()
    assert f"8 drafts of 2 prompts, {length:.1f} tokens each; a new response has {new:.1f}" in found["notes"][0]
    assert "Drafts of step 8, policy after 12 steps; epochs between: 1." in found["notes"][0]
    rows = found["rows"]
    assert rows["random cut"]["kept"] == pytest.approx((length - 1) / 2)
    assert rows["random cut"]["break_even"] == 0
    for row in rows.values():
        assert row["unknown"] is None
        assert row["share"] == pytest.approx(row["kept"] / length)
        assert row["saved"] == pytest.approx(row["kept"] / new)
        for name in ("kept", "share", "whole", "saved", "break_even"):
            assert row[f"{name}_low"] <= row[name] <= (row[f"{name}_high"] or math.inf)
        assert row["time_saved"] is row["scoring_seconds"] is None
        if row["rule"] != "random cut":
            assert row["break_even"] == pytest.approx(length / row["kept"])
    assert rows["one-hot"]["kept"] < rows["residual, top 3"]["kept"] < rows["residual"]["kept"]
    assert rows["residual"]["kept"] == rows["published, l = 1"]["kept"] < rows["published, l = e^0.5"]["kept"]
    assert rows["Gumbel"]["kept"] < rows["residual"]["kept"]


def test_kept_tokens_are_those_of_a_plain_product_of_ratios(run, capsys):
    """The published rule by hand, from a forward pass of the whole sequence."""
    row = predicted(capsys, run, "--from", "0", "--to", "4", "--rules", "speculative", "--lenience", "e^0.1")["rows"]
    opened, kept = open_run(run), []
    policy, _ = models.load(run / "policies/step-0004")
    drafts = opened.drafts(0)
    prompts = opened.prompts(drafts)
    for draft in drafts:
        whole = torch.tensor([[*prompts[draft.prompt], *draft.tokens]])
        with torch.no_grad():
            distribution = policy(whole).logits[0].log_softmax(-1)
        begins = len(prompts[draft.prompt])
        new = distribution[torch.arange(begins - 1, whole.shape[1] - 1), whole[0, begins:]].numpy()
        kept.append(np.cumprod(np.minimum(1, np.exp(0.1 + new - draft.log_probs))).sum())
    assert list(row) == ["published, l = e^0.1"]
    assert row["published, l = e^0.1"]["kept"] == pytest.approx(np.mean(kept), rel=1e-4)


def test_time_is_saved_from_the_break_even_on(run, capsys):
    rules = ("--rules", "residual,random")
    even = predicted(capsys, run, *rules)["rows"]["residual"]["break_even"]
    timed = predicted(capsys, run, *rules, "--scoring", 100 * even, "--decoding", 100)["rows"]
    row = timed["residual"]
    assert row["time_saved"] == pytest.approx(0, abs=1e-9)
    assert row["scoring_seconds"] == pytest.approx(row["decoding_seconds"]) == row["kept"] / 100
    assert timed["random cut"]["time_saved"] == pytest.approx(timed["random cut"]["saved"])
    faster = predicted(capsys, run, *rules, "--scoring", 1e12, "--decoding", 100)["rows"]["residual"]
    assert faster["time_saved"] == pytest.approx(faster["saved"])
    assert faster["time_saved_low"] == pytest.approx(faster["saved_low"])


def test_the_table_fits_and_says_what_it_takes_for_granted(run, capsys):
    with pytest.raises(SystemExit):
        main(["predict", str(run), "--from", "3"])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    text = " ".join(out.split())
    assert "Unknown (needs the drafter's full distribution, and its policy is not known)" in text
    assert "residual, top 32, block, block, top 32, Gumbel." in text
    assert "sampled without top-p" in text
    assert "trained on these drafts" in text
    assert "stored log-probabilities are used unchecked" in text
    assert "published, l = e^0.2" in text
    assert "block  " not in out


def test_a_file_of_rollouts_gives_what_the_run_gives(run, file, capsys):
    policies = run / "policies"
    options = ("--policy", policies / "step-0008", "--drafter", policies / "step-0004")
    of_file = predicted(capsys, file, *options)
    of_run = predicted(capsys, run, "--from", "4", "--to", "8")
    assert of_file["rows"] == of_run["rows"]
    assert "log-probabilities differ from the drafter policy's by" in of_file["notes"][1]
    alone = predicted(capsys, file, *options[:2])["rows"]
    assert alone["block"]["unknown"]
    assert alone["block"]["kept"] is None
    assert alone["residual"]["kept"] == of_run["rows"]["residual"]["kept"]


def first(column, change):
    """A change of a column's first row, which belongs to the earlier epoch."""

    def changed(rows):
        values = rows[column].tolist()
        return rows.assign(**{column: [change(values[0]), *values[1:]]})

    return changed


other_prompt = first("prompt_tokens", lambda row: row + 1)

BROKEN = {
    "lacks a column": (lambda f: f.drop(columns="log_probs"), "log_probs"),
    "different numbers of tokens and log-probabilities": (first("log_probs", lambda row: row[:-1]), "prompt"),
    "not one of a sampled token": (first("log_probs", lambda row: row * np.float32("nan")), "nan"),
    "at most 0": (first("log_probs", lambda row: row * 0 + np.float32(0.5)), "0.5"),
    "finite": (first("log_probs", lambda row: row - np.float32("inf")), "inf"),
    "outside the policy's vocabulary": (first("tokens", lambda row: row * 0 + VOCABULARY), "tokens"),
    "this row has the wrong type": (first("tokens", lambda row: row[:0]), "at least one"),
    "rollouts of two epochs": (lambda f: f[f["epoch"] == 1], "epoch"),
    "this rollout occurs twice": (lambda f: pd.concat([f, f.iloc[:1]]), "epoch, prompt, sample"),
    "must have whole numbers": (lambda f: f.assign(epoch=f["epoch"].map({0: "9", 1: "10"})), "epoch"),
    "and none missing": (lambda f: f.assign(prompt=f["prompt"].where(f.index > 0).astype("Int64")), "prompt"),
    "one prompt has different tokens": (lambda f: other_prompt(f[::-1]), "prompt_tokens"),
    "different tokens in two rows": (other_prompt, "prompt_tokens"),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_file_that_is_not_as_described_raises(message, rollouts, run, tmp_path, mistake):
    change, key = BROKEN[message]
    change(rollouts).to_parquet(tmp_path / "broken.parquet", index=False)
    said = mistake(tmp_path, "predict", "broken.parquet", "--policy", str(run / "policies/step-0008"))
    assert message in said
    assert key in said


def test_sequences_beyond_a_models_positions_raise(file):
    read = read_file(file)
    longest = max(len(read.prompts[draft.prompt]) + len(draft.tokens) for draft in read.drafts)
    read.check_fits(VOCABULARY, longest, file)
    read.check_fits(VOCABULARY, None, file)
    with pytest.raises(UserError, match="longer than the policy's positions"):
        read.check_fits(VOCABULARY, longest - 1, file)


def test_the_wrong_drafter_is_noticed(run, file, mistake, tmp_path):
    other = tmp_path / "other"
    models.save(*weakened(run / "policies/step-0004", 0.8), other)
    said = mistake(tmp_path, "predict", str(file), "--policy", str(run / "policies/step-0008"), "--drafter", str(other))
    assert "not those of the drafter's policy" in said
    assert "at most 0.05 nats" in said


def test_a_manifest_that_was_changed_before_an_evaluation_is_noticed(run, tmp_path):
    """No record of an evaluation has its hash yet, and an evaluation would make one of the changed manifest."""
    file = shutil.copytree(run, tmp_path / "changed") / "manifest.json"
    text = file.read_text()
    file.write_text(text.replace('"seconds": 1.0', '"seconds": 9.0'))
    assert file.read_text() != text
    for read in (open_run, lambda folder: read_steps(folder / "steps.jsonl"), lambda _: _policies_of(file)):
        with pytest.raises(UserError, match="differs from the hash in manifest.json.sha256") as error:
            read(file.parent)
        assert error.value.file == file
    own_hash_file(file).unlink()  # as of an earlier version
    assert read_manifest(file)["seconds"] == 9.0


def tempered(run, temperature):
    """The run's manifest with another temperature."""
    manifest = deepcopy(open_run(run).manifest)
    manifest["configuration"]["trainer"]["temperature"] = temperature
    return manifest


def test_drafts_at_another_temperature_are_noticed(run, file, mistake, tmp_path):
    options = ["--policy", str(run / "policies/step-0008"), "--drafter", str(run / "policies/step-0004")]
    said = mistake(tmp_path, "predict", str(file), *options, "--temperature", "0.6")
    assert "sampled at another temperature" in said
    copy = shutil.copytree(run, tmp_path / "tempered")
    (copy / "manifest.json").write_text(json.dumps(tempered(run, 0.6)))
    own_hash_file(copy / "manifest.json").unlink()
    assert "sampled at another temperature" in mistake(tmp_path, "predict", str(copy))
    with pytest.raises(UserError, match="sampled at another temperature"):
        measure_pair(open_run(copy), 2, 4, held_out=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "5"], "no policy is saved after this step"),
        (["--from", "4", "--to", "4"], "not before the policy's"),
        (["--from", "77"], "no rollouts of this step"),
        (["--policy", "elsewhere"], "not allowed here: a run's manifest has"),
        (["--temperature", "1"], "not allowed here: a run's manifest has"),
        (["--scoring", "100"], "both throughputs"),
        (["--scoring", "100", "--decoding", "0"], "both throughputs"),
        (["--rules", "blocks"], "no such rule"),
        (["--lenience", "e^x"], "a lenience must be a number"),
    ],
)
def test_options_that_fit_nothing_raise(arguments, message, run, tmp_path, mistake):
    assert message in mistake(tmp_path, "predict", str(run), *arguments)


def test_errors_name_what_a_file_needs(file, tmp_path, mistake):
    assert "--policy" in mistake(tmp_path, "predict", str(file))
    assert "no such folder" in mistake(tmp_path, "predict", str(file), "--policy", "nowhere")
    assert "has no steps" in mistake(tmp_path, "predict", str(file), "--from", "1")
    assert "missing" in mistake(tmp_path, "predict", "nowhere.parquet", "--policy", "nowhere")
    assert "manifest.json" in mistake(tmp_path, "predict", str(tmp_path))


def test_a_run_without_two_policies_with_other_rollouts_or_drafts_of_drafts_raises(run, tiny_model, tmp_path, mistake):
    copy = shutil.copytree(run, tmp_path / "alone")
    assert "two saved policies" in mistake(tmp_path, "predict", str(copy), "--to", "2"), "its initial one is elsewhere"
    file = copy / "rollouts/step-0008.parquet"
    pd.read_parquet(file).assign(reward=0.0).to_parquet(file)
    assert "differs from the hash in manifest.json" in mistake(tmp_path, "predict", str(copy))
    reused = trained(tmp_path / "results", tiny_model, Speculative())
    assert "all rollouts of this step continue drafts" in mistake(tmp_path, "predict", str(reused))


def test_another_initial_policy_raises(run, tmp_path):
    other = shutil.copytree(run / "policies/step-0002", tmp_path / "other")
    with pytest.raises(UserError, match="not the run's initial policy"):
        open_run(run, other).policy(0)


def test_the_laboratory_observes_every_pair_of_saved_policies(run, tmp_path):
    file = tmp_path / "observed.json"
    stage = ["stage", "redraft.lab.predict.observations:observe_run"]
    with chdir(tmp_path), pytest.raises(SystemExit) as end:
        main([*stage, str(run), str(run.parents[3] / "models/tiny"), str(file)])
    assert not end.value.code
    content = json.loads(file.read_text())
    assert content["made_from"] == {"manifest.json": sha256(run / "manifest.json")}
    assert [(pair["from"], pair["to"]) for pair in content["pairs"]] == [(at, at + 2) for at in range(0, 12, 2)]
    for pair in content["pairs"]:
        assert (pair["epochs_between"], pair["prompts"]) == (0.5, 2)
        assert pair["tv"]["mean"] == pytest.approx(1 - pair["beta_mean"])
        assert 0 <= pair["tv"]["quantiles"]["0.1"] < pair["tv"]["quantiles"]["0.5"] < pair["tv"]["quantiles"]["0.9"]
        assert [row["rule"] for row in pair["own"]] == [row["rule"] for row in pair["held_out"]]
        for own, held_out in zip(pair["own"], pair["held_out"], strict=True):
            assert own["drafts"] == held_out["drafts"] == 8
            assert own.keys() == held_out.keys()
            assert 0 <= own["whole"] <= own["share"] <= 1
            assert own["share_low"] <= own["share"] <= own["share_high"]


def test_held_out_drafts_are_the_drafters_and_none_that_the_run_has_seen(run):
    """Under their own policy all drafts are kept whole; the run's own random numbers would draw its own drafts."""
    opened = open_run(run)
    pair = measure_pair(opened, 2, 4, held_out=4)
    assert pair == measure_pair(opened, 2, 4, held_out=4)
    assert pair["own"] != pair["held_out"]
    (later,) = (row for row in pair["held_out"] if row["rule"] == "residual")
    assert later["whole"] < 0.999, "their log-probabilities are not the later policy's"
    assert measure_pair(opened, 2, 4, held_out=0)["held_out"] == []
    opened.policies[4] = opened.policies[2]
    same = {row["rule"]: row for row in measure_pair(opened, 2, 4, held_out=50)["held_out"]}
    for name in ("residual", "block", "Gumbel", "published, l = 1"):
        assert same[name]["drafts"] == 100
        assert same[name]["whole"] == pytest.approx(1, abs=1e-3)
    assert same["one-hot"]["whole"] < 0.2


def test_a_run_that_screens_prompts_has_no_epochs(run):
    """Its passes take other numbers of steps, so successive windows of steps mix visits of a prompt."""
    manifest = read_json(run / "manifest.json")
    speed = manifest | {"configuration": manifest["configuration"] | {"schedule": {"kind": "speed"}}}
    with pytest.raises(UserError, match=r"form no epochs(.|\n)*'speed'"):
        SavedRun(run, speed, None).pair()


def test_held_out_drafts_are_at_the_run_s_temperature(run, monkeypatch):
    monkeypatch.setattr(observations, "log_prob_error", lambda *_: None)  # what is stored is at temperature 1
    opened = SavedRun(run, tempered(run, 0.6), None)
    opened.policies[4] = opened.policies[2]
    same = {row["rule"]: row for row in measure_pair(opened, 2, 4, held_out=50)["held_out"]}
    assert same["residual"]["whole"] == pytest.approx(1, abs=1e-3)


def test_a_single_prompt_has_no_interval(run):
    class OnePrompt(SavedRun):
        def drafts(self, step):
            every = super().drafts(step)
            return [draft for draft in every if draft.prompt == every[0].prompt]

    opened = open_run(run)
    row = measure_pair(OnePrompt(opened.path, opened.manifest, opened.initial), 2, 4, held_out=0)["own"][0]
    assert row["drafts"] == 4
    assert row["kept_low"] is row["share_high"] is None


def test_a_break_even_is_as_unknown_as_its_share():
    """A single prompt has no interval; a share of 0 never breaks even."""
    found = _inverse(IntervalEstimate(0.5, math.nan, math.nan))
    assert (found.value, math.isnan(found.low), math.isnan(found.high)) == (2.0, True, True)
    assert _inverse(IntervalEstimate(0.5, 0.0, 1.0)) == IntervalEstimate(2.0, 1.0, math.inf)
