"""`redraft audit`: its tables, its exit code, and the tables in the documentation."""

import json
import re
from pathlib import Path

import pytest

from redraft.cli.app import main
from redraft.engines.torch.engine import TorchEngine
from redraft.lab.audit import rules, samplers, vllm_speculation
from redraft.methods.acceptance.residual import ResidualRule
from redraft.methods.reuse import AuditedRule

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
    lines = [columns for line in out.splitlines() if (columns := re.split(r"  +", line))[0] in rules.RULES]
    verdicts = {(name, verdict) for name, *_, verdict in lines}
    assert len(verdicts) == len(lines) / len(rules.DRIFTS) == len(rules.RULES), "a rule has one verdict at all drifts"
    compared = set()
    for name, drift, *distances, kept, verdict in lines:
        if drift == "0.06":  # the page has one of the three drifts
            compared.add(name)
            # distances of an exact rule are rounding errors, which depend on the machine
            columns = distances if name.startswith("published") else ["[^|]*"] * 2
            row = (
                r"\| " + r" \| ".join([re.escape(name), drift, *columns, re.escape(kept), re.escape(verdict)]) + r" \|"
            )
            assert re.search(row, documented), name
    assert compared == {name for name, _ in verdicts}


def test_a_rule_that_should_be_exact_and_is_not_ends_in_an_error(capsys, monkeypatch):
    class Wrong(ResidualRule):
        def residual(self, drafts, kept):
            return None

    monkeypatch.setattr(rules, "RULES", {"residual": AuditedRule(Wrong(), 4)})
    monkeypatch.setattr(rules, "DRIFTS", (0.3,))
    code, out, _ = audited(capsys, "rules", "--json")
    assert code == 1
    (row,) = json.loads(out)["rows"]
    assert (row["part"], row["rule"], row["distribution"]) == ("rules", "residual", "WRONG")
    assert row["TV pass 1"] > 0.01


def test_each_sampler_is_named_on_stderr_and_too_few_samples_detect_no_fault(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    chosen = [s for s in samplers.samplers() if s.name in ("vanilla", "planted: half a residual")][-2:]
    monkeypatch.setattr(samplers, "samplers", lambda: iter(chosen))
    code, out, err = audited(capsys, "samplers", "--samples", "40")
    assert code == 1
    assert "[2/2] planted: half a residual, torch" in err
    assert "G-tests of 40 responses" in out
    assert "probability 0 % or more" in out
    assert re.search(r"^vanilla .* not rejected$", out, re.M)
    assert re.search(r"^planted: half a residual .* NOT REJECTED$", out, re.M)


@pytest.mark.parametrize("temperature", ["1", "0.2"])
def test_samplers_are_tested_at_a_temperature(temperature, capsys, monkeypatch):
    """At 0.2 few responses are enough to detect an engine that samples at temperature 1."""
    chosen = [s for s in samplers.samplers() if s.name == "vanilla" and s.engine == "torch"]
    monkeypatch.setattr(samplers, "samplers", lambda: iter(chosen))
    code, out, _ = audited(capsys, "samplers", "--samples", "300", "--temperature", temperature, "--json")
    assert (code, json.loads(out)["asked"]["temperature"]) == (0, float(temperature))
    monkeypatch.setitem(samplers.ENGINES, "torch", lambda model, **o: TorchEngine(model, **o | {"temperature": 1.0}))
    assert audited(capsys, "samplers", "--samples", "300", "--temperature", temperature)[0] == (temperature != "1")


@pytest.mark.parametrize("parts", [(), ("rules",), ("samplers", "vllm")])
def test_parts_without_a_temperature_reject_one(parts, capsys):
    code, _, err = audited(capsys, *parts, "--temperature", "0.6")
    assert code == 2
    assert "has no temperature" in err


def test_the_vllm_part_names_the_missing_package(capsys, monkeypatch):
    monkeypatch.setattr("redraft.cli.audit.find_spec", lambda name: None)
    code, _, err = audited(capsys, "vllm")
    assert code == 2
    assert "vLLM is not installed" in err


@pytest.mark.parametrize(
    ("plain", "code"),
    [
        ({"p_values": (0.5, 0.5, 0.5)}, 0),
        ({"p_values": (0.5, 1e-9, 0.5)}, 1),
        ({"error": "no such device"}, 1),
    ],
)
def test_vllm_fails_the_audit_if_it_samples_wrongly_or_not_at_all_without_speculation(plain, code, capsys, monkeypatch):
    """A wrong speculation mode alone does not fail the audit, since redraft rejects those modes."""
    monkeypatch.setattr("redraft.cli.audit.find_spec", lambda name: True)
    first, *_ = vllm_speculation.MODES
    wrong = vllm_speculation.SpeculationTest((0.5, 0.0, 0.0))
    found = lambda mode: vllm_speculation.SpeculationTest(**plain) if mode == first else wrong  # noqa: E731
    monkeypatch.setattr(vllm_speculation, "audit", found)
    end, out, _ = audited(capsys, "vllm")
    assert end == code
    assert "ngram" in out


def test_an_unknown_part_is_rejected(capsys):
    code, _, err = audited(capsys, "everything")
    assert code == 2
    assert "rules" in err
