"""Rollouts by TRL's vLLM, in TRL's environment, with the rollout function; prints one line of JSON for test_trl.py."""

import json
import os
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM

from benchmarks.trl_rollouts import VLLM, responses, trainer_of, with_vllm
from redraft.errors import UserError
from redraft.integrations.trl import ReuseRollout
from redraft.integrations.trl_vllm import load_weights_on_cpu
from redraft.lab.audit.enumeration import Space
from redraft.lab.audit.tiny_models import PROMPT, drifting

SPACE, COUNT = Space(3, 3), 1000
POLICIES = drifting(SPACE, 3, drift=0.5, scale=0.6)


def policy_of(trainer, number):
    """Give the trainer another policy, as an update does."""
    trainer.model.load_state_dict(POLICIES[number].state_dict())
    trainer._last_loaded_step = -1


def answers(trainer, rollout, number):
    """Responses of a policy, and their log-probabilities, after vLLM was seeded."""
    trainer.rollout_func = rollout
    policy_of(trainer, number)
    torch.manual_seed(1)
    return responses(trainer, [PROMPT] * COUNT)


def third_pass(trainer, rollout):
    """Third pass, with drafts of the second policy: indices and total log-probabilities of responses, kept share."""
    for number in range(3):
        tokens, log_probs = answers(trainer, rollout, number)
    logged = trainer._pending_metrics["reuse/kept_share"]
    return {
        "indices": [SPACE.index[tuple(each)] for each in tokens],
        "totals": [sum(each) for each in log_probs],
        "kept_share": logged[-1],
    }


def error_of(trainer, rollout, **changed):
    """Key of the error with changed settings."""
    before = {name: getattr(trainer.args, name) for name in changed}
    for name, value in changed.items():
        setattr(trainer.args, name, value)
    try:
        answers(trainer, rollout, 0)
    except UserError as error:
        return error.key
    finally:
        for name, value in before.items():
            setattr(trainer.args, name, value)
    return ""


def without_loader(trainer):
    """Key of the error without `load_weights_on_cpu`; `sync_weights` does nothing, since TRL's fails on a CPU."""
    ours = trainer.vllm_generation.sync_weights
    trainer.vllm_generation.sync_weights = lambda: None
    try:
        return error_of(trainer, ReuseRollout())
    finally:
        trainer.vllm_generation.sync_weights = ours


def loader_of_another():
    """Key of the error of `load_weights_on_cpu` for a trainer without vLLM."""
    try:
        load_weights_on_cpu(trainer_of(POLICIES[0], [PROMPT]))
    except UserError as error:
        return error.key
    return ""


def trained(trainer, folder):
    """Share of responses with a draft in three steps, and the largest gap of vLLM's log-probabilities, nats."""
    trainer.args.output_dir, trainer.args.save_strategy = folder, "no"
    trainer.rollout_func = ReuseRollout()
    trainer._pending_metrics.clear()
    trainer.train()
    logs = [each for each in trainer.state.log_history if "reuse/drafts" in each]
    trainer.args.max_steps = 1
    for _ in range(2):  # both trainings begin with step 0
        trainer.train()
    logs += [each for each in trainer.state.log_history if "reuse/drafts" in each]
    difference = [each["sampling/sampling_logp_difference/max"] for each in logs]
    return {"drafts": [each["reuse/drafts"] for each in logs], "difference": max(difference)}


def main():
    """All results, by the names that test_trl.py reads."""
    folder = tempfile.mkdtemp()
    POLICIES[0].save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    settings = {"max_completion_length": SPACE.longest, "max_steps": 3, "learning_rate": 1e-2}
    trainer = with_vllm(model, [PROMPT, [2, 1], [1, 1], [2]], **settings)
    none = ReuseRollout("none")
    found = {
        "equal": [answers(trainer, None, number) == answers(trainer, none, number) for number in (0, 1)],
        "one_hot": third_pass(trainer, ReuseRollout("one_hot")),
        "residual": third_pass(trainer, ReuseRollout("residual", top=2)),
        "published": third_pass(trainer, ReuseRollout("published", lenience="inf")),
        "errors": {
            "vllm_enable_sleep_mode": error_of(trainer, none, vllm_enable_sleep_mode=True),
            "vllm_structured_outputs_regex": error_of(trainer, none, vllm_structured_outputs_regex="a"),
            "top": error_of(trainer, ReuseRollout("residual", top=21)),
            "vllm_max_model_length": error_of(trainer, none, max_completion_length=VLLM["vllm_max_model_length"]),
            "use_vllm": without_loader(trainer),
            "vllm_mode": loader_of_another(),
        },
        "trained": trained(trainer, folder),
    }
    temperatures = {}
    for trainer.temperature in (0.8, 0.005, 3.0):
        rules = ("one_hot", "random", "none")
        temperatures[str(trainer.temperature)] = [error_of(trainer, ReuseRollout(rule)) for rule in rules]
    return found | {"temperature": temperatures}


if __name__ == "__main__":
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints to file descriptor 1
    print(json.dumps(main()), file=output)
    sys.stdout.flush()
