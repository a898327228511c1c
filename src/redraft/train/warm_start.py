"""Supervised training of the tiny model, so that it solves some problems and has something to learn.

Solutions are worked step by step with a few slips; some box a guess without working. The last steps raise the share of
guesses, which reinforcement learning then has to unlearn: accuracy starts low although the skill is there.

Matrices between the embeddings and the head are trained by Muon, which needs half the steps of AdamW here
(docs/decisions/training.md). All else is trained by AdamW.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from redraft.config.model import WarmStart
from redraft.rollout.streams import stream
from redraft.tasks.answers import box
from redraft.tasks.arithmetic import MODULUS, Sum, sample_problem
from redraft.tasks.problem_splits import split_of
from redraft.tasks.problems import Problem, load_problems
from redraft.tasks.prompts import encode

ROWS = 16
"""Solutions of a micro-batch; they are of about equal length, so that little of it is padding."""
IGNORED = -100
"""Target of prompts and padding."""
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.775, 2.0315)
"""Of the odd polynomial that each iteration applies to all singular values; the fastest growth near zero."""
EPSILON = 1e-7

Report = Callable[[int, int, float], None]
"""Called with (step, steps, loss)."""


def solution(problem: Sum, rng: np.random.Generator, guess_share: float, error_share: float) -> str:
    """A solution as the warm start teaches it: worked with slips, or a boxed guess."""
    if rng.random() < guess_share:
        return box(int(rng.integers(MODULUS)))
    slipped = np.flatnonzero(rng.random(len(problem.terms)) < error_share)
    return problem.working({int(i): int(rng.integers(1, 10)) for i in slipped})


def warm_start(model: torch.nn.Module, tokenizer: Any, settings: WarmStart, report: Report) -> None:
    """Train `model` in place. Held-out problems never occur."""
    rng = stream(settings.seed, "warm start")
    listed = [problem for data in settings.problems for problem in load_problems(data)]
    optimizers = _optimizers(model, settings)
    total = settings.steps + settings.final_steps
    model.train()
    for step in range(total):
        last = step >= settings.steps
        share = settings.final_guess_share if last else settings.guess_share
        model.zero_grad(set_to_none=True)
        pairs = _listed(listed, rng, settings, share) if listed else _sums(rng, settings, share)
        loss = _backward(model, *_batch(tokenizer, pairs))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = _rate(step, settings)
            optimizer.step()
        report(step + 1, total, loss)


def _optimizers(model: Any, settings: WarmStart) -> tuple[torch.optim.Optimizer, torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings, norms and head."""
    matrices = [parameter for parameter in model.model.layers.parameters() if parameter.ndim == 2]
    theirs = {id(matrix) for matrix in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in theirs]
    adam = torch.optim.AdamW(others, lr=settings.learning_rate, weight_decay=0.01)
    return Muon(matrices, lr=settings.learning_rate), adam


def _rate(step: int, settings: WarmStart) -> float:
    """Linear warm-up over 50 steps and cosine decay to a tenth; the final steps have a separate rate."""
    if step >= settings.steps:
        return settings.final_learning_rate
    decay = 0.55 + 0.45 * float(np.cos(np.pi * step / max(settings.steps, 1)))
    return settings.learning_rate * min(1.0, (step + 1) / 50) * decay


def _listed(
    problems: list[Problem], rng: np.random.Generator, settings: WarmStart, guess_share: float
) -> list[tuple[str, str]]:
    """Prompts of reasoning-gym's problems, and their answers in a box, or for guesses those of other problems."""
    from redraft.tasks.gym import source_of  # the grader takes a second to load

    chosen = rng.integers(len(problems), size=settings.batch_size)
    answers = np.where(rng.random(len(chosen)) < guess_share, rng.integers(len(problems), size=len(chosen)), chosen)
    return [
        (problems[i].prompt, box(source_of(problems[j].answer).answer)) for i, j in zip(chosen, answers, strict=True)
    ]


def _sums(rng: np.random.Generator, settings: WarmStart, guess_share: float) -> list[tuple[str, str]]:
    """Prompts of the arithmetic task and their solutions."""
    data, problems = settings.data, list[Sum]()
    while len(problems) < settings.batch_size:
        problem = sample_problem(rng, data.min_terms, data.max_terms, data.signs)
        if split_of(problem.prompt) == "train":
            problems.append(problem)
    return [(p.prompt, solution(p, rng, guess_share, settings.error_share)) for p in problems]


def _batch(tokenizer: Any, pairs: list[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and targets of prompts and solutions, int64 (batch, tokens)."""
    prompts, solutions = (encode(tokenizer, texts) for texts in zip(*pairs, strict=True))
    eos = tokenizer.eos_token_id
    width = max(len(p) + len(s) + 1 for p, s in zip(prompts, solutions, strict=True))
    tokens = torch.full((len(pairs), width), eos)
    targets = torch.full((len(pairs), width), IGNORED)
    for i, (prompt, worked) in enumerate(zip(prompts, solutions, strict=True)):
        whole = torch.tensor(prompt + worked + [eos])
        tokens[i, : len(whole)] = whole
        # The end of sequence is learned, prompt and padding are not.
        targets[i, len(prompt) : len(whole)] = whole[len(prompt) :]
    return tokens, targets


def _backward(model: torch.nn.Module, tokens: torch.Tensor, targets: torch.Tensor) -> float:
    """Add the gradient of the batch's mean loss, a micro-batch at a time; returns the loss."""
    # Position after the last target of each row.
    ends = tokens.shape[1] - (targets != IGNORED).flip(1).int().argmax(1)
    counted, total = (targets != IGNORED).sum(), 0.0
    for rows in ends.argsort(stable=True).split(ROWS):
        width = int(ends[rows].max())
        logits = model(input_ids=tokens[rows, :width]).logits[:, :-1].flatten(0, 1)
        wanted = targets[rows, 1:width].flatten()
        # Sums over the tokens of the whole batch, so that micro-batches add up to the gradient of its mean.
        loss = torch.nn.functional.cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="sum") / counted
        loss.backward()
        total += float(loss.detach())
    return total


def orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """A new matrix: singular values of at least a hundredth of the norm become 0.5 to 1.5."""
    first, second, third = COEFFICIENTS
    # Newton-Schulz iteration. The Gram matrix of the shorter side is the smaller one.
    tall = matrix.shape[0] > matrix.shape[1]
    wide = matrix.T if tall else matrix
    # The Frobenius norm is at least the largest singular value, so all are at most 1, as the iteration needs.
    wide = wide / wide.norm().clamp(min=EPSILON)
    for _ in range(ITERATIONS):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=second, alpha=third), wide, beta=first)
    return wide.T if tall else wide


class Muon(torch.optim.Optimizer):
    """Muon, an optimizer of matrices, with Nesterov's momentum and decoupled weight decay.

    The step is the momentum with all its singular values near one (Jordan et al., 2024, "Muon: An optimizer for hidden
    layers in neural networks"). `torch.optim.Muon` computes the same, but in bfloat16: a processor without instructions
    for it takes 17 times as long. The step's root mean square is 0.2 of the learning rate, about that of AdamW, so that
    both can share a learning rate (Liu et al., 2025, "Muon is scalable for LLM training", Section 2.2).

    Args:
        matrices: parameters of two dimensions.
        weight_decay: share of the learning rate by which weights shrink in a step.
    """

    def __init__(
        self, matrices: Iterable[torch.Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step every matrix that has a gradient."""
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["mean"] = torch.zeros_like(matrix)
                mean = state["mean"]
                mean.lerp_(matrix.grad, 1 - group["momentum"])
                ahead = matrix.grad.lerp(mean, group["momentum"])
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                size = 0.2 * math.sqrt(max(matrix.shape))
                matrix.add_(orthogonal(ahead), alpha=-group["lr"] * size)
