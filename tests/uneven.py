"""Made-up runs in which nothing is equal by chance: unequal benchmarks, seconds by seed and stage, a missing seed.

Two cells of the tiny preset, four steps in two epochs. `PLAIN` has seeds 0, 1 and 2, `REUSE` has 0 and 2.
"""

import pandas as pd

from redraft.analysis.data.collect import Runs

PLAIN, REUSE = "grpo-vanilla", "grpo-spec-l0.5"
SEEDS = {PLAIN: (0, 1, 2), REUSE: (0, 2)}
TOTALS = {"few": 30, "many": 3018}


def runs():
    """The runs, as `collect` gathers them."""
    keys = [(cell, seed) for cell, seeds in SEEDS.items() for seed in seeds]
    lines = [
        {"cell": c, "seed": s, "manifest": f"results/tiny/{c}/seed{s}/manifest.json", "initial": f"{s}.json"}
        for c, s in keys
    ]
    steps = [step(cell, seed, number) for cell, seed in keys for number in range(4)]
    scores = [line for cell, seed in keys for done in (0, 2, 4) for line in scores_of(cell, seed, done)]
    return Runs(pd.DataFrame(lines), pd.DataFrame(steps), pd.DataFrame(scores))


def step(cell, seed, number):
    """A step's record; from the second epoch on, `REUSE` decodes less, and verifies and assembles."""
    drafts = cell == REUSE and number >= 2
    seconds = {
        "rollout": (4.0 if drafts else 10.0) + seed + number,
        "verification": 1.0 if drafts else 0.0,
        "assembly": 0.5 if drafts else 0.0,
        "reward": (3.0 if cell == REUSE else 2.0) + seed,
        "update_actor": 3.0,
    }
    return {
        "cell": cell,
        "seed": seed,
        "step": number,
        "epoch": number // 2,
        "training_step": number + 1,
        "updated": True,
        "tokens_decoded": 300 + 10 * seed if drafts else 1000 + 100 * seed,
        "prefix_length": 7.0 if drafts else None,
        "reward": 0.5 + 0.1 * seed,
        "fresh_reward": 0.2 + 0.05 * seed,
        **{f"seconds.{stage}": value for stage, value in seconds.items()},
        "seconds.total": sum(seconds.values()),
    }


def scores_of(cell, seed, done):
    """Scores of a policy: of few problems 10 + steps + seed are right, of many half, and 30 + seed fewer with reuse."""
    right = {"few": 10 + done + seed, "many": 1509 - (30 + seed if cell == REUSE and done else 0) + 3 * seed}
    return [
        {
            "cell": cell,
            "seed": seed,
            "step": done,
            "benchmark": name,
            "role": role,
            "correct": right[name],
            "total": TOTALS[name],
        }
        for name, role in (("few", "in-distribution"), ("many", "out-of-distribution"))
    ]
