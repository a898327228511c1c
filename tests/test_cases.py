"""Case studies, chosen by rule from rollouts made up here."""

import itertools
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from redraft.config import GRPO, Epochs, InProcessEngine, ProblemFile, Run, Speculative, TinyModel
from redraft.errors import UserError
from redraft.evaluate.cases import KINDS, cases
from redraft.files import read_json, sha256, write_json
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train.local.trainer import LocalTrainer
from tests.trainers import make_trainer

TOKENIZER = make_tokenizer()
PROBLEMS = [("1a+1=", "2"), ("2a+2=", "4"), ("3a+3=", "6")]


def line(prompt, text, reward, prefix=0, draft=0, sample=0, sampled_at=0):
    tokens = np.array(TOKENIZER(text)["input_ids"], dtype=np.int32)
    return {
        "prompt": prompt,
        "sample": sample,
        "tokens": tokens,
        "reward": reward,
        "prefix_length": prefix,
        "draft_length": draft,
        "sampled_at": np.full(len(tokens), sampled_at, dtype=np.int32),
    }


@pytest.fixture
def write_run(tmp_path):
    """A function that writes a run with one step per epoch and returns its cases by kind."""
    folder = tmp_path / "run"

    def write(*epochs):
        (folder / "rollouts").mkdir(parents=True)
        for step, lines in enumerate(epochs):
            frame = pd.DataFrame(lines).assign(visit=step, finish="eos")
            frame.to_parquet(folder / f"rollouts/step-{step:04d}.parquet")
        file = tmp_path / "problems.jsonl"
        file.write_text("".join(json.dumps({"problem": p, "answer": a}) + "\n" for p, a in PROBLEMS))
        data = {"kind": "file", "path": str(file), "size": len(PROBLEMS)}
        write_manifest(folder, {"run": "p/c/seed0", "configuration": {"data": data}})
        TOKENIZER.save_pretrained(folder / "policies/step-0003")
        return folder

    return write


def write_manifest(folder, content):
    rollouts = {f"rollouts/{file.name}": sha256(file) for file in (folder / "rollouts").iterdir()}
    write_json(folder / "manifest.json", content | {"sha256": rollouts})


def chosen(folder, file):
    cases(folder, file)
    content = read_json(file)
    assert content["run"] == "p/c/seed0"
    assert [case["kind"] for case in content["cases"]] == [kind.name for kind in KINDS]
    return {case["kind"]: case for case in content["cases"]}


FIRST = [line(0, "12345", 0.0), line(1, "6789", 1.0), line(2, "abcdefgh", 0.0), line(0, "45", 1.0, sample=1)]


def second(**changed):
    """A second epoch: one rollout of each kind; of the drafts 3 of 5, 4 of 4, 7 of 8 and 0 of 2 tokens are kept."""
    lines = {
        "corrected": line(0, "123xy", 1.0, prefix=3, draft=5, sampled_at=1),
        "reused": line(1, "6789", 1.0, prefix=4, draft=4),
        "continued": line(2, "abcdefgz+", 0.0, prefix=7, draft=8),
        "rejected": line(0, "77", 0.0, prefix=0, draft=2, sample=1),
    }
    return list((lines | changed).values())


def test_a_kind_each_is_found_with_what_was_kept_and_what_came_instead(write_run, tmp_path):
    found = chosen(write_run(FIRST, second()), tmp_path / "cases.json")
    case = found["corrected"]
    assert (case["problem"], case["answer"], case["step"], case["old_step"]) == ("1a+1=", "2", 1, 0)
    assert (case["verified_prefix"], case["rejected_tail"], case["continuation"]) == ("123", "45", "xy")
    assert case["rejected"] == {"index": 3, "token": "4"}
    assert (case["reward"], case["length"]) == ({"old": 0.0, "new": 1.0}, 5)
    whole = found["reused"]
    assert (whole["verified_prefix"], whole["rejected_tail"], whole["continuation"]) == ("6789", "", "")
    assert (whole["rejected"], whole["oldest_token_step"]) == (None, 0)
    assert (found["continued"]["verified_prefix"], found["continued"]["continuation"]) == ("abcdefg", "z+")
    # The smallest share above 0 is the corrected one's (3 of 5), before the one of which nothing was kept.
    assert (found["rejected"]["prompt"], found["rejected"]["sample"], found["rejected"]["prefix_length"]) == (0, 0, 3)


def test_a_draft_of_which_nothing_was_kept_is_shown_if_there_is_no_other_rejection(write_run, tmp_path):
    epoch = [line(1, "6789", 1.0, prefix=4, draft=4), line(0, "77", 0.0, prefix=0, draft=2, sample=1)]
    found = chosen(write_run(FIRST, epoch), tmp_path / "cases.json")
    assert (found["rejected"]["prefix_length"], found["rejected"]["rejected_tail"]) == (0, "45")
    assert found["rejected"]["oldest_token_step"] is None
    absent = "none of the 2 rollouts with a draft is of this kind"
    assert found["corrected"]["absent"] == found["continued"]["absent"] == absent


def test_only_a_wrong_rollout_can_be_corrected_and_only_a_kept_prefix_continued(write_run, tmp_path):
    """Right before and after, wrong after right, and wrong twice with nothing kept."""
    epoch = [
        line(1, "67xy", 1.0, prefix=2, draft=4),
        line(0, "4z", 0.0, prefix=1, draft=2, sample=1),
        line(2, "zyx", 0.0, prefix=0, draft=8),
    ]
    found = chosen(write_run(FIRST, epoch), tmp_path / "cases.json")
    assert "absent" in found["corrected"]
    assert (found["continued"]["prompt"], found["continued"]["verified_prefix"]) == (1, "67")
    alone = tmp_path / "run/rollouts/step-0001.parquet"
    pd.DataFrame(epoch[1:]).assign(visit=1, finish="eos").to_parquet(alone)
    write_manifest(tmp_path / "run", read_json(tmp_path / "run/manifest.json"))
    assert "absent" in chosen(tmp_path / "run", tmp_path / "again.json")["continued"]


def test_the_oldest_token_is_the_first_sampled_of_the_kept_prefix(write_run, tmp_path):
    older = line(0, "123xy", 0.0, prefix=3, draft=5) | {"sampled_at": np.array([0, 0, 0, 1, 1], np.int32)}
    newer = line(0, "123xz", 1.0, prefix=4, draft=5) | {"sampled_at": np.array([0, 0, 0, 1, 2], np.int32)}
    case = chosen(write_run(FIRST, [older], [newer]), tmp_path / "cases.json")["corrected"]
    assert (case["step"], case["prefix_length"], case["oldest_token_step"]) == (2, 4, 0)


def test_the_latest_epoch_counts_and_the_order_of_lines_does_not(write_run, tmp_path):
    third = [line(1, "6789", 1.0, prefix=4, draft=4), line(0, "77", 0.0, prefix=2, draft=2, sample=1)]
    folder = write_run(FIRST, second(), third)
    found = chosen(folder, tmp_path / "cases.json")
    assert (found["reused"]["step"], found["reused"]["prompt"]) == (2, 1), "the longer of two"
    assert found["corrected"]["step"] == 1, "none in the last epoch"
    for step, order in itertools.product((1, 2), (slice(None, None, -1),)):
        file = folder / f"rollouts/step-{step:04d}.parquet"
        pd.read_parquet(file).iloc[order].to_parquet(file)
    write_manifest(folder, read_json(folder / "manifest.json"))
    assert chosen(folder, tmp_path / "again.json") == found


def test_equal_candidates_are_told_apart_by_prompt_and_sample(write_run, tmp_path):
    epochs = [line(p, "6789", 1.0, sample=s) for p in (2, 1) for s in (1, 0)]
    again = [line(p, "6789", 1.0, prefix=4, draft=4, sample=s) for p in (2, 1) for s in (1, 0)]
    found = chosen(write_run(epochs, again), tmp_path / "cases.json")
    assert (found["reused"]["prompt"], found["reused"]["sample"]) == (1, 0)


def test_a_continuation_that_equals_the_draft_is_not_shown(write_run, tmp_path):
    same = line(2, "abcdefgh", 0.0, prefix=7, draft=8)
    found = chosen(write_run(FIRST, second(continued=same)), tmp_path / "cases.json")
    assert "absent" in found["continued"]


def test_a_run_without_drafts_has_no_cases_and_says_why(write_run, tmp_path):
    found = chosen(write_run(FIRST), tmp_path / "cases.json")
    assert {case["absent"] for case in found.values()} == {"no rollout of this run had a draft"}


def test_what_is_missing_or_does_not_belong_together_is_named(write_run, tmp_path):
    folder = write_run(FIRST, second(reused=line(1, "6711", 1.0, prefix=4, draft=4)))
    with pytest.raises(UserError, match="step-0001(.|\n)*differs from that of its draft(.|\n)*1, 0"):
        cases(folder, tmp_path / "cases.json")
    assert not (tmp_path / "cases.json").exists()
    (folder / "policies/step-0003").rename(folder / "elsewhere")
    with pytest.raises(UserError, match="no policy was saved in this run") as error:
        cases(folder, tmp_path / "cases.json")
    assert error.value.file == folder / "policies"
    (folder / "rollouts").rename(folder / "other")
    with pytest.raises(UserError, match="no saved rollouts"):
        cases(folder, tmp_path / "cases.json")


def test_cases_of_a_run_that_was_really_trained(tiny_model, tmp_path):
    trainer = make_trainer(
        epochs=3, prompts_per_step=4, group_size=4, prompts_per_update=2, learning_rate=0.01, max_response_tokens=8
    )
    problems = ProblemFile(path=str(Path(__file__).parent / "data/coin_problems.jsonl"), size=8)
    run = Run(
        preset="test",
        paper="test",
        cell="cell",
        seed=0,
        model_role="tiny",
        data_role="coins",
        model=TinyModel(),
        data=problems,
        algorithm=GRPO(),
        schedule=Epochs(),
        reuse=Speculative(lenience=1),
        trainer=trainer,
        engine=InProcessEngine(device="cpu"),
    )
    folder = tmp_path / "run"
    LocalTrainer(run, tiny_model, folder).train()
    manifest = {"run": "test/cell/seed0", "configuration": run.model_dump(mode="json")}
    write_manifest(folder, manifest)
    cases(folder, tmp_path / "cases.json")
    found = [case for case in read_json(tmp_path / "cases.json")["cases"] if "absent" not in case]
    assert found
    for case in found:
        saved = pd.read_parquet(folder / f"rollouts/step-{case['step']:04d}.parquet")
        row = saved[(saved["prompt"] == case["prompt"]) & (saved["sample"] == case["sample"])].iloc[0]
        assert case["verified_prefix"] + case["continuation"] == TOKENIZER.decode(row["tokens"].tolist())
        assert (case["reward"]["new"], case["length"]) == (row["reward"], len(row["tokens"]))
        assert case["visit"] == case["step"] // 2 == case["old_step"] // 2 + 1
