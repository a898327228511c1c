"""Diversity of a step's rollouts, their overlap with earlier rollouts, and the age of their tokens.

Distinct-n is the number of different n-grams of a batch over the number of all its n-grams (Li et al., 2016, "A
diversity-promoting objective function for neural conversation models"; the paper divides by the number of tokens, which
is the same for n = 1). Self-BLEU is the mean BLEU of each response against the others of its batch (Zhu et al., 2018,
"Texygen"). SPEC-RL shows Distinct-1 and Self-BLEU in Figure 6 and the overlap of consecutive epochs in Figure 2. All
measures count the model's tokens, not words of text; Self-BLEU takes each token id as a word.

A sample from all prompts holds hardly two responses to the same one, so its Self-BLEU cannot tell whether a prompt's
responses have become alike. Self-BLEU and the share of different responses within prompts can, and are not in the
paper.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from sacrebleu.metrics import BLEU

from redraft.errors import UserError
from redraft.evaluate.overlap import PreviousEpoch, Trajectories, rouge_1
from redraft.evaluate.ragged import Ragged
from redraft.evaluate.rollouts import rollout_files
from redraft.files import atomic, read_parquet
from redraft.rollout.streams import stream

ROLLOUT_COLUMNS = ("epoch", "prompt", "sample", "tokens", "sampled_at")
SELF_BLEU_SAMPLE = 32
"""Responses of a step that enter Self-BLEU. Its time grows with their square (docs/metrics.md)."""
SELF_BLEU_PROMPTS = 16
"""Prompts of a step whose responses enter Self-BLEU within prompts; its time grows with their number."""


def distinct_1(responses: Ragged) -> float:
    """Number of different tokens over the number of all tokens; 0 without tokens."""
    return _distinct(responses.values)


def distinct_2(responses: Ragged) -> float:
    """Number of different bigrams over the number of all bigrams, within responses only; 0 without bigrams."""
    begins_bigram = np.ones(len(responses.values), dtype=bool)
    begins_bigram[responses.ends[responses.lengths > 0] - 1] = False
    codes = (responses.values[:-1].astype(np.int64) << 32) | responses.values[1:]
    return _distinct(codes[begins_bigram[:-1]])


def _distinct(values: np.ndarray) -> float:
    """Share of different values; they are sorted, since NumPy's `unique` takes ten times as long."""
    if not len(values):
        return 0.0
    ordered = np.sort(values)
    return (1 + np.count_nonzero(ordered[1:] != ordered[:-1])) / len(values)


def self_bleu(responses: Ragged, generator: np.random.Generator, sample: int = SELF_BLEU_SAMPLE) -> float:
    """Mean sentence BLEU of each response in a random sample against the others in the sample.

    The score is sacrebleu's BLEU-4 with its smoothing (`exp`). Its effective order serves responses of fewer than four
    tokens.

    Args:
        responses: the responses of a step.
        generator: draws the sample, without replacement.
        sample: largest size of the sample. Values for different sizes cannot be compared, since more references match
            more.

    Returns:
        0 to 1; 0 for fewer than two responses.
    """
    if len(responses) < 2:
        return 0.0
    rows = responses.rows()
    return _mean_bleu([rows[i] for i in generator.permutation(len(rows))[:sample]])


def self_bleu_within(
    prompts: Sequence[int], responses: Ragged, generator: np.random.Generator, sample: int = SELF_BLEU_PROMPTS
) -> float:
    """Mean sentence BLEU of each response against the other responses to its prompt, over a random sample of prompts.

    1 says that all responses to a prompt are the same. The score is that of `self_bleu`. Its values compare only
    between groups of one size.

    Args:
        prompts: prompt of each response.
        responses: the responses of a step.
        generator: draws the prompts, without replacement, among those with at least two responses.
        sample: largest number of prompts.

    Returns:
        0 to 1; NaN if no prompt has two responses.
    """
    groups = _groups(prompts, responses)
    chosen = generator.permutation(len(groups))[:sample]
    return float(np.mean([_mean_bleu(groups[i]) for i in chosen])) if groups else math.nan


def distinct_within(prompts: Sequence[int], responses: Ragged) -> float:
    """Different responses to a prompt over all its responses of the step, mean over prompts with at least two.

    Returns:
        Above 0, to 1; NaN if no prompt has two responses.
    """
    groups = _groups(prompts, responses)
    shares = [len({row.tobytes() for row in rows}) / len(rows) for rows in groups]
    return float(np.mean(shares)) if shares else math.nan


def _groups(prompts: Sequence[int], responses: Ragged) -> list[list[np.ndarray]]:
    """The responses to each prompt that has at least two, in the order of the prompts' first ones."""
    groups: dict[int, list[np.ndarray]] = {}
    for prompt, row in zip(prompts, responses.rows(), strict=True):
        groups.setdefault(prompt, []).append(row)
    return [rows for rows in groups.values() if len(rows) > 1]


def _mean_bleu(rows: Sequence[np.ndarray]) -> float:
    """Mean sentence BLEU, 0 to 1, of each row against the others."""
    words = [" ".join(map(str, row.tolist())) for row in rows]
    bleu = BLEU(tokenize="none", effective_order=True)
    scores = [bleu.sentence_score(w, words[:i] + words[i + 1 :]).score for i, w in enumerate(words)]
    # Rounding can lift the BLEU of a copy above 100.
    return min(float(np.mean(scores)) / 100, 1.0)


@dataclass(frozen=True, eq=False)
class StepRollouts:
    """The rollouts of one step, in the order of prompt and sample.

    Attributes:
        step: training step, from 0.
        epoch: epoch of the step, from 0.
        prompts: prompt index of each rollout.
        samples: index of each rollout within its prompt's group.
        responses: token ids, one row per rollout.
        ages: steps since each token was sampled, int32, (tokens of all rollouts,).
    """

    step: int
    epoch: int
    prompts: list[int]
    samples: list[int]
    responses: Ragged
    ages: np.ndarray


def read_step(step: int, file: Path) -> StepRollouts:
    """Read a step's saved rollouts and sort them, so that no measure depends on the order in the file.

    Raises:
        UserError: if the file is missing, damaged or empty, or if `sampled_at` does not fit the tokens or the step.
    """
    frame = read_parquet(file, ROLLOUT_COLUMNS)
    if frame.empty:
        raise UserError("there are no rollouts in this file", file=file)
    frame = frame.sort_values(["prompt", "sample"], kind="stable")
    responses, sampled_at = Ragged.of(frame["tokens"]), Ragged.of(frame["sampled_at"])
    if not np.array_equal(responses.lengths, sampled_at.lengths):
        raise UserError("a rollout has different numbers of tokens and of sampling steps", file=file, key="sampled_at")
    ages = step - sampled_at.values
    if ages.min(initial=0) < 0:
        raise UserError("a token has a later sampling step than its rollout", file=file, key="sampled_at",
                        value=int(sampled_at.values.max()), allowed=f"at most {step}")  # fmt: skip
    prompts, samples = frame["prompt"].tolist(), frame["sample"].tolist()
    return StepRollouts(step, int(frame["epoch"].iloc[0]), prompts, samples, responses, ages)


class Measurement:
    """Measures the steps of a run, which must come in order.

    Args:
        seed: seed of the run, from which Self-BLEU's samples are drawn.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.previous = PreviousEpoch()
        self.trajectories = Trajectories()
        self.parts: dict[str, Callable[[StepRollouts], dict[str, float]]] = {
            "Distinct-1": lambda rollouts: {"distinct_1": distinct_1(rollouts.responses)},
            "Distinct-2": lambda rollouts: {"distinct_2": distinct_2(rollouts.responses)},
            "Self-BLEU": self._self_bleu,
            "within prompts": self._within,
            "ROUGE-1": self._rouge_1,
            "trajectories": self._trajectories,
            "token age": _token_ages,
        }

    def line(self, rollouts: StepRollouts) -> dict[str, float]:
        """All measures of a step: one line of the file."""
        line: dict[str, float] = {"step": rollouts.step, "epoch": rollouts.epoch}
        for part in self.parts.values():
            line |= part(rollouts)
        return line

    def _self_bleu(self, rollouts: StepRollouts) -> dict[str, float]:
        return {"self_bleu": self_bleu(rollouts.responses, stream(self.seed, "self-bleu", rollouts.step))}

    def _within(self, rollouts: StepRollouts) -> dict[str, float]:
        drawn = stream(self.seed, "self-bleu-within", rollouts.step)
        return {
            "self_bleu_within": self_bleu_within(rollouts.prompts, rollouts.responses, drawn),
            "distinct_within": distinct_within(rollouts.prompts, rollouts.responses),
        }

    def _rouge_1(self, rollouts: StepRollouts) -> dict[str, float]:
        keys = list(zip(rollouts.prompts, rollouts.samples, strict=True))
        found = self.previous.exchange(rollouts.epoch, keys, rollouts.responses)
        pairs = [(r, e) for r, e in zip(rollouts.responses.rows(), found, strict=True) if e is not None]
        names = ("rouge_1", "rouge_1_precision", "rouge_1_recall")
        if not pairs:
            return dict.fromkeys(names, np.nan)
        means = map(np.mean, rouge_1(*(Ragged.of(side) for side in zip(*pairs, strict=True))))
        return dict(zip(names, map(float, means), strict=True))

    def _trajectories(self, rollouts: StepRollouts) -> dict[str, float]:
        distinct, share = self.trajectories.add(rollouts.prompts, rollouts.responses)
        return {"distinct_trajectories": distinct, "trajectories_share": share}


def _token_ages(rollouts: StepRollouts) -> dict[str, float]:
    """Mean and largest age; NaN if the step has no tokens."""
    ages = rollouts.ages
    values = (float(ages.mean()), float(ages.max())) if len(ages) else (np.nan, np.nan)
    return dict(zip(("token_age_steps", "token_age_steps_max"), values, strict=True))


def measure(run_folder: Path, seed: int, file: Path) -> None:
    """Measure every step of a run from its saved rollouts and write one Parquet line per step.

    Args:
        run_folder: folder of the run.
        seed: seed of the run.
        file: the Parquet file to write.

    Raises:
        UserError: if the run has no rollouts, one file is damaged, or the file of a step before the last is missing.
    """
    measurement = Measurement(seed)
    files = rollout_files(run_folder)
    if missing := set(range(max(files))) - files.keys():
        raise UserError("the rollouts of a step are missing", file=run_folder / "rollouts", key="step",
                        value=min(missing))  # fmt: skip
    lines = [measurement.line(read_step(step, path)) for step, path in files.items()]
    with atomic(file) as temporary:
        pd.DataFrame(lines).to_parquet(temporary, index=False)
