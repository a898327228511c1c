"""Sampling of policies on benchmarks.

Generations are saved with everything that grading needs. `redraft.evaluate.grade` grades them separately, so they can
be graded again without a model.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from redraft.config import Evaluation, Experiments, fingerprint, sampling_fingerprint
from redraft.config.data import Benchmark, HubProblems, Sampling
from redraft.config.trainer import EngineSettings
from redraft.errors import UserError
from redraft.evaluate.backend import Backend, GenerationRequest, Response
from redraft.evaluate.backends import open_backend
from redraft.evaluate.evaluation_plan import device_name
from redraft.evaluate.generation_parts import KEY, GenerationParts
from redraft.files import hashes, write_json
from redraft.messages import echo
from redraft.ops.locking.devices import devices
from redraft.ops.locking.lease import EVALUATION, lease
from redraft.provenance import environment, git_state, machine, policies_of
from redraft.result_files import check_hashes, read_manifest
from redraft.tasks.problems import Problem, check_answers, load_problems, missing, record_of
from redraft.tasks.prompts import encode
from redraft.train import models


def generate_policies(preset_name: str, protocol: str, seed: int, file: Path, policies: list[Path]) -> None:
    """Sample policies on the benchmarks of a protocol.

    Args:
        preset_name: name of the preset.
        protocol: name of the protocol (`Preset.protocol_of`).
        seed: seed of the sampling streams.
        file: file of the generations.
        policies: folders of policies, or manifests of runs for all policies that they name. A folder
            `step-NNNN` holds the policy after that step, any other name an initial policy.
    """
    preset = Experiments().preset(preset_name, protocol).of_seed(seed)
    log = file.parent / "generate.log"
    steps = {step: policy for path in policies for step, policy in _policies_of(path).items()}
    with (
        lease(file.parent, EVALUATION, log) as folder_lease,
        # Backends sample on one GPU, however many train.
        devices(min(preset.engine.gpus, 1), str(file.parent)) as gpus,
    ):
        folder_lease.record_devices(gpus)
        machines = generate(
            steps, preset.benchmarks, seed, preset.engine, preset.evaluation, file, check=folder_lease.check
        )
        write_json(
            file.with_suffix(".json"),
            {
                "sampled": sampling_fingerprint(preset),
                "evaluation": preset.evaluation.model_dump(),
                "seed": seed,
                "sha256": hashes(file),
                # Identified by a run's manifest, or by the weights in a folder.
                "made_from": hashes(*(path / "model.safetensors" if path.is_dir() else path for path in policies)),
                "git": git_state(),
                **environment(),
                "machines": machines,
            },
        )


def _policies_of(path: Path) -> dict[int, Path]:
    """The policies that a manifest names, or the one in a folder, by their training step."""
    if path.name == "manifest.json":
        manifest = read_manifest(path, "sha256")
        weights = {name: digest for name, digest in manifest["sha256"].items() if name.startswith("policies/")}
        check_hashes(path.parent, weights, path)
        return {step: path.parent / folder for step, folder in policies_of(manifest).items()}
    prefix, _, step = path.name.rpartition("-")
    return {int(step) if prefix == "step" and step.isdigit() else 0: path}


def prepare_benchmarks(preset_name: str, protocol: str, file: Path) -> None:
    """Read a protocol's benchmarks of the hub, which later jobs find in its cache; write a record of them to `file`.

    Raises:
        UserError: if one cannot be read, or has an answer that its grader cannot compare.
    """
    benchmarks = Experiments().preset(preset_name, protocol).benchmarks.items()
    of_hub = {name: benchmark for name, benchmark in benchmarks if isinstance(benchmark.data, HubProblems)}
    write_json(file, {name: record_of(each.data, _problems_of(name, each)) for name, each in of_hub.items()})


def _problems_of(name: str, benchmark: Benchmark) -> list[Problem]:
    """Problems of a benchmark that its grader can compare; a known incomplete copy is reported on the terminal."""
    problems = load_problems(benchmark.data)
    check_answers(problems, benchmark.grading, name)
    if lacking := missing(benchmark.data, len(problems)):
        echo(f"{name}: {lacking}", err=True)
    return problems


def generate(
    policies: Mapping[int, Path | str],
    benchmarks: dict[str, Benchmark],
    seed: int,
    settings: EngineSettings,
    evaluation: Evaluation,
    file: Path,
    limit: int | None = None,
    check: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """Sample policies on every benchmark and write one Parquet file; samples that an interrupted call saved are kept.

    All policies use the same random streams, so that sampling noise adds less to their differences.

    Args:
        policies: training step to the policy, a folder in transformers' format or a hub id.
        benchmarks: the benchmarks by name.
        seed: seed of the sampling streams.
        settings: device, threads and batch sizes.
        evaluation: backend and harness.
        file: the file to write, one line per sample, with the columns of `redraft.evaluate.generation_parts.SCHEMA`.
        limit: number of problems per benchmark, the first ones; all of them if None.
        check: raises if another process has taken the folder; called before every write into it.

    Returns:
        The machines that sampled, in order: several if an interrupted call was continued on another one.

    Raises:
        UserError: if problems or a policy cannot be read, or if a prompt does not fit the policy.
    """
    problems = {name: _problems_of(name, benchmark)[:limit] for name, benchmark in benchmarks.items()}
    made_from = identity(policies, benchmarks, problems, seed, evaluation, settings.dtype)
    parts = GenerationParts(file, made_from, check, lambda: machine() | {"device": device_name(settings)})
    for step, policy in sorted(policies.items()):
        wanted = {
            name: [
                (i, s)
                for i in range(len(problems[name]))
                for s in range(benchmark.samples)
                if (step, name, i, s) not in parts.done
            ]
            for name, benchmark in benchmarks.items()
        }
        if not (wanted := {name: keys for name, keys in wanted.items() if keys}):
            continue
        prompts = {name: _prompts(name, benchmarks[name], problems[name], policy) for name in wanted}
        if evaluation.harness == "lm-eval":
            # lm-eval returns whole benchmarks; each is saved when it is complete.
            from redraft.evaluate.lm_eval import harness

            incomplete = {name: benchmarks[name] for name in wanted}
            for _, frame, _ in harness.sample(policy, incomplete, seed, evaluation.backend, settings, limit):
                rows = frame.assign(step=step).to_dict("records")
                parts.add(*(row for row in rows if tuple(row[key] for key in KEY) not in parts.done))
                parts.save()
            continue
        longest = max(max(map(len, prompts[name])) + benchmarks[name].max_new_tokens for name in wanted)
        # Once for all benchmarks: to load a policy, or to start vLLM, takes up to minutes.
        with closing(open_backend(evaluation.backend, policy, settings, longest)) as backend:
            for name, keys in wanted.items():
                requests = [GenerationRequest(i, s, prompts[name][i]) for i, s in keys]
                _sample(step, name, benchmarks[name], problems[name], requests, backend, seed, parts)
        del backend  # frees the weights before the next policy is loaded
    parts.finish(list(benchmarks))
    return parts.machines


def identity(
    policies: Mapping[int, Path | str],
    benchmarks: dict[str, Benchmark],
    problems: dict[str, list[Problem]],
    seed: int,
    evaluation: Evaluation,
    dtype: str,
) -> str:
    """Fingerprint of everything that determines generations: policies, problems, sampling settings, seed, backend,
    harness and precision."""
    how = set(Sampling.model_fields)
    prompted = {
        name: [benchmark.model_dump(mode="json", include=how), [[p.prompt, p.answer] for p in problems[name]]]
        for name, benchmark in benchmarks.items()
    }
    files: list[Any] = []
    for step, policy in sorted(policies.items()):
        config = models.load_config(policy)  # raises a UserError that names the folder if no policy is there
        if isinstance(policy, str):
            files.append([step, [policy, getattr(config, "_commit_hash", None)]])
            continue
        # Sizes and times, since hashing the weights at each call would take minutes for large models.
        stats = [(file.name, file.stat()) for file in sorted(policy.iterdir()) if file.is_file()]
        files.append([step, [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]])
    # As in all fingerprints, a default is left out.
    precision = [] if dtype == "auto" else [dtype]
    return fingerprint([files, prompted, seed, evaluation.backend, evaluation.harness, *precision])


def _prompts(name: str, benchmark: Benchmark, problems: list[Problem], policy: Path | str) -> list[list[int]]:
    """The problems' prompts as token ids.

    Raises:
        UserError: if a prompt is empty, or if prompt and response together exceed the model's length, or that up to
            which its rotary embeddings stay the same.
    """
    prompts = encode(models.load_tokenizer(policy), [problem.prompt for problem in problems], benchmark.chat)
    if [] in prompts:
        raise UserError("the prompt of a problem has no tokens", key=f"{name}, problem", value=prompts.index([]))
    most = getattr(models.load_config(policy), "max_position_embeddings", None)
    length = max(map(len, prompts)) + benchmark.max_new_tokens
    if most is not None and length > most:
        raise UserError(
            "prompt and response together are longer than the model allows",
            file=policy,
            key=f"{name}, max_new_tokens",
            value=benchmark.max_new_tokens,
            allowed=f"at most {most - length + benchmark.max_new_tokens}, for {most} in all",
        )
    models.check_rotation(policy, length)
    return prompts


def _sample(
    step: int,
    name: str,
    benchmark: Benchmark,
    problems: list[Problem],
    requests: list[GenerationRequest],
    backend: Backend,
    seed: int,
    parts: GenerationParts,
) -> None:
    """Sample the missing responses of one benchmark and save them, also those finished before an exception."""

    def row(response: Response) -> dict[str, Any]:
        problem, text = problems[response.problem], backend.tokenizer.decode(response.tokens, skip_special_tokens=True)
        return {
            "step": step,
            "benchmark": name,
            "problem": response.problem,
            "sample": response.sample,
            "prompt": problem.prompt,
            "answer": problem.answer,
            "tokens": response.tokens,
            "text": text,
            "finish": response.finish,
        }

    parts.begin()
    try:
        backend.sample(name, requests, benchmark, seed, lambda *responses: parts.add(*map(row, responses)))
    finally:
        parts.save()
