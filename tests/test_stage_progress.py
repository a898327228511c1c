"""Lines that a stage prints while it works."""

import pytest

from redraft.train import progress


@pytest.mark.parametrize(
    ("seconds", "steps"), [(1, [4, 8, 10]), (25, [3, 4, 7, 8, 10]), (61, list(range(1, 11)))], ids=str
)
def test_a_line_comes_with_every_epoch_and_after_a_minute_of_silence(seconds, steps, monkeypatch, capsys):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: clock[0])
    report = progress.reporter("a run", every=4)
    for done in range(1, 11):
        clock[0] += seconds
        report(done, 10, "reward 0.5")
    lines = capsys.readouterr().err.splitlines()
    assert [int(line.split("/")[0].split()[-1]) for line in lines] == steps
    assert lines[0].endswith(f"{(10 - steps[0]) * seconds:4.0f} s left")
    assert lines[-1].endswith("   0 s left")
