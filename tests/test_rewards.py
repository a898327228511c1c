"""Rules that reward training: the distribution of each, their choice in a run, and the measure of how often they
differ."""

import threading
from typing import get_args

import numpy as np
import pytest
from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig
from math_verify.metric import math_metric

from benchmarks import rewards as benchmark
from redraft.config import Experiments
from redraft.config.trainer import Reward
from redraft.rollout.types import Finish, Rollout
from redraft.tasks import rewards
from redraft.tasks.rewards import REWARDS, rewards_of
from redraft.train.local.grading import Graders

LAST_BOX, BOXED_OR_NUMERIC, RELEASE = "last_box", "boxed_or_numeric", "release"


@pytest.mark.parametrize(
    ("text", "rewarding"),
    [
        (r"It is $\boxed{42}$.", {LAST_BOX, BOXED_OR_NUMERIC, RELEASE}),
        ("The answer is $42$.", {BOXED_OR_NUMERIC, RELEASE}),
        ("The answer is 42.", {BOXED_OR_NUMERIC}),
        (r"\boxed{7} was wrong, it is \boxed{42}", {LAST_BOX, BOXED_OR_NUMERIC}),  # the release pairs the boxes
        (r"\boxed{42} was wrong, it is \boxed{7}", set()),
        (r"\boxed{7}, not 42", set()),  # a box that is closed counts, whatever follows
        (r"\boxed{7}, not $42$", set()),
        ("41 or 42", {BOXED_OR_NUMERIC}),
        ("42 or 41", set()),
        (r"\boxed{}, so 42", set()),
        ("", set()),
    ],
)
def test_each_rule_rewards_what_its_distribution_says(text, rewarding):
    assert {name for name, rule in REWARDS.items() if rule(text, "42")} == rewarding


def test_a_fraction_is_a_numeric_answer_as_a_whole():
    assert REWARDS[BOXED_OR_NUMERIC]("The answer is 1/2.", r"\frac{1}{2}")
    assert not REWARDS[BOXED_OR_NUMERIC]("The answer is 1/2.", "2")


def test_the_release_reads_no_answer_that_only_our_grader_corrects():
    assert REWARDS[LAST_BOX](r"\boxed{4.5 \times 10^{33}}", "4.5e33")
    assert not REWARDS[RELEASE](r"\boxed{4.5 \times 10^{33}}", "4.5e33"), "math-verify takes e for Euler's number"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{\frac12}", "0.5"),
        (r"\boxed{\frac{1}{2}}", "0.5"),
        (r"\boxed{\sqrt 2}", r"\sqrt{2}"),
        (r"\boxed{2(4)}", "6"),
        (r"\boxed{1}, \boxed{2}", "1,2"),
        ("$7$", "7"),
        ("7", "7"),
        ("", "7"),
    ],
)
def test_the_release_s_rule_is_its_metric_with_its_settings(text, answer):
    settings = NormalizationConfig(
        basic_latex=True, units=True, malformed_operators=False, nits=False, boxed="all", equations=False
    )
    target = LatexExtractionConfig(boxed_match_priority=0, normalization_config=settings)
    metric = math_metric(gold_extraction_target=(LatexExtractionConfig(),), pred_extraction_target=(target,))
    assert rewards.release(text, answer) == bool(metric([f"\\boxed{{{answer}}}"], [text])[0])


def test_the_release_reads_no_fraction_without_braces():
    assert rewards.release(r"\boxed{\frac{1}{2}}", "0.5")
    assert not rewards.release(r"\boxed{\frac12}", "0.5")
    assert rewards.release(r"\boxed{2(4)}", "6"), "the release has math-verify's mixed numbers"


def test_what_hangs_or_fails_earns_nothing(monkeypatch):
    monkeypatch.setattr(rewards, "SECONDS", 0.2)
    monkeypatch.setattr(rewards, "_parse", lambda *_: threading.Event().wait(60) and [])
    assert rewards.release("$42$", "42") is False
    monkeypatch.setattr(rewards, "_parse", lambda *_: 1 / 0)
    assert rewards.release("$42$", "42") is False


def test_rewards_come_in_the_order_of_the_texts_with_the_seconds_they_took():
    found, seconds = rewards_of([r"\boxed{7}", "$7$", "8"], "7", RELEASE)
    assert found == [1.0, 1.0, 0.0]
    assert seconds > 0


def test_the_configuration_offers_every_rule_and_no_other():
    assert set(get_args(Reward)) == set(REWARDS)


def test_a_run_s_graders_reward_by_its_rule():
    class Tokenizer:
        def batch_decode(self, rows, **_):
            return ["The answer is $7$." for _ in rows]

    import asyncio

    row = np.zeros(1, np.int32)
    rollout = Rollout(0, 0, row, np.zeros(1), np.zeros(1), Finish.EOS)
    for rule, reward in ((LAST_BOX, 0), (RELEASE, 1)):
        with Graders(["7"], Tokenizer(), 1, rule) as graders:
            assert asyncio.run(graders.grade(0, [rollout])).tolist() == [reward]


def test_a_rule_other_than_the_default_is_part_of_a_run_s_identity():
    run = Experiments().run("spec_rl/grpo-vanilla", 0, "tiny")
    other = run.model_copy(update={"trainer": run.trainer.model_copy(update={"reward": RELEASE})})
    assert "reward" not in run.identity["trainer"]
    assert other.identity["trainer"]["reward"] == RELEASE


def test_the_benchmark_counts_each_rule_and_its_difference_from_the_default():
    pairs = [("$7$", "7"), (r"\boxed{7}", "7"), (r"\boxed{8} \boxed{7}", "7"), ("8", "7")]
    assert benchmark.line("made up", pairs) == {
        "responses": "made up",
        "number": 4,
        "right by `last_box`": 2,
        "right by `boxed_or_numeric`": 3,
        "`boxed_or_numeric` differs": 1,
        "right by `release`": 2,
        "`release` differs": 2,
    }


def test_only_the_last_box_is_opened():
    assert benchmark.unboxed(r"\boxed{1}, \boxed{\frac{1}{2}} and 3") == r"\boxed{1}, \frac{1}{2} and 3"
