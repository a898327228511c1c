"""The fields of a step record are the defined ones, which docs/metrics.md lists."""

import re
from pathlib import Path

import pytest

from redraft.data_dictionary import definitions
from redraft.methods.adaptive import AdaptiveReuse
from redraft.train.local.trainer import LocalTrainer
from tests.test_trainer import RESUMED, first_steps

VERL_ONLY = {"log_prob_gap", "log_prob_gap_max"}


def fields(record):
    """Names of a record's fields as the definitions write them."""
    for name, value in record.items():
        if name == "seconds":
            yield from (f"seconds.{stage}" for stage in value)
        elif isinstance(value, dict):
            yield f"{name}.<{'i' if name == 'kept_at' else 'n'}>"
        else:
            yield name


@pytest.fixture(scope="module")
def recorded(tiny_model, tmp_path_factory):
    """Fields of real records: of PPO, SPEED, drafters of all kinds, importance weights and adaptive lenience."""
    found = set()
    for name in ("ppo", "speed", "self-speculation", "suffix", "head", "weighted", "adaptive"):
        for record in first_steps(LocalTrainer(RESUMED[name], tiny_model, tmp_path_factory.mktemp(name)), 2):
            found |= set(fields(record))
    assert isinstance(RESUMED["adaptive"].reuse, AdaptiveReuse)
    return found


def test_the_fields_of_a_record_are_the_defined_ones(recorded):
    assert set(definitions("records")) == recorded | VERL_ONLY


def test_fields_that_verl_adds_are_those_of_its_trainer():
    text = (Path(__file__).parents[1] / "src/redraft/train/verl/trainer.py").read_text(encoding="utf-8")
    gaps = set(re.search(r"^GAPS = \((.*)\)$", text, flags=re.MULTILINE)[1].replace('"', "").split(", "))
    assert gaps - {"drift"} == VERL_ONLY
