"""Time of a step's learner under verl: log-probabilities and updates, by counting operations.

A pass forward takes 2 operations a parameter and token, a pass backward twice as many, and recomputation another pass
forward (2205.05198, §5). Attention is left out. The share of a GPU's throughput that verl reaches is that of SPEC-RL's
Table 4, whose updates and log-probabilities give the same share. How long vLLM decodes does not follow from counts: its
last responses decode nearly alone.
"""

from redraft.config.algorithm import PPO
from redraft.config.experiment import Run
from redraft.ops.sizing.shapes import parameters_of
from redraft.selfspec.constants import ModelConstants

FORWARD, UPDATE = 2, 8
"""Operations a parameter and token: a pass forward; an update with recomputation."""
H100_FLOPS = 989e12
"""Operations/s in bfloat16, by the data sheet."""
SMALL = 3e9
REACHED_BY_SMALL, REACHED = 0.22, 0.39
"""Share of the throughput below and above `SMALL` parameters (Table 4: 1.7B and 8B)."""


def learner_seconds(run: Run, shape: ModelConstants, tokens: float) -> float:
    """Seconds of a step that trains on `tokens` tokens, prompts included, on H100s."""
    parameters = parameters_of(shape)
    # Log-probabilities before the update, the update, and with a KL loss log-probabilities of the reference.
    operations = FORWARD + UPDATE + (FORWARD if run.algorithm.kl_loss_coef else 0)
    # The critic's values and its update.
    if isinstance(run.algorithm, PPO):
        operations += FORWARD + UPDATE
    reached = REACHED_BY_SMALL if parameters < SMALL else REACHED
    gpus = max(run.engine.gpus, 1) * run.engine.nodes
    return tokens * parameters * operations / (gpus * H100_FLOPS * reached)


def most_tokens(run: Run) -> int:
    """Tokens that a step trains on if every prompt and response has its longest length."""
    trainer = run.trainer
    return trainer.batch_prompts * trainer.group_size * (trainer.max_prompt_tokens + trainer.max_response_tokens)
