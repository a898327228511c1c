"""Values at the edge of what is allowed, and small parts of messages, that no other test looks at."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from redraft.config.base import LARGEST_SEED
from redraft.config.cell import LARGEST_FACTOR, _fraction
from redraft.config.hyperparameters import Setting, scaled
from redraft.config.preset import check_seeds
from redraft.errors import UserError
from redraft.evaluate.generate import _policies_of
from redraft.files import hashes
from redraft.methods.drafts.response import no_draft
from redraft.train.job import _summary


def test_the_smallest_and_the_largest_factor_are_allowed():
    assert _fraction(f"1/{LARGEST_FACTOR}") == Fraction(1, LARGEST_FACTOR)
    assert _fraction(LARGEST_FACTOR) == LARGEST_FACTOR
    for value in (f"1/{LARGEST_FACTOR + 1}", LARGEST_FACTOR + 1):
        with pytest.raises(ValueError, match="above 0, from 1/"):
            _fraction(value)


def test_the_largest_seed_is_allowed():
    check_seeds([0, LARGEST_SEED])
    with pytest.raises(ValueError, match="at most"):
        check_seeds([LARGEST_SEED + 1])


@pytest.mark.parametrize("value", ["box", True, None])
def test_only_a_number_has_a_factor(value):
    settings = {"reward": Setting(value, "o", Path("f"), "k"), "epochs": Setting(2, "o", Path("f"), "k")}
    with pytest.raises(UserError, match="no number with this name") as raised:
        scaled(settings, {"reward": Fraction(2)}, "cell", Path("f"), "trainer_factors")
    assert raised.value.allowed == "epochs"


def test_a_response_without_a_draft_has_arrays_of_the_usual_types():
    draft = no_draft(3, 1)
    types = (draft.tokens.dtype, draft.log_probs.dtype, draft.sampled_at.dtype)
    assert types == (np.int32, np.float32, np.int32)
    assert not len(draft.tokens)


def test_the_line_of_a_step_counts_epochs_from_one_and_prefers_fresh_rewards():
    record = {"epoch": 0, "reward": 0.25, "fresh_reward": None, "tokens_reused": 30, "tokens_decoded": 10}
    assert _summary(record) == "epoch 1  reward 0.25  reused  75%"
    assert _summary(record | {"epoch": 4, "fresh_reward": 0.5}) == "epoch 5  reward 0.50  reused  75%"


def test_a_policy_that_changed_after_training_is_not_evaluated(tmp_path):
    (folder := tmp_path / "policies/step-0006").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"weights")
    digests = hashes(folder / "model.safetensors")
    sha256 = {f"policies/step-0006/{name}": digest for name, digest in digests.items()}
    (tmp_path / "manifest.json").write_text(json.dumps({"sha256": sha256 | {"log.txt": "0" * 64}}))
    assert _policies_of(tmp_path / "manifest.json") == {6: folder}
    (folder / "model.safetensors").write_bytes(b"others")
    with pytest.raises(UserError, match=r"model\.safetensors(.|\n)*differs"):
        _policies_of(tmp_path / "manifest.json")
