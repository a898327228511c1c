"""`redraft audit`: tests whether rules and samplers sample from the policy's distribution (docs/exact-reuse.md)."""

import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.arguments import AsJson
from redraft.cli.terminal import document, filled, table
from redraft.errors import UserError
from redraft.messages import echo

if TYPE_CHECKING:
    from redraft.lab.audit.samplers import AuditedSampler, SamplerTest


class AuditPart(StrEnum):
    """Part of the audit."""

    RULES = "rules"
    SAMPLERS = "samplers"
    VLLM_SAMPLERS = "vllm-samplers"
    VLLM = "vllm"


def audit(
    parts: Annotated[
        list[AuditPart] | None, typer.Argument(help="rules, samplers, vllm-samplers or vllm; the first two if empty.")
    ] = None,
    samples: Annotated[
        int, typer.Option(help="Responses per sampler; 0 for the number that the stated power requires.", min=0)
    ] = 0,
    temperature: Annotated[float, typer.Option(help="Temperature of the sampled responses.", min=0.01, max=2)] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Test whether rules and samplers sample from the policy's distribution; exit code 1 if one does not."""
    tables: dict[AuditPart, tuple[str, list[dict[str, Any]], bool]] = {}
    chosen = list(dict.fromkeys(parts or [AuditPart.RULES, AuditPart.SAMPLERS]))
    for part in chosen:
        # For all parts before the first one runs for minutes.
        if temperature != 1 and part not in (AuditPart.SAMPLERS, AuditPart.VLLM_SAMPLERS):
            raise UserError(
                f"the part {part} has no temperature",
                key="--temperature",
                value=temperature,
                allowed=f"1, or the parts {AuditPart.SAMPLERS} and {AuditPart.VLLM_SAMPLERS}",
            )
    if samples and not {AuditPart.SAMPLERS, AuditPart.VLLM_SAMPLERS}.intersection(chosen):
        raise UserError(
            "these parts have a fixed number of responses, or none",
            key="--samples",
            value=samples,
            allowed=f"0, or the parts {AuditPart.SAMPLERS} and {AuditPart.VLLM_SAMPLERS}",
        )
    for part in chosen:
        match part:
            case AuditPart.RULES:
                tables[part] = _rules()
            case AuditPart.SAMPLERS:
                tables[part] = _samplers(samples, temperature)
            case AuditPart.VLLM_SAMPLERS:
                tables[part] = _vllm_samplers(samples, temperature)
            case AuditPart.VLLM:
                tables[part] = _vllm()
        # Each table as soon as its part ends; a JSON document is complete or absent.
        if not as_json:
            note, rows, _ = tables[part]
            printed = [[_cell(value) for value in row.values()] for row in rows]
            lines = table(list(rows[0]), printed, left=["engine", "distribution"], wraps=["sampler"])
            echo(f"{filled(note)}\n\n{lines}\n")
    if as_json:
        rows = [{"part": str(part)} | row for part, (_, rows, _) in tables.items() for row in rows]
        request = {"parts": [str(part) for part in tables], "samples": samples, "temperature": temperature}
        echo(document("audit", request, rows, [note for note, *_ in tables.values()]))
    if not all(passed for *_, passed in tables.values()):
        sys.exit(1)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "0" if value == 0 else f"{value:.2g}"
    return "-" if value is None else str(value)


def _rules() -> tuple[str, list[dict[str, Any]], bool]:
    from redraft.lab.audit import rules

    results = rules.enumerate_rules()
    rows = [
        {
            "rule": f.rule,
            "TV of the policies": f.policies,
            "TV pass 1": f.first,
            f"TV pass {rules.EPOCH_PASSES - 1}": f.last,
            "kept": f"{f.kept:.2f} of {f.draft:.2f}",
            "distribution": f.verdict,
        }
        for f in results
    ]
    note = (
        f"Rules, enumerated over {len(rules.SPACE.responses)} responses of {rules.SPACE.vocabulary} tokens: total "
        "variation distance between the policies of two epoch passes, and between the responses and the policy after "
        f"one and {rules.EPOCH_PASSES - 1} passes with drafts. Exact means at most {rules.EXACT:g}."
    )
    return note, rows, all(f.passes for f in results)


def _samplers(samples: int, temperature: float) -> tuple[str, list[dict[str, Any]], bool]:
    from redraft.lab.audit import samplers

    models = samplers.policies()
    audit_one = lambda sampler: samplers.audit(sampler, models, samples or None, temperature=temperature)  # noqa: E731
    return _audit_each(samplers.samplers(), audit_one, samples)


def _vllm_samplers(samples: int, temperature: float) -> tuple[str, list[dict[str, Any]], bool]:
    _require_vllm(AuditPart.VLLM_SAMPLERS)
    from redraft.lab.audit import samplers, tiny_models, vllm_samplers

    models = samplers.policies()
    policies = [tiny_models.ModelPolicy(samplers.SPACE, model, temperature) for model in models]
    with vllm_samplers.serving(models, temperature=temperature) as engines:
        audit_one = lambda one: samplers.audit_engines(one, engines, policies, samples or None)  # noqa: E731
        return _audit_each(vllm_samplers.samplers(), audit_one, samples)


def _audit_each(
    all_samplers: Iterable["AuditedSampler"], audit_one: Callable[["AuditedSampler"], "SamplerTest"], samples: int
) -> tuple[str, list[dict[str, Any]], bool]:
    from redraft.lab.audit import goodness, samplers

    all_samplers, results = list(all_samplers), []
    for number, sampler in enumerate(all_samplers, 1):
        # On standard error, so that standard output is the table or the JSON document alone.
        echo(f"[{number}/{len(all_samplers)}] {sampler.name}, {sampler.engine}", err=True)
        results.append(audit_one(sampler))
    rows = [
        {
            "sampler": f.sampler.name,
            "engine": f.sampler.engine,
            "kept": round(f.kept, 2),
            "G": round(f.test.statistic, 1),
            "classes": f.test.classes,
            "p": f.test.p_value,
            "TV": f.distance,
            "detected from": f.detected_from,
            "distribution": f.verdict,
        }
        for f in results
    ]
    samples = samples or samplers.SAMPLES
    # A lower bound, so the note rounds it down.
    power = goodness.power(samples, len(samplers.SPACE.responses), samplers.DISTANCE)
    note = (
        f"Samplers: G-tests of {samples:,} responses after {samplers.EPOCH_PASSES} epoch passes. A sampler is wrong if "
        f"p < {goodness.LEVEL:g}. The test detects a total variation distance of {samplers.DISTANCE} with probability "
        f"{int(100 * power)} % or more. It must detect the published rule and the planted faults. TV is the enumerated "
        f"distance of a fault, which as many responses as stated next to it detect with probability "
        f"{goodness.POWER:.0%}."
    )
    return note, rows, all(f.passes for f in results)


def _require_vllm(part: AuditPart) -> None:
    if not find_spec("vllm"):
        raise UserError("vLLM is not installed", key="parts", value=str(part), hint="use an environment of envs/")


def _vllm() -> tuple[str, list[dict[str, Any]], bool]:
    _require_vllm(AuditPart.VLLM)
    from redraft.lab.audit import vllm_speculation as speculation

    rows = []
    for mode in speculation.MODES:
        echo(f"vLLM {mode}", err=True)
        result = speculation.audit(mode)
        p_values = result.p_values or (None,) * len(speculation.TESTED)
        columns = {f"token {at}": p for at, p in zip(speculation.TESTED, p_values, strict=True)}
        rows.append({"mode": mode} | columns | {"distribution": result.verdict})
    note = (
        "Speculative decoding of the installed vLLM: p-values of G-tests by position, "
        f"{speculation.RESPONSES:,} responses per mode."
    )
    # Only plain sampling has to be right: vLLM's speculation is not used, and the audit says why.
    return note, rows, rows[0]["distribution"] == "not rejected"
