"""`redraft audit`: do rules and samplers have the policy's distribution? (docs/exact-reuse.md)"""

import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.arguments import AsJson
from redraft.cli.terminal import document, table
from redraft.errors import UserError

if TYPE_CHECKING:
    from redraft.lab.audit.samplers import AuditedSampler, SamplerTest


class Part(StrEnum):
    """Part of the audit."""

    RULES = "rules"
    SAMPLERS = "samplers"
    VLLM_SAMPLERS = "vllm-samplers"
    VLLM = "vllm"


def audit(
    parts: Annotated[
        list[Part] | None, typer.Argument(help="rules, samplers, vllm-samplers or vllm; first two if none.")
    ] = None,
    draws: Annotated[int, typer.Option(help="Responses of each sampler; 0 for as many as the power needs.", min=0)] = 0,
    temperature: Annotated[float, typer.Option(help="Of what the samplers draw.", min=0.01, max=2)] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Test whether rules and samplers draw from the policy's distribution; a wrong one ends in exit code 1."""
    tables: dict[Part, tuple[str, list[dict[str, Any]], bool]] = {}
    chosen = list(dict.fromkeys(parts or [Part.RULES, Part.SAMPLERS]))
    for part in chosen:
        if temperature != 1 and part not in (Part.SAMPLERS, Part.VLLM_SAMPLERS):
            raise UserError(
                f"the part {part} knows no temperature",
                key="--temperature",
                value=temperature,
                allowed=f"1, or the parts {Part.SAMPLERS} and {Part.VLLM_SAMPLERS}",
            )
    for part in chosen:
        match part:
            case Part.RULES:
                tables[part] = _rules()
            case Part.SAMPLERS:
                tables[part] = _samplers(draws, temperature)
            case Part.VLLM_SAMPLERS:
                tables[part] = _vllm_samplers(draws, temperature)
            case Part.VLLM:
                tables[part] = _vllm()
        if not as_json:
            note, rows, _ = tables[part]
            printed = [[_cell(value) for value in row.values()] for row in rows]
            typer.echo(
                f"{note}\n\n{table(list(rows[0]), printed, left=['engine', 'distribution'], wraps=['sampler'])}\n"
            )
    if as_json:
        rows = [{"part": str(part)} | row for part, (_, rows, _) in tables.items() for row in rows]
        asked = {"parts": [str(part) for part in tables], "draws": draws, "temperature": temperature}
        typer.echo(document("audit", asked, rows, [note for note, *_ in tables.values()]))
    if not all(passed for *_, passed in tables.values()):
        sys.exit(1)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "0" if value == 0 else f"{value:.2g}"
    return "-" if value is None else str(value)


def _rules() -> tuple[str, list[dict[str, Any]], bool]:
    from redraft.lab.audit import rules

    found = rules.enumerate_rules()
    rows = [
        {
            "rule": f.rule,
            "TV drift": f.policies,
            "TV visit 1": f.first,
            f"TV visit {rules.EPOCH_PASSES - 1}": f.last,
            "kept": f"{f.kept:.2f} of {f.draft:.2f}",
            "distribution": f.verdict,
        }
        for f in found
    ]
    note = (
        f"Rules, enumerated over {len(rules.SPACE.responses)} responses of {rules.SPACE.vocabulary} tokens: distance "
        "in total variation between the\npolicies of two visits, and of responses from the policy after one and "
        f"{rules.EPOCH_PASSES - 1} visits\nwith drafts; exact is at most {rules.EXACT:g}."
    )
    return note, rows, all(f.passes for f in found)


def _samplers(draws: int, temperature: float) -> tuple[str, list[dict[str, Any]], bool]:
    from redraft.lab.audit import samplers

    draws, models = draws or samplers.SAMPLES, samplers.policies()
    audited = lambda sampler: samplers.audit(sampler, models, draws, temperature=temperature)  # noqa: E731
    return _drawn(samplers.samplers(), audited, draws)


def _vllm_samplers(draws: int, temperature: float) -> tuple[str, list[dict[str, Any]], bool]:
    _require_vllm(Part.VLLM_SAMPLERS)
    from redraft.lab.audit import samplers, tiny_models, vllm_samplers

    draws, policies = draws or samplers.SAMPLES, samplers.policies()
    distribution = tiny_models.ModelPolicy(samplers.SPACE, policies[-1], temperature)
    with vllm_samplers.serving(policies, temperature=temperature) as engines:
        return _drawn(
            vllm_samplers.samplers(), lambda one: samplers.audit_engines(one, engines, distribution, draws), draws
        )


def _drawn(
    everyone: Iterable["AuditedSampler"], audited: Callable[["AuditedSampler"], "SamplerTest"], draws: int
) -> tuple[str, list[dict[str, Any]], bool]:
    from redraft.lab.audit import goodness, samplers

    everyone, found = list(everyone), []
    for number, sampler in enumerate(everyone, 1):
        typer.echo(f"[{number}/{len(everyone)}] {sampler.name}, {sampler.engine}", err=True)
        found.append(audited(sampler))
    rows = [
        {
            "sampler": f.sampler.name,
            "engine": f.sampler.engine,
            "kept": round(f.kept, 2),
            "G": round(f.test.statistic, 1),
            "classes": f.test.classes,
            "p": f.test.p_value,
            "distribution": f.verdict,
        }
        for f in found
    ]
    power = goodness.power(draws, len(samplers.SPACE.responses), samplers.DISTANCE)
    note = (
        f"Samplers, G-tests of {draws:,} responses after {samplers.EPOCH_PASSES} visits; wrong is p < "
        f"{goodness.LEVEL:g}. A "
        f"distribution\n{samplers.DISTANCE} away in total variation is found with probability {int(100 * power)} % at "
        "least. "
        "The published\nrule and planted faults must be found."
    )
    return note, rows, all(f.passes for f in found)


def _require_vllm(part: Part) -> None:
    if not find_spec("vllm"):
        raise UserError("vLLM is not installed", key="parts", value=str(part), hint="use an environment of envs/")


def _vllm() -> tuple[str, list[dict[str, Any]], bool]:
    _require_vllm(Part.VLLM)
    from redraft.lab.audit import vllm_speculation as speculation

    rows = []
    for mode in speculation.MODES:
        typer.echo(f"vLLM {mode}", err=True)
        result = speculation.audit(mode)
        p_values = result.p_values or (None,) * len(speculation.TESTED)
        columns = {f"token {at}": p for at, p in zip(speculation.TESTED, p_values, strict=True)}
        rows.append({"mode": mode} | columns | {"distribution": result.verdict})
    note = (
        "The installed vLLM's own speculation: p-values of G-tests by position, "
        f"{speculation.RESPONSES:,} responses a mode."
    )
    return note, rows, rows[0]["distribution"] == "not rejected"
