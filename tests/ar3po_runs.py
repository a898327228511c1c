"""Records of a made-up run with every measurement that AR3PO's tables, figures and claims name."""

import pandas as pd

from redraft.config.base import STEP_STAGES

MEASURED = [
    "tokens_decoded",
    "tokens_reused",
    "rollouts",
    "rollouts_per_prompt",
    "without_correct",
    "replayed",
    "informative",
    "trained_age",
    "reward",
    "fresh_reward",
    "response_length",
    "gradient_norm",
    "clip_fraction",
    "prefix_length",
]


def records(cell, epochs=(0, 0, 1, 1)):
    """Frames of `Runs`: one run of a cell, a step for each of these epochs; every measurement is a half."""
    measured = dict.fromkeys([*MEASURED, *(f"seconds.{stage}" for stage in (*STEP_STAGES, "total"))], 0.5)
    steps = [
        {"cell": cell, "seed": 0, "step": i, "epoch": epoch, "training_step": i + 1, "updated": True} | measured
        for i, epoch in enumerate(epochs)
    ]
    return pd.DataFrame([{"cell": cell, "seed": 0}]), pd.DataFrame(steps), pd.DataFrame()
