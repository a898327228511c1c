"""How diverse a step's rollouts are, and how much they repeat the epoch before.

Distinct-1 is unique over all tokens of a batch (Li et al., 2016). Self-BLEU is the mean BLEU of each response
against the others of its batch (Zhu et al., 2018), by sacrebleu, over a seeded subsample, since it is quadratic.
ROUGE-1 compares each response with its prompt's and sample's response one epoch earlier (SPEC-RL, Figure 2), as an F
score of token counts. Tokens are the model's; Self-BLEU writes their numbers as words.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU

from redraft.errors import UserError
from redraft.files import atomic, read_parquet
from redraft.rollout.streams import stream

ROLLOUT_COLUMNS = ("epoch", "prompt", "sample", "tokens", "reward")
Tokens = Sequence[int] | np.ndarray


def distinct_1(responses: Sequence[Tokens]) -> float:
    """Unique tokens over all tokens; 0 if there are none."""
    tokens = np.concatenate([np.asarray(r, dtype=np.int64) for r in responses]) if responses else np.zeros(0)
    return len(np.unique(tokens)) / len(tokens) if len(tokens) else 0.0


def self_bleu(responses: Sequence[Tokens], seed: int, sample: int = 32) -> float:
    """Mean sentence BLEU, 0 to 1, of sampled responses against the others in the sample; 0 if fewer than two."""
    if len(responses) < 2:
        return 0.0
    chosen = stream(seed, "self-bleu").permutation(len(responses))[:sample]
    words = [_words(responses[i]) for i in chosen]
    bleu = BLEU(tokenize="none", effective_order=True)
    scores = [bleu.sentence_score(w, words[:i] + words[i + 1 :]).score for i, w in enumerate(words)]
    return float(np.mean(scores)) / 100


def rouge_1(response: Tokens, earlier: Tokens) -> float:
    """F score, by rouge-score, of shared tokens, each counted as often as it stands in both; 1 if both are empty."""
    if not len(response) and not len(earlier):
        return 1.0
    return float(ROUGE.score(_words(earlier), _words(response))["rouge1"].fmeasure)


def _words(tokens: Tokens) -> str:
    return " ".join(map(str, tokens))


class _SplitAtSpaces:
    """Lets rouge-score count tokens instead of the words that it would find in a text."""

    def tokenize(self, text: str) -> list[str]:
        """The words between spaces."""
        return text.split()


ROUGE = RougeScorer(["rouge1"], tokenizer=_SplitAtSpaces())


def measure(run_folder: Path, seed: int, file: Path) -> None:
    """Measure every step of a run from its saved rollouts; one Parquet line a step.

    Raises:
        UserError: if there are none, one is damaged, or those of a step before the last are missing.
    """
    folder = run_folder / "rollouts"
    files = {int(path.stem.removeprefix("step-")): path for path in folder.glob("step-*.parquet")}
    if not files:
        raise UserError("there are no saved rollouts here", file=folder)
    if missing := set(range(max(files))) - files.keys():
        raise UserError("the rollouts of a step are missing", file=folder, key="step", value=min(missing))
    earlier: dict[tuple[int, int], np.ndarray] = {}
    lines = []
    for step, path in sorted(files.items()):
        frame = read_parquet(path, ROLLOUT_COLUMNS)
        responses = list(frame["tokens"])
        keys = list(zip(frame["prompt"], frame["sample"], strict=True))
        overlaps = [rouge_1(r, earlier[k]) for r, k in zip(responses, keys, strict=True) if k in earlier]
        lines.append(
            {
                "step": step,
                "epoch": int(frame["epoch"].iloc[0]),
                "distinct_1": distinct_1(responses),
                "self_bleu": self_bleu(responses, seed),
                "rouge_1": float(np.mean(overlaps)) if overlaps else np.nan,
            }
        )
        earlier.update(zip(keys, responses, strict=True))
    with atomic(file) as temporary:
        pd.DataFrame(lines).to_parquet(temporary, index=False)
