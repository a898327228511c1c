"""Stages of the workflow, one function for each, from files to files (`redraft stage`).

Heavy packages are imported in the functions, so that a stage loads only what it needs.
"""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from redraft.cli.loading import loading
from redraft.config import Experiments, GgufModel, PretrainedModel, Run, TinyModel, run_fingerprint
from redraft.config.preset import Preset, parted
from redraft.errors import UserError
from redraft.files import read_json, sha256, write_json
from redraft.layout import Layout, code_root

MODEL_THREADS = 1
"""Number of threads that make a model. It is fixed, since sums of floats depend on it. It is one, since two
models on a core each are ready sooner than one after the other on two cores."""
SILENCE = 60
"""Seconds that a stage says nothing, at most, if a step is no longer."""
GGUF = "envs/gguf.txt"
"""Lock of the package that reads GGUF files."""


def make_model(preset_name: str, name: str, folder: Path) -> None:
    """Make and warm-start the preset's tiny model for a role and block (`Preset.role`), or take one that there is.

    Raises:
        UserError: if the preset has nothing for the role.
    """
    with loading():
        import torch

        from redraft.tasks.tokenizer import make_tokenizer
        from redraft.train import models
        from redraft.train.warm_start import warm_start

    torch.set_num_threads(MODEL_THREADS)
    preset, role = _of_name(preset_name, name)
    if role not in preset.models:
        raise UserError("the preset has no such model", key="models", value=role, allowed=preset.models)
    settings = preset.models[role]
    if isinstance(settings, TinyModel):
        tokenizer = make_tokenizer()
        model = models.initialise(settings, tokenizer)
        report = _reporter(f"warm start {name}", every=150)
        warm_start(
            model,
            tokenizer,
            settings.warm_start,
            settings.warm_start.data,
            lambda i, n, loss: report(i, n, f"loss {loss:.3f}"),
        )
    else:
        model, tokenizer = _found(settings)
        if settings.untie:
            models.untie(model)
    models.save(model, tokenizer, folder)


def _found(settings: GgufModel | PretrainedModel) -> tuple[Any, Any]:
    """A model that somebody trained, and its tokenizer."""
    from redraft.train import models
    from redraft.train.pretrained import gguf

    if isinstance(settings, PretrainedModel):
        return models.load(settings.path, settings.revision)
    model, tokenizer = gguf.load(settings, code_root() / GGUF)
    return model.bfloat16(), tokenizer


def _of_name(preset_name: str, name: str) -> tuple[Preset, str]:
    """The preset of the block that a name says, and the role."""
    role, block = parted(name)
    return Experiments().preset(preset_name).of_block(block), role


def prepare_data(preset_name: str, name: str, folder: Path) -> None:
    """Read the preset's training problems for a role and block (`Preset.role`); write them and their origin.

    Raises:
        UserError: if the preset has nothing for the role, or it cannot be read.
    """
    from redraft.config import fingerprint
    from redraft.tasks.problems import checksums, load_problems, origin
    from redraft.train.verl.data import write_problems

    preset, role = _of_name(preset_name, name)
    if role not in preset.data:
        raise UserError("the preset has no such data", key="data", value=role, allowed=preset.data)
    data = preset.data[role]
    problems = load_problems(data)
    write_problems(problems, role, folder / "problems.parquet")
    content = {
        "data": data.model_dump(mode="json"), "problems": len(problems),
        "fingerprint": fingerprint([[problem.prompt, problem.answer] for problem in problems]),
        "origin": origin(data), "sha256": checksums(data),
    }  # fmt: skip
    write_json(folder / "data.json", content)


def calibrate(preset_name: str, role: str, bits: int, model: Path, file: Path) -> None:
    """Measure the roofline of a preset's model on this machine; sweep and drawing are written beside the file.

    Raises:
        UserError: for a model that the roofline does not cover, or a sweep that it does not describe.
    """
    from redraft.analysis.figures.roofline import draw_roofline
    from redraft.lab.selfspec import report
    from redraft.lab.selfspec.machine import measure
    from redraft.lab.selfspec.sweep import write_sweep

    engine, sweep = Experiments().preset(preset_name).engine, file.with_suffix(".csv")
    with _devices(min(engine.gpus, 1), file.parent):
        lines, flops = measure(model, engine.device, engine.threads, bits)
    write_sweep(sweep, lines)
    measured, found = report.calibrate(sweep, model, flops / 1e12, None, bits, file)
    draw_roofline(found.calibration, measured, file.with_suffix(".svg"))
    print(f"roofline of {role}: {report.quality(found)}", flush=True)


def check(preset_name: str, cells: list[str]) -> None:
    """Check the configurations of a preset's cells by verl.

    Raises:
        UserError: for the first configuration that verl refuses.
    """
    with loading():
        from redraft.train.verl.config import check as checked

    experiments = Experiments()
    checked([experiments.run(cell, 0, preset_name) for cell in cells])


def train(preset_name: str, cell_id: str, seed: int, model: Path, folder: Path) -> None:
    """Train one run from its last checkpoint, if there is one; the manifest is written last."""
    from redraft.ops.locking.lease import lease
    from redraft.provenance import git_state

    git = git_state()  # now, since someone may go on editing while this trains
    run = Experiments().run(cell_id, seed, preset_name)
    log = folder / "log.txt"
    with lease(folder, run_fingerprint(run), log) as held, _devices(run.engine.gpus, folder) as taken:
        held.uses(taken)
        _train(run, model, folder, git, held)


def time_runs(preset_name: str, seed: int, file: Path, manifests: list[Path]) -> None:
    """Train finished runs of a paper and seed again, side by side and with repeated rollouts, and write their seconds.

    Args:
        preset_name: name of the preset.
        seed: of all runs.
        file: file of the seconds; a record of what they belong to is written beside it, last.
        manifests: of the finished runs.

    Raises:
        UserError: if a run does other work than the finished one did.
    """
    from redraft.files import atomic
    from redraft.provenance import environment, git_state, hashes

    with loading():
        from redraft.train.local.side_by_side import check_work, train_side_by_side

    experiments, layout = Experiments(), Layout(preset_name)
    cells = [read_json(manifest)["run"].rpartition("/seed")[0] for manifest in manifests]
    runs = [experiments.run(cell, seed, preset_name) for cell in cells]
    report = _reporter(f"side by side seed {seed}", every=5)
    models = [layout.model(run.model_role) for run in runs]
    with _devices(runs[0].engine.gpus, file.parent):
        seconds = train_side_by_side(runs, models, progress=lambda i, n: report(i, n, f"{len(runs)} runs"))
    for run, manifest in zip(runs, manifests, strict=True):
        check_work(seconds[seconds["cell"] == run.cell], manifest.parent / "steps.jsonl")
    with atomic(file) as temporary:
        seconds.to_parquet(temporary, index=False)
    made_from = {run.cell: sha256(manifest) for run, manifest in zip(runs, manifests, strict=True)}
    write_json(file.with_suffix(".json"), {
        "sha256": hashes(file), "made_from": made_from, "git": git_state(), **environment(),
    })  # fmt: skip


def _devices(count: int, folder: Path) -> AbstractContextManager[tuple[str, ...]]:
    """Hold GPUs for the work in a folder."""
    from redraft.ops.locking.devices import devices

    return devices(count, str(folder))


def _train(run: Run, model: Path, folder: Path, git: dict[str, Any], held: Any) -> None:
    """Train one run in a folder on which this process has the lease."""
    from redraft.ops.locking.lease import took_part
    from redraft.provenance import write_manifest

    trainer, files = _trainer(run, model, folder, git["commit"])
    campaign = trainer.campaign
    report = _reporter(f"{run.paper}/{run.cell} seed {run.seed}", every=campaign.steps_per_epoch)
    trainer.train(lambda i, n, record: report(i, n, _summary(record)), held)
    policies = [campaign.folder.policy(step) for step in campaign.evaluated_steps]
    outputs = [campaign.folder.records, *sorted((folder / "rollouts").glob("*.parquet"))]
    outputs += [file for policy in policies for file in sorted(policy.glob("*.safetensors"))]
    inputs = trainer.inputs | {f"data/{name}": digest for name, digest in files.items()}
    held.check()
    write_manifest(
        folder / "manifest.json", run, outputs, git=git | {"commits": trainer.state.commits},
        seconds=trainer.state.seconds, inputs=inputs, processes=took_part(folder, run_fingerprint(run), campaign.steps),
    )  # fmt: skip


def _trainer(run: Run, model: Path, folder: Path, commit: str | None) -> tuple[Any, dict[str, str]]:
    """Trainer for the engine's kind, and hashes of the files of its problems.

    Both trainers have the same attributes and leave the same files.
    """
    if run.engine.kind == "verl":
        with loading():
            from redraft.train import models
            from redraft.train.verl.launch import VerlTrainer

        models.device_of(run.engine.device)  # refused, if it has to be, before any data are fetched
        data = _prepared(run)
        trainer = VerlTrainer(run, model, folder, commit, data / "problems.parquet")
        return trainer, read_json(data / "data.json")["sha256"]
    from redraft.tasks.problems import checksums

    with loading():
        from redraft.train.local.trainer import LocalTrainer

    return LocalTrainer(run, model, folder, commit), checksums(run.data)


def _prepared(run: Run) -> Path:
    """Folder of a run's training problems, which are prepared now if the workflow has not done it."""
    folder = Layout(run.preset).data(run.data_role)
    record = folder / "data.json"
    if not record.exists() or read_json(record)["data"] != run.data.model_dump(mode="json"):
        prepare_data(run.preset, run.data_role, folder)
    return folder


def _summary(record: dict[str, Any]) -> str:
    reward = record["reward"] if record["fresh_reward"] is None else record["fresh_reward"]
    reused = record["tokens_reused"] / max(record["tokens_reused"] + record["tokens_decoded"], 1)
    return f"epoch {record['epoch'] + 1}  reward {reward:.2f}  reused {reused:4.0%}"


def _reporter(name: str, every: int) -> Callable[[int, int, str], None]:
    """Make a function that prints a run's name, progress and remaining time after every `every` steps.

    Where steps are long it prints after each that ends `SILENCE` seconds after the last line.
    """
    began = spoke = time.perf_counter()
    first: list[int] = []

    def report(done: int, total: int, text: str) -> None:
        nonlocal spoke
        first.append(done - 1)
        if done % every and done != total and time.perf_counter() - spoke < SILENCE:
            return
        spoke = time.perf_counter()
        left = (time.perf_counter() - began) / (done - first[0]) * (total - done)
        first[1:] = []
        print(f"  {name:<34} {done:>4}/{total}  {text}  {left:4.0f} s left", file=sys.stderr, flush=True)

    return report


def generate(preset_name: str, protocol: str, seed: int, file: Path, policies: list[Path]) -> None:
    """Sample policies on the benchmarks of a protocol.

    Args:
        preset_name: name of the preset.
        protocol: name of the protocol (`Preset.protocol_of`).
        seed: seed of the sampling streams.
        file: file of the generations.
        policies: folders of policies, or manifests of runs, which stand for all policies that they name. A folder
            `step-NNNN` holds the policy after that step, any other name an initial policy.
    """
    from redraft.config import sampling_fingerprint
    from redraft.ops.locking.lease import EVALUATION, lease
    from redraft.provenance import environment, git_state, hashes

    with loading():
        from redraft.evaluate.generate import generate as sample

    preset = Experiments().preset(preset_name, protocol).of_seed(seed)
    log = file.parent / "generate.log"
    steps = {step: policy for path in policies for step, policy in _policies_of(path).items()}
    with lease(file.parent, EVALUATION, log) as held, _devices(min(preset.engine.gpus, 1), file.parent) as taken:
        held.uses(taken)
        sample(steps, preset.benchmarks, seed, preset.engine, preset.evaluation, file, check=held.check)
        write_json(file.with_suffix(".json"), {
            "sampled": sampling_fingerprint(preset), "evaluation": preset.evaluation.model_dump(), "seed": seed,
            "sha256": hashes(file), "made_from": hashes(*map(_file_of, policies)), "git": git_state(), **environment(),
        })  # fmt: skip


def _file_of(policy: Path) -> Path:
    """The file that says which policy it is: a run's manifest, or the weights in a folder."""
    return policy / "model.safetensors" if policy.is_dir() else policy


def _policies_of(path: Path) -> dict[int, Path]:
    """The policies that a manifest names, or the one in a folder, by the steps that they have done."""
    from redraft.provenance import policies_of

    if path.name == "manifest.json":
        return {step: path.parent / folder for step, folder in policies_of(read_json(path)).items()}
    prefix, _, step = path.name.rpartition("-")
    return {int(step) if prefix == "step" and step.isdigit() else 0: path}


def grade(preset_name: str, protocol: str, generations: Path, file: Path, processes: int = 1) -> None:
    """Grade saved generations on the benchmarks of a protocol (`Preset.protocol_of`)."""
    from redraft.evaluate.grade import grade as graded

    seed = read_json(generations.with_suffix(".json"))["seed"]
    graded(generations, Experiments().preset(preset_name, protocol).of_seed(seed).benchmarks, file, processes)


def lighteval(generations: Path, grades: Path, comparison: Path) -> None:
    """Grade IFEval's generations by lighteval too."""
    from redraft.evaluate.lighteval import grade_again

    grade_again(generations, grades, comparison)


def diversity(run_folder: Path, seed: int, file: Path) -> None:
    """Measure the diversity of a run's saved rollouts, which must be those that its manifest names."""
    from redraft.evaluate.diversity import measure
    from redraft.provenance import check_hashes, hashes

    manifest = run_folder / "manifest.json"
    rollouts = {name: digest for name, digest in read_json(manifest)["sha256"].items() if name.startswith("rollouts/")}
    check_hashes(run_folder, rollouts, manifest)
    measure(run_folder, seed, file)
    write_json(file.with_suffix(".json"), {"sha256": hashes(file), "made_from": hashes(manifest)})


def laws(file: Path) -> None:
    """Enumerate the laws of the bias laboratory."""
    from redraft.lab.audit.laboratory import laws as enumerated

    write_json(file, enumerated())


def observe(run_folder: Path, initial: Path, file: Path) -> None:
    """Measure how far a run's saved policies drift, and what each rule would keep of its rollouts.

    Args:
        run_folder: folder of a finished run without reuse.
        initial: folder of its initial policy.
        file: the JSON file to write.
    """
    with loading():
        from redraft.lab.predict.laboratory import observe as observed
        from redraft.lab.predict.runs import open_run

    with _devices(min(open_run(run_folder).configuration.engine.gpus, 1), file.parent):
        write_json(file, observed(run_folder, initial))


def choose_cases(run_folder: Path, file: Path) -> None:
    """Choose the case studies of a finished run."""
    from redraft.evaluate.cases import cases

    cases(run_folder, file)


def track(preset_name: str, paper: str) -> None:
    """Import the finished runs of a paper into MLflow's database."""
    from redraft.ops.workflow.tracking import import_runs

    import_runs(Layout(preset_name), paper)
