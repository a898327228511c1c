"""Worker processes: an item that hangs or crashes is lost alone."""

from redraft.tasks import workers

FATAL = {
    "crash": ("__import__('os').abort()", "ProcessExpired"),
    "exit": ("__import__('os')._exit(3)", "ProcessExpired"),
    "hang": ("any(0 for _ in iter(int, 1))", "TimeoutError"),
    "memory": ("len(bytearray(1 << 40))", "MemoryError"),
    "exception": ("1 / 0", "ZeroDivisionError"),
}


def test_an_item_that_hangs_or_ends_its_process_is_lost_alone():
    items = [code for bad, _ in FATAL.values() for code in (bad, f"{len(bad)} + 1")]
    found = workers.run(eval, items, 2, 2.0, lambda item, error: (item, type(error).__name__))
    assert found == [value for bad, name in FATAL.values() for value in ((bad, name), len(bad) + 1)]


def test_nothing_to_do_starts_no_process(monkeypatch):
    monkeypatch.setattr(workers, "ProcessPool", None)
    assert workers.run(eval, [], 2, 1.0, lambda item, error: None) == []
