"""The loop of every run, with a trainer that computes nothing: order of calls, records, checkpoints, resuming."""

import inspect
import itertools
import shutil

import numpy as np
import pandas as pd
import pytest

from redraft.config import (
    GRPO,
    DynamicSampling,
    Epochs,
    InProcessEngine,
    ProblemFile,
    Run,
    TinyModel,
    Vanilla,
    run_fingerprint,
)
from redraft.config.base import STEP_STAGES
from redraft.errors import UserError
from redraft.files import read_json, read_json_lines, sha256, write_json
from redraft.rollout.types import Finish, Group, Rollout, Sample
from redraft.train import checkpoint, contract, loop
from redraft.train.checkpoint import OWN_HASH
from redraft.train.contract import FreshSamples, RolloutResult, UpdateResult
from redraft.train.loop import TrainingLoop
from tests.states import restate
from tests.trainers import make_trainer

PROBLEMS, PROMPTS, GROUP, STEPS, STEPS_PER_EPOCH = 6, 2, 2, 6, 3
INPUTS = {"initial_policy": "p", "problems": "q"}


def make_run(schedule=None, fresh=1, batch=None, **engine):
    """Two epochs of three steps; policies are kept after 4 and 6 steps, checkpoints also after 3."""
    trainer = make_trainer(
        epochs=2,
        prompts_per_step=PROMPTS,
        prompts_per_batch=batch,
        group_size=GROUP,
        prompts_per_update=1,
        evaluate_every=4,
        fresh_samples=fresh,
    )
    return Run(
        preset="test",
        paper="test",
        cell="cell",
        seed=0,
        model_role="tiny",
        data_role="sums",
        model=TinyModel(),
        data=ProblemFile(path="none", size=PROBLEMS),
        algorithm=GRPO(),
        reuse=Vanilla(),
        schedule=schedule or Epochs(),
        trainer=trainer,
        engine=InProcessEngine(**{"checkpoint_every": 3} | engine),
    )


class DiedError(Exception):
    """In place of a process's end."""


class Scripted:
    """A trainer whose policy is the list of batches that it was updated from; a group is informative at even prompts.

    Args:
        die: call before which it dies, by name and number, from 0.
    """

    def __init__(self, die=("", 0)):
        self.policy, self.published, self.calls, self.die = [], [], [], die
        self.numbers, self.clock = itertools.count(), 0.0

    def call(self, name):
        if (name, sum(before == name for before in self.calls)) == self.die:
            raise DiedError
        self.calls.append(name)

    @property
    def no_update(self) -> contract.Metrics:
        return {"gradient_norm": None}

    def now(self) -> float:
        self.clock += 1.0
        return self.clock

    def roll_out(self, tasks: contract.Sequence[contract.Task], step: int) -> RolloutResult:
        self.call("roll_out")
        groups = [Group(t.prompt, t.visit, tuple(a_sample(t, s, step) for s in range(t.samples))) for t in tasks]
        return RolloutResult(groups, {"rollout": 0.25}, cached=3, grading_seconds=0.5)

    def update(self, groups: contract.Sequence[Group]) -> UpdateResult:
        self.call("update")
        self.policy.append([group.prompt for group in groups])
        return UpdateResult({"gradient_norm": float(len(groups))}, {"update_actor": 0.5})

    def publish(self) -> None:
        self.call("publish")
        self.published = list(self.policy)

    def fresh(self, tasks: contract.Sequence[contract.Task], step: int) -> FreshSamples:
        self.call("fresh")
        assert self.published == self.policy, "fresh samples are the updated policy's"
        return FreshSamples([float(len(self.policy)), 0.0], kl=0.125 * step)

    def save(self, folder: contract.Path) -> None:
        self.call("save")
        write_json(folder / "policy.json", self.policy)

    def restore(self, folder: contract.Path) -> None:
        self.call("restore")
        self.policy = read_json(folder / "policy.json")
        self.published = list(self.policy)

    def save_policy(self, checkpoint: contract.Path, folder: contract.Path) -> None:
        self.call("save_policy")
        assert read_json(checkpoint / "policy.json") == self.policy
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "policy.json", self.policy)


def a_sample(task, index, step):
    tokens = np.array([task.prompt, step, index], np.int32)
    rollout = Rollout(task.prompt, index, tokens, np.zeros(3, np.float32), np.full(3, step, np.int32), Finish.EOS)
    return Sample(rollout, float(index if task.prompt % 2 == 0 else 0))


def go(folder, run=None, die=("", 0), inputs=INPUTS, progress=lambda *_: None, commit="c"):
    """A process that trains the run in its folder; returns campaign and trainer."""
    one = TrainingLoop(run or make_run(), folder, inputs, PROBLEMS)
    trainer = Scripted(die)
    one.prepare(commit)
    one.restore(trainer)
    one.train(trainer, progress)
    return one, trainer


def results(folder):
    return {
        "records": read_json_lines(folder / "steps.jsonl"),
        "rollouts": {file.name: sha256(file) for file in (folder / "rollouts").iterdir()},
        "policies": {file.parent.name: read_json(file) for file in folder.glob("policies/*/policy.json")},
        "checkpoints": {file.parent.name: read_json(file) for file in folder.glob("checkpoints/*/*/policy.json")},
    }


PLAIN, SAVED, EVALUATED = (
    ["roll_out", "update", *saves, "publish", "fresh"] for saves in ([], ["save"], ["save", "save_policy"])
)


def test_calls_come_in_this_order(tmp_path):
    _, trainer = go(tmp_path)
    assert trainer.calls == PLAIN * 2 + SAVED + EVALUATED + PLAIN + EVALUATED


def test_a_step_that_only_rolls_out_neither_updates_nor_publishes(tmp_path):
    _, trainer = go(tmp_path, make_run(batch=2 * PROMPTS))
    gathers, updates = ["roll_out", "fresh"], PLAIN
    assert trainer.calls == gathers + updates + ["roll_out", "save", "fresh"] + EVALUATED + gathers + EVALUATED


def test_without_fresh_samples_none_are_made(tmp_path):
    _, trainer = go(tmp_path, make_run(fresh=0))
    assert "fresh" not in trainer.calls
    records = read_json_lines(tmp_path / "steps.jsonl")
    assert {(record["fresh_reward"], record["fresh_kl"]) for record in records} == {(None, None)}


def test_what_is_written_is_written_in_this_order(tmp_path, monkeypatch):
    """A checkpoint counts, by its name, once the record is written; the lease is looked at before either."""
    written = []

    def noted(module, name, what):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args: (written.append(what), original(*args))[1])

    noted(loop, "append_record", "record")
    noted(loop, "save_groups_of_step", "rollouts")
    noted(checkpoint, "write_json", "state")
    one, trainer = TrainingLoop(make_run(), tmp_path, INPUTS, PROBLEMS), Scripted()
    noted(trainer, "save", "files")
    noted(trainer, "save_policy", "policy")
    one.prepare("c")
    one.check = lambda: written.append("check")
    one.train(trainer)
    plain = ["check", "rollouts", "check", "record"]
    saved, evaluated = (
        ["check", "rollouts", "check", "files", *policy, "check", "record", "state"] for policy in ([], ["policy"])
    )
    assert written == plain * 2 + saved + evaluated + plain + evaluated


class LostError(Exception):
    """Raised by the lease."""


@pytest.mark.parametrize("looks", range(13))
def test_who_lost_the_folder_writes_nothing_more(looks, tmp_path):
    """Steps 1 and 2 look twice each, 3 and 4 three times."""
    one, left = TrainingLoop(make_run(), tmp_path, INPUTS, PROBLEMS), iter(range(looks))

    def check():
        if next(left, None) is None:
            raise LostError

    one.prepare("c")
    one.check = check
    with pytest.raises(LostError):
        one.train(Scripted())
    records = [0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5][looks]
    assert len(read_json_lines(tmp_path / "steps.jsonl")) == records
    checkpoints = sorted(path.name for path in tmp_path.glob("checkpoints/*/*"))
    assert checkpoints == [f"step-{step:06d}" for step in (3, 4) if step <= records]
    rollouts = [0, 1, 1, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5][looks]
    assert len(list((tmp_path / "rollouts").glob("*"))) == rollouts


def test_records_say_what_was_rolled_out_and_whether_there_was_an_update(tmp_path):
    go(tmp_path, make_run(batch=2 * PROMPTS))
    records = read_json_lines(tmp_path / "steps.jsonl")
    assert [(r["step"], r["epoch"]) for r in records] == [(i, i // STEPS_PER_EPOCH) for i in range(STEPS)]
    assert [r["updated"] for r in records] == [False, True] * 3
    assert [r["training_step"] for r in records] == [0, 1, 1, 2, 2, 3]
    assert [r["gradient_norm"] for r in records] == [None, 4.0] * 3
    assert [r["fresh_reward"] for r in records] == [0.0, 0.5, 0.5, 1.0, 1.0, 1.5]
    assert [r["fresh_kl"] for r in records] == [0.125 * step for step in range(6)]
    assert {(r["rollouts"], r["tokens_cached"], r["grading_seconds"]) for r in records} == {(4, 3, 0.5)}
    for record in records:
        seconds = record["seconds"]
        assert sum(seconds[stage] for stage in STEP_STAGES) == seconds["total"]
        assert (seconds["rollout"], seconds["update_actor"]) == (0.25, 0.5 * record["updated"])
        frame = pd.read_parquet(tmp_path / "rollouts" / f"step-{record['step']:04d}.parquet")
        assert set(frame["epoch"]) == set(frame["visit"]) == {record["epoch"]}
        assert frame["reward"].astype(float).mean() == record["reward"]
        assert record["informative"] == (frame["prompt"] % 2 == 0).mean()


def test_measuring_and_saving_are_no_time_of_a_step(tmp_path, monkeypatch):
    """Each of the three lets the clock go far on."""
    for name in ("save", "save_policy", "fresh"):
        original = getattr(Scripted, name)

        def slow(self, *args, original=original):
            self.clock += 1000.0
            return original(self, *args)

        monkeypatch.setattr(Scripted, name, slow)
    go(tmp_path)
    assert max(record["seconds"]["total"] for record in read_json_lines(tmp_path / "steps.jsonl")) < 50


def test_policies_are_those_of_the_steps_that_are_evaluated(tmp_path):
    one, trainer = go(tmp_path)
    assert one.evaluated_steps == [4, 6]
    found = results(tmp_path)["policies"]
    assert found == {"step-0004": trainer.policy[:4], "step-0006": trainer.policy}
    assert len(trainer.policy) == STEPS


def test_dynamic_sampling_updates_once_a_batch_is_informative(tmp_path):
    """Half of the prompts are, so every epoch has three informative groups, for batches of two."""
    _, trainer = go(tmp_path, make_run(DynamicSampling()))
    records = read_json_lines(tmp_path / "steps.jsonl")
    waiting = updates = 0
    for record in records:
        waiting += round(record["informative"] * PROMPTS)
        enough = waiting >= PROMPTS
        waiting, updates = (0 if enough else waiting), updates + enough
        assert (record["updated"], record["training_step"]) == (enough, updates)
    assert 0 < updates < STEPS
    assert all(prompt % 2 == 0 for batch in trainer.policy for prompt in batch)
    assert {len(batch) for batch in trainer.policy} == {PROMPTS}


RUNS = {"epochs": make_run(), "two-steps": make_run(batch=4), "dynamic": make_run(DynamicSampling())}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    found = {}
    for name, run in RUNS.items():
        folder = tmp_path_factory.mktemp(name)
        go(folder, run)
        found[name] = results(folder)
    return found


CALLS = [
    (name, number)
    for name, count in {
        "roll_out": 6,
        "update": 6,
        "save": 3,
        "save_policy": 2,
        "publish": 6,
        "fresh": 6,
    }.items()
    for number in range(count)
]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_dies_at_any_call_ends_as_if_it_had_not(name, undisturbed, tmp_path):
    died = 0
    for i, call in enumerate(CALLS):
        folder = tmp_path / str(i)
        try:
            go(folder, RUNS[name], call)
        except DiedError:
            died += 1
            before = read_json_lines(folder / "steps.jsonl") if (folder / "steps.jsonl").exists() else []
            go(folder, RUNS[name])
            assert before == undisturbed[name]["records"][: len(before)]
        assert results(folder) == undisturbed[name], call
    assert died >= 20


WRITES = [("append_record", loop), ("save_groups_of_step", loop), ("write_json", checkpoint), ("measure", checkpoint)]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("name", "module"), WRITES, ids=[name for name, _ in WRITES])
def test_a_run_that_dies_at_any_write_ends_as_if_it_had_not(name, module, when, undisturbed, tmp_path, monkeypatch):
    original = getattr(module, name)
    for number in range(6 if module is loop else 3):
        left, folder = iter(range(number)), tmp_path / str(number)

        def dying(*args, left=left):
            last = next(left, None) is None
            if last and when == "before":
                raise DiedError
            result = original(*args)
            if last:
                raise DiedError
            return result

        with monkeypatch.context() as patch:
            patch.setattr(module, name, dying)
            with pytest.raises(DiedError):
                go(folder)
        go(folder)
        assert results(folder) == undisturbed["epochs"]


def test_a_checkpoint_without_its_record_does_not_count(tmp_path):
    with pytest.raises(DiedError):
        go(tmp_path, die=("fresh", 3))
    assert [path.name for path in tmp_path.glob("checkpoints/*/*")] == ["step-000003"]
    assert len(read_json_lines(tmp_path / "steps.jsonl")) == 3
    _, trainer = go(tmp_path)
    assert trainer.calls == ["restore", *EVALUATED, *PLAIN, *EVALUATED]


def test_a_run_goes_on_from_its_last_checkpoint_and_a_finished_one_does_nothing(tmp_path):
    with pytest.raises(DiedError):
        go(tmp_path, die=("roll_out", 5))
    seen = []
    _, trainer = go(tmp_path, progress=lambda *a: seen.append(a[:2]))
    assert trainer.calls == ["restore", *PLAIN, *EVALUATED]
    assert seen == [(5, 6), (6, 6)]
    one, trainer = go(tmp_path)
    assert trainer.calls == ["restore"]
    assert (one.state.step, one.state.training_step) == (6, 6)


def test_commits_of_all_processes_are_kept_once_and_seconds_add_up(tmp_path):
    with pytest.raises(DiedError):
        go(tmp_path, die=("roll_out", 3), commit="a")
    (file,) = tmp_path.glob("checkpoints/*/step-000003/state.json")
    assert read_json(file)["commits"] == ["a"]
    restate(file, seconds=100.0)
    with pytest.raises(DiedError):
        go(tmp_path, die=("roll_out", 1), commit="a")
    one, _ = go(tmp_path, commit=None)
    assert one.state.commits == ["a", None]
    assert 100 < one.state.seconds < 160
    assert go(tmp_path, commit="later")[0].state.commits == ["a", None], "it took no step"


def test_two_checkpoints_are_kept_with_the_groups_that_wait(tmp_path):
    go(tmp_path, make_run(batch=4, checkpoint_every=1))
    (folder,) = (tmp_path / "checkpoints").iterdir()
    assert folder.name == run_fingerprint(make_run(batch=4))
    assert sorted(path.name for path in folder.iterdir()) == ["step-000005", "step-000006"]
    content = read_json(folder / "step-000005" / "state.json")
    assert (content["format"], content["step"], content["training_step"], content["inputs"]) == (4, 5, 2, INPUTS)
    assert set(content["sha256"]) == set(content["bytes"]) == {"policy.json", "schedule/waiting.arrow"}
    one = TrainingLoop(make_run(batch=4), tmp_path, INPUTS, PROBLEMS)
    waiting = [one.checkpoints.schedule(folder / f"step-00000{step}").waiting["waiting"] for step in (5, 6)]
    assert [len(groups) for groups in waiting] == [PROMPTS, 0]


@pytest.fixture
def stopped(tmp_path):
    """A run that was stopped behind its first checkpoint."""
    with pytest.raises(DiedError):
        go(tmp_path / "run", die=("roll_out", 3))
    return tmp_path / "run"


def files_of(folder):
    return {str(file): sha256(file) for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("version", [None, 1, 2, 3, 5])
def test_checkpoints_of_another_format_are_refused_in_one_message(version, stopped):
    (file,) = stopped.glob("checkpoints/*/*/state.json")
    restate(file, format=version)
    if version != 5:  # earlier versions recorded no hash of this file
        content = read_json(file)
        write_json(file, {key: content[key] for key in content if content[key] is not None and key != OWN_HASH})
    before = files_of(stopped)
    with pytest.raises(UserError, match="another version of redraft") as error:
        go(stopped)
    assert (error.value.file, error.value.key, error.value.value) == (file, "format", version or 1)
    assert "finish the run with the version that began it" in error.value.hint
    assert str(file.parents[1]) in error.value.hint
    assert files_of(stopped) == before


@pytest.mark.parametrize(
    "content",
    ["null", "[]", "7", '"x"', "{}", "[" * 100_000, '{"step": NaN}', "\xff", '{"run": null, "fingerprint": []}'],
    ids=lambda content: content[:12],
)
def test_a_state_of_another_type_is_damage_and_no_traceback(content, stopped, undisturbed, capsys):
    (file,) = stopped.glob("checkpoints/*/*/state.json")
    file.write_bytes(content.encode("latin-1"))
    go(stopped)
    assert capsys.readouterr().err.count(f"{file.parent}: state.json") == 1
    assert results(stopped) == undisturbed["epochs"]


@pytest.mark.parametrize("changes", [{"step": "3"}, {"inputs": [1]}, {"commits": None}, {"sha256": {"x": 1}}, {"x": 1}])
def test_a_state_with_a_value_of_the_wrong_type_is_refused_in_one_message(changes, stopped):
    (file,) = stopped.glob("checkpoints/*/*/state.json")
    restate(file, **changes)
    before = files_of(stopped)
    with pytest.raises(UserError) as error:
        go(stopped)
    assert error.value.file == file
    assert error.value.key.partition(".")[0] == next(iter(changes))
    assert files_of(stopped) == before


def test_a_state_of_another_step_than_its_folder_is_set_aside(tmp_path, undisturbed, capsys):
    with pytest.raises(DiedError):
        go(tmp_path, die=("roll_out", 5))
    (file,) = tmp_path.glob("checkpoints/*/step-000004/state.json")
    restate(file, step=3)
    go(tmp_path)
    assert "state.json is of step 3, not of its folder's" in capsys.readouterr().err
    assert results(tmp_path) == undisturbed["epochs"]


def test_damaged_records_of_finished_steps_are_refused(stopped):
    file = stopped / "steps.jsonl"
    changed = file.read_bytes().replace(b'"grading_seconds": 0.5', b'"grading_seconds": 1.5', 1)
    assert changed != file.read_bytes()
    file.write_bytes(changed)
    before = files_of(stopped)
    with pytest.raises(UserError, match="records of finished steps differ") as error:
        go(stopped)
    assert (error.value.file, error.value.key) == (file, "sha256")
    assert files_of(stopped) == before


def test_checkpoints_of_verl_s_naming_are_refused_in_one_message(stopped):
    (checkpoint_,) = stopped.glob("checkpoints/*/*")
    old = checkpoint_.with_name("global_step_4")
    checkpoint_.rename(old)
    before = files_of(stopped)
    with pytest.raises(UserError, match="another version of redraft") as error:
        go(stopped)
    assert error.value.file.parent == old
    assert str(old.parent) in error.value.hint
    assert files_of(stopped) == before


def test_checkpoints_of_other_inputs_are_set_aside_and_the_run_starts_anew(stopped, tmp_path, undisturbed):
    _, trainer = go(stopped, inputs=INPUTS | {"problems": "another"})
    assert "restore" not in trainer.calls
    assert results(stopped) == undisturbed["epochs"]
    (folder,) = (stopped / "checkpoints").iterdir()
    assert {read_json(file)["inputs"]["problems"] for file in folder.glob("*/state.json")} == {"another"}


def test_a_checkpoint_is_screened_before_it_is_used_and_not_again(stopped):
    seen = []

    def refuse(folder):
        seen.append(folder.name)
        raise UserError("it would execute code", file=folder)

    with pytest.raises(UserError, match="execute code"):
        TrainingLoop(make_run(), stopped, INPUTS, PROBLEMS, refuse).prepare("c")
    one = TrainingLoop(make_run(), stopped, INPUTS, PROBLEMS, lambda folder: seen.append(folder.name))
    one.prepare("c")
    one.restore(Scripted())
    assert seen == ["step-000003"] * 2


def test_a_missing_policy_of_a_finished_step_is_named(tmp_path):
    go(tmp_path)
    shutil.rmtree(tmp_path / "policies" / "step-0004")
    with pytest.raises(UserError, match="policy of a finished step is missing") as error:
        go(tmp_path)
    assert error.value.file == tmp_path / "policies" / "step-0004"


def test_policies_and_rollouts_behind_the_checkpoint_are_made_again(tmp_path, undisturbed):
    with pytest.raises(DiedError):
        go(tmp_path, die=("publish", 3))
    assert (tmp_path / "policies" / "step-0004").exists(), "it is older than its checkpoint would be"
    one = TrainingLoop(make_run(), tmp_path, INPUTS, PROBLEMS)
    one.prepare("c")
    assert not (tmp_path / "policies" / "step-0004").exists()
    assert sorted(path.name for path in (tmp_path / "rollouts").iterdir()) == [f"step-000{i}.parquet" for i in range(3)]
    go(tmp_path)
    assert results(tmp_path) == undisturbed["epochs"]


def test_what_killed_writers_left_unfinished_is_removed_at_resume(stopped, undisturbed):
    (folder,) = stopped.glob("checkpoints/*")
    left = [
        stopped / "rollouts/.step-0003.parquet.41.tmp",
        stopped / "rollouts/.step-0000.parquet.42.tmp",
        stopped / ".steps.jsonl.43.tmp",
        stopped / "policies/.step-0004/.x.44.tmp",
        folder / ".step-000004/.memory.arrow.45.tmp",
    ]
    waits = stopped / "lease/.token.46.tmp"
    for file in (*left, waits):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("half")
    one = TrainingLoop(make_run(), stopped, INPUTS, PROBLEMS)
    one.prepare("c")
    assert list(stopped.rglob(".*")) == [waits]
    go(stopped)
    assert results(stopped) == undisturbed["epochs"]


def test_checkpoints_are_ordered_by_number_and_not_by_name(stopped):
    (folder,) = stopped.glob("checkpoints/*")
    for step in (999_999, 1_000_000):
        shutil.copytree(folder / "step-000003", folder / f"step-{step}")
        restate(folder / f"step-{step}" / "state.json", step=step)
    checkpoints = TrainingLoop(make_run(), stopped, INPUTS, PROBLEMS).checkpoints
    assert checkpoints.latest(hashes=True)[1].step == 1_000_000


# The contract

MEMBERS = [name for name in vars(contract.Trainer) if not name.startswith("_")]


def trainers():
    from redraft.train.local.trainer import LocalTrainer
    from redraft.train.verl.trainer import VerlSteps

    return [LocalTrainer, VerlSteps, Scripted]


def test_all_trainers_have_the_contract_s_members_with_its_signatures():
    """mypy sees the local trainer's only: verl's base class is untyped."""
    assert {"no_update", "now", "roll_out", "update", "publish", "fresh", "save", "restore", "save_policy"} == {
        *MEMBERS
    }
    for trainer in trainers():
        for name in MEMBERS:
            theirs, ours = (inspect.getattr_static(owner, name) for owner in (contract.Trainer, trainer))
            assert type(theirs) is type(ours), (trainer, name)
            theirs, ours = (inspect.signature(getattr(m, "fget", m), eval_str=True) for m in (theirs, ours))
            assert ours == theirs, (trainer, name)
