"""verl's rules for a configuration: its keys, their types, and the checks of its classes."""

import contextlib
import copy
import io
import typing
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

from hydra.errors import HydraException
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from redraft.config.base import near
from redraft.config.verl_keys import under
from redraft.errors import UserError

PASSED_ON = (
    "actor_rollout_ref.model.override_config",
    "critic.model.override_config",
    "actor_rollout_ref.rollout.engine_kwargs.vllm",
    "ray_kwargs.ray_init",
    "trainer.v1.sampler.sampler_kwargs",
)
"""Mappings that verl passes unchanged to transformers, vLLM, Ray and a custom replay buffer."""
REJECTIONS = (HydraException, OmegaConfBaseException, AssertionError, NotImplementedError, TypeError, ValueError)
"""Errors that verl raises for an invalid configuration."""


@cache
def defaults() -> DictConfig:
    """verl's default configuration, cached, since importing verl takes seconds."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer")


def dotted(table: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Flatten a nested table to dotted keys, as deep as verl's own configuration is nested."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        key = above + name
        nested = isinstance(value, dict) and isinstance(OmegaConf.select(defaults(), key), DictConfig)
        flat |= dotted(value, f"{key}.") if nested and key not in PASSED_ON else {key: value}
    return flat


def put(config: DictConfig, key: str, value: Any, file: str | None) -> None:
    """Set a dotted key.

    Args:
        config: changed in place.
        key: a key of verl's YAML, a field of the dataclass that it is read into, or a key below `PASSED_ON`.
        value: must have the type of that field or of its default.
        file: file of the key, for the message.

    Raises:
        UserError: if verl has no such key, or the value is of another type.
    """
    above, _, name = key.rpartition(".")
    known, kind = OmegaConf.select(config, above) if above else config, None  # None if verl has no such key
    if isinstance(known, DictConfig):
        fields = _fields(str(known.get("_target_", "")))
        if name in fields:
            kind = fields[name]
        elif name in known:
            kind = type(known.get(name))
            kind = (
                kind if kind in (bool, int, float) else Any
            )  # where the default is a text, verl often accepts a list too
        elif any(under(above, free) for free in PASSED_ON):
            kind = Any
    if kind is None:
        names = known if isinstance(known, DictConfig) else config
        raise UserError("verl has no such key", file=file, key=key, value=value, allowed=near(name, map(str, names)))
    if not _fits(value, kind):
        raise UserError(
            "verl expects another type here",
            file=file,
            key=key,
            value=value,
            allowed=getattr(kind, "__name__", str(kind)),
        )
    OmegaConf.update(config, key, value, merge=True, force_add=True)


@cache
def _fields(target: str) -> dict[str, Any]:
    """Fields and types of one of verl's dataclasses, by its full name."""
    return typing.get_type_hints(get_class(target)) if target else {}


def _fits(value: Any, kind: Any) -> bool:
    try:
        # Strict, since Pydantic would otherwise take the text "5" for a number.
        TypeAdapter(kind).validate_python(value, strict=not isinstance(value, dict | list))
    except ValidationError:
        return False
    except PydanticUserError:  # one of verl's classes, which verl checks itself
        return True
    return True


def check(config: DictConfig, site: dict[str, Any], file: str) -> None:
    """Run verl's start-up checks of a configuration, except those that need the model's files.

    Args:
        site: keys that the preset's site settings changed; named in the error if their part is rejected.

    Raises:
        UserError: with verl's message.
    """
    resolved = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    for part, verify in _checks(resolved).items():
        try:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():  # verl prints passed checks
                warnings.simplefilter("ignore")
                verify()
        except REJECTIONS as error:
            ours = [f"{key}: {value}" for key, value in site.items() if under(key, part)]
            message = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise UserError(
                f"verl rejects this configuration: {message}",
                file=file if ours else None,
                key=part,
                value="; ".join(ours) or None,
            ) from None


def _checks(config: DictConfig) -> dict[str, Callable[[], Any]]:
    """verl's checks, by the part of the configuration."""
    from verl.trainer.ppo.utils import need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config
    from verl.workers.config import HFModelConfig

    workers, critic = config.actor_rollout_ref, config.critic
    reference = need_reference_policy(config)
    # The critic is checked separately below, since `use_critic=True` would read the model's files.
    checks: dict[str, Callable[[], Any]] = {
        "actor_rollout_ref.actor": lambda: validate_config(config, use_reference_policy=reference, use_critic=False),
        "actor_rollout_ref.ref": lambda: omega_conf_to_dataclass(_as_a_worker_reads(workers.ref)),
        "actor_rollout_ref.rollout": lambda: omega_conf_to_dataclass(workers.rollout),
        "actor_rollout_ref.model": lambda: OmegaConf.merge(OmegaConf.structured(HFModelConfig), workers.model),
        "algorithm": lambda: omega_conf_to_dataclass(config.algorithm),
    }
    if critic.enable:
        checks["critic.model"] = lambda: OmegaConf.merge(OmegaConf.structured(HFModelConfig), critic.model)
        rest = OmegaConf.masked_copy(critic, [str(key) for key in critic if key != "model"])
        checks["critic"] = lambda: omega_conf_to_dataclass(rest).validate(
            config.trainer.n_gpus_per_node, config.data.train_batch_size
        )
    return checks


def _as_a_worker_reads(ref: DictConfig) -> DictConfig:
    """The reference policy's part with keys renamed as in verl's worker (`ActorRolloutRefWorker`)."""
    renamed = copy.deepcopy(ref)
    for ours, theirs in (
        ("log_prob_micro_batch_size", "ppo_micro_batch_size"),
        ("log_prob_micro_batch_size_per_gpu", "ppo_micro_batch_size_per_gpu"),
        ("log_prob_use_dynamic_bsz", "use_dynamic_bsz"),
        ("log_prob_max_token_len_per_gpu", "ppo_max_token_len_per_gpu"),
    ):
        renamed[theirs] = renamed.pop(ours)
    return renamed
