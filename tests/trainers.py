"""Trainers for tests, which say only what they are about."""

from redraft.config import TrainerConfig

OTHERS = {
    "epochs": 15,
    "prompts_per_step": 1024,
    "group_size": 8,
    "prompts_per_update": 256,
    "learning_rate": 5e-7,
    "weight_decay": 0.01,
    "gradient_clip": 1.0,
    "max_prompt_tokens": 1024,
    "max_response_tokens": 4096,
    "evaluate_every": 10,
}
"""Fields that every paper states."""


def make_trainer(**settings):
    """A trainer with these settings; other fields are SPEC-RL's."""
    return TrainerConfig(**OTHERS | settings)
