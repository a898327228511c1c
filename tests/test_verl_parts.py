"""What stands around verl's steps, without verl: shards of the draft store, checkpoints, records."""

import json

import numpy as np
import pandas as pd
import pytest

from redraft.config import Experiments
from redraft.config.reuse import DelayedReuse, RandomReuse, ReleaseVariant, Speculative, Vanilla
from redraft.errors import UserError
from redraft.files import read_json_lines
from redraft.rollout.types import Finish, Rollout
from redraft.tasks.problems import Problem
from redraft.tasks.prompts import encode
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train.folders import linked_folder
from redraft.train.run_folder import RunFolder
from redraft.train.stages import STAGES
from redraft.train.verl.data import write_problems
from redraft.train.verl.progress import Progress, VerlCheckpoints
from redraft.train.verl.shard import Group, Shard, epochs_kept

GROUP = 4


def a_rollout(prompt, sample, *tokens, prefix=0, draft=0, step=0):
    tokens = np.array(tokens, dtype=np.int32)
    log_probs = np.linspace(-2, -1, len(tokens)).astype(np.float32)
    sampled_at = np.full(len(tokens), step, dtype=np.int32)
    return Rollout(prompt, sample, tokens, log_probs, sampled_at, Finish.EOS, prefix, draft, draft)


def a_group(prompt, step=0, epoch=0, seconds=(1.0, 2.0, 0.5, 0.5), **fields):
    rollouts = [a_rollout(prompt, sample, 5, 6, sample, 1, step=step, **fields) for sample in range(GROUP)]
    names = ("verification", "rollout", "assembly", "reward")
    rewards = np.array([0, 1, 0, 1], dtype=np.float32)
    return Group(step, epoch, rollouts, rewards, dict(zip(names, seconds, strict=True)), cached=7)


def found(shard, prompt, *epochs):
    """Tokens of drafts by epoch and sample."""
    from redraft.rollout.drafts import unpack

    return {e: [r.tokens.tolist() for r in unpack(a)] for e, a in shard.find(prompt, GROUP, list(epochs))}


def test_a_group_survives_its_way_to_another_process():
    group = a_group(3, step=5, epoch=1, prefix=2, draft=3)
    other = Group.unpacked(group.packed())
    assert (other.step, other.epoch, other.cached, dict(other.seconds)) == (5, 1, 7, dict(group.seconds))
    np.testing.assert_array_equal(other.rewards, group.rewards)
    for a, b in zip(group.rollouts, other.rollouts, strict=True):
        for name, value in vars(a).items():
            np.testing.assert_array_equal(value, getattr(b, name))


def test_a_shard_finds_the_drafts_of_an_epoch_and_gives_each_group_out_once():
    shard = Shard(epochs=1)
    shard.finish(a_group(3, epoch=0).packed())
    assert found(shard, 3, 0) == {0: [[5, 6, s, 1] for s in range(GROUP)]}
    assert found(shard, 3, 1) == {1: []}
    assert found(shard, 4, 0) == {0: []}
    assert len(shard.drain()) == 1
    assert shard.drain() == []
    assert found(shard, 3, 0)[0], "what was drained is still a draft"


@pytest.mark.parametrize(
    ("method", "epochs"),
    [(Vanilla(), 0), (Speculative(), 1), (RandomReuse(), 1), (DelayedReuse(), 2), (ReleaseVariant(), 1)],
    ids=lambda value: getattr(value, "kind", str(value)),
)
def test_a_shard_keeps_as_many_epochs_as_its_method_can_use_however_long_a_run_is(method, epochs):
    assert epochs_kept(method) == epochs
    shard = Shard(epochs_kept(method))
    for epoch in range(5):
        for prompt in range(3):
            shard.finish(a_group(prompt, epoch=epoch).packed())
        shard.drain()
        assert len(shard.drafts) == min(epoch + 1, epochs) * 3 * GROUP
    kept = [epoch for epoch, drafts in found(shard, 0, *range(5)).items() if drafts]
    assert kept == list(range(5))[5 - epochs :]


def test_a_restored_shard_has_the_drafts_of_the_checkpoint_and_no_group_in_progress(tmp_path):
    shard = Shard(epochs=2)
    shard.finish(a_group(0, epoch=0).packed())
    shard.save(str(tmp_path / "shard"))
    shard.finish(a_group(0, epoch=1).packed())
    shard.load([str(tmp_path / "shard")], 0, 1)
    assert found(shard, 0, 0, 1) == {0: [[5, 6, s, 1] for s in range(GROUP)], 1: []}
    assert shard.drain() == []


def test_drafts_are_found_however_many_shards_saved_them(tmp_path):
    before, after = [Shard(epochs=1) for _ in range(3)], [Shard(epochs=1) for _ in range(2)]
    for prompt in range(7):
        before[prompt % 3].finish(a_group(prompt).packed())
    files = [str(tmp_path / str(i)) for i in range(3)]
    for shard, file in zip(before, files, strict=True):
        shard.save(file)
    for number, shard in enumerate(after):
        shard.load(files, number, 2)
    for prompt in range(7):
        assert [bool(found(shard, prompt, 0)[0]) for shard in after] == [prompt % 2 == 0, prompt % 2 == 1]


def a_checkpoint(checkpoints, updates, complete=True, **fields):
    """What verl and a shard leave of a step."""
    checkpoints.path(updates).mkdir(parents=True)
    (checkpoints.path(updates) / "data.pt").write_text("verl's")
    Shard(1).save(str(checkpoints.drafts(updates, 0)))
    progress = Progress(updates, fetched=8 * updates, records=updates, seconds=1.5, commits=["abc"], **fields)
    if complete:
        checkpoints.finish(progress)
    return progress


@pytest.fixture
def checkpoints(tmp_path):
    return VerlCheckpoints(tmp_path / "checkpoints", "run", {"policy": "p"})


def test_the_last_whole_checkpoint_counts_and_two_are_kept(checkpoints):
    assert checkpoints.latest() == (None, Progress())
    for updates in (2, 4, 10):
        progress = a_checkpoint(checkpoints, updates)
    assert checkpoints.latest() == (checkpoints.path(10), progress)
    assert sorted(p.name for p in checkpoints.folder.iterdir()) == ["global_step_10", "global_step_4"]


def test_a_checkpoint_that_a_kill_left_unfinished_is_removed(checkpoints):
    progress = a_checkpoint(checkpoints, 2)
    a_checkpoint(checkpoints, 4, complete=False)
    assert checkpoints.latest() == (checkpoints.path(2), progress)
    assert not checkpoints.path(4).exists()


def test_a_checkpoint_of_another_experiment_is_refused_and_of_other_inputs_removed(checkpoints):
    a_checkpoint(checkpoints, 2)
    with pytest.raises(UserError, match="another experiment"):
        VerlCheckpoints(checkpoints.folder, "other", {"policy": "p"}).latest()
    assert VerlCheckpoints(checkpoints.folder, "run", {"policy": "q"}).latest() == (None, Progress())
    assert not checkpoints.folder.exists()


TIMERS = {"gen": 8.0, "old_log_prob": 1.0, "ref": 2.0, "adv": 0.25, "update_actor": 3.0, "step": 20.0,
          "save_checkpoint": 4.0}  # fmt: skip
METRICS = {"actor/entropy": 0.5, "actor/kl_loss": 0.1, "actor/pg_clipfrac": 0.01, "actor/grad_norm": 2.0}


@pytest.fixture
def records(tmp_path):
    from redraft.train.verl.records import StepRecords

    return StepRecords(Experiments().run("spec_rl/grpo-spec-l0.5", 0, "verl-tiny"), RunFolder(tmp_path))


def write(records, groups, first):
    from redraft.train.verl.records import Update

    seconds = records.write(groups, first, TIMERS, Update(METRICS, (1e-7, 1e-6), [0.0, 1.0]), training_step=7)
    return seconds, read_json_lines(records.folder.records)


def test_a_record_of_one_generation_step_says_what_the_local_trainer_says(records):
    seconds, (record,) = write(records, [a_group(3, prefix=2, draft=3), a_group(1)], 0)
    assert seconds == record["seconds"]["total"] == pytest.approx(20 - 4), "a checkpoint is no part of the step"
    assert list(record["seconds"]) == [*STAGES, "total"]
    assert sum(record["seconds"][stage] for stage in STAGES) == pytest.approx(record["seconds"]["total"])
    assert record["seconds"]["verification"] == pytest.approx(8 * 1 / 4)
    assert record["seconds"]["others"] == pytest.approx(16 - 8 - 1 - 2 - 0.25 - 3)
    expected = {"step": 0, "epoch": 0, "training_step": 7, "updated": True, "rollouts": 8, "tokens_decoded": 24,
                "tokens_reused": 8, "tokens_verified": 12, "prefix_length": 2.0, "full_reuse_ratio": 0.0,
                "tokens_cached": 14, "reward": 0.5, "fresh_reward": 0.5, "entropy": 0.5, "kl": 0.1,
                "clip_fraction": 0.01, "gradient_norm": 2.0, "informative": 1.0, "log_prob_gap": 1e-7,
                "log_prob_gap_max": 1e-6}  # fmt: skip
    assert expected.items() <= record.items()
    frame = pd.read_parquet(records.folder.rollouts(0))
    assert frame["prompt"].tolist() == [1] * GROUP + [3] * GROUP, "in the order of prompts, whoever ended first"


def test_an_update_from_two_generation_steps_leaves_two_records(records):
    seconds, lines = write(records, [a_group(3, step=4), a_group(1, step=5, seconds=(0.0, 4.0, 0.0, 0.0))], 4)
    assert [(r["step"], r["updated"], r["training_step"]) for r in lines] == [(4, False, 6), (5, True, 7)]
    assert [r["gradient_norm"] for r in lines] == [None, 2.0]
    assert [r["fresh_reward"] for r in lines] == [None, 0.5]
    assert [r["seconds"]["total"] for r in lines] == pytest.approx([4.0, 12.0])
    assert seconds == pytest.approx(16.0)
    assert json.loads(records.folder.records.read_text().splitlines()[0])["epoch"] == 4 // 3


def test_groups_without_an_update_leave_a_record_that_says_so(records):
    records.write([a_group(3)], 0, {"gen": 2.0, "step": 3.0}, None, training_step=7)
    (record,) = read_json_lines(records.folder.records)
    assert (record["updated"], record["training_step"], record["kl"], record["log_prob_gap"]) == (False, 7, None, None)
    assert record["seconds"]["total"] == pytest.approx(3.0)


def test_groups_of_other_steps_than_those_in_turn_are_refused(records):
    with pytest.raises(RuntimeError, match="not those from 3"):
        write(records, [a_group(3, step=4)], 3)


def test_a_linked_folder_holds_the_same_files_and_takes_no_space(tmp_path):
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "model.safetensors").write_bytes(b"weights")
    linked_folder(tmp_path / "from", tmp_path / "to" / "step-0001")
    copy = tmp_path / "to" / "step-0001" / "model.safetensors"
    assert copy.read_bytes() == b"weights"
    assert copy.samefile(tmp_path / "from" / "model.safetensors")


def test_a_prompt_is_put_in_the_chat_template_if_the_tokenizer_has_one():
    tokenizer = make_tokenizer()
    plain = encode(tokenizer, ["1a+2=", "3b-4="])
    assert plain == tokenizer(["1a+2=", "3b-4="])["input_ids"]
    tokenizer.chat_template = (
        "{% for m in messages %}u{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}z{% endif %}"
    )
    assert encode(tokenizer, ["1a+2=", "3b-4="]) == tokenizer(["u1a+2=z", "u3b-4=z"])["input_ids"]


class StartedError(Exception):
    """Raised in place of a process's start."""


@pytest.fixture
def paper_scale(tmp_path, monkeypatch):
    """What the paper's GRPO run on Qwen3-8B needs, but for its weights: data, a tokenizer, a configuration, 8 GPUs."""
    write_problems([Problem(f"{i % 90}a+2=", "2") for i in range(6144)], "deepmath-6k", tmp_path / "problems.parquet")
    model = tmp_path / "model"
    make_tokenizer().save_pretrained(model)
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3", "max_position_embeddings": 32768}))
    (model / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    return model


def test_a_run_at_the_papers_scale_is_ready_up_to_the_start_of_its_process(paper_scale, tmp_path, monkeypatch):
    from omegaconf import OmegaConf

    from redraft.train.verl import launch

    started = {}

    def process(command, env, log):
        started.update(command=command, env=env, log=log)
        raise StartedError

    monkeypatch.setattr(launch, "_process", process)
    run = Experiments().run("spec_rl/8b-grpo-spec-l0.5", 0, "paper")
    with pytest.raises(StartedError):
        launch.VerlTrainer(run, paper_scale, tmp_path / "run", "abc", tmp_path / "problems.parquet").train()
    file = tmp_path / "run" / "verl.yaml"
    assert started["command"][1:] == ["-m", "redraft.train.verl", str(file)]
    assert started["log"] == tmp_path / "run" / "verl.log"
    assert not {"VERL_PLATFORM", "VERL_USE_EXTERNAL_MODULES", "VERL_ENGINE_DEVICE"} & started["env"].keys()
    config = OmegaConf.load(file)
    assert config.trainer.n_gpus_per_node == 8
    assert config.actor_rollout_ref.rollout.tensor_model_parallel_size == 2
    assert "verl_cpu" not in file.read_text(), "nothing of the processor's platform"
    assert len(pd.read_parquet(config.data.train_files[0])) == 6144
    assert run.engine.gpus == 8, "what the workflow asks a cluster for"


def test_tied_embeddings_are_refused_on_a_processor_where_vllm_would_keep_old_ones(paper_scale, tmp_path, monkeypatch):
    from redraft.train.verl.launch import VerlTrainer

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    config = {"model_type": "qwen3", "max_position_embeddings": 32768, "tie_word_embeddings": True}
    (paper_scale / "config.json").write_text(json.dumps(config))
    run = Experiments().run("spec_rl/8b-grpo-spec-l0.5", 0, "paper")
    run = run.model_copy(update={"engine": run.engine.model_copy(update={"device": "cpu"})})
    with pytest.raises(UserError, match="tied embeddings"):
        VerlTrainer(run, paper_scale, tmp_path / "run", None, tmp_path / "problems.parquet")


def test_a_model_with_too_few_positions_is_refused_with_what_would_fit(paper_scale, tmp_path):
    from redraft.train.verl.launch import VerlTrainer

    (paper_scale / "config.json").write_text(json.dumps({"model_type": "qwen3", "max_position_embeddings": 4096}))
    run = Experiments().run("spec_rl/8b-grpo-spec-l0.5", 0, "paper")
    with pytest.raises(UserError, match=r"(?s)too few positions.*at most 3071 with max_prompt_tokens 1024"):
        VerlTrainer(run, paper_scale, tmp_path / "run", None, tmp_path / "problems.parquet")
