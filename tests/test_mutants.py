"""The list of deliberate faults fits the code and the tests that it names, and a trial says what its tests said."""

import ast
import importlib.util
from collections import Counter
from dataclasses import replace
from itertools import groupby

import pytest

from mutants.faults import ROOT, Fault, faults
from mutants.trial import Outcome, trial

PACKAGES = {"rollout", "engines", "train", "evaluate", "tasks", "config", "analysis", "theory", "selfspec", "commands",
            "predict", "audit"}  # fmt: skip


def test_every_fault_changes_one_place_of_a_file_into_another_program():
    for file, of_file in groupby(faults(), key=lambda fault: fault.file):
        text = (ROOT / file).read_text(encoding="utf-8")
        unchanged = ast.dump(ast.parse(text))
        for fault in of_file:
            assert ast.dump(ast.parse(fault.applied(text))) != unchanged, fault.what


def test_every_fault_names_tests_that_exist_and_no_fault_stands_twice():
    functions = {}
    for fault in faults():
        for test in fault.tests:
            name, _, function = test.partition("::")
            text = functions.setdefault(name, (ROOT / "tests" / name).read_text(encoding="utf-8"))
            assert f"def {function}(" in text or not function, test
    assert max(Counter((fault.file, fault.changes) for fault in faults()).values()) == 1


def test_every_package_of_the_core_has_faults_and_a_part_can_be_chosen():
    assert {fault.package for fault in faults()} == PACKAGES
    assert min(Counter(fault.package for fault in faults()).values()) >= 25
    chosen = faults(["analysis/tables.py", "src/redraft/rollout/acceptance/"])
    assert {fault.file for fault in chosen} == {
        "analysis/tables.py", "src/redraft/rollout/acceptance/random_cut.py", "src/redraft/rollout/acceptance/ratio.py",
        *(f"src/redraft/rollout/acceptance/{name}.py"
          for name in ("block", "coupling", "laws", "residual", "rule", "weighted")),
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"no faults are listed for nothing\.py"):
        faults(["nothing.py"])


@pytest.fixture
def copy(tmp_path):
    """A tree with one function and a test of it."""
    (tmp_path / "src").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "src/made_up.py").write_text("def larger(a, b):\n    return a if a > b else b\n")
    (tmp_path / "tests/test_made_up.py").write_text(
        "from made_up import larger\n\n\ndef test_larger():\n    assert larger(1, 2) == larger(2, 1) == 2\n"
    )
    return tmp_path


FAULT = Fault("made up", "src/made_up.py", "smaller", ((" > ", " < "),), ("test_made_up.py",))
OUTCOMES = {
    "a < b": (" > ", " < ", Outcome.FOUND),
    "a >= b": (" > ", " >= ", Outcome.SURVIVED),
    "no program": (" > ", " > > ", Outcome.BROKEN),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_trial_tells_what_is_found_from_what_survives_and_leaves_the_tree_as_it_was(name, copy):
    old, new, expected = OUTCOMES[name]
    before = (copy / FAULT.file).read_text()
    assert trial(replace(FAULT, changes=((old, new),)), copy) is expected, (copy / "output").read_text()
    assert (copy / FAULT.file).read_text() == before
    assert not list((copy / "src").rglob("made_up*.pyc")), "the next fault would be taken for this one"
    assert importlib.util.find_spec("made_up") is None, "the trial ran in a process of its own"


def test_a_text_that_is_not_there_once_is_an_error(copy):
    for old, count in (("c", 0), ("a", 4)):
        with pytest.raises(ValueError, match=f"'{old}' stands there {count} times"):
            trial(replace(FAULT, changes=((old, "d"),)), copy)
