"""Modules that verl imports first in each of its processes (redraft.train.verl.settings.environment)."""

import os
import subprocess
import sys

import pytest

from redraft.train.verl.settings import environment

EXTERNAL = "VERL_USE_EXTERNAL_MODULES"
HEAD = """
import sys, torch, verl
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import Qwen3Config, Qwen3ForCausalLM
from verl.models.transformers.monkey_patch import patch_forward_with_backends
from verl.utils.fsdp_utils import apply_fsdp2

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
torch.manual_seed(0)
sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
config = Qwen3Config(
    **sizes, num_key_value_heads=2, head_dim=8, vocab_size=50, tie_word_embeddings=sys.argv[1] == "tied"
)
model = Qwen3ForCausalLM(config)
ids = torch.randint(50, (1, 9))
expected = model(ids).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
expected.sum().backward()
gradient = model.lm_head.weight.grad.clone()
model.zero_grad()
patch_forward_with_backends(model, use_fused_kernels=True, fused_kernels_backend="torch")
apply_fsdp2(model, {"mesh": init_device_mesh("cpu", (1,))}, {})
log_probs = model(ids, return_dict=True).log_probs[:, :-1]
log_probs.sum().backward()
print("difference", float((log_probs - expected).abs().max()))
print("of gradients", float((model.lm_head.weight.grad.full_tensor() - gradient).abs().max()))
"""
SOCKETS = """
import ray, verl
ray.init(address="local", num_cpus=1, include_dashboard=False)
print("job", ray.get_runtime_context().get_job_id())
"""


def printed(code, *arguments, **variables):
    """Run a program; returns its last lines and its errors."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_a_fused_head_reads_whole_weights_under_fsdp2(head):
    lines, errors = printed(HEAD, head, **{EXTERNAL: "redraft.train.verl.fused_head"})
    assert [line.rsplit(" ", 1)[0] for line in lines[-2:]] == ["difference", "of gradients"], errors
    assert all(float(line.rsplit(" ", 1)[1]) < 1e-5 for line in lines[-2:])


def test_without_the_module_verl_fails_on_an_untied_fused_head():
    """If this passes with another verl, `fused_head` is no longer needed."""
    lines, errors = printed(HEAD, "untied", **{EXTERNAL: ""})
    assert "mixed torch.Tensor and DTensor" in errors, lines


def test_two_runs_on_a_machine_have_jobs_of_different_names():
    """verl names the socket for weights by the job, and the first job of any Ray has the same id."""
    names = []
    for _ in range(2):
        variables = environment(gpu=False)
        lines, errors = printed(SOCKETS, **(variables | {EXTERNAL: "redraft.train.verl.job_names"}))
        assert lines, errors
        name = lines[-1].removeprefix("job ")
        assert name == f"01000000-{variables['REDRAFT_VERL_RUN']}"
        names.append(name)
    assert names[0] != names[1]
