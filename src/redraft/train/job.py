"""A training job: one run from its last checkpoint to its manifest (rule `train`).

Trainers are imported once the folder and its GPUs are held: a second process for the same run ends at once.
"""

from pathlib import Path
from typing import Any

from redraft.cli.process import gc_paused
from redraft.config import Experiments, GymProblems, ProblemFile, Run, run_fingerprint
from redraft.errors import UserError
from redraft.files import read_json_lines, steps_in
from redraft.layout import Layout
from redraft.ops.locking.devices import devices
from redraft.ops.locking.lease import lease, participants
from redraft.provenance import git_state, write_manifest
from redraft.result_files import read_record
from redraft.train.progress import epoch_reporter, reporter


def train(preset_name: str, cell_id: str, seed: int, model: Path, folder: Path) -> None:
    """Train one run from its last checkpoint, if there is one; the manifest is written last."""
    git = git_state()  # now, since someone may go on editing while this trains
    run = Experiments().run(cell_id, seed, preset_name)
    _check_benchmarks(preset_name, cell_id)
    log = folder / "log.txt"
    with lease(folder, run_fingerprint(run), log) as held, devices(run.engine.gpus, str(folder)) as taken:
        held.record_devices(taken)
        _train(run, model, folder, git, held)


def _check_benchmarks(preset_name: str, cell_id: str) -> None:
    """Read the user's problem files, and sample reasoning-gym's problems, on which the policies will be evaluated, so
    that a mistake ends the job now, not after training."""
    from redraft.tasks.problems import check_answers, load_problems

    for name, benchmark in Experiments().preset_of(preset_name, cell_id).benchmarks.items():
        if isinstance(benchmark.data, ProblemFile | GymProblems):
            check_answers(load_problems(benchmark.data), benchmark.grading, name)


def _train(run: Run, model: Path, folder: Path, git: dict[str, Any], held: Any) -> None:
    """Train one run in a folder on which this process has the lease."""
    trainer, files = _trainer(run, model, folder, git["commit"])
    loop = trainer.loop
    name = f"{run.paper}/{run.cell} seed {run.seed}"
    report, report_epoch = reporter(name, every=loop.steps_per_epoch), epoch_reporter(name, loop.steps_per_epoch)

    def progress(done: int, total: int, record: dict[str, Any]) -> None:
        report(done, total, _summary(record))
        if done % loop.steps_per_epoch == 0:
            report_epoch(read_json_lines(loop.folder.records))

    trainer.train(progress, held)
    policies = [loop.folder.policy(step) for step in loop.evaluated_steps]
    outputs = [loop.folder.records, *steps_in(folder / "rollouts", ".parquet").values()]
    outputs += [file for policy in policies for file in sorted(policy.glob("*.safetensors"))]
    inputs = trainer.inputs | {f"data/{name}": digest for name, digest in files.items()}
    # A manifest says that the run is finished, so only the owner of the folder may write it.
    held.check()
    write_manifest(
        folder / "manifest.json",
        run,
        outputs,
        git=git | {"commits": loop.state.commits},
        seconds=loop.state.seconds,
        inputs=inputs,
        processes=participants(folder, run_fingerprint(run), loop.steps),
    )


def _trainer(run: Run, model: Path, folder: Path, commit: str | None) -> tuple[Any, dict[str, str]]:
    """Trainer for the engine's kind, and hashes of the files of its problems.

    Both trainers have the same attributes and leave the same files.
    """
    if run.engine.kind == "verl":
        with gc_paused():
            from redraft.train import models
            from redraft.train.verl.launch import VerlTrainer

        models.device_of(run.engine.device)  # rejected before any data are fetched
        data = _prepared(run)
        trainer = VerlTrainer(run, model, folder, commit, data / "problems.parquet")
        return trainer, _checked(trainer.inputs["problems"], data)
    from redraft.tasks.problems import checksums

    with gc_paused():
        from redraft.train.local.trainer import LocalTrainer

    return LocalTrainer(run, model, folder, commit), checksums(run.data)


def _prepared(run: Run) -> Path:
    """Folder of a run's training problems, which are prepared now if the workflow has not done it."""
    folder = Layout(run.preset).data(run.data_role)
    record = folder / "data.json"
    if not record.exists() or read_record(record, "data")["data"] != run.data.model_dump(mode="json"):
        from redraft.train.verl.problem_files import prepare_data

        prepare_data(run.preset, run.data_role, folder)
    return folder


def _checked(problems: str, folder: Path) -> dict[str, str]:
    """Hashes of the files that training problems were prepared from; a UserError if others were read there."""
    record = read_record(folder / "data.json", "fingerprint", "sha256")
    if problems != record["fingerprint"]:
        raise UserError(
            "these training problems are not those that were prepared",
            file=folder / "problems.parquet",
            key="fingerprint",
            value=problems,
            allowed=record["fingerprint"],
            hint=f"remove {folder}, so that they are prepared again",
        )
    files: dict[str, str] = record["sha256"]
    return files


def _summary(record: dict[str, Any]) -> str:
    reward = record["reward"] if record["fresh_reward"] is None else record["fresh_reward"]
    reused = record["tokens_reused"] / max(record["tokens_reused"] + record["tokens_decoded"], 1)
    return f"epoch {record['epoch'] + 1}  reward {reward:.2f}  reused {reused:4.0%}"
