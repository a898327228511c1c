"""The request of one `redraft evaluate`, checked before heavy imports and before a model is loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redraft.config import Evaluation, Experiments, fingerprint
from redraft.config.data import Benchmark, known_sizes
from redraft.config.trainer import EngineSettings, InProcessEngine
from redraft.errors import UserError
from redraft.files import steps_in
from redraft.ops.locking.gpus import available
from redraft.result_files import read_manifest

LIGHTEVAL = Path(".venv-lighteval/bin/python")
"""Python of lighteval's separate environment."""


@dataclass(frozen=True)
class EvaluationRequest:
    """The arguments of one call of `redraft evaluate`.

    Attributes:
        model: folder of a policy, of a run or of a verl checkpoint, or a hub id.
        protocol: name in experiments/benchmarks.yaml. If empty: the protocol of the run that trained the model, or
            the file's default if the model is not from a run.
        names: benchmarks of that protocol, in order; all of them if empty.
        evaluation: backend and harness that sample, and whether lighteval grades too.
        engine: device, precision, threads and batch sizes.
        seed: seed of the sampling streams.
        samples: samples per problem; the protocol's number if None.
        limit: number of problems per benchmark, the first ones; all of them if None.
        folder: folder of the results; if None, a folder named after the arguments.
        greedy: sample at temperature 0, once per problem, instead of by the protocol.
    """

    model: str
    protocol: str
    names: list[str]
    evaluation: Evaluation
    engine: EngineSettings
    seed: int = 0
    samples: int | None = None
    limit: int | None = None
    folder: Path | None = None
    greedy: bool = False

    @property
    def parts(self) -> list[str]:
        """What is sampled of the protocol, as in names of folders."""
        samples = [f"samples{self.samples}"] * (self.samples is not None)
        return [*samples, *[f"first{self.limit}"] * (self.limit is not None), *self.names]


@dataclass(frozen=True)
class EvaluationPlan:
    """A checked and completed request.

    Attributes:
        request: the arguments.
        protocol: name of the protocol, or of the preset that lists the benchmarks itself.
        origin: why this protocol was chosen, for messages.
        benchmarks: the chosen benchmarks by name, with the requested number of samples.
        policy: folder of the policy in transformers' format, or a hub id.
        folder: folder of the results.
    """

    request: EvaluationRequest
    protocol: str
    origin: str
    benchmarks: dict[str, Benchmark]
    policy: Path | str
    folder: Path

    def text(self) -> str:
        """Description of the evaluation in one sentence, for the terminal."""
        limit, sizes = self.request.limit, {n: max(known_sizes(b.data)) for n, b in self.benchmarks.items()}
        count = sum(min(limit or sizes[name], sizes[name]) * b.samples for name, b in self.benchmarks.items())
        benchmarks = ", ".join(f"{name} ({benchmark.samples})" for name, benchmark in self.benchmarks.items())
        return (
            f"sampling {self.policy} with {self.request.evaluation.backend} by the protocol {self.protocol} "
            f"({self.origin}): {benchmarks} samples a problem, {count:,} responses in all; results go to {self.folder}"
        )


def plan(request: EvaluationRequest, experiments: Experiments, root: Path) -> EvaluationPlan:
    """Check a request and complete it.

    Args:
        request: the arguments.
        experiments: the catalogue of benchmarks, and the presets.
        root: parent of result folders that are named after the arguments.

    Raises:
        UserError: for an unknown model, protocol or benchmark, or if lighteval could not grade.
    """
    policy = find_policy(request.model)
    protocol, origin, known = _protocol(request, experiments)
    for name in request.names:
        if name not in known:
            raise UserError(
                f"no such benchmark in the protocol {protocol}", key="--benchmarks", value=name, allowed=known
            )
    if request.greedy and request.samples is not None:
        raise UserError(
            "greedy decoding gives one response per problem", key="--samples", value=request.samples, allowed="none"
        )
    greedy = [name for name in request.names or known if known[name].temperature == 0]
    if greedy and (request.samples or 1) > 1:
        raise UserError(
            "all samples of a problem are equal at temperature 0",
            key="--samples",
            value=request.samples,
            allowed=f"1 with {', '.join(greedy)}",
        )
    changes: dict[str, Any] = {} if request.samples is None else {"samples": request.samples}
    changes |= {"temperature": 0.0, "samples": 1} if request.greedy else {}
    benchmarks = {name: known[name].model_copy(update=changes) for name in request.names or known}
    if request.evaluation.lighteval:
        if all(benchmark.grading != "instructions" for benchmark in benchmarks.values()):
            raise UserError(
                "lighteval grades instructions only, and none of the benchmarks has instructions",
                value=True,
                key="lighteval",
                allowed="true only with a benchmark of instructions, such as ifeval",
            )
        if not LIGHTEVAL.exists():
            raise UserError("lighteval's environment is missing", file=LIGHTEVAL, hint="`make lighteval` makes it")
    folder = request.folder or root / _name(request, protocol, policy)
    return EvaluationPlan(request, protocol, origin, benchmarks, policy, folder)


def _protocol(request: EvaluationRequest, experiments: Experiments) -> tuple[str, str, dict[str, Benchmark]]:
    """Name of the protocol, the reason for it, and its benchmarks.

    Raises:
        UserError: for an unknown protocol, or if the preset of the run no longer exists.
    """
    if request.protocol:
        return request.protocol, "as requested", experiments.protocol(request.protocol)
    if not (found := run_of(Path(request.model))):
        default = experiments.benchmark_file().default
        return default, "the default", experiments.protocol(default)
    _, run = found
    preset = experiments.preset_of(run["preset"], run["paper"]).of_seed(run["seed"])
    protocol = preset.protocol_of(run["paper"])
    return protocol, f"of {run['paper']} at the run's preset {run['preset']}", preset.benchmarks


def run_of(model: Path) -> tuple[Path, dict[str, Any]] | None:
    """Folder and configuration of a run, from its manifest; `model` is the run's folder or one of its policies."""
    # A policy is two folders below its run, in `policies/step-N`.
    for folder in (model, *model.parents[:2]) if model.exists() else ():
        if (folder / "manifest.json").exists():
            configuration: dict[str, Any] = read_manifest(folder / "manifest.json").get("configuration", {})
            if {"preset", "paper", "seed"} <= configuration.keys():
                return folder, configuration
    return None


def find_policy(model: str) -> Path | str:
    """The folder of a policy in transformers' format, or a hub id.

    A run's folder resolves to the run's last policy. A verl checkpoint resolves to its copy in transformers' format.

    Raises:
        UserError: if the folder does not exist or holds no policy.
    """
    path = Path(model)
    if not path.exists():
        # A mistyped folder may look like a hub id; what begins in one of these ways is meant as a folder.
        if model.count("/") != 1 or model.startswith((".", "/", "results/")):
            raise UserError(
                "there is no such folder",
                file=path,
                key="model",
                value=model,
                allowed="a model's folder, a run's folder, or a hub id such as owner/name",
            )
        return model
    last = list(steps_in(path / "policies").values())[-1:]
    # A policy itself, a run's last one, or the copy that verl saves with a checkpoint.
    for folder in (path, *last, path / "actor/huggingface", path / "huggingface"):
        if (folder / "config.json").exists():
            return folder
    raise UserError(
        "there is no model in transformers' format in this folder",
        file=path,
        key="model",
        value=model,
        allowed="a folder with config.json, or one with policies/step-* or actor/huggingface",
    )


def usual_backend() -> str:
    """Default backend: `vllm` where there is a GPU, else `torch`."""
    return "vllm" if on_gpu(InProcessEngine()) else "torch"


def on_gpu(engine: EngineSettings) -> bool:
    """True if sampling uses a GPU.

    CUDA itself is not queried: once initialised, it would ignore which GPU this process locks later. PyTorch is
    imported only on a machine with a GPU.
    """
    if engine.device == "cpu" or not available():
        return False
    import torch

    return torch.version.cuda is not None


def device_name(engine: EngineSettings) -> str:
    """Name of the GPU that samples, or `cpu` and the instruction set of PyTorch's kernels, such as `cpu AVX2`.

    Called after sampling, since it initialises CUDA.
    """
    import torch

    return torch.cuda.get_device_name() if on_gpu(engine) else f"cpu {torch.backends.cpu.get_cpu_capability()}"


def _name(request: EvaluationRequest, protocol: str, policy: Path | str) -> Path:
    """Folder name of the results: the model's name with a hash of its path, then the settings."""
    if isinstance(policy, Path):
        # Policies of different runs have equal names, such as step-0030.
        model = f"{Path(request.model).name}-{fingerprint(str(policy.resolve()))[:8]}"
    else:
        model = policy.replace("/", "-")
    how = [protocol, request.evaluation.harness, request.evaluation.backend, f"seed{request.seed}"]
    how += [request.engine.dtype] * (request.engine.dtype != "auto")
    how += ["greedy"] * request.greedy
    return Path(model) / "-".join([*how, *request.parts])
