"""`redraft certify`: tests whether any sampler samples from a policy's distribution (docs/certify.md)."""

import json
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redraft.cli.arguments import AsJson
from redraft.cli.terminal import document
from redraft.errors import UserError
from redraft.files import write_json
from redraft.messages import echo

if TYPE_CHECKING:
    from redraft.certify import Policy, Sampler

GENERATE = "generate"
"""Name of transformers' `generate` as a sampler."""


def certify(
    sampler: Annotated[str, typer.Argument(help="MODULE:NAME of a function, a server's URL up to /v1, or `generate`.")],
    policy: Annotated[str, typer.Option(help="Reference: a model's folder, MODULE:NAME, or a server's URL.")],
    prompts: Annotated[Path, typer.Option(help="File of JSON lines; each is a list of token ids or a text.")],
    samples: Annotated[int, typer.Option(help="Responses per prompt in a call.", min=1)] = 32,
    max_tokens: Annotated[int, typer.Option(help="Longest response, tokens.", min=1)] = 32,
    calls: Annotated[int, typer.Option(help="Number of calls of the sampler, each with all prompts.", min=1)] = 2,
    temperature: Annotated[float, typer.Option(help="Temperature that the sampler should have.", min=0.01)] = 1.0,
    reported_temperature: Annotated[
        float | None, typer.Option(help="Temperature of reported log-probabilities; 1 for servers if empty.", min=0.01)
    ] = None,
    level: Annotated[float, typer.Option(help="Largest probability with which an exact sampler fails.")] = 1e-4,
    tolerance: Annotated[float, typer.Option(help="Accepted mean error of reported log-probabilities, nats.")] = 0.05,
    resolution: Annotated[float, typer.Option(help="Relative error of the temperature that must be detectable.")] = 0.1,
    other: Annotated[
        list[str] | None, typer.Option(help="Policy that the sampler might use by mistake; as --policy, repeatable.")
    ] = None,
    parameter: Annotated[
        list[str] | None, typer.Option(help="key=value for each request to a server or for `generate`; repeatable.")
    ] = None,
    end_tokens: Annotated[str, typer.Option(help="Comma-separated ids of end tokens, if --policy is a server.")] = "",
    model: Annotated[str, typer.Option(help="Name of the model at a server; the server's first one if empty.")] = "",
    top: Annotated[int, typer.Option(help="Most probable tokens that a server as --policy reports.", min=1)] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the tests' random numbers.")] = 0,
    output: Annotated[Path | None, typer.Option(help="Also write the certificate to this JSON file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Test whether a sampler samples from a policy's distribution. Exit code 1 unless it passes."""
    from redraft.certify import Verdict
    from redraft.certify import certify as make

    given = _parameters(parameter or [])
    lines = _lines(prompts)
    reference, tokenizer = _policy(policy, end_tokens, model, top)
    token_lists = [_tokens(line, tokenizer, prompts) for line in lines]
    others = {name: _policy(name, end_tokens, model, top)[0] for name in other or []}
    tested = _sampler(sampler, reference, temperature, given, model)
    if sampler.startswith("http") and reported_temperature is None:
        reported_temperature = 1.0  # vLLM's raw_logprobs
    certificate = make(
        tested,
        reference,
        token_lists,
        samples=samples,
        max_tokens=max_tokens,
        calls=calls,
        temperature=temperature,
        reported_temperature=reported_temperature,
        level=level,
        tolerance=tolerance,
        resolution=resolution,
        others=others,
        seed=seed,
        decode=None if tokenizer is None else tokenizer.decode,
    )
    content = certificate.as_dict()
    if output is not None:
        write_json(output, content)
    if as_json:
        request = {"sampler": sampler, "policy": policy, "prompts": prompts, "other": other or [], "parameter": given}
        echo(document("certify", request | content["settings"], content["results"], str(certificate).splitlines()))
    else:
        echo(str(certificate))
    if certificate.verdict is not Verdict.PASSES:
        sys.exit(1)


def _parameters(texts: list[str]) -> dict[str, Any]:
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UserError("no key=value", key="--parameter", value=text)
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value
    return found


def _lines(file: Path) -> list[Any]:
    """Prompts as they are in the file."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"no file of prompts can be read ({type(error).__name__})", file=file, key="--prompts"
        ) from None
    found = []
    # Not `splitlines`, which also splits at characters that JSON allows within a text, such as U+2028.
    for number, line in enumerate(re.split("\r\n|\r|\n", text.removeprefix("\ufeff")), 1):
        if not line.strip():
            continue
        try:
            prompt = json.loads(line)
        except (ValueError, RecursionError):
            prompt = None
        ids = isinstance(prompt, list) and all(type(token) is int and token >= 0 for token in prompt)
        if not prompt or not (ids or isinstance(prompt, str)):
            raise UserError(
                f"line {number} is no prompt",
                file=file,
                value=line[:80],
                allowed='[1, 2, 3] with token ids, or "a text"',
            )
        found.append(prompt)
    if not found:
        raise UserError("there is no prompt", file=file)
    return found


def _tokens(prompt: Any, tokenizer: Any, file: Path) -> list[int]:
    if isinstance(prompt, list):
        return prompt
    if tokenizer is None:
        raise UserError(
            "a text needs a tokenizer",
            file=file,
            value=prompt[:80],
            allowed="token ids, or the folder of a model as --policy",
        )
    return tokenizer(prompt)["input_ids"]


def _named(name: str, key: str) -> Any:
    """Object of a module in the working directory or installed, by MODULE:NAME."""
    from redraft.certify.protocol import blamed

    module, _, attribute = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        # It stays: the module's functions may import others when they are called.
        sys.path.insert(0, str(Path.cwd()))
    try:
        with blamed(f"the module {module}"):
            found = import_module(module)
    except UserError as error:
        cause = error.__cause__
        if not isinstance(cause, ModuleNotFoundError):
            raise
        if not f"{module}.".startswith(f"{cause.name}."):
            raise cause from None  # a package that the module needs
        raise UserError("there is no such module", key=key, value=name, allowed="MODULE:NAME") from None
    if not attribute or not hasattr(found, attribute):
        raise UserError(f"the module has no {attribute or 'name'}", key=key, value=name, allowed="MODULE:NAME")
    return getattr(found, attribute)


def _policy(name: str, end_tokens: str, model: str, top: int) -> tuple["Policy", Any]:
    """A policy, and the tokenizer of a model's folder."""
    if name.startswith("http"):
        from redraft.certify.server import Server, ServerPolicy

        try:
            ends = [int(token) for token in end_tokens.split(",") if token]
        except ValueError:
            raise UserError("no token ids", key="--end-tokens", value=end_tokens, allowed="such as 0,2") from None
        if not ends:
            raise UserError(
                "a server does not say which tokens end a response", key="--end-tokens", allowed="such as 0,2"
            )
        return ServerPolicy(Server(name, model), ends, top), None
    if Path(name).is_dir():
        from redraft.certify.transformers_policy import load

        return load(name)
    if ":" not in name:
        raise UserError("no such folder", key="--policy", value=name, allowed="a folder, MODULE:NAME, or a URL")
    found = _named(name, "--policy")
    if not hasattr(found, "log_probs") or not hasattr(found, "end_tokens"):
        raise UserError("the policy has no log_probs or no end_tokens", key="--policy", value=name)
    return found, None


def _sampler(name: str, policy: "Policy", temperature: float, parameters: dict[str, Any], model: str) -> "Sampler":
    if name.startswith("http"):
        from redraft.certify.server import Server, ServerSampler

        return ServerSampler(Server(name, model), temperature, parameters)
    if name == GENERATE:
        from redraft.certify.transformers_policy import Generate, TransformersPolicy

        if not isinstance(policy, TransformersPolicy):
            raise UserError("`generate` needs a model", key="--policy", allowed="the folder of a model")
        return Generate(policy, **{"temperature": temperature} | parameters)
    if parameters:
        raise UserError("a Python function gets no parameters", key="--parameter", value=next(iter(parameters)))
    found = _named(name, "SAMPLER") if ":" in name else None
    if not callable(found):
        raise UserError(
            "no sampler", key="SAMPLER", value=name, allowed="MODULE:NAME of a function, a URL, or `generate`"
        )
    return found
