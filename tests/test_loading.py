"""Libraries load without the search for garbage."""

import gc

import pytest

from redraft.cli.process import gc_paused


@pytest.fixture(autouse=True)
def as_before():
    yield
    gc.unfreeze()
    gc.enable()


def test_no_garbage_is_looked_for_until_the_outer_block_ends_and_then_not_among_what_is_there():
    gc.unfreeze()
    with gc_paused():
        with gc_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
        assert gc.get_freeze_count() == 0
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0


def test_garbage_is_looked_for_again_after_a_library_that_cannot_be_loaded():
    with pytest.raises(ImportError), gc_paused():
        import redraft.no_such_module  # noqa: F401
    assert gc.isenabled()


def test_who_looks_for_no_garbage_at_all_goes_on_so():
    gc.disable()
    with gc_paused():
        pass
    assert not gc.isenabled()
