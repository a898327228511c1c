"""Stock `main_ppo` of verl on a processor with the three lines of docs/use-in-verl.md: reuse, a kill, and a resume."""

import os
import signal
import subprocess
import sys

import pytest

from redraft.config.model import TinyModel
from redraft.files import read_json_lines
from redraft.integrations.verl import AGENT_LOOPS
from redraft.integrations.verl.store import files_of
from redraft.tasks.problems import Problem
from redraft.tasks.tokenizer import make_tokenizer
from redraft.train import models
from redraft.train.verl.problem_files import write_problems
from redraft.train.verl.settings import environment
from tests.processes import processes_of, until
from tests.verl_runs import LIMIT, WITH_VLLM

pytestmark = [pytest.mark.servers, WITH_VLLM]

LINES = [
    "actor_rollout_ref.rollout.agent.default_agent_loop=redraft_reuse",
    f"actor_rollout_ref.rollout.agent.agent_loop_config_path={AGENT_LOOPS}",
    "+actor_rollout_ref.rollout.agent.agent_loop_manager_class=redraft.integrations.verl.manager.DraftManager",
]
SETTINGS = """
data.train_batch_size=16 data.max_prompt_length=16 data.max_response_length=32 data.dataloader_num_workers=0 data.seed=0
actor_rollout_ref.model.use_remove_padding=False actor_rollout_ref.model.enable_gradient_checkpointing=False
+actor_rollout_ref.model.override_config.attn_implementation=sdpa
actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.ref.strategy=fsdp2
actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16
actor_rollout_ref.actor.use_dynamic_bsz=False actor_rollout_ref.actor.use_torch_compile=False
actor_rollout_ref.actor.optim.lr=1e-3 actor_rollout_ref.actor.use_kl_loss=False
actor_rollout_ref.actor.fsdp_config.model_dtype=fp32 actor_rollout_ref.actor.fsdp_config.use_torch_compile=False
+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32
+actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype=fp32
+actor_rollout_ref.actor.fsdp_config.mixed_precision.buffer_dtype=fp32
actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=1
actor_rollout_ref.rollout.n=4 actor_rollout_ref.rollout.dtype=float32 actor_rollout_ref.rollout.load_format=dummy
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 actor_rollout_ref.rollout.max_model_len=48
actor_rollout_ref.rollout.max_num_seqs=64 actor_rollout_ref.rollout.max_num_batched_tokens=2048
actor_rollout_ref.rollout.enforce_eager=True actor_rollout_ref.rollout.free_cache_engine=False
+actor_rollout_ref.rollout.enable_sleep_mode=False actor_rollout_ref.rollout.enable_chunked_prefill=False
actor_rollout_ref.rollout.agent.num_workers=1
+actor_rollout_ref.rollout.engine_kwargs.vllm.block_size=32
+actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls=redraft.verl_cpu.weights.CpuWorkerExtension
algorithm.adv_estimator=grpo critic.enable=False reward.num_workers=1
trainer.device=cpu trainer.n_gpus_per_node=1 trainer.nnodes=1 trainer.logger=[file] trainer.val_before_train=False
trainer.test_freq=2 trainer.save_freq=1 trainer.total_epochs=9 trainer.total_training_steps=4
transfer_queue.backend.SimpleStorage.num_data_storage_units=1 +ray_kwargs.ray_init.num_gpus=1
ray_kwargs.ray_init.num_cpus=32 +ray_kwargs.ray_init.include_dashboard=False +ray_kwargs.ray_init.address=local
"""
"""verl's own settings for a processor; two steps an epoch."""
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    return solution_str.count(ground_truth) / (1 + len(solution_str))
"""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with a model, 32 prompts, and a reward function."""
    folder, tokenizer = tmp_path_factory.mktemp("verl"), make_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    shape = TinyModel(architecture="llama", hidden_size=64, layers=1, heads=2, head_dim=32, intermediate_size=64)
    models.save(models.initialise(shape, tokenizer), tokenizer, folder / "model")
    write_problems([Problem(f"{i}+{j}=", str(i)) for i in range(8) for j in range(4)], "sums", folder / "data.parquet")
    (folder / "reward.py").write_text(REWARD)
    return folder


def command(inputs, folder, lines):
    data = inputs / "data.parquet"
    own = [
        f"data.train_files={data}",
        f"data.val_files={data}",
        "data.val_max_samples=4",
        f"actor_rollout_ref.model.path={inputs / 'model'}",
        f"reward.custom_reward_function.path={inputs / 'reward.py'}",
        f"trainer.default_local_dir={folder / 'checkpoints'}",
    ]
    return [sys.executable, "-m", "verl.trainer.main_ppo", *SETTINGS.split(), *own, *lines]


def start(inputs, folder, lines):
    log = folder / "metrics.jsonl"
    variables = os.environ | environment(gpu=False) | {"VERL_FILE_LOGGER_PATH": str(log), "REDRAFT_TEST": str(folder)}
    with (folder / "log").open("ab") as output:
        return subprocess.Popen(command(inputs, folder, lines), cwd=folder, env=variables, stdout=output, stderr=output)


def metrics(folder):
    """Metrics of each step that trained."""
    records = read_json_lines(folder / "metrics.jsonl")
    return {record["step"]: record["data"] for record in records if "training/global_step" in record["data"]}


def test_a_stock_run_reuses_drafts_from_the_second_epoch_on_also_after_a_kill(inputs, tmp_path):
    process = start(inputs, tmp_path, LINES)
    until((tmp_path / "checkpoints/global_step_3/data.pt").exists, LIMIT, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: not processes_of(str(tmp_path)), 120)
    before = metrics(tmp_path)  # verl's logger begins a new file
    drafts = tmp_path / "checkpoints" / "redraft_drafts"
    assert [step for step in files_of(drafts) if step <= 3] == [1, 2, 3]
    process = start(inputs, tmp_path, LINES)
    assert process.wait(LIMIT) == 0, (tmp_path / "log").read_text()[-3000:]
    found = before | metrics(tmp_path)
    assert found[1]["redraft/with_draft"] == found[2]["redraft/with_draft"] == 0
    assert found[4]["redraft/with_draft"] == 1, "the drafts of step 2, read after the kill"
    assert 0 < found[4]["redraft/kept_share"] < 1
    assert found[4]["redraft/rule_replaced"] == 0
    assert not [name for name in found[4] if name.startswith("redraft/own_response")]
    assert max(step["training/rollout_probs_diff_max"] for step in found.values()) < 1e-4
