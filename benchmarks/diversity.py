"""Cost of the diversity and overlap measures at the paper's scale: CPU seconds per step, memory per run.

The paper has 1,024 prompts x 8 rollouts per step and 6 steps per epoch. Here responses have 1,000 tokens on average,
drawn by Zipf's law; in the second epoch they start with a prefix of the first epoch's. ROUGE-1 is compared with the
package rouge-score, which scores row by row and is timed on a sample of rows; its time is scaled up.
"""

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from rouge_score.rouge_scorer import RougeScorer

from benchmarks.memory import GROUP, LIMIT, MEAN, PROMPTS, STEPS, VOCABULARY, resident
from benchmarks.side_by_side import line, seconds
from redraft.evaluate.diversity import Measurement, measure, self_bleu
from redraft.evaluate.rollouts import StepRollouts, read_step
from redraft.rollout.streams import stream
from redraft.rollout.types import Finish, Group, Rollout, Sample
from redraft.train.records import save_groups_of_step

EPOCHS = 2
ROUNDS = 3
ROWS = 128
"""Rows of a step on which rouge-score is timed."""
SAMPLES = (16, 32, 64)
"""Sizes of Self-BLEU's sample; its time grows with the square."""

Drafts = dict[tuple[int, int], Rollout]


def continued(key: tuple[int, int], step: int, draft: Rollout | None, fresh: np.ndarray, cut: float) -> Rollout:
    """A rollout from a prefix of the draft, if there is one, and fresh tokens; its length is that of `fresh`."""
    prefix = int(cut * min(draft.length, len(fresh))) if draft else 0
    arrays = fresh, np.zeros(len(fresh), np.float32), np.full(len(fresh), step, np.int32)
    if draft:
        kept = (draft.tokens, draft.log_probs, draft.sampled_at)
        arrays = tuple(np.concatenate([k[:prefix], a[prefix:]]) for k, a in zip(kept, arrays, strict=True))
    return Rollout(*key, *arrays, Finish.EOS, prefix, draft.length if draft else 0)


def rolled_out(step: int, prompts: np.ndarray, drafts: Drafts, rng: np.random.Generator) -> Iterator[Rollout]:
    """Make up the rollouts of a step."""
    keys = [(int(prompt), sample) for prompt in prompts for sample in range(GROUP)]
    lengths = np.minimum(LIMIT, 1 + rng.gamma(2.0, MEAN / 2, len(keys)).astype(int))
    weights = 1 / np.arange(1, VOCABULARY + 1)
    tokens = rng.choice(VOCABULARY, lengths.sum(), p=weights / weights.sum()).astype(np.int32)
    for key, fresh in zip(keys, np.split(tokens, np.cumsum(lengths)[:-1]), strict=True):
        yield continued(key, step, drafts.get(key), fresh, rng.random())


def save(folder: Path, prompts: int) -> None:
    """Save made-up rollouts of a whole run."""
    rng, drafts = np.random.default_rng(0), Drafts()
    for epoch in range(EPOCHS):
        for step, batch in enumerate(np.split(rng.permutation(prompts * STEPS), STEPS), epoch * STEPS):
            rollouts = list(rolled_out(step, batch, drafts, rng))
            drafts |= {(r.prompt, r.sample): r for r in rollouts}
            file = folder / "rollouts" / f"step-{step:04d}.parquet"
            groups = [Group(r.prompt, epoch, (Sample(r, 0.0),)) for r in rollouts]
            save_groups_of_step(file, epoch, groups)


def whole_run(folder: Path) -> tuple[float, float]:
    """CPU seconds per step of a run, and MiB of resident memory above that of a process that only imports."""
    baseline, began = resident("VmRSS"), time.process_time()
    measure(folder, 0, folder / "diversity.parquet")
    return (time.process_time() - began) / (EPOCHS * STEPS), resident("VmHWM") - baseline


class SplitAtSpaces:
    """Tokenizer that makes rouge-score count tokens."""

    def tokenize(self, text: str) -> list[str]:
        return text.split()


def by_row(rollouts: StepRollouts, earlier: list[np.ndarray]) -> None:
    """ROUGE-1 of the first `ROWS` rows by rouge-score."""
    package = RougeScorer(["rouge1"], tokenizer=SplitAtSpaces())
    for response, old in zip(rollouts.responses.rows()[:ROWS], earlier[:ROWS], strict=True):
        package.score(*(" ".join(map(str, tokens)) for tokens in (old, response)))


def each_measure(folder: Path) -> tuple[StepRollouts, dict[str, list[float]]]:
    """CPU seconds of each measure on a step of the second epoch; those of rouge-score are for `ROWS` rows."""
    files = sorted((folder / "rollouts").glob("step-*.parquet"))
    measurement = Measurement(0)
    for step, file in enumerate(files[:STEPS]):
        measurement.parts["ROUGE-1"](read_step(step, file))
    rollouts = read_step(STEPS, files[STEPS])
    keys = list(zip(rollouts.prompts, rollouts.samples, strict=True))
    earlier = measurement.previous.exchange(rollouts.epoch, keys, rollouts.responses)
    alternatives = {"reading": lambda: read_step(STEPS, files[STEPS])}
    alternatives |= {name: lambda part=part: part(rollouts) for name, part in measurement.parts.items()}
    alternatives |= {"rouge-score": lambda: by_row(rollouts, earlier)}
    return rollouts, seconds("diversity", alternatives, ROUNDS, time.process_time)


def main(prompts: int = PROMPTS) -> None:
    """Print CPU seconds per step, and memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save(folder, prompts)
        with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
            a_step, peak = processes.submit(whole_run, folder).result()
        rollouts, measured = each_measure(folder)
    responses = rollouts.responses
    scaled = [s * len(responses) / ROWS for s in measured.pop("rouge-score")]
    print(f"diversity: CPU seconds for a step of {len(responses):,} rollouts, {len(responses.values):,} tokens")
    for part, values in measured.items():
        print(line(part, values))
    print(line(f"ROUGE-1 by rouge-score, scaled from {ROWS} rows", scaled))
    for sample in SAMPLES:
        generator = stream(0, "self-bleu", sample)
        taken = seconds(
            f"Self-BLEU of {sample}", {"": lambda s=sample, g=generator: self_bleu(responses, g, s)}, rounds=1,
            clock=time.process_time,
        )  # fmt: skip
        print(line(f"Self-BLEU of {sample}", taken[""]))
    steps = f"{EPOCHS * STEPS} steps, {EPOCHS} epochs"
    print(f"  a run of {steps}: {a_step:.2f} s per step, peak {peak:.0f} MiB above a process that only imports")


if __name__ == "__main__":
    main()
