"""A run as one complete configuration of verl, composed by Hydra from verl's own files and checked by verl's own rules.

`redraft.train.verl.settings` translates a run and its hardware to verl's keys; the preset's `engine.verl` adds site
settings.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from redraft.config import Experiments, Run
from redraft.config.read import merge
from redraft.config.trainer import EngineSettings, VerlEngine
from redraft.engines.vllm.engine import TEMPERATURES
from redraft.errors import UserError
from redraft.ops.sizing.gpu_memory import check_fits
from redraft.train.verl import config_rules
from redraft.train.verl.settings import engine_of, environment, has_flash_attention, on_cpu, on_gpus, settings

INERT = (".experiment_name", ".total_training_steps", ".total_epochs", ".lr", "seed")
"""Suffixes of keys that verl does not check; of runs that differ only in these keys, one is checked."""

__all__ = ["check", "check_cells", "compose", "environment", "show", "uses_gpu"]


def compose(
    run: Run,
    model: str | Path,
    folder: Path,
    problems: Path,
    *,
    gpu: bool,
    inputs: Mapping[str, str] | None = None,
    commits: Sequence[str | None] = (),
) -> DictConfig:
    """The complete configuration of a run, with this project's own settings under `redraft`.

    Args:
        problems: the training data as `redraft.train.verl.problem_files` writes them.
        inputs: hashes of the run's inputs, by name.

    Raises:
        UserError: for a setting that verl does not support, an unknown key, or a value that verl rejects.
    """
    _check_supported(run, gpu)
    # A copy, since the defaults are cached.
    config, site, file = (
        copy.deepcopy(config_rules.defaults()),
        engine_of(run).verl,
        f"experiments/presets/{run.preset}.yaml",
    )
    for key, value in {**_values(run, model, problems, gpu), **site}.items():
        config_rules.put(config, key, value, file if key in site else None)
    config_rules.check(config, site, file)
    with open_dict(config):
        config.redraft = {
            "run": run.model_dump(mode="json"),
            "folder": str(folder),
            "inputs": dict(inputs or {}),
            "commits": list(commits),
            "shards": config.actor_rollout_ref.rollout.agent.num_workers,
        }
    return config


def _values(run: Run, model: str | Path, problems: Path, gpu: bool) -> dict[str, Any]:
    """Values of verl's keys; arguments as of `compose`."""
    return config_rules.dotted(merge(settings(run, model, problems), on_gpus(run) if gpu else on_cpu(run)))


def uses_gpu(engine: EngineSettings) -> bool:
    """True if a run with these settings would use GPUs on this machine."""
    import torch

    return engine.device == "cuda" or (engine.device == "auto" and torch.cuda.is_available())


def show(run: Run, model: Path, folder: Path) -> str:
    """The configuration as YAML with all values resolved; arguments and errors as of `compose`."""
    engine = run.engine
    if not isinstance(engine, VerlEngine):
        # A run of the local trainer is shown as verl would get it: without what only the other engine has.
        engine = VerlEngine(**engine.model_dump(exclude={"kind", "dtype", "draft_chunk", "calibrations"}))
    run = run.model_copy(update={"engine": engine})
    config = compose(run, model, folder, folder / "problems.parquet", gpu=uses_gpu(engine))
    return OmegaConf.to_yaml(config, resolve=True)


def check(runs: Sequence[Run]) -> int:
    """Compose the configurations of runs before any of them starts; returns the number of different ones."""
    checked, model, problems = set(), "model", Path("problems.parquet")
    check_fits([run for run in runs if uses_gpu(run.engine)])
    for run in runs:
        gpu = uses_gpu(run.engine)
        try:
            _check_supported(run, gpu)
            values = {k: value for k, value in _values(run, model, problems, gpu).items() if not k.endswith(INERT)}
            identity = json.dumps([run.preset, values, engine_of(run).verl], sort_keys=True)
            if identity not in checked:
                compose(run, model, Path("run"), problems, gpu=gpu)
        except UserError as error:
            raise error.replace(message=f"{run.paper}/{run.cell}: {error.message}") from None
        checked.add(identity)
    return len(checked)


def check_cells(preset_name: str, cells: list[str]) -> None:
    """Check the configurations of a preset's cells (`check`)."""
    experiments = Experiments()
    check([experiments.run(cell, 0, preset_name) for cell in cells])


def _check_supported(run: Run, gpu: bool) -> None:
    """Raise a UserError for the first setting that verl would reject late or silently treat differently."""
    run.check_supported()
    run.schedule.check(run.trainer, run.data.size)
    _check_bitwise(run, gpu)
    trainer, engine = run.trainer, engine_of(run)
    ranks = (engine.gpus if gpu else 1) * engine.nodes
    rows = trainer.most_prompts_per_update * trainer.group_size
    longest = trainer.max_prompt_tokens + trainer.max_response_tokens
    # Groups or updates of different sizes, which `RowWriter` fills with masked rows.
    ragged = run.reuse.kind == "staged" or len(set(trainer.groups_of_updates(trainer.batch_prompts))) > 1
    lowest, highest = TEMPERATURES
    rules: list[tuple[bool, str, str, Any, str]] = [
        (
            not lowest <= trainer.temperature <= highest,
            "vLLM does not sample at this temperature",
            "trainer.temperature",
            trainer.temperature,
            f"{lowest} to {highest}",
        ),
        (
            ragged and run.algorithm.loss_agg_mode != "token-mean",
            "a loss over sequences would count the masked rows of smaller groups or updates",
            "algorithm.loss_agg_mode",
            run.algorithm.loss_agg_mode,
            "token-mean",
        ),
        (gpu and not engine.gpus, "a run on GPUs needs at least one", "engine.gpus", engine.gpus, "at least 1"),
        (
            max(engine.gpus, 1) % engine.tensor_parallel > 0,
            "replicas of vLLM must divide the GPUs",
            "engine.tensor_parallel",
            engine.tensor_parallel,
            f"divisors of {max(engine.gpus, 1)}",
        ),
        (
            rows % max(ranks, 1) > 0,
            f"the {rows} rollouts of an update cannot be spread evenly",
            "engine.gpus",
            ranks,
            f"divisors of {rows}",
        ),
        (
            gpu and engine.max_tokens_per_gpu < longest,
            "the longest prompt and response must fit into one pass",
            "engine.max_tokens_per_gpu",
            engine.max_tokens_per_gpu,
            f"at least {longest}",
        ),
    ]
    for wrong, message, key, value, allowed in rules:
        if wrong:
            raise UserError(message, key=key, value=value, allowed=allowed)


def _check_bitwise(run: Run, gpu: bool) -> None:
    """Raise a UserError if results would depend on the batch although `engine.bitwise` is set."""
    if not run.engine.bitwise or (gpu and has_flash_attention()):
        return
    if gpu:
        reason = "without flash-attn the backward pass of attention is not deterministic"
        allowed = "false, or an environment with flash-attn (docs/verl.md)"
    else:
        reason = "vLLM's kernels for processors depend on the batch"
        allowed = "false, or engine.device: cuda; on a processor engine.kind: torch"
    raise UserError(reason, key="engine.bitwise", value=True, allowed=allowed)
