"""The memory estimate of a run against the size of its tensors, and the error for too little memory."""

from types import SimpleNamespace

import pytest
import torch
import transformers

from redraft.config import GRPO, PPO
from redraft.engines.torch.kv_cache import SlotCache
from redraft.errors import UserError
from redraft.train import models
from redraft.train.local import trainer as local
from redraft.train.local.learner import Learner
from redraft.train.pretrained import memory_check
from tests.test_trainer import LIMIT, make_run, train

CPU = torch.device("cpu")
LONGEST = 9


def bytes_of(tensors):
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
@pytest.mark.parametrize("algorithm", [GRPO(), GRPO(kl_loss_coef=0), PPO()], ids=["GRPO", "no reference", "PPO"])
def test_what_is_told_is_what_models_and_optimizers_take(tiny_model, algorithm, dtype):
    """A critic's head has one output instead of the vocabulary, so its estimate is a little too large."""
    run = make_run(algorithm=algorithm, dtype=dtype)
    estimate = memory_check.training(run, tiny_model, LONGEST, CPU)
    policy, _ = models.load(tiny_model)
    learner = Learner(run, policy, tiny_model, CPU, pad=0)
    parts = [part for name, part in learner.parts.items() if "optimizer" not in name]
    for name in ("optimizer", "critic_optimizer"):
        for group in learner.parts.get(name, SimpleNamespace(param_groups=[])).param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.zeros_like(parameter)
    for name, part in learner.parts.items():
        if "optimizer" in name:
            part.step()
    weights = [parameter for part in parts for parameter in part.parameters()]
    state = [
        value
        for name, part in learner.parts.items()
        if "optimizer" in name
        for entry in part.state.values()
        for key, value in entry.items()
        if key != "step"
    ]
    reference = [] if learner.reference is None else list(learner.reference.parameters())
    expected = {
        "weights": bytes_of(weights),
        "gradients": bytes_of([parameter.grad for parameter in weights]),
        "AdamW's moments": bytes_of(state),
        "reference policy": bytes_of(reference),
        "rollout copy": 0 if dtype == "auto" else bytes_of(policy.parameters()) / 2,
    }
    for name, size in expected.items():
        assert size <= estimate.get(name, 0) <= 1.15 * size + 4096, name  # the header of the file, and a critic's head


def test_the_cache_is_told_as_it_is_made(tiny_model):
    run = make_run(max_rows=5, dtype="bfloat16")
    length = LONGEST + run.trainer.max_response_tokens
    cache = SlotCache(models.load_config(tiny_model), 5, length, CPU, torch.bfloat16)
    assert memory_check.training(run, tiny_model, LONGEST, CPU)["key-value cache"] == bytes_of(cache._buffers)


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_a_gpu_needs_no_memory_for_rollouts_checkpoints_and_a_second_cache(tiny_model, dtype):
    run = make_run(dtype=dtype)
    on_cpu, on_gpu = (memory_check.training(run, tiny_model, LONGEST, torch.device(name)) for name in ("cpu", "cuda"))
    assert "rollouts" in on_cpu.keys() - on_gpu.keys()
    assert on_gpu["key-value cache"] == on_cpu["key-value cache"] / 2
    assert on_gpu["an update"] <= on_cpu["an update, or a checkpoint as it is written"]
    for name in ("weights", "gradients", "AdamW's moments", "reference policy"):
        assert on_gpu[name] == on_cpu[name]


def test_a_cache_has_no_more_rows_in_use_than_a_step_has_responses(tiny_model):
    run, rows = make_run(max_rows=999), make_run(max_rows=1)
    responses = run.trainer.prompts_per_step * run.trainer.group_size
    many, one = (memory_check.training(each, tiny_model, LONGEST, CPU)["key-value cache"] for each in (run, rows))
    assert many == responses * one


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_activations_are_no_less_than_what_a_backward_pass_keeps(name, dtype):
    """Of a narrow SmolLM2: three query heads for each key-value head, feed-forward layers of 8/3 the width."""
    rows, length = 4, 64
    config = getattr(transformers, f"{name}Config")(
        vocab_size=99,
        hidden_size=144,
        num_hidden_layers=4,
        num_attention_heads=9,
        num_key_value_heads=3,
        head_dim=16,
        intermediate_size=384,
    )
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage  # kept alive, so that its address is not reused
        return tensor

    autocast = torch.autocast("cpu", dtype, enabled=dtype != torch.float32)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), autocast:
        model.base_model(torch.zeros(rows, length, dtype=torch.long))
    found = sum(storage.nbytes() for storage in kept.values())
    rounded = 0 if dtype == torch.float32 else 2 * sum(parameter.numel() for parameter in model.parameters())
    estimate = memory_check.KEPT_BYTES[dtype.itemsize] * memory_check._kept(config) * rows * length
    assert 0.6 * estimate <= found - rounded <= estimate


def test_an_update_or_a_checkpoint_is_told_whichever_is_larger(tiny_model):
    """AdamW's moments are in memory three times while they are written; a small micro-batch takes less."""
    name, found = "an update, or a checkpoint as it is written", {}
    for rows in (1, 1000):
        estimate = memory_check.training(make_run(rows_per_micro_batch=rows, group=500), tiny_model, LONGEST, CPU)
        found[rows] = estimate[name]
        assert estimate[name] >= 2 * estimate["AdamW's moments"]
    assert found[1] == 2 * estimate["AdamW's moments"]
    config, length = models.load_config(tiny_model), LONGEST + LIMIT
    assert found[1000] == 4 * memory_check._kept(config) * 1000 * length


def test_too_little_is_rejected_before_the_model_is_loaded(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(local, "available", lambda device: 1000.0)
    monkeypatch.setattr(local.models, "load", None)
    with pytest.raises(UserError, match="too little memory for this model") as error:
        train(make_run(), tiny_model, tmp_path)
    assert (error.value.key, error.value.value) == ("memory", "0.0 GiB")
    assert error.value.allowed.startswith("at least ")
    assert "AdamW's moments" in error.value.allowed


def test_all_parts_count_and_enough_is_enough(tmp_path):
    memory_check.check_memory({"a": 2.0**30, "b": 2.0**31}, 3 * 2.0**30, tmp_path)
    with pytest.raises(UserError, match="too little") as error:
        memory_check.check_memory({"a": 2.0**30, "b": 2.0**31}, 3 * 2.0**30 - 1, tmp_path)
    assert error.value.allowed == "at least 3.0 GiB (a 1.0 GiB, b 2.0 GiB)"


MEBIBYTE = 2**20
V2 = ("cgroup2", "memory.max", "memory.current", "inactive_file")
V1 = ("cgroup", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


@pytest.fixture
def process(tmp_path, monkeypatch):
    """Make a process in a control group; a machine with 1 GiB free."""
    monkeypatch.setattr(memory_check, "PROCESS", tmp_path / "proc")
    monkeypatch.setattr(memory_check.psutil, "virtual_memory", lambda: SimpleNamespace(available=2**30))
    for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)

    def make(version, path, limits, used=0, cached=0, root="/"):
        """Limits by the path below the mounted folder."""
        kind, limit, use, freeable = version
        mount = tmp_path / "cgroup"
        (tmp_path / "proc").mkdir()
        options = "rw" if kind == "cgroup2" else "rw,memory"
        mounts = [
            f"30 20 0:9 / {tmp_path / 'cpu'} rw - cgroup cgroup rw,cpu",
            "31 20 0:9 / /tmp rw shared:1 - tmpfs tmpfs rw",
            f"40 20 0:9 {root} {mount} rw shared:2 - {kind} {kind} {options}",
        ]
        (tmp_path / "proc/mountinfo").write_text("\n".join(mounts))
        line = f"0::{path}" if kind == "cgroup2" else f"5:cpu:/x\n4:hugetlb,memory:{path}\n0::/"
        (tmp_path / "proc/cgroup").write_text(f"{line}\n")
        for below, text in limits.items():
            folder = mount / below
            folder.mkdir(parents=True, exist_ok=True)
            (folder / limit).write_text(f"{text}\n")
            (folder / use).write_text(f"{used}\n")
            (folder / "memory.stat").write_text(f"anon 5\n{freeable} {cached}\n")

    return make


@pytest.mark.parametrize("version", [V2, V1], ids=["v2", "v1"])
@pytest.mark.parametrize(
    ("path", "limits", "root"),
    [
        ("/", {"": 64 * MEBIBYTE}, "/"),
        ("/system.slice/slurmstepd.scope/job_7/step_0", {"system.slice/slurmstepd.scope/job_7": 64 * MEBIBYTE}, "/"),
        ("/slurm/uid_1/job_7", {"slurm/uid_1/job_7": 64 * MEBIBYTE, "slurm": 2**40}, "/"),
        ("/docker/abc", {"": 64 * MEBIBYTE}, "/docker/abc"),
        ("/docker/abc/inner", {"inner": 64 * MEBIBYTE}, "/docker/abc"),
        ("/on/the/host", {"": 64 * MEBIBYTE}, "/docker/abc"),
    ],
    ids=["container", "job", "nested", "mounted", "inner", "of the host"],
)
def test_the_limit_of_every_control_group_around_the_process_counts(process, version, path, limits, root):
    process(version, path, limits, root=root)
    assert memory_check.available(CPU) == 64 * MEBIBYTE


@pytest.mark.parametrize("version", [V2, V1], ids=["v2", "v1"])
def test_what_a_control_group_uses_is_not_free_but_its_file_cache_is(process, version):
    process(version, "/job", {"job": 64 * MEBIBYTE}, used=40 * MEBIBYTE, cached=10 * MEBIBYTE)
    assert memory_check.available(CPU) == 34 * MEBIBYTE


@pytest.mark.parametrize("version", [V2, V1], ids=["v2", "v1"])
@pytest.mark.parametrize("limit", ["max", 2**63 - 4096, "what is this"])
def test_without_a_limit_it_is_the_memory_of_the_machine(process, version, limit):
    process(version, "/job", {"job": limit})
    assert memory_check.available(CPU) == 2**30


def test_elsewhere_than_on_linux_it_is_the_memory_of_the_machine(process):
    assert memory_check.available(CPU) == 2**30


@pytest.mark.parametrize(
    ("variables", "free"),
    [
        ({"SLURM_MEM_PER_NODE": "64"}, 64 * MEBIBYTE),
        ({"SLURM_MEM_PER_CPU": "16", "SLURM_CPUS_ON_NODE": "4"}, 64 * MEBIBYTE),
        ({"SLURM_MEM_PER_CPU": "16"}, 2**30),
        ({"SLURM_MEM_PER_NODE": "0"}, 2**30),
        ({"SLURM_MEM_PER_NODE": "4096"}, 2**30),
    ],
    ids=str,
)
def test_a_slurm_job_has_the_memory_that_it_was_granted(process, monkeypatch, variables, free):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert memory_check.available(CPU) == free


def test_a_row_of_the_cache_has_keys_and_values_of_every_layer():
    """Also of a configuration without `head_dim` and `num_key_value_heads`, as of GPT-2's family."""
    sizes = {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64}
    plain = memory_check.cache_row(SimpleNamespace(**sizes), memory_check.GROWTH, 2, torch.device("cuda"))
    assert plain == 2 * 2 * 3 * 4 * 16 * memory_check.GROWTH
    grouped = SimpleNamespace(**sizes, num_key_value_heads=2, head_dim=32)
    assert (
        memory_check.cache_row(grouped, memory_check.GROWTH + 1, 4, CPU)
        == 2 * 2 * 4 * 3 * 2 * 32 * 2 * memory_check.GROWTH
    )
