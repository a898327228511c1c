"""Diversity of a step's rollouts, their overlap with earlier rollouts, and the age of their tokens.

Distinct-n is the number of different n-grams of a batch over the number of all its n-grams (Li et al., 2016, "A
diversity-promoting objective function for neural conversation models"; the paper divides by the number of tokens, which
is the same for n = 1). Self-BLEU is the mean BLEU of each response against the others of its batch (Zhu et al., 2018,
"Texygen"). SPEC-RL shows Distinct-1 and Self-BLEU in Figure 6 and the overlap of consecutive epochs in Figure 2. All
measures count the model's tokens, not words of text; Self-BLEU takes each token id as a word.

A random sample of a step rarely contains two responses to the same prompt, so its Self-BLEU does not show whether the
responses to a prompt have become alike. Self-BLEU and the share of different responses within prompts do; the paper
does not report them.

ROUGE-1 (Lin, 2004, "ROUGE: a package for automatic evaluation of summaries") compares a response with that of the same
prompt and sample an epoch earlier. The number of different responses of a prompt over the whole training shows reuse
as well: a draft that is reused whole adds none.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from sacrebleu.metrics import BLEU
from scipy import sparse

from redraft.data_dictionary import write_parquet
from redraft.errors import UserError
from redraft.evaluate.saved_rollouts import Ragged, StepRollouts, read_step
from redraft.files import hashes, write_json
from redraft.result_files import rollout_files
from redraft.rollout.streams import stream

Key = tuple[int, int]
"""Prompt and sample."""
ORDERS = 4
"""Largest length of BLEU's n-grams."""
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
    # The last token of a response begins no bigram; a response without tokens has no last one.
    begins_bigram[responses.ends[responses.lengths > 0] - 1] = False
    # Two token ids of 32 bits in one number, which sorts fast.
    codes = (responses.values[:-1].astype(np.int64) << 32) | responses.values[1:]
    return _distinct(codes[begins_bigram[:-1]])


def _distinct(values: np.ndarray) -> float:
    """Share of different values; they are sorted, since NumPy's `unique` takes ten times as long."""
    if not len(values):
        return 0.0
    ordered = np.sort(values)
    return (1 + np.count_nonzero(ordered[1:] != ordered[:-1])) / len(values)


def self_bleu(responses: Ragged, generator: np.random.Generator) -> float:
    """Mean sentence BLEU of each response in a random sample of `SELF_BLEU_SAMPLE` against the others in the sample.

    The score is sacrebleu's BLEU-4 with its smoothing (`exp`). The effective order serves responses of fewer than four
    tokens.

    Args:
        responses: the responses of a step.
        generator: chooses the sample, without replacement.

    Returns:
        0 to 1; 0 for fewer than two responses.
    """
    if len(responses) < 2:
        return 0.0
    rows = responses.rows()
    return _mean_bleu([rows[i] for i in generator.permutation(len(rows))[:SELF_BLEU_SAMPLE]])


def self_bleu_within(prompts: Sequence[int], responses: Ragged, generator: np.random.Generator) -> float:
    """Mean sentence BLEU of each response against the other responses to its prompt, over a random sample of prompts.

    1 means that all responses to a prompt are the same. The score is that of `self_bleu`. Values are comparable only
    between groups of equal size.

    Args:
        prompts: prompt of each response.
        responses: the responses of a step.
        generator: chooses the prompts, without replacement, among those with at least two responses.

    Returns:
        0 to 1; NaN if no prompt has two responses.
    """
    groups = _groups(prompts, responses)
    chosen = generator.permutation(len(groups))[:SELF_BLEU_PROMPTS]
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
    """Mean sentence BLEU, 0 to 1, of each row of at least two against the others.

    The score is sacrebleu's of counts that are made for all rows at once. Its `sentence_score` would count the n-grams
    of each row once for every other row.
    """
    lengths = np.array([len(row) for row in rows])
    matches, totals = _matched_ngrams(rows, lengths)
    scores = []
    for i, length in enumerate(lengths.tolist()):
        # The closest length of the others, the shorter one of two.
        closest = min(np.delete(lengths, i).tolist(), key=lambda other: (abs(other - length), other))
        counts = matches[i].tolist(), totals[i].tolist(), length, closest
        scores.append(BLEU.compute_bleu(*counts, smooth_method="exp", effective_order=True).score)
    # Rounding can lift the BLEU of a copy above 100.
    return min(float(np.mean(scores)) / 100, 1.0)


def _matched_ngrams(rows: Sequence[np.ndarray], lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row's n-grams that another row has, as often as the row with most of them has each, and all its n-grams.

    Returns:
        Both int64, (rows, orders 1 to 4).
    """
    tokens, row = np.concatenate(rows), np.repeat(np.arange(len(rows)), lengths)
    matches, totals = np.zeros((2, len(rows), ORDERS), dtype=np.int64)
    first = np.arange(len(tokens))  # positions at which an n-gram begins
    ngrams = np.zeros(len(tokens), dtype=np.int64)
    for n in range(ORDERS):
        inside = np.flatnonzero(first + n < len(tokens))
        inside = inside[row[first[inside]] == row[first[inside] + n]]
        first = first[inside]
        # An n-gram is the number of the one that is a token shorter, and its last token.
        codes = (ngrams[inside] << 32) | tokens[first + n]
        different, ngrams = np.unique(codes, return_inverse=True)
        shape = len(rows), len(different)
        counts = np.bincount(row[first] * shape[1] + ngrams, minlength=shape[0] * shape[1]).reshape(shape)
        second, most = np.partition(counts, -2, axis=0)[-2:]
        matches[:, n] = np.minimum(counts, np.where(counts == most, second, most)).sum(axis=1)
        totals[:, n] = counts.sum(axis=1)
    return matches, totals


class Rouge(NamedTuple):
    """ROUGE-1 of each response: F, precision and recall, each float64, (rows,), 0 to 1."""

    f: np.ndarray
    precision: np.ndarray
    recall: np.ndarray


def rouge_1(responses: Ragged, earlier: Ragged) -> Rouge:
    """ROUGE-1 of responses against earlier ones, row by row.

    A token counts as shared as often as it occurs in both responses. Lin's ROUGE-1 is the recall, the shared tokens
    over the tokens of the reference, which is the earlier response. The precision is over the tokens of the response,
    and F is the harmonic mean of both. The values equal those of the package rouge-score with one exception: for two
    empty responses this function returns 1, since they are the same, and rouge-score returns 0.

    Args:
        responses: the rows to score; token ids are at least 0.
        earlier: the references, the same number of rows.
    """
    width = 1 + max(int(r.values.max(initial=0)) for r in (responses, earlier))
    shared = _counts(responses, width).minimum(_counts(earlier, width)).sum(axis=1).astype(float)
    precision, recall = (shared / np.maximum(r.lengths, 1) for r in (responses, earlier))
    total = precision + recall
    f = np.divide(2 * precision * recall, total, out=np.zeros_like(total), where=total > 0)
    empty = (responses.lengths == 0) & (earlier.lengths == 0)
    return Rouge(*(np.where(empty, 1.0, values) for values in (f, precision, recall)))


def _counts(responses: Ragged, width: int) -> sparse.csr_array:
    """Count of each token in each row, int32, (rows, width)."""
    begins = np.concatenate([[0], responses.ends]).astype(np.int32)
    # `sum_duplicates` sorts the values in place, so they are copied.
    entries = (np.ones(len(responses.values), dtype=np.int32), responses.values.copy(), begins)
    # Entries of one row with equal columns are allowed, and added up below.
    counts = sparse.csr_array(entries, shape=(len(responses), width))
    counts.sum_duplicates()
    return counts


class PreviousEpoch:
    """Responses by prompt and sample of the current epoch and the one before it; older responses are dropped."""

    def __init__(self) -> None:
        self._epoch = -1
        self._earlier: dict[Key, np.ndarray] = {}
        self._current: dict[Key, np.ndarray] = {}

    def exchange(self, epoch: int, keys: Sequence[Key], responses: Ragged) -> list[np.ndarray | None]:
        """Keep a step's responses and return the responses of the same keys in the epoch before.

        If a key occurs more than once in an epoch, its last response is kept, as in the draft store. All its responses
        are compared.

        Args:
            epoch: epoch of the step; never lower than in the call before.
            keys: prompt and sample of each response.
            responses: one row per key; views on the rows are kept.

        Returns:
            The earlier response of each key, or None if there is none.
        """
        if epoch != self._epoch:
            # After a gap there is no epoch before this one to compare with.
            self._earlier = self._current if epoch == self._epoch + 1 else {}
            self._current, self._epoch = {}, epoch
        self._current.update(zip(keys, responses.rows(), strict=True))
        return [self._earlier.get(key) for key in keys]


class TrajectoryCounts:
    """Counts of different responses and of rollouts per prompt so far; responses are kept as 64-bit hashes."""

    def __init__(self) -> None:
        self._seen: dict[int, set[bytes]] = defaultdict(set)
        self._rollouts: Counter[int] = Counter()

    def add(self, prompts: Sequence[int], responses: Ragged) -> tuple[float, float]:
        """Add a step's rollouts.

        Returns:
            Two means over the step's different prompts: the number of different responses of a prompt so far, with
            this step's, and that number over the number of the prompt's rollouts so far.
        """
        for prompt, row in zip(prompts, responses.rows(), strict=True):
            self._seen[prompt].add(blake2b(row.tobytes(), digest_size=8).digest())
        self._rollouts.update(prompts)
        counts = {prompt: len(self._seen[prompt]) for prompt in prompts}
        shares = [count / self._rollouts[prompt] for prompt, count in counts.items()]
        return float(np.mean(list(counts.values()))), float(np.mean(shares))


class DiversityMeter:
    """Measures the steps of a run, which must come in order; the run's seed decides the samples of Self-BLEU."""

    def __init__(self, seed: int) -> None:
        self.previous = PreviousEpoch()
        self.trajectories = TrajectoryCounts()
        self.parts: dict[str, Callable[[StepRollouts], dict[str, float]]] = {
            "Distinct-1": lambda rollouts: {"distinct_1": distinct_1(rollouts.responses)},
            "Distinct-2": lambda rollouts: {"distinct_2": distinct_2(rollouts.responses)},
            "Self-BLEU": lambda rollouts: {
                "self_bleu": self_bleu(rollouts.responses, stream(seed, "self-bleu", rollouts.step))
            },
            "within prompts": lambda rollouts: {
                "self_bleu_within": self_bleu_within(
                    rollouts.prompts, rollouts.responses, stream(seed, "self-bleu-within", rollouts.step)
                ),
                "distinct_within": distinct_within(rollouts.prompts, rollouts.responses),
            },
            "ROUGE-1": self._rouge_1,
            "trajectories": lambda rollouts: dict(
                zip(
                    ("distinct_trajectories", "trajectories_share"),
                    self.trajectories.add(rollouts.prompts, rollouts.responses),
                    strict=True,
                )
            ),
            "token age": _token_ages,
        }

    def line(self, rollouts: StepRollouts) -> dict[str, float]:
        """All measures of a step: one line of the file."""
        line: dict[str, float] = {"step": rollouts.step, "epoch": rollouts.epoch}
        for part in self.parts.values():
            line |= part(rollouts)
        return line

    def _rouge_1(self, rollouts: StepRollouts) -> dict[str, float]:
        keys = list(zip(rollouts.prompts, rollouts.samples, strict=True))
        earlier = self.previous.exchange(rollouts.epoch, keys, rollouts.responses)
        pairs = [(r, e) for r, e in zip(rollouts.responses.rows(), earlier, strict=True) if e is not None]
        names = ("rouge_1", "rouge_1_precision", "rouge_1_recall")
        if not pairs:
            return dict.fromkeys(names, np.nan)
        means = map(np.mean, rouge_1(*(Ragged.of(side) for side in zip(*pairs, strict=True))))
        return dict(zip(names, map(float, means), strict=True))


def _token_ages(rollouts: StepRollouts) -> dict[str, float]:
    """Mean and largest age; NaN if the step has no tokens."""
    ages = rollouts.ages
    values = (float(ages.mean()), float(ages.max())) if len(ages) else (np.nan, np.nan)
    return dict(zip(("token_age_steps", "token_age_steps_max"), values, strict=True))


def measure_run(run_folder: Path, seed: int, file: Path) -> None:
    """Measure a finished run after checking its rollouts against the manifest; hashes are written next to the file."""
    manifest = run_folder / "manifest.json"
    measure(run_folder, seed, file)
    write_json(file.with_suffix(".json"), {"sha256": hashes(file), "made_from": hashes(manifest)})


def measure(run_folder: Path, seed: int, file: Path) -> None:
    """Measure every step of a run from its saved rollouts and write one Parquet line per step.

    Raises:
        UserError: if the run has no rollouts, one file is damaged, or the file of a step before the last is missing.
    """
    measurement = DiversityMeter(seed)
    files = rollout_files(run_folder)
    if missing := set(range(max(files))) - files.keys():
        raise UserError(
            "the rollouts of a step are missing", file=run_folder / "rollouts", key="step", value=min(missing)
        )
    lines = [measurement.line(read_step(step, path)) for step, path in files.items()]
    write_parquet(pd.DataFrame(lines), file, "diversity")
