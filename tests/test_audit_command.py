"""`redraft audit`: its tables, its exit code, and the tables in the documentation."""

import json
import re
from pathlib import Path

import pytest

from redraft.audit import rules, samplers
from redraft.cli import main
from redraft.rollout.acceptance.residual import ResidualRule

ROOT = Path(__file__).parents[1]


def audited(capsys, *arguments):
    """Exit code, standard output and standard error."""
    with pytest.raises(SystemExit) as end:
        main(["audit", *arguments])
    printed = capsys.readouterr()
    return end.value.code, printed.out, printed.err


def test_the_rules_are_printed_as_the_documentation_has_them(capsys):
    code, out, _ = audited(capsys, "rules")
    assert code == 0
    documented = (ROOT / "docs/exact-reuse.md").read_text()
    for line in out.splitlines():
        if re.match("(published|residual|block|one-hot)", line):
            name, *_, kept, law = re.split(r"  +", line)
            assert re.search(rf"\| {re.escape(name)} \|.*\| {re.escape(kept)} \| {re.escape(law)} \|", documented), line


def test_a_rule_that_should_be_exact_and_is_not_ends_in_an_error(capsys, monkeypatch):
    class Wrong(ResidualRule):
        def behind(self, laws, kept):
            return None

    monkeypatch.setattr(rules, "RULES", {"residual": (Wrong(), 4)})
    monkeypatch.setattr(rules, "DRIFTS", (0.3,))
    code, out, _ = audited(capsys, "rules", "--json")
    assert code == 1
    (row,) = json.loads(out)["rows"]
    assert (row["part"], row["rule"], row["law"]) == ("rules", "residual", "WRONG")
    assert row["TV visit 1"] > 0.01


def test_samplers_are_named_as_they_draw_and_too_few_draws_find_no_fault(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    chosen = [s for s in samplers.samplers() if s.name in ("vanilla", "planted: half a residual")][-2:]
    monkeypatch.setattr(samplers, "samplers", lambda: iter(chosen))
    code, out, err = audited(capsys, "samplers", "--draws", "40")
    assert code == 1
    assert "[2/2] planted: half a residual, torch" in err
    assert "G-tests of 40 responses" in out
    assert "with probability 0 % at least" in out
    assert re.search(r"^vanilla .* not told from right$", out, re.M)
    assert re.search(r"^planted: half a residual .* NOT FOUND$", out, re.M)


def test_vllm_s_part_says_where_it_may_be_asked(capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = audited(capsys, "vllm")
    assert code == 2
    assert "vLLM is not installed" in err


def test_an_unknown_part_is_refused(capsys):
    code, _, err = audited(capsys, "everything")
    assert code == 2
    assert "rules" in err
