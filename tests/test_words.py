"""Quantities in words."""

import pytest

from redraft.analysis.claims.verdicts import quantities_of
from redraft.analysis.data.words import NAMES, THEMES, difference_of, number, with_minus, words
from redraft.config import Experiments


@pytest.mark.parametrize(
    ("quantity", "text", "theme"),
    [
        ("tokens_decoded", "decoded tokens", "Tokens and responses"),
        ("mean@2-101:generation_seconds", "generation time per step (steps 2 to 101, s)", "Time"),
        ("sum@2-101:generation_seconds", "generation time (steps 2 to 101, s)", "Time"),
        ("sum@1-9:seconds.rollout", "rollout time (steps 1 to 9, s)", "Time"),
        ("sum:seconds.total", "training time (s)", "Time"),
        ("reuse_epochs:tokens_decoded", "decoded tokens per step (from epoch 2)", "Tokens and responses"),
        ("steps_to:0.5:reward", "steps to 0.5 reward", "Time"),
        ("seconds:update_actor", "policy-update time per step (s)", "Time"),
        ("reuse_epochs:seconds.total", "step time (from epoch 2, s)", "Time"),
        ("accuracy:all", "mean accuracy (%)", "Accuracy"),
        ("accuracy:aime24+aime25", "accuracy on aime24 and aime25 (%)", "Accuracy"),
        ("hours_to:45:accuracy:dapo1k", "hours to 45 % accuracy on dapo1k", "Time"),
        ("at_equal:seconds.total:a+b:accuracy:all", "mean accuracy at equal training time (%)", "Accuracy"),
        ("bin@0-0.2:pass_rate_so_far:rollouts", "responses where pass rate so far is 0 to 0.2", "Tokens and responses"),
        ("bin@0-0.2:pass_rate_so_far:share", "share of prompts where pass rate so far is 0 to 0.2", "Training"),
        ("accuracy:out-of-distribution", "out-of-distribution accuracy (%)", "Accuracy"),
        ("seconds:verification", "verification time per step (s)", "Time"),
        ("correlation:entropy:acceptance", "correlation of entropy with share of proposals kept", "Training"),
        ("max:draft_length", "largest proposals per block (γ)", "Reuse and acceptance"),
    ],
)
def test_a_quantity_reads_as_words_with_its_unit(quantity, text, theme):
    assert (words(quantity).text, words(quantity).theme) == (text, theme)


def test_every_quantity_of_a_claim_has_words_of_its_own():
    experiments = Experiments()
    claims = [claim for paper in experiments.papers for claim in experiments.claims(paper).claims]
    quantities = {quantity for claim in claims for quantity in quantities_of(claim.test)}
    assert not [q for q in quantities if words(q).name == q.replace("_", " ") and q not in NAMES]
    assert {words(q).theme for q in quantities} == set(THEMES)
    assert not [q for q in quantities if "_" in words(q).name.replace("mmlu_stem", "")]


def test_a_difference_of_percentages_is_in_points_and_large_numbers_are_millions():
    assert words("accuracy:all").of_differences == "mean accuracy (points)"
    assert difference_of("first_epoch:reward", "last_epoch:reward") == "reward (last epoch) minus reward (epoch 1)"
    assert (number(419.1e6), number(0.33333), number(-1.5e6)) == ("419.1 million", "0.3333", "-1.5 million")
    assert (number(1234.56), number(12345.6), number(999_999.0)) == ("1235", "12,346", "999,999")


def test_numbers_have_a_true_minus_and_names_keep_their_hyphens():
    assert with_minus("grpo-spec-l0.5 - grpo: -4.1 [-6.2, -1.9]; required: above -1") == (
        "grpo-spec-l0.5 - grpo: −4.1 [−6.2, −1.9]; required: above −1"
    )
