"""The parts around verl's steps, without its processes: shards of the memory, workers, their manager, the steps."""

import asyncio
import json
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from transfer_queue import KVBatchMeta

from redraft.config import PPO, Experiments
from redraft.config.base import STEP_STAGES
from redraft.config.retention import Retention
from redraft.errors import UserError
from redraft.files import linked_folder
from redraft.methods.delayed import DelayedReuse
from redraft.methods.random import RandomReuse
from redraft.methods.release import ReleaseVariant
from redraft.methods.residual import ResidualReuse
from redraft.methods.speculative import Speculative
from redraft.methods.vanilla import Vanilla
from redraft.rollout.memory import Memory
from redraft.rollout.storage import pack_groups, unpack_groups
from redraft.rollout.types import Finish, Group, Rollout, Sample, Task, Use
from redraft.tasks.problems import Problem
from redraft.tasks.prompts import encode
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train.verl.problem_files import write_problems
from redraft.train.verl.shard import Shard

GROUP = 4
LAST = Retention(visits=1)


def a_rollout(prompt, sample, *tokens, prefix=0, draft=0, step=0):
    tokens = np.array(tokens, dtype=np.int32)
    log_probs = np.linspace(-2, -1, len(tokens)).astype(np.float32)
    sampled_at = np.full(len(tokens), step, dtype=np.int32)
    return Rollout(prompt, sample, tokens, log_probs, sampled_at, Finish.EOS, prefix, draft, draft)


def a_group(prompt, visit=0, size=GROUP, **fields):
    rollouts = [a_rollout(prompt, sample, 5, 6, sample, 1, **fields) for sample in range(size)]
    return Group(prompt, visit, tuple(Sample(r, float(r.sample % 2)) for r in rollouts))


def put(shard, group):
    shard.put(pack_groups([group]))


def found(shard, prompt, visits_ago=1):
    """Tokens of a prompt's drafts, as a shard returns them."""
    memory = Memory.unpacked(shard.find(prompt), shard.memory.retention)
    return [r.tokens.tolist() for r in memory.drafts(prompt, visits_ago).values()]


DRAFTS = [[5, 6, s, 1] for s in range(GROUP)]


def test_a_shard_finds_the_drafts_of_a_prompt_s_last_visit_and_no_other_prompt_s():
    shard = Shard(LAST)
    put(shard, a_group(3))
    assert found(shard, 3) == DRAFTS
    assert found(shard, 4) == []
    put(shard, a_group(3, visit=4, size=2))
    assert found(shard, 3) == DRAFTS, "a visit of fewer samples leaves the other drafts"
    put(shard, a_group(5))
    assert Memory.unpacked(shard.find(3), LAST).prompts() == [3], "nothing of others travels"


@pytest.mark.parametrize(
    ("method", "visits"),
    [(Vanilla(), 0), (Speculative(), 1), (RandomReuse(), 1), (DelayedReuse(), 2), (ReleaseVariant(), 1)],
    ids=lambda value: getattr(value, "kind", str(value)),
)
def test_a_shard_keeps_as_many_visits_as_its_method_can_use_however_long_a_run_is(method, visits):
    assert method.retention == Retention(visits=visits)
    shard = Shard(method.retention)
    for visit in range(5):
        for prompt in range(3):
            put(shard, a_group(prompt, visit))
        assert len(shard.memory) == 3 * GROUP * min(visits, visit + 1)
    assert [len(found(shard, 0, ago)) for ago in range(1, 6)] == [GROUP * (visits > 0)] * 5


def test_a_restored_shard_has_the_memory_of_the_checkpoint(tmp_path):
    shard = Shard(Retention(visits=2))
    put(shard, a_group(0, visit=0, size=2))
    shard.save(str(tmp_path / "shard.arrow"))
    put(shard, a_group(0, visit=1))
    put(shard, a_group(1, visit=0))
    shard.load([str(tmp_path / "shard.arrow")], 0, 1)
    assert found(shard, 0) == DRAFTS[:2]
    assert found(shard, 1) == []


def test_drafts_are_found_however_many_shards_saved_them(tmp_path):
    before, after = [Shard(LAST) for _ in range(3)], [Shard(LAST) for _ in range(2)]
    for prompt in range(7):
        put(before[prompt % 3], a_group(prompt))
    files = [str(tmp_path / f"{i}.arrow") for i in range(3)]
    for shard, file in zip(before, files, strict=True):
        shard.save(file)
    for number, shard in enumerate(after):
        shard.load(files, number, 2)
    for prompt in range(7):
        assert [bool(found(shard, prompt)) for shard in after] == [prompt % 2 == 0, prompt % 2 == 1]


class Remote:
    """A process of Ray's that is none: `remote` calls at once, and gives what can be awaited."""

    def __init__(self, target):
        self.target = target

    def __getattr__(self, name):
        async def answer(*args):
            return getattr(self.target, name)(*args)

        return SimpleNamespace(remote=answer)


@pytest.fixture
def worker(monkeypatch):
    """A worker over two shards, whose engine and grader are scripted."""
    from redraft.train.verl import rollout_worker as module

    class Engine:
        def __init__(self, *_, chunk, temperature, seeded):
            assert chunk is None, "drafts are scored whole by default"
            self.temperature = temperature
            self.seeded = seeded
            self.usage = SimpleNamespace(verification_seconds=1.0, decoding_seconds=2.0)

    class Grader:
        def grade(self, texts, answer, rule):
            time.sleep(0.01)
            assert rule == "last_box"
            return [float(answer in text) for text in texts], 0.5

    async def strategy(task, tools):
        drafts = tools.memory.drafts(task.prompt)
        rollouts = [
            a_rollout(task.prompt, s, *drafts[s].tokens, 7) if s in drafts else a_rollout(task.prompt, s, 5)
            for s in range(task.samples)
        ]
        tools.meter.assembly_seconds += 0.25
        tools.meter.cached_tokens += 3
        rewards = await tools.reward(task.prompt, rollouts)
        return Group(
            task.prompt, task.visit, tuple(Sample(r, float(w)) for r, w in zip(rollouts, rewards, strict=True))
        )

    monkeypatch.setattr(module, "VLLMEngine", Engine)
    monkeypatch.setattr(module, "vanilla", strategy)
    one = object.__new__(module.RolloutWorker)
    one.run = Experiments().run("spec_rl/grpo-spec-l0.5", 0, "verl-tiny")
    one.strategy, one.llm_client, one.max_length, one.stops = strategy, None, 64, frozenset({1})
    one.tokenizer = SimpleNamespace(
        batch_decode=lambda rows, skip_special_tokens: [" ".join(map(str, row)) for row in rows]
    )
    one.prompts, one.answers = [[2]] * 4, ["5", "7", "5", "7"]
    one.shards = [Remote(Shard(one.run.reuse.retention)) for _ in range(2)]
    one.grader = Remote(Grader())
    return one


TASKS = [Task(1, 0, 2), Task(2, 0, 3), Task(3, 0, 2)]


def test_a_worker_s_groups_are_graded_remembered_and_costed(worker):
    part = asyncio.run(worker.roll_out(TASKS, 0))
    groups = unpack_groups(part.groups)
    assert [(g.prompt, len(g.samples), g.rewards.tolist()) for g in groups] == [
        (1, 2, [0, 0]),
        (2, 3, [1, 1, 1]),
        (3, 2, [0, 0]),
    ]
    assert [shard.target.memory.prompts() for shard in worker.shards] == [[2], [1, 3]]
    assert (part.cached, part.grading_seconds) == (9, 1.5)
    assert {name: part.seconds[name] for name in ("verification", "rollout", "assembly")} == {
        "verification": 3.0,
        "rollout": 6.0,
        "assembly": 0.75,
    }
    assert part.seconds["reward"] >= 3 * 0.01
    again = unpack_groups(asyncio.run(worker.roll_out([Task(1, 1, 2)], 1)).groups)
    assert [r.tokens.tolist() for r in again[0].rollouts] == [[5, 7], [5, 7]]
    assert again[0].rewards.tolist() == [1, 1]


def test_a_worker_s_engine_is_at_the_run_s_temperature(worker):
    for temperature in (1.0, 0.7):
        trainer = worker.run.trainer.model_copy(update={"temperature": temperature})
        worker.run = worker.run.model_copy(update={"trainer": trainer})
        context, _ = worker._context(None, None)
        assert (context.engine.temperature, context.engine.seeded) == (temperature, True)


def test_what_is_only_measured_is_not_remembered(worker):
    asyncio.run(worker.roll_out(TASKS[:1], 0))
    groups = unpack_groups(asyncio.run(worker.fresh([Task(1, 1, 2), Task(2, 1, 1)], 0)))
    assert [(group.prompt, group.rewards.tolist()) for group in groups] == [(1, [0, 0]), (2, [1])]
    assert [len(shard.target.memory) for shard in worker.shards] == [0, 2]
    assert found(worker.shards[1].target, 1) == [[5], [5]]


def test_no_distribution_is_scored_for_what_is_only_measured(worker, monkeypatch):
    from redraft.train.verl import rollout_worker as module

    async def noted(task, tools):
        tops.append(tools.memory.retention.top)
        return Group(task.prompt, task.visit, (Sample(a_rollout(task.prompt, 0, 5), 0.0),))

    tops = []
    monkeypatch.setattr(module, "vanilla", noted)
    worker.run = worker.run.model_copy(update={"reuse": ResidualReuse(top=3)})
    asyncio.run(worker.fresh([Task(1, 1, 1)], 0))
    assert tops == [0]


def test_a_worker_of_a_method_that_retains_nothing_asks_no_shard(worker):
    worker.run = worker.run.model_copy(update={"reuse": Vanilla()})
    worker.shards = [None, None]
    assert len(unpack_groups(asyncio.run(worker.roll_out(TASKS, 0)).groups)) == 3


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_groups_come_back_in_the_order_of_their_tasks_whoever_made_them(workers, monkeypatch):
    from redraft.config.base import GENERATION_STAGES
    from redraft.train.verl import manager as module
    from redraft.train.verl.rollout_worker import WorkerRollouts

    class Worker:
        def roll_out(self, tasks, step):
            groups = [a_group(task.prompt, task.visit, step=step) for task in tasks]
            return WorkerRollouts(
                pack_groups(groups), dict.fromkeys(GENERATION_STAGES, 2.0 * len(tasks)), len(tasks), 0.5
            )

        def fresh(self, tasks, step):
            return pack_groups([a_group(task.prompt, task.visit, step=step) for task in tasks])

    monkeypatch.setattr(module.ray, "get", lambda calls: [asyncio.run(call) for call in calls])
    manager = object.__new__(module.RolloutManager)
    manager.agent_loop_workers = [Remote(Worker()) for _ in range(workers)]
    tasks = [Task(prompt, 3, GROUP) for prompt in (5, 2, 9)]
    groups, waited, cached, grading = manager.roll_out(tasks, 7)
    assert [(g.prompt, g.visit, g.rollouts[0].sampled_at[0]) for g in groups] == [(5, 3, 7), (2, 3, 7), (9, 3, 7)]
    assert (waited, cached, grading) == (dict.fromkeys(GENERATION_STAGES, 6.0), 3, 0.5 * min(workers, 3))
    assert [(g.prompt, g.rollouts[0].sampled_at[0]) for g in manager.fresh(tasks, 7)] == [(5, 7), (2, 7), (9, 7)]


TIMERS = {"gen": 8.0, "old_log_prob": 1.0, "ref": 2.0, "adv": 0.25, "update_actor": 3.0, "step": 20.0}
BATCH = KVBatchMeta(keys=["a", "b"], tags=[{}, {}], partition_id="train")
METRICS = {"actor/entropy": 0.5, "actor/kl_loss": 0.1, "actor/pg_clipfrac": 0.01, "actor/grad_norm": 2.0}


@pytest.fixture
def steps(monkeypatch):
    """verl's trainer without verl: its own step only notes what it was handed over."""
    from redraft.train.verl import trainer as module

    cleared, called = [], []
    monkeypatch.setattr(module.tq, "kv_clear", lambda keys, partition_id: cleared.append((keys, partition_id)))
    monkeypatch.setattr(module, "log_prob_gaps", lambda batch: called.append("gaps") or (1e-7, 1e-6, 0.02))
    monkeypatch.setattr(module, "put_stored_log_probs", lambda keys: called.append("stored"))
    monkeypatch.setattr(
        module.PPOTrainerSync,
        "_compute_old_log_prob",
        lambda self, batch, metrics: called.append("recomputed") or batch,
    )
    one = object.__new__(module.VerlSteps)
    one.run = Experiments().run("spec_rl/grpo-spec-l0.5", 0, "verl-tiny")
    one.global_steps, one.replay_buffer, one.awake, one.use_critic = 6, module.HandoverBuffer(), True, False
    one.cleared, one.called = cleared, called
    batch = KVBatchMeta(keys=["a", "b"], tags=[{}, {}], partition_id="train")
    one.rows = SimpleNamespace(
        put=lambda minis, global_step: called.append(("put", sum(map(len, minis)), global_step)) or batch
    )

    def step_once(metrics, timing_raw, sample_batch_size):
        handed, _ = one.replay_buffer.sample()
        called.append(("step", handed.keys, sample_batch_size))
        one._compute_old_log_prob(handed, metrics)
        metrics.update(METRICS)
        timing_raw.update(TIMERS)
        return handed

    one._step_once = step_once
    one.checkpoint_manager = SimpleNamespace(sleep_replicas=lambda: called.append("sleep"))
    monkeypatch.setattr(module.PPOTrainerSync, "on_sample_end", lambda self: called.append("sleep"))
    monkeypatch.setattr(module.PPOTrainerSync, "on_step_end", lambda self: called.append("wake"))
    return one


def test_an_update_is_one_step_of_verl_s_on_the_groups_that_it_gets(steps):
    updated = steps.update([a_group(3), a_group(1, size=2)])
    assert steps.called == [("put", 2, 7), ("step", ["a", "b"], 2), "recomputed", "gaps", "stored"]
    assert steps.cleared == [(["a", "b"], "train")]
    assert updated.metrics == {
        "entropy": 0.5,
        "kl": 0.1,
        "clip_fraction": 0.01,
        "gradient_norm": 2.0,
        "log_prob_gap": 1e-7,
        "log_prob_gap_max": 1e-6,
        "drift": 0.02,
    }
    assert {stage: seconds for stage, seconds in updated.seconds.items() if seconds} == {
        "old_log_probs": 1.0,
        "ref": 2.0,
        "adv": 0.25,
        "update_actor": 3.0,
    }
    assert set(updated.seconds) < set(STEP_STAGES)


def stopped(group):
    return replace(group, samples=tuple(replace(sample, use=Use.STOPPED) for sample in group.samples))


def test_mini_batches_whose_gradient_is_stopped_everywhere_are_kept_from_verl(steps):
    """verl would divide by their number of tokens, which is zero."""
    per_update = steps.run.trainer.prompts_per_update
    trained = [a_group(0), *(stopped(a_group(prompt)) for prompt in range(1, per_update))]
    idle = [stopped(a_group(prompt)) for prompt in range(per_update)]
    steps.rows.put = lambda minis, global_step: steps.called.extend(minis) or BATCH
    updated = steps.update([*idle, *trained, *idle])
    assert [steps.called[0], updated.metrics["gradient_norm"]] == [trained, 2.0]
    steps.called.clear()
    updated = steps.update(idle)
    assert (steps.called, updated.metrics, dict(updated.seconds)) == ([], steps.no_update, {})
    assert steps.global_steps == 8


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_diverged_update_of_verl_s_is_an_error_of_the_user_s(value, steps, monkeypatch):
    monkeypatch.setitem(METRICS, "actor/grad_norm", value)
    with pytest.raises(UserError, match=r"diverged: verl's actor/grad_norm") as error:
        steps.update([a_group(3)])
    assert (error.value.key, error.value.value) == ("trainer.learning_rate", steps.run.trainer.learning_rate)


@pytest.mark.parametrize("algorithm", [None, PPO()], ids=["grpo", "ppo"])
def test_a_step_without_an_update_reports_the_same_keys_under_verl(algorithm, steps):
    if algorithm:
        steps.run = steps.run.model_copy(update={"algorithm": algorithm})
    assert steps.no_update.keys() == steps.update([a_group(3)]).metrics.keys()
    assert set(steps.no_update.values()) == {None}
    assert ("critic_loss" in steps.no_update) == (algorithm is not None)


def test_stages_that_overlap_share_the_wall_seconds_of_the_rollout(steps, monkeypatch):
    clock = iter((10.0, 18.0))
    monkeypatch.setattr(type(steps), "now", lambda self: next(clock))
    waited = {"verification": 1.0, "rollout": 2.0, "assembly": 0.5, "reward": 0.5}
    steps.agent_loop_manager = SimpleNamespace(roll_out=lambda tasks, step: (["group"], waited, 7, 0.125))
    rolled = steps.roll_out(TASKS, 0)
    assert rolled.seconds == {"verification": 2.0, "rollout": 4.0, "assembly": 1.0, "reward": 1.0}
    assert (rolled.groups, rolled.cached, rolled.grading_seconds, rolled.unseen) == (["group"], 7, 0.125, 0.0)


def test_engines_sleep_while_verl_updates_and_wake_once_with_the_new_weights(steps):
    steps.publish()
    assert steps.called == [], "they are awake"
    steps.on_sample_end()
    steps.on_sample_end()
    steps._rest()
    assert steps.called == ["sleep"]
    steps.publish()
    steps.publish()
    assert steps.called == ["sleep", "wake"]
    steps._rest()
    steps._wake()
    assert steps.called == ["sleep", "wake", "sleep", "wake"]


def test_fresh_samples_are_compared_with_the_reference_while_engines_sleep_and_only_measured(steps, monkeypatch):
    from redraft.train.verl import trainer as module

    def note(name, value):
        return lambda *_: steps.called.append(name) or value

    steps.agent_loop_manager = SimpleNamespace(fresh=note("sample", [a_group(3), a_group(1, size=2)]))
    steps.rows.put_unmasked = note("put", BATCH)
    steps.use_reference_policy = True
    monkeypatch.setattr(type(steps), "_balance_batch", note("balance", BATCH))
    monkeypatch.setattr(type(steps), "_compute_ref_log_prob", note("reference", BATCH))
    monkeypatch.setattr(module, "low_variance_kl", lambda batch: 0.25)
    steps.awake = False
    found = steps.fresh(TASKS, 5)
    assert steps.called == ["wake", "sample", "sleep", "put", "balance", "reference", "wake"]
    assert (len(found.rewards), found.kl) == (a_group(3).rewards.size + 2, 0.25)
    assert steps.cleared == [(["a", "b"], "train")], "nothing is left for the next update"
    steps.use_reference_policy = False
    steps.called.clear()
    assert steps.fresh(TASKS, 5).kl is None
    assert steps.called == ["sample"]


def test_a_checkpoint_has_a_part_of_every_process_and_its_policy_is_linked(steps, tmp_path, monkeypatch):
    from redraft.train.verl import trainer as module

    def save(path, remote, step):
        steps.called.append(("save", path, step))

    monkeypatch.setattr(module.ray, "get", lambda calls: [asyncio.run(call) for call in calls])
    steps.actor_rollout_wg = SimpleNamespace(save_checkpoint=save)
    steps.shards = [Remote(Shard(LAST)) for _ in range(2)]
    put(steps.shards[1].target, a_group(3))
    steps.save(tmp_path)
    assert steps.called == ["sleep", ("save", str(tmp_path / "actor"), 6)], "vLLM leaves its memory to those who save"
    assert sorted(file.name for file in (tmp_path / "memory").iterdir()) == ["shard-0.arrow", "shard-1.arrow"]
    loaded = []
    steps.actor_rollout_wg.load_checkpoint = lambda **more: loaded.append(more)
    steps.loop = SimpleNamespace(state=SimpleNamespace(training_step=11))
    steps.shards = [Remote(Shard(LAST)) for _ in range(3)]
    steps.restore(tmp_path)
    assert [more["local_path"] for more in loaded] == [str(tmp_path / "actor")]
    assert steps.global_steps == 11
    assert [found(shard.target, 3) for shard in steps.shards] == [DRAFTS, [], []]
    (tmp_path / "actor/huggingface").mkdir(parents=True)
    (tmp_path / "actor/huggingface/model.safetensors").write_bytes(b"weights")
    steps.save_policy(tmp_path, tmp_path / "policies/step-0004")
    assert (tmp_path / "policies/step-0004/model.safetensors").read_bytes() == b"weights"


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
    """Raised instead of a process's start."""


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
    assert not {"VERL_PLATFORM", "VERL_ENGINE_DEVICE"} & started["env"].keys()
    modules = [f"redraft.train.verl.{name}" for name in ("job_names", "critic", "fused_head")]
    assert started["env"]["VERL_USE_EXTERNAL_MODULES"].split(",") == modules, "flash-attn is not installed"
    config = OmegaConf.load(file)
    assert config.trainer.n_gpus_per_node == 8
    assert config.actor_rollout_ref.rollout.tensor_model_parallel_size == 2
    assert "verl_cpu" not in file.read_text(), "nothing of the processor's platform"
    assert len(pd.read_parquet(config.data.train_files[0])) == 6144
    assert run.engine.gpus == 8, "what the workflow asks a cluster for"


def test_tied_embeddings_are_rejected_on_a_processor_where_vllm_would_keep_old_ones(paper_scale, tmp_path, monkeypatch):
    from redraft.train.verl.launch import VerlTrainer

    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    config = {"model_type": "qwen3", "max_position_embeddings": 32768, "tie_word_embeddings": True}
    (paper_scale / "config.json").write_text(json.dumps(config))
    run = Experiments().run("spec_rl/8b-grpo-spec-l0.5", 0, "paper")
    run = run.model_copy(update={"engine": run.engine.model_copy(update={"device": "cpu"})})
    with pytest.raises(UserError, match="tied embeddings"):
        VerlTrainer(run, paper_scale, tmp_path / "run", None, tmp_path / "problems.parquet")


def test_without_drafts_a_model_needs_positions_for_prompt_and_response_alone(paper_scale, tmp_path):
    """SPEED-RL's runs: 1,024 and 3,072 tokens are all positions of Qwen2.5-Math."""
    from redraft.train.verl.launch import VerlTrainer

    run = Experiments().run("speed_rl/dapo17k-rloo-speed4", 0, "paper")
    arguments = (paper_scale, tmp_path / "run", None, tmp_path / "problems.parquet")
    (paper_scale / "config.json").write_text(json.dumps({"model_type": "qwen2", "max_position_embeddings": 4096}))
    VerlTrainer(run, *arguments)
    (paper_scale / "config.json").write_text(json.dumps({"model_type": "qwen2", "max_position_embeddings": 4095}))
    with pytest.raises(UserError, match=r"(?s)too few positions for prompt, response\n.*at most 3071"):
        VerlTrainer(run, *arguments)


def test_a_model_with_too_few_positions_is_rejected_with_what_would_fit(paper_scale, tmp_path):
    from redraft.train.verl.launch import VerlTrainer

    (paper_scale / "config.json").write_text(json.dumps({"model_type": "qwen3", "max_position_embeddings": 4096}))
    run = Experiments().run("spec_rl/8b-grpo-spec-l0.5", 0, "paper")
    with pytest.raises(UserError, match=r"(?s)too few positions.*at most 3071 with max_prompt_tokens 1024"):
        VerlTrainer(run, paper_scale, tmp_path / "run", None, tmp_path / "problems.parquet")
