"""At most two runs under verl are beside each other, since three do not fit into the memory."""

from itertools import chain
from types import SimpleNamespace

from tests.conftest import VERL
from tests.scheduling import Scheduling


def test_files_that_train_under_verl_are_two_units_of_work_and_others_are_their_own():
    scope = Scheduling(SimpleNamespace(getvalue=lambda _: ["popen"]), None, VERL)._split_scope
    of_groups = [{scope(f"tests/{name}.py::test_one[a::b]") for name in group} for group in VERL]
    assert [len(scopes) for scopes in of_groups] == [1, 1]
    others = {scope(f"tests/{name}.py::test_one") for name in ("test_verl_config", "test_slurm")}
    assert len(others | set(chain(*of_groups))) == 4
