"""This project's backends as a model of lm-eval, named `redraft`.

Prompts, random numbers and decoding equal those of an evaluation without lm-eval, so the generations are the same.
Log-likelihoods of given answers are not implemented, since no task here needs them.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import simple_parse_args_string

from redraft.config.data import Sampling
from redraft.config.read import parse
from redraft.config.trainer import EngineSettings
from redraft.errors import UserError
from redraft.evaluate.backend import Backend, GenerationRequest, Response
from redraft.evaluate.backends import open_backend
from redraft.tasks.prompts import encode

SampleKey = tuple[str, int, int]
"""Task, problem and sample."""
# Values at which these settings change nothing; other settings are rejected at any value.
_WITHOUT_EFFECT = {"until": [], "top_k": 0, "repetition_penalty": 1.0, "do_sample": None}
_USED = ("temperature", "top_p", "max_gen_toks")


@register_model("redraft")
class RedraftModel(LM):
    """A backend with lm-eval's model interface.

    Attributes:
        responses: responses of the last call, by task, problem and sample.
    """

    def __init__(self, backend: Backend, seed: int = 0) -> None:
        super().__init__()
        self.backend, self.seed, self.tokenizer = backend, seed, backend.tokenizer
        self.responses: dict[SampleKey, Response] = {}

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict | None = None) -> "RedraftModel":
        """Create a model from the string of `--model_args`; see `create_from_arg_obj`."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict, additional_config: dict | None = None) -> "RedraftModel":
        """Create a model from `pretrained` (a folder or hub id), `backend`, `seed` and fields of `EngineSettings`.

        Of lm-eval's own settings only `--device cpu` has an effect. The batch size is the engine's `max_rows`.

        Raises:
            UserError: if `pretrained` is missing, or for any other argument.
        """
        settings = dict(arg_dict)
        if "pretrained" not in settings:
            raise UserError(
                "the policy to sample is missing", key="model_args", allowed="pretrained=<folder or hub id>"
            )
        policy, seed = str(settings.pop("pretrained")), int(settings.pop("seed", 0))
        kind = settings.pop("backend", "torch")
        # Any other device is lm-eval's default, cuda:0, also without a GPU.
        if (additional_config or {}).get("device") == "cpu":
            settings.setdefault("device", "cpu")
        engine = parse(EngineSettings, settings, "--model_args")
        return cls(open_backend(kind, Path(policy) if Path(policy).exists() else policy, engine), seed)

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Sample all requests; returns their texts in order, without special tokens.

        Raises:
            UserError: for generation settings that the backends lack.
        """
        keys, self.responses = number(requests), {}
        by_task: dict[str, list[int]] = defaultdict(list)
        for i, (task, _, _) in enumerate(keys):
            by_task[task].append(i)
        for task, members in by_task.items():  # all requests of a task have the same settings
            document, (_, settings) = requests[members[0]].doc, requests[members[0]].args
            prompts = encode(self.tokenizer, [requests[i].args[0] for i in members], document.get("chat", "auto"))

            def deliver(*responses: Response, task: str = task) -> None:
                self.responses |= {(task, response.problem, response.sample): response for response in responses}

            numbered = [GenerationRequest(*keys[i][1:], prompt) for i, prompt in zip(members, prompts, strict=True)]
            # The name of random streams, so that samples equal those without lm-eval.
            name = document.get("benchmark", task)
            self.backend.sample(name, numbered, sampling(settings), self.seed, deliver)
        return [self.tokenizer.decode(self.responses[key].tokens, skip_special_tokens=True) for key in keys]

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Always raise a UserError: the backend applies the chat template itself, as without lm-eval."""
        raise UserError(
            "the model `redraft` applies the chat template itself",
            key="apply_chat_template",
            value=True,
            allowed="no --apply_chat_template",
        )

    def loglikelihood(self, requests: Sequence[Instance]) -> list[tuple[float, bool]]:
        """Always raise a NotImplementedError: this model only samples."""
        raise NotImplementedError("the model `redraft` samples and scores no given answers; use lm-eval's hf or vllm")

    def loglikelihood_rolling(self, requests: Sequence[Instance]) -> list[float]:
        """Always raise a NotImplementedError: this model only samples."""
        raise NotImplementedError("the model `redraft` samples and scores no given text; use lm-eval's hf or vllm")


def number(requests: Sequence[Instance]) -> list[SampleKey]:
    """Task, problem and sample of each request.

    For several samples lm-eval repeats the same instance, so the number of its earlier occurrences is the sample index.
    """
    seen: Counter[tuple[str, int]] = Counter()
    keys = []
    for request in requests:
        key = str(request.task_name), int(request.doc.get("problem", request.doc_id))
        keys.append((*key, seen[key]))
        seen[key] += 1
    return keys


def sampling(settings: dict[str, Any]) -> Sampling:
    """Sampling settings from a task's `generation_kwargs`.

    Raises:
        UserError: for settings that would change the samples and that the backends lack.
    """
    known = dict(normalize_gen_kwargs(settings))
    for key, value in known.items():
        if key not in _USED and key != "do_sample" and value != _WITHOUT_EFFECT.get(key, ...):
            raise UserError(
                "the model `redraft` lacks this generation setting",
                key=key,
                value=value,
                allowed="do_sample, max_gen_toks, temperature, top_p, and `until: []`",
            )
    return Sampling(
        temperature=known.get("temperature", 0.0) if known["do_sample"] else 0.0,
        top_p=known.get("top_p", 1.0),
        max_new_tokens=known["max_gen_toks"],
    )
