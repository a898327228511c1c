"""From a run to a process of verl's: its inputs, its configuration, its start, its progress and its end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf, open_dict

from redraft.config.experiment import Run
from redraft.config.identity import fingerprint, run_fingerprint
from redraft.errors import UserError
from redraft.files import NO_SPACE, sha256, write_atomically
from redraft.ops.devices import VISIBLE, held
from redraft.ops.lease import Lease
from redraft.tasks.problems import Problem
from redraft.tasks.prompts import encode
from redraft.train import models
from redraft.train.checkpoint import truncate_records
from redraft.train.local import Progress as Report
from redraft.train.run_folder import RunFolder
from redraft.train.verl.config import compose, environment
from redraft.train.verl.data import read_problems
from redraft.train.verl.progress import Progress, VerlCheckpoints
from redraft.train.verl.ray_cluster import ray_cluster, token

LOOK_SECONDS = 0.5
"""Between looks at the records of a running process."""
LAST_LINES = 15
"""Of the log, which are shown when it fails."""


@dataclass
class VerlTrainer:
    """Trains one run under verl.

    Args:
        run: what to train.
        model_folder: the initial policy in transformers' format; the reference policy too.
        path: where the run's files go; a checkpoint there is resumed from.
        commit: of the code, for the record.
        problem_file: the training data as `prepare_data` left them.
    """

    run: Run
    model_folder: Path
    path: Path
    commit: str | None
    problem_file: Path

    def __post_init__(self) -> None:
        self.folder = RunFolder(self.path)
        self.steps, self.steps_per_epoch = self.run.steps, self.run.trainer.steps_per_epoch(self.run.data.size)
        self.gpu = models.device_of(self.run.engine.device).type == "cuda"
        problems = read_problems(self.problem_file)
        self._check(problems)
        self.inputs = {
            "initial_policy": sha256(self.model_folder / "model.safetensors"),
            "problems": fingerprint([[problem.prompt, problem.answer] for problem in problems]),
        }
        self.identity = run_fingerprint(self.run)
        self.checkpoints = VerlCheckpoints(self.folder.checkpoints(self.identity), self.identity, self.inputs)
        self.state = Progress()
        self.lease: Lease | None = None

    @property
    def log(self) -> Path:
        """What verl, vLLM and Ray say."""
        return self.path / "verl.log"

    def _check(self, problems: list[Problem]) -> None:
        """Refuse what verl would stumble over after a minute, or not notice at all."""
        trainer = self.run.trainer
        longest = max(map(len, encode(models.load_tokenizer(self.model_folder), [p.prompt for p in problems])))
        if longest > trainer.max_prompt_tokens:
            raise UserError("a prompt is longer than prompts may be", key="trainer.max_prompt_tokens",
                            value=trainer.max_prompt_tokens, allowed=f"at least {longest}")  # fmt: skip
        needed = trainer.max_prompt_tokens + trainer.max_response_tokens + 1  # verification samples one token
        model = models.load_config(self.model_folder)
        if needed > (most := model.max_position_embeddings):
            raise UserError("the model has too few positions for prompt, response and one token more",
                            key="trainer.max_response_tokens", value=trainer.max_response_tokens,
                            allowed=f"at most {most - 1 - trainer.max_prompt_tokens} with max_prompt_tokens "
                            f"{trainer.max_prompt_tokens}")  # fmt: skip
        if model.tie_word_embeddings and not self.gpu:
            raise UserError("vLLM's CPU build keeps tied embeddings as they were when the trainer's change",
                            file=self.model_folder / "config.json", key="tie_word_embeddings", value=True,
                            allowed="false, or a GPU")  # fmt: skip

    def prepare(self) -> None:
        """Go back to the last whole checkpoint and write the configuration that goes on from there."""
        checkpoint, self.state = self.checkpoints.latest(hashes=True)
        if self.state.records < self.steps:
            self.folder.keep_finished(self.identity, self.inputs)
        self.folder.keep_checkpoints(self.identity)
        truncate_records(self.folder.records, self.state.records)
        self.folder.truncate_rollouts(self.state.records)
        self.folder.keep_policies([step for step in self.run.evaluated_steps if step <= self.state.records])
        if self.commit not in self.state.commits:
            self.state = replace(self.state, commits=[*self.state.commits, self.commit])
        if self.lease:
            self.lease.resumed_from(self.state.records)
        config = compose(self.run, self.model_folder, self.path, self.problem_file, gpu=self.gpu, resume=checkpoint,
                         inputs=self.inputs, commits=self.state.commits)  # fmt: skip
        with open_dict(config):
            config.redraft.lease = self.lease.token if self.lease else None
        write_atomically(self.path / "verl.yaml", OmegaConf.to_yaml(config))

    def train(self, report: Report = lambda *_: None, lease: Lease | None = None) -> None:
        """Run all steps that are not done yet.

        Args:
            report: called after each step.
            lease: of the folder, without which nobody makes sure that no other process works in it.

        Raises:
            LeaseLost: if another process has taken the folder.
            UserError: if verl fails; its log is kept, and what was finished before is not lost.
        """
        self.lease = lease
        self.path.mkdir(parents=True, exist_ok=True)
        self.prepare()
        if self.state.records < self.steps:
            print(f"starting verl, Ray and vLLM, which takes a minute or two; they log to {self.log}", file=sys.stderr)
            command = [sys.executable, "-m", "redraft.train.verl", str(self.path / "verl.yaml")]
            nodes, variables = self.run.engine.nodes, environment(self.gpu)
            gpus = self.run.engine.gpus if self.gpu else 1  # one processor stands for a GPU
            cluster: Any = ray_cluster(nodes, gpus, self.path, variables) if nodes > 1 else nullcontext(token())
            # Without a GPU none is visible, and Ray would refuse the one that a processor stands for.
            inherited = {name: value for name, value in os.environ.items() if self.gpu or name != VISIBLE}
            with cluster as address, _process(command, inherited | variables | address, self.log) as process:
                if lease:
                    lease.add_process(process.pid)
                code = self._watch(process, report)
            if code:
                raise self._failure(code)
        _, self.state = self.checkpoints.latest()
        if self.state.records < self.steps:
            raise UserError("verl ended before its last step", file=self.log, value=self.state.records,
                            allowed=str(self.steps))  # fmt: skip

    def _failure(self, code: int) -> UserError:
        end = self._end_of_log()
        if any(os.strerror(number) in end for number in NO_SPACE):
            return UserError("no space left while verl wrote; its last whole checkpoint is intact", file=self.log)
        return UserError(f"verl failed with exit code {code}; it ended with\n{end}", file=self.log)

    def _watch(self, process: subprocess.Popen, report: Report) -> int:
        """Report each record when it is written; returns the exit code."""
        seen = self.state.records
        while True:
            if self.lease:
                self.lease.check()
            code = process.poll()
            for record in _whole_lines(self.folder.records)[seen:]:
                seen += 1
                report(seen, self.steps, record)
            if code is not None:
                return code
            time.sleep(LOOK_SECONDS)

    def _end_of_log(self) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:])


@contextmanager
def _process(command: list[str], env: dict[str, str], log: Path) -> Iterator[subprocess.Popen]:
    """A process in a group of its own, which is ended with the block, and also when this process is told to end."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            pass_fds=held(),  # else a killed launcher would free GPUs that verl still uses
        )  # fmt: skip
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield process
    finally:
        _end(process)
        signal.signal(signal.SIGTERM, before)


def _end(process: subprocess.Popen) -> None:
    """Let a process end its workers, and kill what is left of its group."""
    try:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _whole_lines(file: Path) -> list[dict[str, Any]]:
    """Records that are written whole; another process may be writing the last one."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
