"""Certificate of a sampler: samples responses, tests them against the policy, and states level and power."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from redraft.certify.constancy import Probes
from redraft.certify.positions import Positions, Response, positions
from redraft.certify.power import POWER, Detectable, detectable
from redraft.certify.power import temperature as detectable_temperature
from redraft.certify.protocol import Policy, Sampled, Sampler, blamed, checked_responses, length_to_end
from redraft.certify.statistics import Decode, Test, families, groups, span
from redraft.errors import UserError

LEVEL = 1e-4
"""Probability with which an exact sampler fails, at most."""
TOLERANCE = 0.05
"""Mean absolute difference of reported log-probabilities, nats; above it is no rounding error."""
LEAST_PART = 32
"""Smallest number of tokens of which a mean difference of reported log-probabilities is judged."""
RESOLUTION = 0.1
"""Relative error of the temperature that a certificate has to find; one that cannot says nothing."""


class Verdict(StrEnum):
    """What a certificate says."""

    PASSES = "passes"
    FAILS = "fails"
    NOTHING = "says nothing"


@dataclass(frozen=True)
class Result:
    """A family of tests with its p-value after Holm's correction."""

    test: Test
    corrected: float
    failed: bool


@dataclass(frozen=True)
class Certificate:
    """What the tests of a sampler found.

    Attributes:
        sampler: name of the sampler.
        policy: name of the policy.
        settings: numbers of prompts, samples and calls, temperature, and the like.
        level: probability with which an exact sampler fails, at most.
        responses: number of sampled responses.
        tokens: number of sampled tokens.
        results: all tests, in the order of their p-values.
        power: smallest errors that would have been found.
        verdict: what it says.
        constant: what stayed the same, and how often that was checked.
        reason: why it says nothing; empty otherwise.
    """

    sampler: str
    policy: str
    settings: dict[str, Any]
    level: float
    responses: int
    tokens: int
    results: list[Result]
    power: list[Detectable]
    verdict: Verdict
    constant: str
    reason: str = ""

    @property
    def failures(self) -> list[Test]:
        """Failed tests, the most significant one first."""
        return [each.test for each in self.results if each.failed]

    def as_dict(self) -> dict[str, Any]:
        """The content for JSON."""
        rows = [asdict(each.test) | {"corrected": each.corrected, "failed": each.failed} for each in self.results]
        return asdict(self) | {"results": rows, "verdict": str(self.verdict)}

    def __str__(self) -> str:
        """The certificate as text: the verdict, failures with their meaning, power, and all tests."""
        count = f"{self.tokens:,} tokens of {self.responses:,} responses"
        lines = [f"{self.sampler} {self.verdict} against {self.policy}: {count}, level {self.level:g}"]
        lines += [f"  {self.reason}"] * bool(self.reason)
        for test in self.failures:
            lines += [f"  FAILED {test.name} (p = {test.p_value:.1e}): {test.finding}", f"    may be: {test.meaning}"]
        lines.append(f"stayed the same: {self.constant}")
        lines.append(f"would have been found with probability {POWER:g}:")
        for each in self.power:
            lines.append(f"  {each.error}: " + ("of no size" if each.size is None else f"from {each.size:.3g}"))
        lines.append("tests (p-values before correction):")
        lines += [f"  {each.test.name}: {each.test.p_value:.2g}; {each.test.finding}" for each in self.results]
        return "\n".join(lines)


def certify(
    sampler: Sampler,
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    *,
    samples: int = 32,
    max_tokens: int = 32,
    calls: int = 2,
    temperature: float = 1.0,
    reported_temperature: float | None = None,
    level: float = LEVEL,
    tolerance: float = TOLERANCE,
    resolution: float = RESOLUTION,
    others: Mapping[str, Policy] | None = None,
    seed: int = 0,
    decode: Decode | None = None,
) -> Certificate:
    """Test whether a sampler samples from a policy's distribution.

    Args:
        sampler: called `calls` times with all prompts.
        policy: reference log-probabilities at temperature 1.
        prompts: token ids.
        samples: responses to each prompt in a call.
        max_tokens: longest response.
        calls: two or more show a seed that is the same in every call.
        temperature: of the distribution that the sampler should have.
        reported_temperature: of the sampler's reported log-probabilities; `temperature` if None.
        level: probability with which an exact sampler fails, at most, over all tests.
        tolerance: mean absolute difference of reported log-probabilities that is accepted, nats.
        resolution: relative error of the temperature that has to be found, else the certificate says nothing.
        others: policies that it might sample from by mistake, by name: an earlier step's, a drafter's. Their tests
            are far more powerful against stale weights and wrong reuse than those that know only the policy.
        seed: of the tests' own random numbers.
        decode: text of a token, for findings.

    Raises:
        UserError: if an argument is impossible, or sampler or policy break the protocol.
    """
    settings = {
        "prompts": len(prompts),
        "samples": samples,
        "calls": calls,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "reported_temperature": temperature if reported_temperature is None else reported_temperature,
        "tolerance": tolerance,
        "resolution": resolution,
        "seed": seed,
    }
    checked_prompts = _checked(prompts, settings, level)
    others = others or {}
    with blamed("the policy"):
        ends = frozenset(int(end) for end in policy.end_tokens)
    probes = Probes(tolerance)
    probes.add_sampler(sampler, checked_prompts)
    raw, responses = list[Response](), list[Response]()
    for call in range(calls):
        raw += _called(sampler, checked_prompts, samples, max_tokens, call)
        responses = [_until_end(each, ends) for each in raw]
        if call == 0:
            probes.add_policies({"the policy": policy} | dict(others), checked_prompts, responses)
        probes.check(f"in call {call + 1}")

    tested, compared = positions(
        checked_prompts, responses, policy, list(others.values()), temperature, reported_temperature, seed
    )
    probes.check("after the last call")
    alternatives = dict(zip(others, compared, strict=True))
    spell = (lambda token: f"token {token}") if decode is None else (lambda token: f"token {token} ({decode(token)!r})")
    tests = [_ends(raw, ends, max_tokens), *families(tested, alternatives, spell), *_reported(tested, tolerance)]
    results = holm(tests, level)
    verdict, reason = _verdict(results, detectable_temperature(tested, level / len(results)), resolution)
    return Certificate(
        sampler=_name(sampler),
        policy=_name(policy),
        settings=settings,
        level=level,
        responses=len(responses),
        tokens=len(tested),
        results=results,
        power=detectable(tested, alternatives, level / len(results)),
        verdict=verdict,
        constant=f"{', '.join(probes.names)} ({probes.count} checks)",
        reason=reason,
    )


def _name(one: object) -> str:
    return str(getattr(one, "name", None) or getattr(one, "__name__", type(one).__name__))


def _called(sampler: Sampler, prompts: list[list[int]], samples: int, max_tokens: int, call: int) -> list[Response]:
    with blamed("the sampler"):
        # Copies, since a sampler might change its arguments.
        groups = sampler([list(prompt) for prompt in prompts], samples, max_tokens)
    found = checked_responses(groups, len(prompts), samples, max_tokens)
    if not any(each.tokens for group in found for each in group):
        raise UserError(f"the sampler returned no token in call {call + 1}")
    # Equal prompts are one prompt with more samples: responses might be copied between them.
    count, responses = Counter[int](), list[Response]()
    for prompt, group in enumerate(found):
        first = prompts.index(prompts[prompt])
        for each in group:
            responses.append(Response(call, first, count[first], each))
            count[first] += 1
    return responses


def _verdict(results: list[Result], least: float | None, resolution: float) -> tuple[Verdict, str]:
    """The verdict, and why it says nothing; `least` is the smallest error of the temperature that is found."""
    if any(each.failed for each in results):
        return Verdict.FAILS, ""
    if least is not None and least <= resolution:
        return Verdict.PASSES, ""
    size = "of no size" if least is None else f"only from {least:.2g}"
    return Verdict.NOTHING, (
        f"too few or too certain tokens: an error of the temperature would have been found {size}, and {resolution:g} "
        "is required; use more prompts, samples or tokens"
    )


def _checked(prompts: Sequence[Sequence[int]], settings: dict[str, Any], level: float) -> list[list[int]]:
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise UserError("there is no prompt, or an empty one", key="prompts")
    for key in ("samples", "max_tokens", "calls"):
        if settings[key] < 1:
            raise UserError("the number is too small", key=key, value=settings[key], allowed="1 or more")
    for key in ("temperature", "reported_temperature", "tolerance", "resolution"):
        if not 0 < settings[key] < np.inf:
            raise UserError("the number is too small or too large", key=key, value=settings[key], allowed="above 0")
    if not 0 < level < 1:
        raise UserError("the level is no probability", key="level", value=level, allowed="above 0, below 1")
    return [[int(token) for token in prompt] for prompt in prompts]


def _until_end(response: Response, ends: frozenset[int]) -> Response:
    """The response up to its first end token: the policy has no distribution after it."""
    tokens, log_probs = list(response.sampled.tokens), response.sampled.log_probs
    stop = length_to_end(tokens, ends)
    kept = Sampled(tokens[:stop], None if log_probs is None else list(log_probs)[:stop])
    return Response(response.call, response.prompt, response.sample, kept)


def _ends(responses: list[Response], ends: frozenset[int], max_tokens: int) -> Test:
    """Whether every response stops at an end token or at the longest length, and only there."""
    wrong = []
    for each in responses:
        tokens = each.sampled.tokens
        if any(token in ends for token in tokens[:-1]):
            wrong.append((each, "goes on after an end token"))
        elif len(tokens) < max_tokens and not (tokens and tokens[-1] in ends):
            wrong.append((each, f"stops after {len(tokens)} tokens without an end token"))
    text = "all responses stop at an end token or at max_tokens"
    if wrong:
        first, what = wrong[0]
        text = (
            f"{len(wrong)} of {len(responses)} responses stop where the policy does not: response {first.sample} to "
            f"prompt {first.prompt} {what}"
        )
    meaning = "a lost or stripped end token (responses include it), a draft that is continued after its end"
    return Test("ends of responses", 0.0 if wrong else 1.0, text, meaning)


def _reported(tested: Positions, tolerance: float) -> list[Test]:
    """Reported log-probabilities against the policy's, in all and in parts; no test if there are none."""
    known = ~np.isnan(tested.reported) & ~np.isnan(tested.raw)
    if not known.any():
        return []
    with np.errstate(invalid="ignore"):
        difference = np.nan_to_num(np.abs(tested.reported - tested.raw), nan=0.0, posinf=np.inf)[known]
    parts = {"prompt": tested.prompt, "sample": tested.sample, "call": tested.call, "position": groups(tested.index)}
    worst, where = difference.mean(), "all tokens"
    for name, every in parts.items() if worst <= tolerance else ():
        count, sums = np.bincount(every[known]), np.bincount(every[known], difference)
        means = np.where(count >= LEAST_PART, sums / np.maximum(count, 1), 0)
        part = int(means.argmax())
        if means[part] > worst:
            worst, where = means[part], span(part) if name == "position" else f"{name} {part}"
    largest = np.flatnonzero(known)[int(difference.argmax())]
    text = (
        f"mean absolute difference {difference.mean():.2g} nats, of {where} {worst:.2g}, tolerance {tolerance:g}; "
        f"largest {difference.max():.2g} at position {tested.index[largest]} of prompt {tested.prompt[largest]}"
    )
    meaning = "log-probabilities of another policy or temperature, or before a penalty or truncation"
    return [Test("reported log-probabilities", float(worst <= tolerance), text, meaning)]


def holm(tests: Sequence[Test], level: float) -> list[Result]:
    """Correct p-values for their number (Holm 1979), the smallest one first.

    Raises:
        ArithmeticError: if one is no probability; NaN would pass as not significant.
    """
    for test in tests:
        if not 0 <= test.p_value <= 1:
            raise ArithmeticError(f"the test of {test.name} has the p-value {test.p_value}")
    ordered, corrected = sorted(tests, key=lambda test: test.p_value), 0.0
    results = []
    for i, test in enumerate(ordered):
        corrected = min(1.0, max(corrected, (len(ordered) - i) * test.p_value))
        results.append(Result(test, corrected, corrected <= level))
    return results
