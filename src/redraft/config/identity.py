"""Fingerprints: hashes of the fields that define an experiment, stable over Python versions and key order."""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from redraft.config.base import defining
from redraft.config.data import Benchmark
from redraft.config.experiment import Run
from redraft.config.preset import Preset


def canonical(value: Any) -> str:
    """Canonical JSON text of a value made of mappings, lists, strings, finite numbers, booleans and None.

    Raises:
        TypeError: for values that have no single text (sets, NaN, objects).
    """
    _refuse_ambiguous(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _refuse_ambiguous(value: Any) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"cannot fingerprint a key of type {type(key).__name__}")
            _refuse_ambiguous(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_ambiguous(item)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError("cannot fingerprint a number that is not finite")
    elif value is not None and not isinstance(value, str | int):
        raise TypeError(f"cannot fingerprint a {type(value).__name__}")


def fingerprint(value: Any) -> str:
    """First 16 hexadecimal digits of the SHA-256 of the canonical text."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


def run_fingerprint(run: Run) -> str:
    """Fingerprint of a run's identity, which leaves out its execution."""
    return fingerprint(run.identity)


def benchmarks_fingerprint(benchmarks: Mapping[str, Benchmark], graded: bool) -> str:
    """Fingerprint of the generations on benchmarks, or with `graded` of their scores.

    Generations do not depend on where problems are found or how they are described and graded.
    """
    left_out = {"description"} if graded else {"description", "role", "grading"}
    found = set() if graded else {"split", "local", "sha256", "incomplete"}
    return fingerprint(
        {name: defining(b, left_out) | {"data": defining(b.data, found)} for name, b in benchmarks.items()}
    )


def sampling_fingerprint(preset: Preset) -> str:
    """Fingerprint of the generations of a preset's evaluation, with backend, harness and precision."""
    asked = benchmarks_fingerprint(preset.benchmarks, graded=False)
    precision = [] if preset.engine.dtype == "auto" else [preset.engine.dtype]
    return fingerprint([asked, preset.evaluation.backend, preset.evaluation.harness, *precision])
