"""Runs under verl are never beside each other: two nodes and another run do not fit into the memory."""

from types import SimpleNamespace

from tests.conftest import VERL
from tests.scheduling import Scheduling


def test_files_that_train_under_verl_are_one_unit_of_work_and_others_are_their_own():
    scope = Scheduling(SimpleNamespace(getvalue=lambda _: ["popen"]), None, VERL)._split_scope
    of_verl = {scope(f"tests/{name}.py::test_one[a::b]") for name in VERL}
    assert len(of_verl) == 1
    others = {scope(f"tests/{name}.py::test_one") for name in ("test_verl_config", "test_slurm")}
    assert len(others | of_verl) == 3
