"""The vLLM that TRL starts in the trainer's process (`use_vllm=True`, `vllm_mode="colocate"`), for rollout functions.

TRL (1.16, `GRPOTrainer._generate`) copies the policy to it before a call of a rollout function in another step than
the last one. Its
workers are unmodified, so drafts can be scored at temperature 1 only, and no more than 20 tokens a position. It reports
log-probabilities after temperature and biases (`processed_logprobs`), and leaves `max_logprobs` at vLLM's default.
"""

from collections.abc import Collection, Coroutine
from types import MethodType
from typing import TYPE_CHECKING, Any, TypeVar

from redraft.engines.vllm.engine import TEMPERATURES
from redraft.engines.vllm.stock import MAX_LOGPROBS, StockEngine
from redraft.errors import UserError
from redraft.methods.reuse import ReuseMethod

if TYPE_CHECKING:
    from redraft.engines.vllm.in_process import InProcessClient

T = TypeVar("T")


class ColocatedEngine(StockEngine):
    """Engine over TRL's vLLM.

    Args:
        trainer: a GRPOTrainer.
        stops: tokens that end a response.
        longest: longest prompt of this batch plus `max_completion_length`, tokens.

    Raises:
        UserError: if `vllm_max_model_length` is below `longest` + 1, or if `load_weights_on_cpu` was not called for
            vLLM's CPU build.
    """

    client: "InProcessClient"

    def __init__(self, trainer: Any, stops: Collection[int], longest: int) -> None:
        # Imported once TRL has imported vLLM.
        from vllm.platforms import current_platform

        from redraft.engines.vllm.in_process import InProcessClient

        generation = trainer.vllm_generation
        # TRL's own way may end with an error before, or load nothing without one.
        if current_platform.is_cpu() and getattr(generation.sync_weights, "__func__", None) is not _reload_weights:
            raise UserError(
                "vLLM's CPU build does not take weights as TRL loads them",
                key="use_vllm",
                allowed="with redraft.integrations.trl_vllm.load_weights_on_cpu(trainer), before training",
            )
        engine = generation.llm.llm_engine
        # A draft of a whole response needs room for the token that vLLM samples after it.
        if longest + 1 > (most := engine.model_config.max_model_len):
            raise UserError(
                "prompt and response are too long for TRL's vLLM",
                key="vllm_max_model_length",
                value=most,
                allowed=f"at least {longest + 1}: prompt, max_completion_length and one token",
            )
        sampling = {
            "temperature": trainer.temperature,
            "detokenize": False,
            # As TRL's trainer counts ends; vLLM's own list of end-of-sequence tokens may be another.
            "ignore_eos": True,
            "stop_token_ids": sorted(stops),
        }
        super().__init__(InProcessClient(engine), stops, most, sampling, biased=True)

    def run(self, *coroutines: Coroutine[Any, Any, T]) -> list[T]:
        """Run coroutines that use this engine to their ends, concurrently; return their results in order."""
        return self.client.run(*coroutines)


def check_vllm(trainer: Any, rule: ReuseMethod) -> None:
    """Reject settings of TRL's vLLM that this module does not support.

    Args:
        trainer: a GRPOTrainer with `use_vllm`.
        rule: of reuse.

    Raises:
        UserError: with the first such setting.
    """
    args, top, temperature = trainer.args, rule.retention.top, trainer.temperature
    lowest, highest = TEMPERATURES
    obstacles = (
        ("vllm_mode", trainer.vllm_mode, trainer.vllm_mode != "colocate", "colocate"),
        ("vllm_enable_sleep_mode", True, args.vllm_enable_sleep_mode, "False"),
        (
            "vllm_structured_outputs_regex",
            args.vllm_structured_outputs_regex,
            args.vllm_structured_outputs_regex,
            "None",
        ),
        (
            "temperature",
            temperature,
            rule.scores and temperature != 1,
            f"1, at which vLLM scores drafts; {lowest} to {highest} with the rules none and random",
        ),
        ("temperature", temperature, not lowest <= temperature <= highest, f"{lowest} to {highest}"),
        ("top", top, top > MAX_LOGPROBS, f"at most {MAX_LOGPROBS}, vLLM's max_logprobs"),
    )
    for key, value, wrong, allowed in obstacles:
        if wrong:
            raise UserError(
                "redraft's rollout function does not support this setting with TRL's vLLM",
                key=key,
                value=value,
                allowed=allowed,
            )


def load_weights_on_cpu(trainer: Any) -> None:
    """Make TRL copy weights to vLLM's CPU build; call it once, before training. With other builds it does nothing.

    TRL loads weights in place, which does not reach the packed weights of the CPU build: with vLLM 0.31 its first step
    ends with an AttributeError.

    Args:
        trainer: a GRPOTrainer with `use_vllm=True` and `vllm_mode="colocate"`.

    Raises:
        UserError: for another trainer, or a model with tied embeddings.
    """
    if not (trainer.use_vllm and trainer.vllm_mode == "colocate"):
        raise UserError("this trainer has no vLLM in its process", key="vllm_mode", allowed="use_vllm=True, colocate")
    # Imported once TRL has imported vLLM.
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from redraft.engines.vllm.in_process import check_untied

    check_untied(trainer.vllm_generation.llm.llm_engine)
    trainer.vllm_generation.sync_weights = MethodType(_reload_weights, trainer.vllm_generation)


def _reload_weights(generation: Any) -> None:
    """Replaces `VLLMGeneration.sync_weights`."""
    from redraft.engines.vllm.in_process import reload_weights

    weights = ((name, weight.detach()) for name, weight in generation.model.named_parameters())
    reload_weights(generation.llm.llm_engine, weights)
