"""Labels of cells in words."""

from redraft.analysis.pages.cell_labels import cell_labels, with_labels
from redraft.config import Experiments


def test_a_label_names_method_lenience_and_unusual_model():
    labels = cell_labels(Experiments().cells("spec_rl"))
    assert labels["ppo-spec-l0.3"] == "PPO + SPEC-RL (ℓ = e^0.3)"
    assert labels["grpo-spec-linf"] == "GRPO + SPEC-RL (ℓ = ∞)"
    assert labels["8b-dapo-vanilla"] == "DAPO on qwen3-8b-base"
    assert labels["grpo-spec-l0.5"].startswith("GRPO + SPEC-RL (ℓ = e^0.5)")


def test_labels_of_all_papers_are_unique():
    for paper in Experiments().papers:
        labels = cell_labels(Experiments().cells(paper))
        assert len(set(labels.values())) == len(labels) > 0, paper


def test_names_in_a_text_become_labels_and_other_text_is_escaped():
    labels = {"a": "GRPO", "a-l0.5": "GRPO + SPEC-RL (ℓ = e^0.5)"}
    html = with_labels("x < y of a-l0.5 / a: 0.3; a-l0.55 and b/a stay", labels)
    assert html == (
        'x &lt; y of <span class="cell-label" title="a-l0.5">GRPO + SPEC-RL (ℓ = e^0.5)</span> / '
        '<span class="cell-label" title="a">GRPO</span>: 0.3; a-l0.55 and b/a stay'
    )
    assert with_labels("3 seeds in 1 block", {"block": "GRPO + block"}) == "3 seeds in 1 block"
    assert with_labels("x < y", {}) == "x &lt; y"
