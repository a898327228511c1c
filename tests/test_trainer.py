"""The local trainer: what a step records, and that a run stopped anywhere ends as if it had not been."""

import asyncio
import errno
import io
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from redraft.config import (
    DAPO,
    GRPO,
    PPO,
    RLOO,
    AdaptiveReuse,
    BlockReuse,
    CoupledReuse,
    DelayedReuse,
    Experiments,
    InProcessEngine,
    LearnedHead,
    NGram,
    OneHotReuse,
    Plain,
    ProblemFile,
    RandomReuse,
    ReleaseVariant,
    ResidualReuse,
    Run,
    SelfSpeculation,
    Speculative,
    Speed,
    Staged,
    Suffix,
    TinyModel,
    Vanilla,
    WeightedReuse,
    run_fingerprint,
)
from redraft.config.base import STEP_STAGES
from redraft.config.data import Benchmark
from redraft.engines.torch.drafter import round_to_nearest
from redraft.engines.torch.loop import now
from redraft.errors import UserError
from redraft.evaluate.diversity import measure
from redraft.files import read_json, read_json_lines, sha256
from redraft.rollout import storage
from redraft.selfspec.calibration import write_calibration
from redraft.train import initial_policy as make
from redraft.train import job, models
from redraft.train.local.grading import Graders
from redraft.train.local.trainer import LocalTrainer
from redraft.train.loop import TrainingLoop
from redraft.train.records import StageClock
from tests.selfspec import QWEN
from tests.states import restate
from tests.trainers import make_trainer

STEPS, STEPS_PER_EPOCH, PROMPTS, GROUP, LIMIT = 6, 2, 4, 4, 8
PROBLEMS = ProblemFile(path=str(Path(__file__).parent / "data" / "coin_problems.jsonl"), size=8, template="{problem}")


def make_run(
    method=None,
    seed=0,
    prompts=PROMPTS,
    algorithm=None,
    group=GROUP,
    epochs=3,
    schedule=None,
    batch=None,
    decoding=None,
    temperature=1.0,
    **engine,
):
    """8 problems, 3 epochs of 2 steps, 2 updates a step; policies are kept after 4 and 6 steps."""
    trainer = make_trainer(
        epochs=epochs,
        prompts_per_step=prompts,
        prompts_per_batch=batch,
        group_size=group,
        prompts_per_update=(batch or prompts) // 2,
        learning_rate=0.01,
        max_response_tokens=LIMIT,
        evaluate_every=4,
        temperature=temperature,
    )
    algorithm = algorithm or GRPO()
    settings = {"device": "cpu", "checkpoint_every": 2, "max_rows": 6, "rows_per_micro_batch": 3} | engine
    return Run(
        preset="test",
        paper="test",
        cell="cell",
        seed=seed,
        model_role="tiny",
        data_role="sums",
        model=TinyModel(),
        data=PROBLEMS,
        algorithm=algorithm,
        reuse=method or Speculative(lenience=1),
        schedule=schedule or algorithm.usual_schedule,
        decoding=decoding or Plain(),
        trainer=trainer,
        engine=InProcessEngine(**settings),
    )


def train(run, model, folder):
    """Train and return the records."""
    LocalTrainer(run, model, folder).train()
    return read_json_lines(folder / "steps.jsonl")


class Stopped(Exception):
    """In place of a kill."""


def first_steps(trainer, count):
    """The records of a trainer's first steps, behind which it is stopped."""
    records = []

    def progress(done, _, record):
        records.append(record)
        if done == count:
            raise Stopped

    with suppress(Stopped):
        trainer.train(progress)
    return records


def results(folder):
    """All that must not depend on how often a run was stopped, and how fast graders answered; to the last bit."""
    records = read_json_lines(folder / "steps.jsonl")
    return {
        "records": [
            {key: value for key, value in record.items() if not key.endswith("seconds") and key != "tail_share"}
            for record in records
        ],
        "policies": {path.parent.name: sha256(path) for path in sorted(folder.glob("policies/*/model.safetensors"))},
        "rollouts": {file.name: sha256(file) for file in sorted((folder / "rollouts").glob("step-*.parquet"))},
        "memory": [sha256(file) for file in sorted(folder.glob("checkpoints/*/step-*/memory.arrow"))[-1:]],
    }


def rolled_out(file):
    """A file's columns but for log-probabilities."""
    return pa.parquet.read_table(file).drop_columns("log_probs").to_pydict()


FINAL = Path("policies/step-0006")


@pytest.fixture(scope="module")
def undisturbed(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    train(make_run(), tiny_model, folder)
    return folder


KEYS = {
    "step",
    "epoch",
    "rollouts",
    "tokens_decoded",
    "tokens_reused",
    "tokens_verified",
    "response_length",
    "truncated",
    "prefix_length",
    "prefix_share",
    "full_reuse_ratio",
    "token_age_epochs",
    "reward",
    "fresh_reward",
    "fresh_kl",
    "entropy",
    "kl",
    "clip_fraction",
    "gradient_norm",
    "seconds",
    "training_step",
    "updated",
    "informative",
    "tokens_cached",
    "grading_seconds",
    "rollouts_per_prompt",
    "without_correct",
    "replayed",
    "trained_rollouts",
    "trained_reward",
    "trained_age",
    "drift",
    "tail_share",
    "decoding_passes",
    "passes",
}


def test_each_step_leaves_a_record_and_its_rollouts(undisturbed):
    records = read_json_lines(undisturbed / "steps.jsonl")
    assert [(r["step"], r["epoch"]) for r in records] == [(i, i // STEPS_PER_EPOCH) for i in range(STEPS)]
    for record in records:
        assert record.keys() == KEYS
        frame = pd.read_parquet(undisturbed / "rollouts" / f"step-{record['step']:04d}.parquet")
        lengths = frame["tokens"].map(len)
        assert len(frame) == record["rollouts"] == PROMPTS * GROUP
        assert lengths.sum() == record["tokens_decoded"] + record["tokens_reused"]
        assert lengths.mean() == pytest.approx(record["response_length"])
        assert frame["prefix_length"].sum() == record["tokens_reused"]
        assert frame["reward"].mean() == pytest.approx(record["reward"])
        assert (frame["finish"] == "length").mean() == pytest.approx(record["truncated"])
        assert (record["updated"], record["training_step"]) == (True, record["step"] + 1)
        assert 0 <= record["tail_share"] <= 1
        longest = int((lengths - frame["prefix_length"].fillna(0)).max())
        assert longest <= record["decoding_passes"] <= record["tokens_decoded"]
        groups = frame["reward"].to_numpy().reshape(-1, GROUP)
        assert (groups.max(1) > groups.min(1)).mean() == pytest.approx(record["informative"])
        ages = record["step"] - np.concatenate(frame["sampled_at"].to_list())
        assert ages.mean() / STEPS_PER_EPOCH == pytest.approx(record["token_age_epochs"])


def test_a_run_is_the_same_with_drafts_in_chunks_and_verifies_fewer_tokens(undisturbed, tiny_model, tmp_path):
    records = first_steps(LocalTrainer(make_run(draft_chunk=2), tiny_model, tmp_path), 2 * STEPS_PER_EPOCH)
    whole = read_json_lines(undisturbed / "steps.jsonl")[: len(records)]
    for step, (ours, theirs) in enumerate(zip(records, whole, strict=True)):
        name = f"rollouts/step-{step:04d}.parquet"
        assert rolled_out(tmp_path / name) == rolled_out(undisturbed / name)
        same = ("tokens_decoded", "tokens_reused", "tokens_cached", "prefix_length", "reward")
        assert [ours[key] for key in same] == [theirs[key] for key in same]
        assert ours["tokens_reused"] <= ours["tokens_verified"] <= theirs["tokens_verified"]
    verified, before = (sum(record["tokens_verified"] for record in of) for of in (records, whole))
    assert 0 < verified < before


def test_policies_are_kept_at_the_steps_that_are_evaluated(undisturbed):
    assert names(undisturbed / "policies") == ["step-0004", "step-0006"]
    early, late = (models.load(undisturbed / "policies" / name)[0] for name in ("step-0004", "step-0006"))
    assert not torch.equal(early.lm_head.weight, late.lm_head.weight)
    latest = load_file(undisturbed / LATEST / "model.safetensors")
    assert torch.equal(latest["lm_head.weight"], late.lm_head.weight)


def test_every_epoch_takes_every_problem_once_in_another_order(undisturbed):
    frames = [pd.read_parquet(file) for file in sorted((undisturbed / "rollouts").glob("step-*.parquet"))]
    orders = [[p for frame in frames[2 * e : 2 * e + 2] for p in frame["prompt"][::GROUP]] for e in range(STEPS // 2)]
    assert [sorted(order) for order in orders] == [list(range(8))] * 3
    assert len({tuple(order) for order in orders}) == 3


def test_stages_sum_to_the_step_and_fit_into_the_time_it_took(tiny_model, tmp_path, monkeypatch):
    """Graders work beside the engine: only their time in which the engine had to wait is a part of the step."""
    trainer = LocalTrainer(make_run(), tiny_model, tmp_path)
    measuring, elapsed = [], []

    def timed(function, times):
        def wrapped(*arguments):
            began = time.process_time()
            result = function(*arguments)
            times.append(time.process_time() - began)
            return result

        return wrapped

    monkeypatch.setattr(trainer.loop, "_fresh", timed(trainer.loop._fresh, measuring))
    monkeypatch.setattr(trainer.loop, "_step", timed(trainer.loop._step, elapsed))
    for step, record in enumerate(first_steps(trainer, STEPS_PER_EPOCH + 1)):
        seconds = record["seconds"]
        assert seconds.keys() == {*STEP_STAGES, "total"}
        assert sum(seconds[stage] for stage in STEP_STAGES) == pytest.approx(seconds["total"], abs=1e-9)
        own = seconds["total"] - seconds["reward"]
        assert 0 < own <= elapsed[step] - measuring[step], "what only measures is not part of the step"
        assert 0 <= seconds["reward"] <= record["grading_seconds"]
        assert record["grading_seconds"] > 0
        for stage in ("rollout", "old_log_probs", "ref", "adv", "update_actor"):
            assert seconds[stage] > 0
        assert (seconds["verification"] > 0) == (step >= STEPS_PER_EPOCH), "the first epoch has no drafts"
        assert seconds["assembly"] > 0
        assert seconds["values"] == seconds["update_critic"] == 0


def test_time_that_training_does_not_need_is_left_out(monkeypatch):
    clocked = [0.0]
    monkeypatch.setattr("redraft.engines.torch.loop.time.process_time", lambda: clocked[0])
    clock = StageClock(partial(now, torch.device("cpu")))
    for block, seconds in ((clock.stage("reward"), 1.0), (clock.excluded(), 5.0), (clock.stage("reward"), 2.0)):
        with block:
            clocked[0] += seconds
    clocked[0] += 0.5
    finished = clock.finish()
    assert (finished["reward"], finished["others"], finished["total"]) == (3.0, 0.5, 3.5)


def test_seconds_that_a_trainer_claims_are_in_its_step_also_those_that_its_clock_does_not_see():
    clocked = [0.0]
    clock = StageClock(lambda: clocked[0])
    clocked[0] += 4.0
    clock.add({"rollout": 3.0, "reward": 2.0}, unseen=1.5)
    clock.add({"ref": 0.25})
    finished = clock.finish()
    assert [finished[name] for name in ("rollout", "reward", "ref", "others", "total")] == [3.0, 2.0, 0.25, 0.25, 5.5]


def test_a_stage_ends_when_the_gpu_has_done_its_work(monkeypatch):
    clocked, queued = [0.0], [0.0]

    def synchronize(device):
        assert device.type == "cuda"
        clocked[0] += queued[0]
        queued[0] = 0.0

    monkeypatch.setattr("redraft.engines.torch.loop.time.perf_counter", lambda: clocked[0])
    monkeypatch.setattr("redraft.engines.torch.loop.torch.cuda.synchronize", synchronize)
    clock = StageClock(partial(now, torch.device("cuda")))
    for name, seconds in (("ref", 2.0), ("update_actor", 3.0)):
        with clock.stage(name):
            queued[0] += seconds
    queued[0] += 1.0
    finished = clock.finish()
    assert [finished[name] for name in ("ref", "update_actor", "others", "total")] == [2.0, 3.0, 1.0, 6.0]


def test_only_updates_see_the_policy_in_training_mode(tiny_model, tmp_path):
    trainer, modes = LocalTrainer(make_run(), tiny_model, tmp_path), set()

    def look(model, *_):
        modes.add((torch.is_grad_enabled(), model.training))

    trainer.learner.policy.base_model.register_forward_pre_hook(look)
    first_steps(trainer, 2)
    assert modes == {(True, True), (False, False)}


def test_full_reuse_generates_nothing_after_the_first_epoch(tiny_model, tmp_path):
    records = train(make_run(Speculative(lenience="inf")), tiny_model, tmp_path)
    for record in records[:STEPS_PER_EPOCH]:
        assert (record["tokens_reused"], record["tokens_verified"], record["prefix_length"]) == (0, 0, None)
        assert record["tokens_decoded"] > 0
    for record in records[STEPS_PER_EPOCH:]:
        assert (record["tokens_decoded"], record["full_reuse_ratio"]) == (0, 1.0)
        assert record["tokens_reused"] == record["tokens_verified"] > 0
        assert record["token_age_epochs"] > 0


def test_some_of_a_draft_is_reused_at_finite_lenience_and_nothing_by_vanilla(undisturbed, tiny_model, tmp_path):
    later = read_json_lines(undisturbed / "steps.jsonl")[STEPS_PER_EPOCH:]
    assert sum(record["tokens_reused"] for record in later) > 0
    assert sum(record["tokens_decoded"] for record in later) > 0
    for record in train(make_run(Vanilla()), tiny_model, tmp_path):
        assert (record["tokens_reused"], record["tokens_verified"], record["full_reuse_ratio"]) == (0, 0, None)
        assert record["token_age_epochs"] == 0


def test_the_first_epoch_of_every_method_is_the_same(undisturbed, tiny_model, tmp_path):
    train(make_run(Vanilla()), tiny_model, tmp_path)
    for step in range(STEPS_PER_EPOCH):
        name = f"step-{step:04d}.parquet"
        assert sha256(tmp_path / "rollouts" / name) == sha256(undisturbed / "rollouts" / name)


def test_the_policy_is_trained_and_another_seed_trains_another(undisturbed, tiny_model, tmp_path):
    train(make_run(seed=1), tiny_model, tmp_path)
    folders = (tiny_model, undisturbed / FINAL, tmp_path / FINAL)
    assert len({sha256(folder / "model.safetensors") for folder in folders}) == 3


def test_how_a_run_executes_does_not_change_what_it_samples_first(undisturbed, tiny_model, tmp_path):
    trainer = LocalTrainer(make_run(max_rows=2, max_batched_tokens=40, rows_per_micro_batch=8), tiny_model, tmp_path)
    first_steps(trainer, 1)
    files = [folder / "rollouts/step-0000.parquet" for folder in (tmp_path, undisturbed)]
    assert rolled_out(files[0]) == rolled_out(files[1])
    ours, theirs = (np.concatenate(pd.read_parquet(file)["log_probs"]) for file in files)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_prompts_per_step_must_divide_the_problems(tiny_model, tmp_path):
    with pytest.raises(UserError, match="must divide") as error:
        LocalTrainer(make_run(prompts=6), tiny_model, tmp_path)
    assert error.value.key == "trainer.prompts_per_step"


def test_an_absent_model_is_named(tmp_path):
    with pytest.raises(UserError, match="no model") as error:
        LocalTrainer(make_run(), tmp_path / "nowhere", tmp_path / "run")
    assert error.value.file == tmp_path / "nowhere"


# Runs in a process of its own: loads everything once, then forks one training for each place to be killed at.
KILLED = """
import json, os, signal, sys, traceback
from pathlib import Path
from redraft.cli.process import gc_paused

with gc_paused():
    from redraft.config import Run
    from redraft.rollout import memory
    from redraft.train import loop as campaign, checkpoint
    from redraft.train.local import trainer as local
    from transformers.models.qwen3 import modeling_qwen3

model, root = Path(sys.argv[1]), Path(sys.argv[2])

def kill():
    os.kill(os.getpid(), signal.SIGKILL)

def before(module, name, when):
    original = getattr(module, name)
    def patched(*args, **kwargs):
        if when(*args, **kwargs):
            kill()
        return original(*args, **kwargs)
    setattr(module, name, patched)

def after(module, name, when):
    original = getattr(module, name)
    def patched(*args, **kwargs):
        result = original(*args, **kwargs)
        if when(*args, **kwargs):
            kill()
        return result
    setattr(module, name, patched)

def half_a_record(file, record):
    with file.open("a") as handle:
        handle.write('{"step": 3, "epo')
    kill()

def half_removed(folder, **_):
    if folder.name == "step-000002" and folder.exists():
        (folder / "model.safetensors").unlink()
        kill()

PLACES = {
    "after the first record": lambda: after(campaign, "append_record", lambda f, r: r["step"] == 0),
    "after the fourth record": lambda: after(campaign, "append_record", lambda f, r: r["step"] == 3),
    "in the middle of a record": lambda: before(
        campaign, "append_record", lambda f, r: r["step"] == 3 and half_a_record(f, r)),
    "before rollouts are moved into place": lambda: before(
        Path, "replace", lambda p, t: t.name == "step-0003.parquet"),
    "in the middle of a checkpoint": lambda: before(memory.Memory, "save", lambda s, f: "000004" in str(f)),
    "between a checkpoint's files and its record": lambda: before(
        campaign, "append_record", lambda f, r: r["step"] == 3),
    "between a checkpoint's record and its state": lambda: before(
        checkpoint, "write_json", lambda f, c: "000004" in str(f)),
    "before a checkpoint is moved into place": lambda: before(Path, "rename", lambda p, t: t.name == "step-000004"),
    "after a checkpoint was moved into place": lambda: after(Path, "rename", lambda p, t: t.name == "step-000004"),
    "in the middle of removing an old checkpoint": lambda: setattr(checkpoint.shutil, "rmtree", half_removed),
    "before a policy is saved": lambda: before(local.models, "save", lambda m, t, f: f.name == "step-0004"),
    "after a policy was saved": lambda: after(local.models, "save", lambda m, t, f: f.name == "step-0004"),
    "after the last checkpoint": lambda: after(Path, "rename", lambda p, t: t.name == "step-000006"),
}

for name, run, places in json.loads(sys.argv[3]):
    for place in places:
        child = os.fork()
        if child == 0:
            try:
                PLACES[place]()
                local.LocalTrainer(Run.model_validate(run), model, root / name / place).train()
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, f"{name} not killed {place}"
"""
PLACES = [line.split('"')[1] for line in KILLED.partition("PLACES = {")[2].splitlines() if line.startswith('    "')]


CLIMBING = SelfSpeculation(
    kind="self_speculation",
    when="threshold",
    most_active=5,
    ramp=3,
    draft_lengths=[1, 2, 3],
    raise_at=0.5,
    lower_at=0.1,
    patience=1,
    group=16,
)
"""Speculates in the tail of each rollout, with more proposals after each."""
MATCHING = {
    "ngram": NGram(kind="ngram", draft_lengths=[3], shortest=1),
    "suffix": Suffix(kind="suffix", draft_lengths=[3, 4], window=2, raise_at=0.5, lower_at=0.1, patience=1),
    "head": LearnedHead(kind="head", draft_lengths=[2], learning_rate=0.01),
}
"""Drafters whose proposals are verified by agreement."""
RESUMED = {
    "ppo": make_run(algorithm=PPO()),
    "dapo": make_run(algorithm=DAPO(), group=2, checkpoint_every=1),
    "delayed": make_run(DelayedReuse(lenience=1)),
    "release": make_run(ReleaseVariant(lenience=1)),
    "speed": make_run(Vanilla(), schedule=Speed(screening=2, stale="stored"), prompts=2, batch=2, epochs=2),
    "speed-speculative": make_run(schedule=Speed(screening=2), algorithm=RLOO(), prompts=2, batch=2, epochs=2),
    "staged": make_run(Staged(stage_size=2, lenience=1)),
    "self-speculation": make_run(decoding=CLIMBING),
    **{kind: make_run(decoding=MATCHING[kind]) for kind in ("suffix", "head")},
    "residual": make_run(ResidualReuse(top=4, fresh_every=3)),
    "block": make_run(BlockReuse(top=44)),
    "gumbel": make_run(CoupledReuse(fresh_every=3)),
    "weighted": make_run(WeightedReuse(top=44)),
    "adaptive": make_run(AdaptiveReuse(budget=1e-4)),
}
"""Runs that keep more, or something else, than this file's own."""


@pytest.fixture(scope="module")
def killed_runs(tiny_model, tmp_path_factory):
    """Folders of runs that were killed, by name and place."""
    root = tmp_path_factory.mktemp("killed")
    wanted = [["grpo", make_run(), PLACES], *([name, run, PLACES[1:2]] for name, run in RESUMED.items())]
    runs = json.dumps([[name, run.model_dump(mode="json"), places] for name, run, places in wanted])
    command = [sys.executable, "-c", KILLED, str(tiny_model), str(root), runs]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert [names(root / name) for name, *_ in wanted] == [sorted(places) for *_, places in wanted]
    return root


@pytest.fixture(scope="module")
def killed(killed_runs):
    """This file's run, killed at every place."""
    return killed_runs / "grpo"


@pytest.mark.parametrize("place", PLACES)
def test_a_run_killed_anywhere_and_started_again_ends_bit_identical(place, killed, undisturbed, tiny_model, tmp_path):
    folder = shutil.copytree(killed / place, tmp_path / "run")
    train(make_run(), tiny_model, folder)
    assert results(folder) == results(undisturbed)


def test_the_speed_of_graders_changes_no_bit_of_a_run_in_stages(tiny_model, tmp_path, monkeypatch):
    """Each group goes on to its next stage in the order of the prompts, whichever grader answers first."""
    graded, run = Graders.grade, make_run(Staged(stage_size=2), max_rows=16)
    for name, pause in {"even": lambda _: 0.0, "uneven": lambda prompt: 0.004 * (5 * prompt % 7)}.items():

        async def grade(self, prompt, rollouts, pause=pause):
            await asyncio.sleep(pause(prompt))
            return await graded(self, prompt, rollouts)

        monkeypatch.setattr(Graders, "grade", grade)
        train(run, tiny_model, tmp_path / name)
    assert results(tmp_path / "even") == results(tmp_path / "uneven")
    per_prompt = [record["rollouts_per_prompt"] for record in results(tmp_path / "even")["records"]]
    assert max(per_prompt) > 2, "some have a second stage"


def test_a_run_started_again_when_done_does_nothing(undisturbed, tiny_model, tmp_path, monkeypatch):
    folder = shutil.copytree(undisturbed, tmp_path / "run")
    monkeypatch.setattr(TrainingLoop, "_step", lambda *_: pytest.fail("a step was done again"))
    train(make_run(), tiny_model, folder)
    assert results(folder) == results(undisturbed)


def test_a_run_may_go_on_with_other_settings_of_execution(killed, tiny_model, tmp_path):
    folder = shutil.copytree(killed / "after the fourth record", tmp_path / "run")
    assert len(train(make_run(checkpoint_every=1, max_rows=3), tiny_model, folder)) == STEPS


CHECKPOINTS = Path("checkpoints") / run_fingerprint(make_run())
LATEST = CHECKPOINTS / "step-000006"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_two_checkpoints_are_kept(undisturbed):
    assert names(undisturbed / CHECKPOINTS) == ["step-000004", "step-000006"]


FILES = [
    "model.safetensors",
    "optimizer.safetensors",
    "random.safetensors",
    "memory.arrow",
    "schedule/waiting.arrow",
    "state.json",
]


OTHER = make_run(Speculative(lenience="e^0.5"))


def test_a_checkpoint_of_another_experiment_is_refused(undisturbed, tiny_model, tmp_path):
    folder = shutil.copytree(undisturbed, tmp_path / "run")
    moved = folder / "checkpoints" / run_fingerprint(OTHER)
    (folder / CHECKPOINTS).rename(moved)
    with pytest.raises(UserError, match="another experiment") as error:
        train(OTHER, tiny_model, folder)
    assert error.value.file == moved / "step-000006" / "state.json"
    assert results(folder) == results(undisturbed)


def test_experiments_that_follow_each_other_in_one_folder_never_mix(undisturbed, tiny_model, tmp_path):
    folder = shutil.copytree(undisturbed, tmp_path / "run")
    train(OTHER, tiny_model, folder)
    train(OTHER, tiny_model, tmp_path / "alone")
    assert results(folder) == results(tmp_path / "alone") != results(undisturbed)
    train(make_run(), tiny_model, folder)
    assert results(folder) == results(undisturbed)


@pytest.fixture(scope="module")
def other_model(tiny_model, tmp_path_factory):
    """The same shape and tokenizer with other weights, as a model made anew may be."""
    model, tokenizer = models.load(tiny_model)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.01)
    folder = tmp_path_factory.mktemp("models") / "other"
    models.save(model, tokenizer, folder)
    return folder


@pytest.mark.parametrize("place", ["after the fourth record", "after the last checkpoint"])
def test_a_run_goes_on_from_its_own_initial_policy_only(place, killed, tiny_model, other_model, tmp_path):
    folder = shutil.copytree(killed / place, tmp_path / "run")
    train(make_run(), other_model, folder)
    train(make_run(), other_model, tmp_path / "alone")
    assert results(folder) == results(tmp_path / "alone")
    assert names(folder / "checkpoints") == [CHECKPOINTS.name]
    assert read_json(folder / LATEST / "state.json")["inputs"]["initial_policy"] == sha256(
        other_model / "model.safetensors"
    )


def test_a_run_starts_anew_when_its_problem_file_changed(tiny_model, tmp_path):
    file = tmp_path / "problems.jsonl"
    file.write_text(Path(PROBLEMS.path).read_text())
    run = make_run().model_copy(update={"data": PROBLEMS.model_copy(update={"path": str(file)})})
    train(run, tiny_model, tmp_path / "run")
    before = results(tmp_path / "run")
    file.write_text(file.read_text().replace('"answer": "1"', '"answer": "3"'))
    train(run, tiny_model, tmp_path / "run")
    train(run, tiny_model, tmp_path / "alone")
    assert results(tmp_path / "run") == results(tmp_path / "alone") != before


def test_rollouts_of_a_longer_run_in_the_same_folder_are_removed(undisturbed, tiny_model, tmp_path):
    folder = shutil.copytree(undisturbed, tmp_path / "run")
    shutil.copy(folder / "rollouts" / "step-0005.parquet", folder / "rollouts" / "step-0006.parquet")
    train(OTHER, tiny_model, folder)
    assert names(folder / "rollouts") == [f"step-{step:04d}.parquet" for step in range(STEPS)]


def test_a_missing_step_is_named_and_steps_keep_their_numbers(undisturbed, tmp_path):
    folder, file = shutil.copytree(undisturbed, tmp_path / "run"), tmp_path / "diversity.parquet"
    measure(folder, 0, file)
    assert pd.read_parquet(file)["step"].tolist() == list(range(STEPS))
    (folder / "rollouts" / "step-0001.parquet").unlink()
    with pytest.raises(UserError, match="rollouts of a step are missing") as error:
        measure(folder, 0, file)
    assert error.value.value == 1


@pytest.fixture
def stage(tiny_model, monkeypatch):
    """The workflow's stage `train`, for this file's run."""

    def train(folder, **changes):
        benchmarks = changes.pop("benchmarks", {})
        run = make_run().model_copy(update=changes)
        stub = SimpleNamespace(run=lambda *_: run, preset_of=lambda *_: SimpleNamespace(benchmarks=benchmarks))
        monkeypatch.setattr(job, "Experiments", lambda: stub)
        job.train("test", "test/cell", 0, tiny_model, folder)

    return train


def manifest_of(folder):
    return read_json(folder / "manifest.json")


def test_the_manifest_counts_the_seconds_of_all_processes(stage, killed, tmp_path, monkeypatch):
    folder = shutil.copytree(killed / "after the fourth record", tmp_path / "run")
    (state,) = (folder / CHECKPOINTS).glob("step-*/state.json")
    content = read_json(state)
    assert (content["step"], content["seconds"] > 0) == (2, True)
    restate(state, seconds=1000.0)
    began = time.perf_counter()
    stage(folder)
    assert 1000 < manifest_of(folder)["seconds"] < 1000 + time.perf_counter() - began
    monkeypatch.setattr(TrainingLoop, "_step", lambda *_: pytest.fail("a step was done again"))
    first = manifest_of(folder)["seconds"]
    stage(folder)
    assert manifest_of(folder)["seconds"] == first


def test_the_manifest_names_the_initial_policy_and_the_code_that_trained(stage, tiny_model, tmp_path, monkeypatch):
    commit = ["before"]
    original = LocalTrainer.train

    def committing(*arguments):
        original(*arguments)
        commit[0] = "after"

    monkeypatch.setattr("redraft.train.job.git_state", lambda: {"commit": commit[0], "modified": False})
    monkeypatch.setattr(LocalTrainer, "train", committing)
    stage(tmp_path)
    assert manifest_of(tmp_path)["git"]["commit"] == "before"
    assert manifest_of(tmp_path)["inputs"]["initial_policy"] == sha256(tiny_model / "model.safetensors")


def test_training_says_once_that_no_response_of_an_epoch_earned_a_reward(stage, tmp_path, capsys):
    stage(tmp_path / "some")
    assert "earned a reward" not in capsys.readouterr().err
    (file := tmp_path / "sevens.jsonl").write_text(re.sub('"[12]"', '"7"', Path(PROBLEMS.path).read_text()))
    stage(tmp_path / "none", data=PROBLEMS.model_copy(update={"path": str(file)}))
    lines = [line for line in capsys.readouterr().err.splitlines() if "earned a reward" in line]
    assert len(lines) == 1, "of three epochs"
    assert lines[0].startswith("  test/cell seed 0: in epoch 1 no response earned a reward")


def test_a_benchmark_file_that_cannot_be_graded_is_an_error_before_training(stage, tmp_path):
    (file := tmp_path / "mine.jsonl").write_text('{"problem": "p", "answer": "seven"}\n')
    benchmark = Benchmark(data=ProblemFile(path=str(file), size=1), grading="choice")
    with pytest.raises(UserError, match="cannot compare") as error:
        stage(tmp_path / "run", benchmarks={"mine": benchmark})
    assert error.value.key == "mine, grading"
    assert not (tmp_path / "run/steps.jsonl").exists()


ROOT = Path(__file__).parents[1]


def test_a_model_is_made_by_a_fixed_number_of_threads(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    threads, before = [], torch.get_num_threads()
    torch.set_num_threads(make.THREADS + 1)
    monkeypatch.setattr("redraft.train.initial_policy.warm_start", lambda *_: threads.append(torch.get_num_threads()))
    try:
        make.make_model("smoke", "qwen3-1.7b-base", tmp_path / "model")
    finally:
        torch.set_num_threads(before)
    assert threads == [make.THREADS]
    assert models.load(tmp_path / "model")


@pytest.mark.parametrize("preset", ["tiny", "smoke"])
def test_presets_without_a_gpu_compute_the_same_where_there_is_one(preset, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert Experiments().preset(preset).engine.device == "cpu"


def test_missing_records_are_named(undisturbed, tiny_model, tmp_path):
    folder = shutil.copytree(undisturbed, tmp_path / "run")
    lines = (folder / "steps.jsonl").read_text().splitlines(keepends=True)
    (folder / "steps.jsonl").write_text("".join(lines[:3]))
    with pytest.raises(UserError, match="records of finished steps are missing") as error:
        train(make_run(), tiny_model, folder)
    assert error.value.file == folder / "steps.jsonl"


@pytest.mark.parametrize("name", FILES)
def test_without_space_left_the_earlier_checkpoint_stays_and_resumes(
    name, undisturbed, tiny_model, tmp_path, monkeypatch
):
    opened, written = Path.open, storage.pa.OSFile

    class Full(io.RawIOBase):
        """A file on a disk that is full after half of what is written."""

        def __init__(self, path):
            super().__init__()
            self.path, self.file = path, opened(path, "wb")

        def writable(self):
            return True

        def write(self, content):
            self.file.write(bytes(content)[: len(content) // 2])
            self.file.flush()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    def is_full(path, mode):
        return Path(name).name in path.name and "step-000004" in str(path) and "w" in mode

    def full(path, mode="r", *others, **more):
        return Full(path) if is_full(path, mode) else opened(path, mode, *others, **more)

    def full_for_arrow(path, mode="r"):
        return Full(Path(path)) if is_full(Path(path), mode) else written(path, mode)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", full)
        patch.setattr(storage.pa, "OSFile", full_for_arrow)
        with pytest.raises(UserError, match="no space left") as error:
            train(make_run(), tiny_model, tmp_path)
    assert error.value.file == tmp_path / CHECKPOINTS / ".step-000004" / name
    assert names(tmp_path / CHECKPOINTS) == ["step-000002"]
    train(make_run(), tiny_model, tmp_path)
    assert results(tmp_path) == results(undisturbed)


FULL_DISK = {
    "safetensors": SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    "json": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "config.json"),
    "tokenizers": Exception("Disk quota exceeded (os error 122)"),
}


@pytest.mark.parametrize("error", FULL_DISK.values(), ids=FULL_DISK)
def test_without_space_left_a_model_is_written_whole_or_not_at_all(error, tiny_model, tmp_path, monkeypatch):
    model, tokenizer = models.load(tiny_model)
    folder = tmp_path / "policy"
    models.save(model, tokenizer, folder)
    before = {file.name: sha256(file) for file in folder.iterdir()}

    def full(unfinished):
        (unfinished / "tokenizer.json").write_text("{")
        raise error

    monkeypatch.setattr(tokenizer, "save_pretrained", full)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    for target in (folder, tmp_path / "new"):
        with pytest.raises(UserError, match="no space left") as raised:
            models.save(model, tokenizer, target)
        assert raised.value.file == target
    assert {file.name: sha256(file) for file in folder.iterdir()} == before
    assert names(tmp_path) == ["policy"]


def test_other_errors_of_safetensors_stay_what_they_are(tiny_model, tmp_path, monkeypatch):
    model, tokenizer = models.load(tiny_model)

    def wrong(_, **settings):
        raise SafetensorError("shape mismatch")

    monkeypatch.setattr(model, "save_pretrained", wrong)
    with pytest.raises(SafetensorError, match="shape"):
        models.save(model, tokenizer, tmp_path / "policy")
    assert not names(tmp_path)


def nothing_recorded(folder):
    return not read_json_lines(folder / "steps.jsonl") and not (folder / "policies").exists()


def test_a_policy_of_nan_stops_with_an_error_instead_of_recording_it(tiny_model, tmp_path):
    trainer = LocalTrainer(make_run(), tiny_model, tmp_path)
    with torch.no_grad():
        next(trainer.learner.policy.parameters()).fill_(float("nan"))
    with pytest.raises(UserError, match="diverged"):
        trainer.train()
    assert nothing_recorded(tmp_path)


@pytest.mark.parametrize("quantity", ["loss", "kl", "gradient norm"])
def test_a_diverged_update_is_not_made(quantity, tiny_model, tmp_path, monkeypatch):
    trainer = LocalTrainer(make_run(), tiny_model, tmp_path)
    policy = trainer.learner.policy
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    loss = trainer.learner.loss

    def diverged(*arguments):
        result = loss(*arguments)
        match quantity:
            case "loss":
                return replace(result, loss=result.loss + float("inf"))
            case "kl":
                return replace(result, kl=float("nan"))
            case _:
                result.loss.register_hook(lambda gradient: gradient * float("nan"))
                return result

    monkeypatch.setattr(trainer.learner, "loss", diverged)
    with pytest.raises(UserError, match=f"diverged: the {quantity}") as error:
        trainer.train()
    assert (error.value.key, error.value.value) == ("trainer.learning_rate", 0.01)
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.state_dict().items())
    assert nothing_recorded(tmp_path)


def test_a_prompt_that_is_too_long_is_refused_before_anything_is_trained(tiny_model, tmp_path):
    run = make_run()
    short = run.model_copy(update={"trainer": run.trainer.model_copy(update={"max_prompt_tokens": 2})})
    with pytest.raises(UserError, match="a prompt is longer than the limit") as error:
        train(short, tiny_model, tmp_path)
    assert (error.value.key, error.value.value) == ("trainer.max_prompt_tokens", 2)
    assert not (tmp_path / "steps.jsonl").exists()


def test_a_learning_rate_that_is_far_too_high_ends_in_an_error_of_the_users(tiny_model, tmp_path):
    run = make_run()
    run = run.model_copy(update={"trainer": run.trainer.model_copy(update={"learning_rate": 1e30})})
    with pytest.raises(UserError, match="diverged"):
        train(run, tiny_model, tmp_path)
    assert nothing_recorded(tmp_path)
    assert not (tmp_path / FINAL).exists()


ALGORITHMS = [GRPO(), GRPO(kl_loss_coef=0), PPO(), DAPO(), RLOO()]


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: f"{a.kind}-{a.kl_loss_coef}")
def test_an_algorithm_has_the_models_that_it_needs_and_records_what_they_do(algorithm, tiny_model, tmp_path):
    """Full reuse makes every group of the second epoch as informative as in the first."""
    trainer = LocalTrainer(make_run(algorithm=algorithm), tiny_model, tmp_path)
    penalised, critic = algorithm.kl_loss_coef > 0, algorithm.kind == "ppo"
    records = first_steps(trainer, 4)
    for record in records:
        assert record.keys() == KEYS | ({"critic_loss", "critic_gradient_norm"} if critic else set())
    updates = [record for record in records if record["updated"]]
    assert updates
    for record in updates:
        seconds = record["seconds"]
        assert (record["kl"] is not None, seconds["ref"] > 0) == (penalised, penalised)
        assert (seconds["values"] > 0, seconds["update_critic"] > 0) == (critic, critic)
        assert all(record[name] is not None for name in ("entropy", "clip_fraction", "gradient_norm"))
    assert (trainer.learner.reference is not None, trainer.learner.critic is not None) == (penalised, critic)


def test_ppos_critic_is_trained_and_part_of_its_checkpoints(tiny_model, tmp_path):
    run = make_run(algorithm=PPO())
    trainer = LocalTrainer(run, tiny_model, tmp_path)
    before = {name: tensor.clone() for name, tensor in trainer.learner.critic.state_dict().items()}
    trainer.train()
    folder = tmp_path / "checkpoints" / run_fingerprint(run) / "step-000006"
    saved = load_file(folder / "critic.safetensors")
    assert saved.keys() == before.keys()
    assert not any(torch.equal(saved[name], before[name]) for name in ("score.weight", "score.bias"))
    assert set(read_json(folder / "state.json")["sha256"]) == {
        *(name for name in FILES if name != "state.json"),
        "critic.safetensors",
        "critic_optimizer.safetensors",
    }


@pytest.fixture(scope="module")
def finished(tiny_model, tmp_path_factory):
    """Folders of runs that were not stopped, by name, trained when asked for."""
    folders = {}

    def of(name):
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp(name)
            train(RESUMED[name], tiny_model, folders[name])
        return folders[name]

    return of


@pytest.mark.parametrize("name", RESUMED)
def test_what_other_algorithms_and_methods_keep_survives_a_kill_too(name, killed_runs, finished, tiny_model, tmp_path):
    folder = shutil.copytree(killed_runs / name / PLACES[1], tmp_path / "run")
    train(RESUMED[name], tiny_model, folder)
    assert results(folder) == results(finished(name))


def test_a_run_that_speculates_records_how_far_and_climbs_its_ladder(finished):
    records = read_json_lines(finished("self-speculation") / "steps.jsonl")
    further = {
        "draft_length",
        "block_efficiency",
        "acceptance",
        "speculated_passes",
        "drafting_seconds",
        "kept_at",
        "kept_from",
        "proposed_from",
        "passes",
        "block_verification_seconds",
        "quantisation_seconds",
        "quantisation_error",
        "decoding_passes",
        "blocks",
        "proposed",
        "kept",
    }
    assert all(record.keys() == KEYS | further for record in records)
    assert [record["draft_length"] for record in records] == [1, 2, 3, 3, 3, 3]
    for record in records:
        length = record["draft_length"]
        assert 0 < record["speculated_passes"] < 1, "only the tail, when five responses or fewer are left"
        assert record["block_efficiency"] == pytest.approx(1 + length * record["acceptance"])
        assert sorted(record["kept_at"]) == [str(i + 1) for i in range(length)]
        assert record["decoding_passes"] == sum(count for _, _, count, *_ in record["passes"])
        assert record["proposed"] == record["blocks"] * length
        assert record["acceptance"] == record["kept"] / record["proposed"]
        assert sum(record["kept_at"].values()) == pytest.approx(length * record["acceptance"])
        assert record["kept_from"].keys() == record["proposed_from"].keys() <= {"0", "16", "32", "64"}
        kept, proposed = (sum(record[name].values()) for name in ("kept_from", "proposed_from"))
        assert kept == pytest.approx(proposed * record["acceptance"])
        assert proposed % length == 0
        speculated, plain = (sum(p[2] for p in record["passes"] if bool(p[1]) is on) for on in (True, False))
        assert record["speculated_passes"] == pytest.approx(speculated / (speculated + plain))
        assert {(p[0] <= 5, p[1]) for p in record["passes"]} == {(False, 0), (True, length)}
        assert 0 < record["quantisation_error"] < 0.2
        assert record["drafting_seconds"] + record["block_verification_seconds"] <= record["seconds"]["rollout"]


ALWAYS = SelfSpeculation(kind="self_speculation", when="always", draft_lengths=[2], group=16)


@pytest.mark.parametrize("decoding", [Plain(), ALWAYS], ids=lambda d: d.kind)
@pytest.mark.parametrize("method", [Vanilla(), ResidualReuse(top=4)], ids=lambda m: m.kind)
def test_rollouts_and_updates_are_at_the_run_s_temperature(method, decoding, tiny_model, tmp_path):
    """The trainer's log-probabilities are the engine's, and both are those of logits over the temperature."""
    run = make_run(method, decoding=decoding, temperature=0.6)
    trainer = LocalTrainer(run, tiny_model, tmp_path)
    records = first_steps(trainer, STEPS_PER_EPOCH + 1)
    assert max(record["drift"] for record in records) < 1e-8, "no other policy sampled, and none at another temperature"
    assert (records[-1]["tokens_reused"] > 0) is (method.kind == "residual")
    model = models.load(tiny_model)[0].eval()
    frame = pd.read_parquet(tmp_path / "rollouts" / "step-0000.parquet")
    for row in frame.itertuples():
        prompt, tokens = trainer.prompts[row.prompt], torch.tensor(row.tokens.astype(np.int64))
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*prompt, *row.tokens.tolist()]])).logits[0, len(prompt) - 1 : -1]
        distribution = (logits / 0.6).log_softmax(-1)
        np.testing.assert_allclose(row.log_probs, distribution.gather(1, tokens[:, None])[:, 0], atol=1e-4)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (Vanilla(), {}),
        (DelayedReuse(lenience=1), {}),
        (Staged(stage_size=2, lenience=1), {}),
        (Speculative(lenience=1), {"schedule": Speed(screening=2), "algorithm": RLOO(), "prompts": 2, "batch": 2}),
        (BlockReuse(), {}),
        (OneHotReuse(), {}),
        (CoupledReuse(), {}),
        (WeightedReuse(), {}),
        (RandomReuse(), {"algorithm": DAPO(), "group": 2}),
        (ReleaseVariant(lenience=1), {"algorithm": PPO()}),
    ],
    ids=lambda part: getattr(part, "kind", ""),
)
def test_every_method_can_speculate(method, options, tiny_model, tmp_path):
    records = first_steps(LocalTrainer(make_run(method, decoding=ALWAYS, **options), tiny_model, tmp_path), 6)
    assert all(record["speculated_passes"] == 1 for record in records if record["tokens_decoded"])
    assert max(record["acceptance"] for record in records if record["acceptance"] is not None) > 0.5
    if not isinstance(method, Vanilla):
        assert any(record["tokens_reused"] for record in records)


@pytest.mark.parametrize("kind", MATCHING)
@pytest.mark.parametrize("method", [Vanilla(), BlockReuse(), CoupledReuse()], ids=lambda m: m.kind)
def test_agreeing_drafters_give_the_tokens_of_plain_decoding_with_reuse(method, kind, tiny_model, tmp_path):
    """Up to the first update every token; after it, policies differ by the rounding of their log-probabilities."""
    found = {}
    for name, decoding in (("plain", Plain()), (kind, MATCHING[kind])):
        run = make_run(method, decoding=decoding)
        records = first_steps(LocalTrainer(run, tiny_model, tmp_path / name), STEPS_PER_EPOCH + 1)
        found[name] = pd.read_parquet(tmp_path / name / "rollouts" / "step-0000.parquet")
    for column in ("tokens", "prefix_length", "finish"):
        assert found[kind][column].map(str).tolist() == found["plain"][column].map(str).tolist()
    assert all(record["kept"] <= record["proposed"] for record in records)
    assert records[-1]["proposed"] > 0
    assert records[-1]["tokens_reused"] > 0 or isinstance(method, Vanilla)
    if kind == "suffix":
        assert [record["history_tokens"] for record in records[:2]] == [
            0,
            records[0]["history_tokens"] + sum(map(len, found[kind].tokens)),
        ]
        assert records[-1]["kept"] > 0


def test_a_head_learns_without_touching_the_policy_or_its_random_numbers(tiny_model, tmp_path):
    trainer = LocalTrainer(make_run(Vanilla(), decoding=MATCHING["head"]), tiny_model, tmp_path)
    torch.manual_seed(5)
    numbers, weights = torch.get_rng_state(), {n: w.clone() for n, w in trainer.learner.policy.state_dict().items()}
    with trainer.graders:
        rolled = [trainer.roll_out(trainer.loop.tasks(0), 0) for _ in range(6)]
    losses = [each.measured["head_loss"] for each in rolled]
    assert losses[-1] < losses[0] - 0.2
    assert torch.equal(torch.get_rng_state(), numbers)
    assert all(torch.equal(w, weights[n]) for n, w in trainer.learner.policy.state_dict().items())
    assert all(w.grad is None for w in trainer.learner.policy.parameters())
    acceptances = [each.measured["acceptance"] for each in rolled]
    assert acceptances[-1] > acceptances[0]


def test_a_head_that_diverges_falls_back_to_plain_decoding_once(tiny_model, tmp_path, capsys):
    trainer = LocalTrainer(make_run(Vanilla(), decoding=MATCHING["head"]), tiny_model, tmp_path)
    with torch.no_grad():
        trainer.decoding.drafter.head.down.weight.fill_(math.nan)
    with trainer.graders:
        first, second = (trainer.roll_out(trainer.loop.tasks(0), 0) for _ in range(2))
    assert capsys.readouterr().err.count("the draft head has diverged") == 1
    assert first.measured["head_loss"] is second.measured["head_loss"] is None
    assert (second.measured["proposed"], second.measured["speculated_passes"]) == (0, 0)
    trainer.save(tmp_path / "saved")
    other = LocalTrainer(make_run(Vanilla(), decoding=MATCHING["head"]), tiny_model, tmp_path / "other")
    other.restore(tmp_path / "saved")
    assert other.decoding.drafter.failed


@pytest.mark.parametrize("wrong", ["vocabulary", "width"])
def test_a_head_of_another_shape_in_a_checkpoint_is_an_error(wrong, tiny_model, tmp_path):
    trainer = LocalTrainer(make_run(Vanilla(), decoding=MATCHING["head"]), tiny_model, tmp_path)
    head = trainer.decoding.drafter.head
    if wrong == "vocabulary":
        head.vocabulary += 1
    trainer.save(tmp_path / "saved")
    decoding = MATCHING["head"] if wrong == "vocabulary" else LearnedHead(kind="head", draft_lengths=[2], width=2)
    other = LocalTrainer(make_run(Vanilla(), decoding=decoding), tiny_model, tmp_path / "other")
    with pytest.raises(UserError, match=r"draft_head.safetensors(.|\n)*(vocabulary|size mismatch)"):
        other.restore(tmp_path / "saved")


def by_roofline(folder, **costs):
    """A run that a roofline with these costs controls."""
    file = folder / "roofline.json"
    write_calibration(file, replace(QWEN, **costs), {})
    decoding = SelfSpeculation(kind="self_speculation", draft_lengths=[2], ramp=0, group=16)
    return make_run(decoding=decoding, calibrations={"tiny": str(file)})


PAYS_IN_THE_TAIL = {"draft_factor": 0.1, "verify_overhead": 2000.0}
NEVER_PAYS = {"draft_factor": 1000.0}


def test_a_roofline_decides_whether_a_run_speculates(undisturbed, tiny_model, tmp_path):
    pays = train(by_roofline(tmp_path, **PAYS_IN_THE_TAIL), tiny_model, tmp_path / "pays")
    shares = [record["speculated_passes"] for record in pays]
    assert any(0 < share < 1 for share in shares), "only where few responses are left"
    assert shares[-1] == 1, "everywhere, once it is known that blocks have nearly three tokens"
    never = train(by_roofline(tmp_path, **NEVER_PAYS), tiny_model, tmp_path / "never")
    assert {record["speculated_passes"] for record in never} == {0}
    assert all(record["acceptance"] is record["block_efficiency"] is None for record in never)
    plain, switched_off = results(undisturbed), results(tmp_path / "never")
    assert (switched_off["rollouts"], switched_off["policies"]) == (plain["rollouts"], plain["policies"])


def test_a_run_without_the_file_of_its_roofline_is_refused(tiny_model, tmp_path):
    run = by_roofline(tmp_path)
    (tmp_path / "roofline.json").unlink()
    with pytest.raises(UserError, match="roofline.json: this file is missing"):
        LocalTrainer(run, tiny_model, tmp_path / "run")


def test_a_run_starts_anew_when_its_roofline_changed(tiny_model, tmp_path):
    first_steps(LocalTrainer(by_roofline(tmp_path, **NEVER_PAYS), tiny_model, tmp_path / "run"), 4)
    run = by_roofline(tmp_path, **PAYS_IN_THE_TAIL)
    train(run, tiny_model, tmp_path / "run")
    train(run, tiny_model, tmp_path / "alone")
    assert results(tmp_path / "run") == results(tmp_path / "alone")
    state = read_json(tmp_path / "run/checkpoints" / run_fingerprint(run) / LATEST.name / "state.json")
    assert state["inputs"]["calibration"] == sha256(tmp_path / "roofline.json")


def test_weights_are_quantised_anew_after_each_update(tiny_model, tmp_path, monkeypatch):
    trainer = LocalTrainer(make_run(decoding=ALWAYS), tiny_model, tmp_path)
    layer, own = trainer.engine.drafter._layers[0]
    errors = []
    roll_out = trainer.roll_out

    def noted(*arguments):
        quantised = round_to_nearest(layer.weight.detach(), 4, 16).dequantised()
        errors.append(float((own - quantised).abs().max()))
        return roll_out(*arguments)

    monkeypatch.setattr(trainer, "roll_out", noted)
    before = own.clone()
    trainer.train()
    assert errors == [0.0] * STEPS
    assert not torch.equal(own, before)


def test_groups_that_wait_survive_a_stop(finished, tiny_model, tmp_path):
    waiting = []
    for stop in (1, 2, 3):
        folder = tmp_path / str(stop)

        def progress(done, *_, stop=stop):
            if done == stop:
                raise Stopped

        with pytest.raises(Stopped):
            LocalTrainer(RESUMED["dapo"], tiny_model, folder).train(progress)
        checkpoint = folder / "checkpoints" / run_fingerprint(RESUMED["dapo"]) / f"step-{stop:06d}"
        groups = storage.load_groups(checkpoint / "schedule" / "waiting.arrow")
        waiting.append(len(groups))
        assert all(group.informative and len(group.samples) == 2 for group in groups)
        train(RESUMED["dapo"], tiny_model, folder)
        assert results(folder) == results(finished("dapo"))
    assert max(waiting) > 0, "else nothing of this was tested"


@pytest.mark.parametrize("name", ["speed", "speed-speculative"])
def test_speed_s_record_follows_from_its_rollouts(name, finished):
    """Screened prompts are those whose first samples a step made; qualified ones are continued, once each."""
    folder = finished(name)
    records = read_json_lines(folder / "steps.jsonl")
    assert any(record["updated"] for record in records)
    passed, continued, first_epoch = set(), set(), records[0]["epoch"]
    for record in records:
        made = pd.read_parquet(folder / "rollouts" / f"step-{record['step']:04d}.parquet")
        screened = {key: rows for key, rows in made.groupby(["prompt", "visit"]) if rows["sample"].min() == 0}
        now = {key for key, rows in screened.items() if 0 < rows["reward"].mean() < 1}
        rest = {key for key, rows in made.groupby(["prompt", "visit"]) if rows["sample"].min() == 2}
        assert rest <= passed - continued
        assert record["prompts_screened"] == len(screened)
        assert (record["prompts_qualified"], record["prompts_continued"]) == (len(now), len(rest))
        assert record["rollouts"] == 2 * (len(screened) + len(rest)) == len(made)
        assert record["trained_rollouts"] == (8 if record["updated"] else None)
        if record["updated"]:
            assert 0 < record["trained_reward"] < 1
            assert record["trained_age"] > 0, "screened by an earlier policy"
        assert record["epoch"] >= first_epoch
        passed |= now
        continued |= rest


def test_staged_s_record_follows_from_its_rollouts(finished):
    folder = finished("staged")
    records, known = read_json_lines(folder / "steps.jsonl"), set()
    for record in records:
        made = pd.read_parquet(folder / "rollouts" / f"step-{record['step']:04d}.parquet")
        groups = [rows for _, rows in made.groupby("prompt")]
        right = [bool((rows["reward"] > 0.5).any()) for rows in groups]
        assert {len(rows) for rows in groups} <= {2, 4}
        assert all((rows["reward"][:2] <= 0.5).all() for rows in groups if len(rows) == 4)
        assert all(correct for rows, correct in zip(groups, right, strict=True) if len(rows) == 2)
        assert record["rollouts_per_prompt"] == pytest.approx(len(made) / len(groups))
        assert record["without_correct"] == pytest.approx(1 - np.mean(right))
        reused = {int(rows["prompt"].iloc[0]) for rows in groups if rows["replayed_from"].iloc[0] >= 0}
        expected = {int(g["prompt"].iloc[0]) for g, correct in zip(groups, right, strict=True) if not correct} & known
        assert reused == expected
        assert record["replayed"] == pytest.approx(len(reused) / len(groups))
        assert all((rows["replayed_from"] < record["step"]).all() for rows in groups)
        known |= {int(rows["prompt"].iloc[0]) for rows, correct in zip(groups, right, strict=True) if correct}


def test_dapo_updates_from_informative_groups_only_and_counts_generation_steps(finished):
    """What its records say is replayed from the rewards of its rollouts."""
    folder = finished("dapo")
    records = read_json_lines(folder / "steps.jsonl")
    assert len(records) == RESUMED["dapo"].steps == STEPS, "as many rollouts as any other algorithm"
    waiting = updates = 0
    for record in records:
        rewards = pd.read_parquet(folder / "rollouts" / f"step-{record['step']:04d}.parquet")["reward"].to_numpy()
        differ = np.ptp(rewards.reshape(PROMPTS, 2), axis=1) > 0
        waiting += differ.sum()
        enough = waiting >= PROMPTS
        waiting, updates = (0, updates + 1) if enough else (waiting, updates)
        assert record["rollouts"] == PROMPTS * 2
        assert record["informative"] == pytest.approx(differ.mean())
        assert (record["updated"], record["training_step"]) == (enough, updates)
        for name in ("entropy", "clip_fraction", "gradient_norm"):
            assert (record[name] is not None) == enough
        assert record["kl"] is None
    assert 0 < updates < STEPS


def test_a_step_that_only_gathers_leaves_the_policy_as_it_was(tiny_model, tmp_path, monkeypatch):
    trainer = LocalTrainer(make_run(algorithm=DAPO()), tiny_model, tmp_path)
    before = {name: tensor.clone() for name, tensor in trainer.learner.policy.state_dict().items()}

    async def equal(prompt, rollouts):
        return np.ones(len(rollouts), dtype=np.float32)

    monkeypatch.setattr(trainer.graders, "grade", equal)
    (record,) = first_steps(trainer, 1)
    assert (record["updated"], record["training_step"], record["informative"]) == (False, 0, 0)
    assert record["seconds"]["update_actor"] == record["seconds"]["old_log_probs"] == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in trainer.learner.policy.state_dict().items())
    assert not trainer.loop.schedule.state().waiting["waiting"]


def rollouts_of(folder, step):
    """A step's rollouts, by prompt and sample."""
    frame = pd.read_parquet(folder / "rollouts" / f"step-{step:04d}.parquet")
    return {(row.prompt, row.sample): row for row in frame.itertuples()}


def epoch_of(folder, epoch):
    steps = range(epoch * STEPS_PER_EPOCH, (epoch + 1) * STEPS_PER_EPOCH)
    return {key: row for step in steps for key, row in rollouts_of(folder, step).items()}


def test_delayed_reuse_goes_on_from_the_rollouts_of_two_epochs_ago(finished):
    records = read_json_lines(finished("delayed") / "steps.jsonl")
    assert [record["prefix_length"] is None for record in records] == [True] * 2 + [False] * 4
    first, third = (epoch_of(finished("delayed"), epoch) for epoch in (0, 2))
    for key, rollout in third.items():
        kept = rollout.prefix_length
        assert rollout.draft_length == len(first[key].tokens)
        assert rollout.tokens[:kept].tolist() == first[key].tokens[:kept].tolist()
        assert rollout.sampled_at[:kept].tolist() == first[key].sampled_at[:kept].tolist()
    assert any(rollout.prefix_length for rollout in third.values())


def test_random_reuse_never_scores_a_draft(tiny_model, tmp_path):
    records = train(make_run(RandomReuse()), tiny_model, tmp_path)
    for record in records:
        assert (record["tokens_verified"], record["seconds"]["verification"]) == (0, 0)
    for record in records[STEPS_PER_EPOCH:]:
        assert record["tokens_reused"] > 0
        assert record["full_reuse_ratio"] == 0


RELEASE = {"lenience": 1, "fixed_uniforms": False, "refreshed_log_probs": False}


def test_the_release_variant_without_its_deviations_trains_as_speculative_reuse(undisturbed, tiny_model, tmp_path):
    train(make_run(ReleaseVariant(**RELEASE, trainer_verification=False)), tiny_model, tmp_path)
    assert results(tmp_path) == results(undisturbed)


def test_drafts_may_be_verified_by_the_training_engine(undisturbed, tiny_model, tmp_path):
    """In exact arithmetic that changes nothing but where the time goes; both numerics agree on so short responses."""
    trainer = LocalTrainer(make_run(ReleaseVariant(**RELEASE, trainer_verification=True)), tiny_model, tmp_path)
    ours = read_json_lines(undisturbed / "steps.jsonl")
    for step, record in enumerate(first_steps(trainer, STEPS_PER_EPOCH + 1)):
        assert record["tokens_verified"] == ours[step]["tokens_verified"]
    assert trainer.engine.usage.scored_tokens == 0
    assert record["tokens_verified"] > 0
    assert record["seconds"]["verification"] > 0
    theirs, same = (rollouts_of(folder, STEPS_PER_EPOCH) for folder in (tmp_path, undisturbed))
    assert np.mean([theirs[key].tokens.tolist() == same[key].tokens.tolist() for key in same]) > 0.8
