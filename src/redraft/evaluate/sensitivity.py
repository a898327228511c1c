"""`redraft sensitivity`: one policy evaluated under other settings, each compared with a reference evaluation.

The reference is the in-process engine under this project's harness; a variant changes some of its settings. Another
processor is an evaluation that `redraft evaluate` made there. Differences are paired by problem
(`redraft.evaluate.agreement`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import NonNegativeInt, PositiveInt, TypeAdapter

from redraft.config import Evaluation, Experiments, InProcessEngine
from redraft.config.data import Sampling
from redraft.config.read import parse, parse_yaml
from redraft.errors import UserError
from redraft.evaluate import command
from redraft.evaluate.agreement import EvaluationAgreement, agreements
from redraft.evaluate.evaluation_plan import EvaluationPlan, EvaluationRequest, plan, run_of
from redraft.files import hashes, sha256
from redraft.layout import Layout, require_writable
from redraft.messages import echo
from redraft.result_files import Hashes, Typed, check_same, read_record, read_with_hash, write_with_hash

SETTINGS = ("harness", "backend", "seed", "rows", "threads", "dtype")
"""Settings that a variant may change; `rows` is the batch size."""
VARIANTS = (
    "rows=16",
    "rows=64",
    "seed=1",
    "harness=lm-eval",
    "backend=transformers",
    "backend=vllm",
    "backend=vllm,seed=1",
    "backend=vllm,seed=2",
    "backend=vllm,harness=lm-eval",
)
"""Variants if none is named; those that equal the reference are left out."""
MODULES = {"vllm": "vllm", "lm-eval": "lm_eval"}
"""Modules of the backends and harnesses that are not always installed."""
MACHINE = ("processor", "model", "instructions")
"""Fields of a recorded machine by which two processors are the same one."""
SAMPLING = tuple(Sampling.model_fields)
LARGEST_SEED = 2**32 - 1
"""Of lm-eval, which seeds numpy."""
OF_CODE = {"commit": "commit", "modified": "code with changes after the commit"}
"""Fields of the recorded state of the code that differ between versions, and their names."""


class _Asked(Typed):
    evaluation: dict[str, Any]
    seed: NonNegativeInt
    limit: PositiveInt | None
    dtype: str
    rows: PositiveInt
    threads: PositiveInt
    benchmarks: dict[str, dict[str, Any]]


class _Record(Typed):
    asked: _Asked
    weights: Hashes
    device: str
    machine: dict[str, Any]
    packages: dict[str, str]
    git: dict[str, Any]
    sha256: Hashes


RECORD: TypeAdapter[Any] = TypeAdapter(_Record)
"""Types of what is read of `evaluation.json`."""


@dataclass(frozen=True)
class SensitivityPlan:
    """Checked evaluations of one policy.

    Attributes:
        reference: the evaluation that all others are compared with.
        variants: evaluations to make here, by the text of their settings.
        others: folders of finished evaluations of the same policy, made elsewhere, by their names in the table.
        folder: folder of the evaluations and of the table.
        run: cell, seed and manifest of the run that trained the policy; None for a policy of no run of this folder.
    """

    reference: EvaluationPlan
    variants: dict[str, EvaluationPlan]
    others: dict[str, Path]
    folder: Path
    run: dict[str, Any] | None


def plan_sensitivity(
    request: EvaluationRequest, variants: Sequence[str], others: list[Path], experiments: Experiments, root: Path
) -> SensitivityPlan:
    """Check a reference evaluation, its variants and the evaluations from elsewhere.

    Args:
        request: the reference; its folder is that of all results, if it has one.
        variants: settings as `key=value`, several joined by commas; `VARIANTS` if empty.
        others: folders of `redraft evaluate`.
        experiments: benchmarks and presets.
        root: parent of the results of policies that no run of this folder trained.

    Raises:
        UserError: for an invalid setting or a variant that changes nothing, if a package is not installed, or if an
            evaluation from elsewhere has another policy or other benchmarks.
    """
    if request.engine.dtype == "auto":  # by which vLLM means another precision than the other backends
        request = replace(request, engine=request.engine.model_copy(update={"dtype": "float32"}))
    planned = plan(request, experiments, root)
    require_writable(planned.folder if request.folder else root)
    requests, seen = {}, {tuple(_settings(request).values()): "the reference"}
    for text in variants or VARIANTS:
        each = varied(request, text)
        try:
            _check_able(each, planned.policy, text)
            if (same := seen.setdefault(tuple(_settings(each).values()), text)) != text:
                raise UserError(f"this variant equals {same}", key="--variant", value=text)
        except UserError as error:
            if variants:
                raise
            echo(f"without {text}: {error}", err=True)
            continue
        requests[text] = each
    # Without the rest of the path, since the report shows names.
    elsewhere = {f"from {other.resolve().name}": other for other in others}
    if len(elsewhere) < len(others):
        raise UserError("two of these folders have the same name", key="--other", value=", ".join(map(str, others)))
    if others:
        benchmarks = {name: each.model_dump(mode="json") for name, each in planned.benchmarks.items()}
        expected = _subject(command.weights(planned.policy), request.limit, benchmarks)
        for other in others:
            _check_subject(read_evaluation(other), expected, other)
    folder, run = _folder(planned, root)

    def within(each: EvaluationRequest) -> EvaluationPlan:
        name = "-".join(map(str, _settings(each).values()))
        return plan(replace(each, folder=folder / "evaluations" / name), experiments, root)

    return SensitivityPlan(
        within(request),
        {text: within(each) for text, each in requests.items()},
        elsewhere,
        folder,
        run,
    )


def _check_able(request: EvaluationRequest, policy: Path | str, text: str) -> None:
    """Raise a UserError if a package of a variant is not installed, or vLLM cannot run the policy here."""
    for name in (request.evaluation.backend, request.evaluation.harness):
        if name in MODULES and find_spec(MODULES[name]) is None:
            raise UserError(f"{name} is not installed", key="--variant", value=text)
    if request.evaluation.backend == "vllm":
        # Only now, since vLLM takes seconds to import.
        from redraft.engines.vllm.local import check_head_size

        check_head_size(policy)


def varied(request: EvaluationRequest, text: str) -> EvaluationRequest:
    """A request with other settings, `key=value` joined by commas.

    Raises:
        UserError: for an unknown or repeated key, or an invalid value.
    """
    changes: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = (each.strip() for each in part.partition("="))
        if not equals or key not in SETTINGS or key in changes:
            allowed = f"key=value, several joined by commas, with each key once: {', '.join(SETTINGS)}"
            raise UserError("this is no variant of an evaluation", key="--variant", value=text, allowed=allowed)
        changes[key] = parse_yaml(value, "--variant")
    settings, where = _settings(request) | changes, f"--variant {text}"
    seed = settings["seed"]
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= LARGEST_SEED:
        allowed = f"an integer from 0 to {LARGEST_SEED}"
        raise UserError("this is no seed", key="--variant", value=text, allowed=allowed)
    evaluation = parse(Evaluation, {key: settings[key] for key in ("harness", "backend")}, where)
    if "threads" in changes and evaluation.backend == "vllm":
        allowed = "backends torch and transformers"
        raise UserError("vLLM chooses its number of threads itself", key="--variant", value=text, allowed=allowed)
    engine = {"max_rows": settings["rows"], "threads": settings["threads"], "dtype": settings["dtype"]}
    return replace(request, evaluation=evaluation, engine=parse(InProcessEngine, engine, where), seed=seed)


def _settings(request: EvaluationRequest) -> dict[str, Any]:
    """The values of `SETTINGS`, in that order."""
    evaluation, engine = request.evaluation, request.engine
    values = evaluation.harness, evaluation.backend, request.seed, engine.max_rows, engine.threads, engine.dtype
    return dict(zip(SETTINGS, values, strict=True))


def _folder(planned: EvaluationPlan, root: Path) -> tuple[Path, dict[str, Any] | None]:
    """Folder of the results, and the run of this folder that trained the policy."""
    request, run = planned.request, None
    how = [planned.protocol, "greedy" if request.greedy else "sampled"]
    name = "-".join([*how, *request.parts])
    parent = root / planned.folder.parent.name
    if found := run_of(Path(request.model)):
        folder, run_of_model = found
        cell, seed = f"{run_of_model['paper']}/{run_of_model.get('cell', '')}", run_of_model["seed"]
        layout = Layout(run_of_model["preset"])
        # A copy of a run elsewhere is no run of the report here.
        if run_of_model.get("cell") and layout.run(cell, seed).resolve() == folder.resolve():
            run = {"cell": cell, "seed": seed, "manifest_sha256": sha256(folder / "manifest.json")}
            parent, name = layout.sensitivity(cell, seed), f"{Path(planned.policy).name}-{name}"
    return request.folder or parent / name, run


def _subject(weights: dict[str, str], limit: int | None, benchmarks: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What two evaluations must have in common, apart from problems, which `agreements` compares."""
    sampling = {name: {key: benchmark.get(key) for key in SAMPLING} for name, benchmark in benchmarks.items()}
    return {"weights": weights, "limit": limit, "benchmarks": sampling}


def read_evaluation(folder: Path) -> dict[str, Any]:
    """The record of a finished evaluation.

    Raises:
        UserError: if it is missing, damaged or of an earlier version, or if the grades are those of other generations.
    """
    file = folder / "evaluation.json"
    needed = ("asked", "weights", "device", "machine", "packages", "git", "sha256")
    record: dict[str, Any] = read_with_hash(file, RECORD, *needed)
    check_same(record["sha256"], read_record(folder / "grades.json")["made_from"], file)
    return record


def _subject_of(record: dict[str, Any]) -> dict[str, Any]:
    return _subject(record["weights"], record["asked"]["limit"], record["asked"]["benchmarks"])


def _check_subject(record: dict[str, Any], expected: dict[str, Any], folder: Path) -> None:
    """Check that an evaluation has the reference's policy, benchmarks and sampling, else a UserError."""
    if not all(record["weights"].values()):
        raise UserError("the commit of this policy is unknown", file=folder / "evaluation.json", key="weights")
    for key, found in _subject_of(record).items():
        if found != expected[key]:
            raise UserError(
                "this evaluation has another policy or other benchmarks than the reference",
                file=folder / "evaluation.json",
                key=key,
                value=str(found),
                allowed=str(expected[key]),
            )


def sensitivity(planned: SensitivityPlan) -> list[dict[str, Any]]:
    """Evaluate the policy under all settings, compare, and write `sensitivity.csv` and `sensitivity.json`.

    Finished evaluations are reused.

    Returns:
        The rows of the table; docs/evaluation.md has their columns.

    Raises:
        UserError: if an evaluation fails, or was made by another processor or other versions than the reference.
    """
    echo(planned.reference.text(), err=True)
    for name, each in ({"the reference": planned.reference} | planned.variants).items():
        echo(f"evaluating {name}", err=True)
        command.evaluate(each)
    base = planned.reference.folder
    reference = read_evaluation(base)
    folders = {text: each.folder for text, each in planned.variants.items()}
    rows, evaluations = [], [_about("reference", base, reference)]
    for name, folder in (folders | planned.others).items():
        record = read_evaluation(folder)
        _check_subject(record, _subject_of(reference), folder)
        if name in folders:
            _check_same_machine(record, reference, folder)
        evaluations.append(_about(name, folder, record))
        rows += [_row(name, each, record, reference) for each in agreements(base, folder, whole=True)]
    table = planned.folder / "sensitivity.csv"
    write_with_hash(table, pd.DataFrame(rows).to_csv(index=False))
    request = planned.reference.request
    about: dict[str, Any] = {"model": request.model, "policy": str(planned.reference.policy), "run": planned.run}
    about |= {
        "sampled": _sampled(request),
        "protocol": planned.reference.protocol,
        "weights": reference["weights"],
        "evaluations": evaluations,
    }
    # Last, since the report reads what this file names.
    write_with_hash(planned.folder / "sensitivity.json", about | {"rows": rows, "sha256": hashes(table)})
    return rows


def _sampled(request: EvaluationRequest) -> list[str]:
    """What was sampled apart from the whole protocol, in words."""
    return [
        *(["greedy"] if request.greedy else []),
        *([f"{request.samples} samples per problem"] if request.samples is not None else []),
        *([f"the first {request.limit} problems"] if request.limit is not None else []),
        *([f"only {', '.join(request.names)}"] if request.names else []),
    ]


def _about(name: str, folder: Path, record: dict[str, Any]) -> dict[str, Any]:
    """What the table's record says of an evaluation: settings, processor, versions and the hash of its generations."""
    kept = {key: record[key] for key in ("machine", "packages", "git", "sha256")}
    about = {"variant": name, "folder": str(folder), "settings": _recorded_settings(record)}
    return about | {"processor": _processor(record), "machines": _machines(record)} | kept


def _recorded_settings(record: dict[str, Any]) -> dict[str, Any]:
    asked = record["asked"]
    settings = {key: asked["evaluation"].get(key, asked.get(key)) for key in SETTINGS}
    if settings["dtype"] == "auto" and settings["backend"] != "vllm":
        settings["dtype"] = "float32"
    return settings


def _check_same_machine(record: dict[str, Any], reference: dict[str, Any], folder: Path) -> None:
    """Raises a UserError if a finished evaluation that is reused differs from the reference in more than settings."""
    if differences := list(_differences(record, reference, settings=False)):
        raise UserError(
            "this evaluation was made on another processor or by other versions than the reference",
            file=folder / "evaluation.json",
            key="machine, packages, git",
            value="; ".join(differences),
            hint="remove the folder, which evaluates again, or move it away and name it by --other",
        )


def _differences(record: dict[str, Any], reference: dict[str, Any], *, settings: bool = True) -> Iterator[str]:
    """Settings, processor and versions in which an evaluation differs from the reference, in words."""
    pairs = [(_recorded_settings(reference), _recorded_settings(record))] if settings else []
    code = ({name: each["git"].get(key) for key, name in OF_CODE.items()} for each in (reference, record))
    for first, second in [*pairs, (reference["packages"], record["packages"]), tuple(code)]:
        for key in first | second:
            if first.get(key) != second.get(key):
                yield f"{key} {first.get(key, 'none')} → {second.get(key, 'none')}"
    first, second = ([{key: each.get(key) for key in MACHINE} for each in _machines(of)] for of in (reference, record))
    if (before := _processor(reference)) != (after := _processor(record)):
        yield f"processor {before} → {after}"
    elif first != second:
        yield "processor with the same name, but another model or other instruction sets"


def _machines(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Machines that sampled an evaluation; records of earlier versions have only the last one."""
    return record.get("machines") or [record["machine"] | {"device": record["device"]}]


def _processor(record: dict[str, Any]) -> str:
    """The processors that sampled: the GPU, or the machine's processor and the instruction set of PyTorch's kernels.

    There are several if an interrupted evaluation was continued on another machine.
    """
    named = []
    for machine in _machines(record):
        device, _, instructions = machine["device"].partition("cpu ")
        named.append(device or f"{machine.get('processor')}, {instructions}")
    return ", then ".join(dict.fromkeys(named))


def _row(name: str, agreed: EvaluationAgreement, record: dict[str, Any], reference: dict[str, Any]) -> dict[str, Any]:
    """A row of the table. Differences of sampled responses have sampling noise unless both used the same uniforms."""
    benchmark = reference["asked"]["benchmarks"][agreed.benchmark]
    first, second = _recorded_settings(reference), _recorded_settings(record)
    in_process = first["backend"] == second["backend"] == "torch"
    if benchmark["temperature"] == 0:
        decoding = "greedy"
    elif in_process and first["seed"] == second["seed"]:
        decoding = "sampled, same random numbers"
    else:
        decoding = "sampled, independently"
    independent = decoding == "sampled, independently"

    def differ(share: float | None) -> int | None:
        return None if share is None else round((1 - share) * agreed.responses)

    return {
        "variant": name,
        "changed": "; ".join(_differences(record, reference)) or "nothing",
        "benchmark": agreed.benchmark,
        "decoding": decoding,
        "problems": agreed.problems,
        "responses": agreed.responses,
        "reference": 100 * agreed.first,
        "score": 100 * agreed.second,
        "difference": 100 * (agreed.second - agreed.first),
        "low": 100 * agreed.low,
        "high": 100 * agreed.high,
        "noise": 100 * agreed.noise if independent and agreed.noise is not None else None,
        "different_responses": differ(agreed.same_text),
        "different_answers": differ(agreed.same_answer),
        "different_verdicts": differ(agreed.same_verdict),
        "processor": _processor(record),
    }


COLUMNS = ("variant", "benchmark", "decoding", "score", "difference", "noise", "other responses", "other answers")
NOTES = (
    "difference: points from the reference, with the 95 % interval of paired problems. Under `sampled, independently` "
    "it includes sampling noise: two samplings of one policy on these problems differ by at most the noise in 95 % of "
    "cases.",
)


def texts(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Rows of the printed table."""
    return [
        [
            row["variant"],
            row["benchmark"],
            row["decoding"],
            f"{row['score']:.1f} %",
            f"{row['difference']:+.1f} [{row['low']:+.1f}, {row['high']:+.1f}]",
            "-" if row["noise"] is None else f"± {row['noise']:.1f}",
            f"{row['different_responses']} of {row['responses']}",
            "-" if row["different_answers"] is None else str(row["different_answers"]),
        ]
        for row in rows
    ]
