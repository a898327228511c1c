"""docs/metrics.md lists every field of a step record."""

import re
from pathlib import Path

import pytest

from redraft.methods.adaptive import AdaptiveReuse
from redraft.train.local.trainer import LocalTrainer
from tests.test_trainer import RESUMED, first_steps

DOCUMENT = Path(__file__).parents[1] / "docs" / "metrics.md"
VERL_ONLY = {"log_prob_gap", "log_prob_gap_max"}


def documented():
    """Field to unit and meaning, from the tables of the section on step records."""
    section = DOCUMENT.read_text(encoding="utf-8").partition("## Step records\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \|([^|]*)\| (.+) \|$", section, flags=re.MULTILINE)
    assert len(rows) == len({field for field, *_ in rows}) == section.count("\n| `"), "one row per field"
    return {field: (unit.strip(), meaning) for field, unit, meaning in rows}


def fields(record):
    """Names of a record's fields as the document writes them."""
    for name, value in record.items():
        if name == "seconds":
            yield from (f"seconds.{stage}" for stage in value)
        elif isinstance(value, dict):
            yield f"{name}.<{'i' if name == 'kept_at' else 'n'}>"
        else:
            yield name


@pytest.fixture(scope="module")
def recorded(tiny_model, tmp_path_factory):
    """Fields of real records: of PPO, SPEED, self-speculation, importance weights and adaptive lenience."""
    found = set()
    for name in ("ppo", "speed", "self-speculation", "weighted", "adaptive"):
        for record in first_steps(LocalTrainer(RESUMED[name], tiny_model, tmp_path_factory.mktemp(name)), 2):
            found |= set(fields(record))
    assert isinstance(RESUMED["adaptive"].reuse, AdaptiveReuse)
    return found


def test_the_document_lists_exactly_the_fields_of_a_record(recorded):
    assert set(documented()) == recorded | VERL_ONLY


def test_fields_that_verl_adds_are_those_of_its_trainer():
    text = (Path(__file__).parents[1] / "src/redraft/train/verl/trainer.py").read_text(encoding="utf-8")
    gaps = set(re.search(r"^GAPS = \((.*)\)$", text, flags=re.MULTILINE)[1].replace('"', "").split(", "))
    assert gaps - {"drift"} == VERL_ONLY


def test_every_field_has_a_meaning():
    assert all(len(meaning) > 10 for _, meaning in documented().values())
