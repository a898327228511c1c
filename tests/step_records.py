"""Records of made-up runs, as `collect` gathers them."""

import math

from redraft.config.base import STEP_STAGES


def made_up_step(cell, seed, number, epoch, seconds, drafts=True, **values):
    """A step's record with every column; `seconds` of each stage, or by stage with the others at 0.

    Measures of drafts are NaN in a step without drafts.
    """
    if isinstance(seconds, dict):
        stages = dict.fromkeys(STEP_STAGES, 0.0) | seconds | {"total": sum(seconds.values())}
    else:
        stages = dict.fromkeys((*STEP_STAGES, "total"), seconds)
    of_drafts = {"prefix_length": 10.0, "full_reuse_ratio": 0.5, "rouge_1": 0.6}
    return {
        "cell": cell,
        "seed": seed,
        "step": number,
        "epoch": epoch,
        "training_step": number + 1,
        "updated": True,
        "informative": 0.5,
        "tokens_decoded": 60.0,
        "tokens_verified": 0,
        "tokens_reused": 0,
        "response_length": 20.0,
        "token_age_epochs": 0.5,
        "token_age_steps": 1.0,
        "reward": 0.5,
        "fresh_reward": 0.4,
        "entropy": 0.3,
        "kl": 0.01 * number,
        "clip_fraction": 0.001,
        "gradient_norm": 1.0,
        "distinct_1": 0.1,
        "distinct_2": 0.3,
        "self_bleu": 0.5,
        "self_bleu_within": 0.4,
        "distinct_within": 0.9,
        "distinct_trajectories": 2.0,
        "trajectories_share": 0.9,
        "fresh_kl": 0.02,
        "prefix_share": 0.5,
        "rouge_1_precision": 0.6,
        "rouge_1_recall": 0.6,
        **{name: value if drafts else math.nan for name, value in of_drafts.items()},
        **{f"seconds.{stage}": value for stage, value in stages.items()},
        **values,
    }


def made_up_scores(cell, seed, number, correct, benchmarks, total=100):
    """A policy's scores after `number` steps: `correct` of `total` on each benchmark (name to role)."""
    return [
        {
            "cell": cell,
            "seed": seed,
            "step": number,
            "benchmark": name,
            "role": role,
            "correct": correct,
            "total": total,
        }
        for name, role in benchmarks.items()
    ]
