"""Fingerprints: hashes of the fields that define an experiment, independent of Python version and key order."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from redraft.config.base import defining
from redraft.config.data import Benchmark, Data
from redraft.config.experiment import Run
from redraft.config.generated import Generated
from redraft.config.preset import Preset


def canonical(value: Any) -> str:
    """Canonical JSON text of a value made of mappings, lists, strings, finite numbers, booleans and None.

    Raises:
        TypeError: for values without a unique text (sets, NaN, objects).
    """
    _check_unambiguous(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _check_unambiguous(value: Any) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            # JSON would write the keys 1 and "1" alike.
            if not isinstance(key, str):
                raise TypeError(f"cannot fingerprint a key of type {type(key).__name__}")
            _check_unambiguous(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_unambiguous(item)
    elif isinstance(value, float):
        # Python would write `NaN`, which is no JSON.
        if not math.isfinite(value):
            raise TypeError("cannot fingerprint a number that is not finite")
    elif value is not None and not isinstance(value, str | int):
        raise TypeError(f"cannot fingerprint a {type(value).__name__}")


def fingerprint(value: Any) -> str:
    """First 16 hexadecimal digits of the SHA-256 of the canonical text."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


def run_fingerprint(run: Run) -> str:
    """Fingerprint of a run's identity, without its execution."""
    return fingerprint(run.identity)


def training_fingerprint(run: Run) -> str:
    """Fingerprint of a run's identity without the names of paper and cell.

    It includes the roles of model and data, by which the workflow finds the files. Runs of one preset with equal ones
    are the same experiment; on one machine they are equal bit by bit, if its engine is repeatable.
    """
    named = {key: value for key, value in run.identity.items() if key not in ("paper", "cell")}
    return fingerprint([named, run.model_role, run.data_role])


def benchmarks_fingerprint(benchmarks: Mapping[str, Benchmark], graded: bool) -> str:
    """Fingerprint of the generations on benchmarks, or with `graded` of their scores.

    Generations do not depend on the location, the description and the grading of problems.
    """
    omitted = {"description"} if graded else {"description", "role", "grading"}
    return fingerprint(
        {
            name: defining(b, omitted) | {"data": defining(b.data) if graded else _sampled(b.data)}
            for name, b in benchmarks.items()
        }
    )


def _sampled(data: Data) -> dict[str, Any]:
    """Fields of problems that generations depend on."""
    fields = defining(data, {"split", "local", "sha256", "incomplete"})
    # `split` is documentation in hub data, but selects generated problems. `held-out`, the split of nearly all
    # benchmarks, stays omitted, since evaluations were finished before the split counted.
    return fields | ({"split": data.split} if isinstance(data, Generated) and data.split == "train" else {})


def sampling_fingerprint(preset: Preset) -> str:
    """Fingerprint of the generations of a preset's evaluation, with backend, harness and precision."""
    benchmarks = benchmarks_fingerprint(preset.benchmarks, graded=False)
    # Nothing for the default, so that evaluations from before the field keep their fingerprint.
    precision = [] if preset.engine.dtype == "auto" else [preset.engine.dtype]
    return fingerprint([benchmarks, preset.evaluation.backend, preset.evaluation.harness, *precision])
