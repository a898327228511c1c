"""How diverse a step's rollouts are, how much they repeat earlier ones, and how old their tokens are.

Distinct-n is the number of different n-grams over that of all n-grams of a batch (Li et al., 2016, "A
diversity-promoting objective function for neural conversation models", who scale by the number of tokens, which is the
same for n = 1). Self-BLEU is the mean BLEU of each response against the others of its batch (Zhu et al., 2018,
"Texygen"). SPEC-RL shows Distinct-1 and Self-BLEU in Figure 6 and the overlap of consecutive epochs in Figure 2. Tokens
are the model's; Self-BLEU writes their numbers as words.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from sacrebleu.metrics import BLEU

from redraft.errors import UserError
from redraft.evaluate.overlap import PreviousEpoch, Trajectories, rouge_1
from redraft.evaluate.ragged import Ragged
from redraft.files import atomic, read_parquet
from redraft.rollout.streams import stream

ROLLOUT_COLUMNS = ("epoch", "prompt", "sample", "tokens", "sampled_at")
SELF_BLEU_SAMPLE = 32
"""Responses of a step that Self-BLEU is of. Its time grows with their square: `benchmarks/diversity.py` measures it."""


def distinct_1(responses: Ragged) -> float:
    """Different tokens over all tokens; 0 if there are none."""
    return _distinct(responses.values)


def distinct_2(responses: Ragged) -> float:
    """Different bigrams over all bigrams, none of which is of two responses; 0 if there are none."""
    begins_bigram = np.ones(len(responses.values), dtype=bool)
    begins_bigram[responses.ends[responses.lengths > 0] - 1] = False
    codes = (responses.values[:-1].astype(np.int64) << 32) | responses.values[1:]
    return _distinct(codes[begins_bigram[:-1]])


def _distinct(values: np.ndarray) -> float:
    """Sorted, since NumPy's own `unique` takes ten times as long for as many integers."""
    if not len(values):
        return 0.0
    ordered = np.sort(values)
    return (1 + np.count_nonzero(ordered[1:] != ordered[:-1])) / len(values)


def self_bleu(responses: Ragged, generator: np.random.Generator, sample: int = SELF_BLEU_SAMPLE) -> float:
    """Mean sentence BLEU of sampled responses against the others in the sample.

    sacrebleu's BLEU-4 with its smoothing (`exp`) and the effective order, for sentences shorter than four tokens.

    Args:
        responses: of a step.
        generator: chooses the sample, without replacement.
        sample: how many are chosen, at most. More references can only match more, so values of samples of different
            sizes do not compare.

    Returns:
        0 to 1; 0 if there are fewer than two responses.
    """
    if len(responses) < 2:
        return 0.0
    rows = responses.rows()
    words = [" ".join(map(str, rows[i].tolist())) for i in generator.permutation(len(rows))[:sample]]
    bleu = BLEU(tokenize="none", effective_order=True)
    scores = [bleu.sentence_score(w, words[:i] + words[i + 1 :]).score for i, w in enumerate(words)]
    # BLEU of a copy is a hundred but for rounding.
    return min(float(np.mean(scores)) / 100, 1.0)


@dataclass(frozen=True, eq=False)
class StepRollouts:
    """What a step rolled out, by prompt and sample.

    Attributes:
        step: from 0.
        epoch: from 0.
        prompts: of each rollout.
        samples: of each rollout, within its prompt's group.
        responses: tokens.
        ages: int32, (tokens of all,), steps since each was sampled.
    """

    step: int
    epoch: int
    prompts: list[int]
    samples: list[int]
    responses: Ragged
    ages: np.ndarray


def read_step(step: int, file: Path) -> StepRollouts:
    """A step's saved rollouts. They are sorted, so that nothing depends on the order in which they were written.

    Raises:
        UserError: if the file is missing or damaged, or holds no rollout or what no rollout has.
    """
    frame = read_parquet(file, ROLLOUT_COLUMNS)
    if frame.empty:
        raise UserError("there is no rollout in this file", file=file)
    frame = frame.sort_values(["prompt", "sample"], kind="stable")
    responses, sampled_at = Ragged.of(frame["tokens"]), Ragged.of(frame["sampled_at"])
    if not np.array_equal(responses.lengths, sampled_at.lengths):
        raise UserError("a rollout has not as many steps as tokens", file=file, key="sampled_at")
    ages = step - sampled_at.values
    if ages.min(initial=0) < 0:
        raise UserError("a token was sampled after its step", file=file, key="sampled_at",
                        value=int(sampled_at.values.max()), allowed=f"at most {step}")  # fmt: skip
    prompts, samples = frame["prompt"].tolist(), frame["sample"].tolist()
    return StepRollouts(step, int(frame["epoch"].iloc[0]), prompts, samples, responses, ages)


class Measurement:
    """Measures a run's steps, in their order.

    Args:
        seed: of the run; chooses what Self-BLEU is of.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.previous = PreviousEpoch()
        self.trajectories = Trajectories()
        self.parts: dict[str, Callable[[StepRollouts], dict[str, float]]] = {
            "Distinct-1": lambda rollouts: {"distinct_1": distinct_1(rollouts.responses)},
            "Distinct-2": lambda rollouts: {"distinct_2": distinct_2(rollouts.responses)},
            "Self-BLEU": self._self_bleu,
            "ROUGE-1": self._rouge_1,
            "trajectories": self._trajectories,
            "token age": _token_ages,
        }

    def line(self, rollouts: StepRollouts) -> dict[str, float]:
        """A step's line of the file."""
        line: dict[str, float] = {"step": rollouts.step, "epoch": rollouts.epoch}
        for part in self.parts.values():
            line |= part(rollouts)
        return line

    def _self_bleu(self, rollouts: StepRollouts) -> dict[str, float]:
        return {"self_bleu": self_bleu(rollouts.responses, stream(self.seed, "self-bleu", rollouts.step))}

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
    """Mean and most; NaN if the step has no tokens."""
    ages = rollouts.ages
    values = (float(ages.mean()), float(ages.max())) if len(ages) else (np.nan, np.nan)
    return dict(zip(("token_age_steps", "token_age_steps_max"), values, strict=True))


def measure(run_folder: Path, seed: int, file: Path) -> None:
    """Measure every step of a run from its saved rollouts; one Parquet line a step.

    Raises:
        UserError: if there are none, one is damaged, or those of a step before the last are missing.
    """
    measurement = Measurement(seed)
    lines = [measurement.line(read_step(step, path)) for step, path in _files(run_folder / "rollouts")]
    with atomic(file) as temporary:
        pd.DataFrame(lines).to_parquet(temporary, index=False)


def _files(folder: Path) -> Iterator[tuple[int, Path]]:
    """Steps and their files, in order."""
    files = {int(path.stem.removeprefix("step-")): path for path in folder.glob("step-*.parquet")}
    if not files:
        raise UserError("there are no saved rollouts here", file=folder)
    if missing := set(range(max(files))) - files.keys():
        raise UserError("the rollouts of a step are missing", file=folder, key="step", value=min(missing))
    yield from sorted(files.items())
