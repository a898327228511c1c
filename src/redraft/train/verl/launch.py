"""verl's process of a run: its configuration, start, progress and end.

verl saves parts of a checkpoint as pickles and loads them without restrictions (`torch.load(…, weights_only=False)`).
Such a pickle can call any function that it names. So before verl loads a checkpoint, the names in its pickles are read
without executing them, and only names of tensors, random states and counters are accepted.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile

from omegaconf import OmegaConf, open_dict

from redraft.config.experiment import Run
from redraft.config.requests import ray_cpus
from redraft.engines.torch.head import check_constant_rotation
from redraft.errors import UserError
from redraft.files import NO_SPACE, write_atomically
from redraft.messages import echo
from redraft.ops.locking.devices import lock_descriptors
from redraft.ops.locking.gpus import VISIBLE
from redraft.ops.locking.lease import Lease
from redraft.ops.locking.termination import exit_on_signal
from redraft.tasks.problems import Problem, check_answers
from redraft.tasks.prompts import check_lengths, encode
from redraft.train import models
from redraft.train.checkpoint import TrainingState
from redraft.train.loop import Progress as Report
from redraft.train.loop import TrainingLoop, inputs_of
from redraft.train.verl.config import compose, environment
from redraft.train.verl.problem_files import read_problems
from redraft.train.verl.ray_cluster import ray_cluster, token
from redraft.train.verl.settings import engine_of, socket_variables

POLL_SECONDS = 0.5
"""Interval between reads of the records of a running process."""
LAST_LINES = 15
"""Last lines of the log that are shown when verl fails."""
STATE_NAMES = frozenset(
    {
        "numpy.core.multiarray._reconstruct",
        "numpy._core.multiarray._reconstruct",
        "numpy.core.multiarray.scalar",
        "numpy._core.multiarray.scalar",
        "numpy.ndarray",
        "numpy.dtype",
    }
)
"""Names in NumPy's random state. `weights_only` already allows tensors, FSDP2's shards and counters."""


class VerlTrainer:
    """Trains one run under verl in another process, which runs the training loop (`redraft.train.verl.trainer`).

    Args:
        model_folder: the initial policy in transformers' format; also the reference policy.
        path: folder of the run's files; training resumes from a checkpoint there.
        problem_file: the training data, written by `prepare_data`.

    Raises:
        UserError: for errors that verl would report only after a minute, or never.
    """

    def __init__(self, run: Run, model_folder: Path, path: Path, commit: str | None, problem_file: Path) -> None:
        self.run, self.model_folder, self.path, self.commit, self.problem_file = (
            run,
            model_folder,
            path,
            commit,
            problem_file,
        )
        self.gpu = models.device_of(run.engine.device).type == "cuda"
        problems = read_problems(problem_file)
        check_answers(problems, run.grading, "data")
        self._check(problems)
        self.inputs = inputs_of(model_folder, problems)
        self.loop = TrainingLoop(run, path, self.inputs, len(problems), reject_code_in_pickles)
        self.lease: Lease | None = None

    @property
    def state(self) -> TrainingState:
        """Progress of the run."""
        return self.loop.state

    @property
    def log(self) -> Path:
        """Messages of verl, vLLM and Ray."""
        return self.path / "verl.log"

    def _check(self, problems: Sequence[Problem]) -> None:
        trainer = self.run.trainer
        check_lengths(
            encode(models.load_tokenizer(self.model_folder), [p.prompt for p in problems]), trainer.max_prompt_tokens
        )
        needed = self.run.longest_sequence
        spare = needed - trainer.max_prompt_tokens - trainer.max_response_tokens
        model = models.load_config(self.model_folder)
        if needed > (most := model.max_position_embeddings):
            raise UserError(
                "the model has too few positions for prompt, response" + (" and one more token" if spare else ""),
                key="trainer.max_response_tokens",
                value=trainer.max_response_tokens,
                allowed=f"at most {most - spare - trainer.max_prompt_tokens} with max_prompt_tokens "
                f"{trainer.max_prompt_tokens}",
            )
        check_constant_rotation(model, needed, self.model_folder)
        if model.tie_word_embeddings and not self.gpu:
            raise UserError(
                "vLLM's CPU build does not update tied embeddings when the trainer does",
                file=self.model_folder / "config.json",
                key="tie_word_embeddings",
                value=True,
                allowed="false, or a GPU",
            )

    def train(self, report: Report = lambda *_: None, lease: Lease | None = None) -> None:
        """Take all steps that are not done yet; see `TrainingLoop.prepare` and `TrainingLoop.train`.

        Raises:
            UserError: if verl fails; its log and the last checkpoint are kept.
        """
        self.lease = lease
        self.loop.prepare(self.commit, lease)
        if self.state.step < self.loop.steps:
            echo(f"starting verl, Ray and vLLM, which takes a minute or two; they log to {self.log}", err=True)
            self._run(report)
        # The steps were taken in verl's process, which wrote the state that is read here.
        self.loop.load_state(hashes=False)
        if self.state.step < self.loop.steps:
            raise UserError(
                "verl ended before its last step",
                file=self.log,
                value=self.state.step,
                allowed=str(self.loop.steps),
            )

    def _run(self, report: Report) -> None:
        """Write verl's configuration, start its process and watch it to its end."""
        config = compose(
            self.run,
            self.model_folder,
            self.path,
            self.problem_file,
            gpu=self.gpu,
            inputs=self.inputs,
            commits=self.state.commits,
        )
        with open_dict(config):
            config.redraft.lease = self.lease.token if self.lease else None
        file = self.path / "verl.yaml"
        write_atomically(file, OmegaConf.to_yaml(config))
        command = [sys.executable, "-m", "redraft.train.verl", str(file)]
        nodes, fused = self.run.engine.nodes, config.actor_rollout_ref.model.use_fused_kernels
        variables = environment(self.gpu, fused) | socket_variables(os.environ)
        gpus = self.run.engine.gpus if self.gpu else 1  # a CPU counts as one GPU
        cluster: Any = nullcontext(token())
        if nodes > 1:
            cluster = ray_cluster(nodes, gpus, ray_cpus(engine_of(self.run)), self.path, variables)
        # On a CPU this variable hides all GPUs, and Ray would reject the one that represents the CPU.
        inherited = {name: value for name, value in os.environ.items() if self.gpu or name != VISIBLE}
        with cluster as address, _process(command, inherited | variables | address, self.log) as process:
            if self.lease:
                self.lease.add_process(process.pid)
            code = self._watch(process, report)
        if code:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            end = "\n".join(lines[-LAST_LINES:])
            if any(os.strerror(number) in end for number in NO_SPACE):
                raise UserError("no space left while verl wrote; its last whole checkpoint is intact", file=self.log)
            raise UserError(f"verl failed with exit code {code}; the end of its log:\n{end}", file=self.log)

    def _watch(self, process: subprocess.Popen, report: Report) -> int:
        """Report each record when it is written; returns the exit code."""
        seen, records = self.state.step, self.loop.folder.records
        while True:
            if self.lease:
                self.lease.check()
            # Before the records are read: those of a process that has ended are complete.
            code = process.poll()
            text = records.read_text(encoding="utf-8") if records.exists() else ""
            for line in text[: text.rfind("\n") + 1].splitlines()[seen:]:  # the last line may be incomplete
                seen += 1
                report(seen, self.loop.steps, json.loads(line))
            if code is not None:
                return code
            time.sleep(POLL_SECONDS)


@contextmanager
def _process(command: list[str], env: dict[str, str], log: Path) -> Iterator[subprocess.Popen]:
    """A process in its own group, ended with the block, also when this process is terminated."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=env,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            stdin=subprocess.PIPE,  # closes when this process ends, also by SIGKILL
            pass_fds=lock_descriptors(),  # keeps the GPU locks until verl ends, even if this process is killed
        )
    with exit_on_signal(), process:
        try:
            yield process
        finally:  # give it time to end its workers, then kill the rest of its group
            try:
                if process.poll() is None:
                    process.terminate()
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(timeout=20)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def reject_code_in_pickles(checkpoint: Path) -> None:
    """Raise a UserError for the first pickle of a checkpoint that names more than data or cannot be read."""
    import torch.distributed.tensor  # noqa: F401  registers its types as safe
    from torch.serialization import get_unsafe_globals_in_checkpoint

    for file in sorted(checkpoint.rglob("*.pt")):
        try:
            unsafe = sorted(set(get_unsafe_globals_in_checkpoint(str(file))) - STATE_NAMES)
        except (UnpicklingError, ValueError, EOFError, RuntimeError, BadZipFile) as error:
            raise UserError(
                f"this file of a checkpoint cannot be checked ({error})", file=file, allowed="a file of torch.save"
            ) from None
        if unsafe:
            raise UserError(
                "this file of a checkpoint would execute code when it is loaded",
                file=file,
                value=", ".join(unsafe),
                allowed="tensors and numbers",
                hint=f"remove {checkpoint}",
            )
