"""How often `redraft certify` finds planted faults of samplers, and how often it rejects exact samplers.

`python -m benchmarks certify`. Samplers are run over small random models of numpy, another one in each run. Exact ones
are plain sampling and speculative decoding with drafts of an earlier policy; each fault is one error in one of them.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np

from redraft.certify import Certificate, Known, Sampled, Verdict, certify
from redraft.cli.terminal import table
from redraft.messages import echo

RUNS, HONEST = 40, 200
"""Runs of each fault, and of exact samplers."""
PROMPTS, VOCABULARY, END = 32, 32, 0
END_BIAS = 1.0
"""Added to the end token's logit, so that responses have some 16 tokens."""
LEFT = 4
"""Tokens of a prompt that truncation leaves; prompts have 4 to 12."""


class Model:
    """A policy whose next token depends on the last two tokens, on the position and on all tokens before.

    Args:
        seed: of the random weights.
    """

    end_tokens = (END,)

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        shapes = {
            "last": (VOCABULARY, VOCABULARY),
            "before": (VOCABULARY, VOCABULARY),
            "position": (128, VOCABULARY),
            "bag": (VOCABULARY, VOCABULARY),
        }
        self.weights = {name: rng.normal(size=shape) for name, shape in shapes.items()}
        self.name = "a random model"

    def drifted(self, size: float, seed: int = 1) -> "Model":
        """The same model after updates: each weight moved by noise of a standard deviation."""
        moved, rng = copy(self), np.random.default_rng(seed)
        moved.weights = {name: w + size * rng.normal(size=w.shape) for name, w in self.weights.items()}
        return moved

    def logits(self, rows: "Rows") -> np.ndarray:
        """Logits of the next token of each row, float64 (B, V)."""
        w = self.weights
        mean = rows.bag / rows.bag.sum(axis=1, keepdims=True)
        found = w["last"][rows.last] + 0.7 * w["before"][rows.before]
        found += 0.5 * w["position"][rows.position] + 2 * mean @ w["bag"]
        found[:, END] += END_BIAS
        return found

    def log_probs(self, prompts: list[list[int]], responses: list[list[int]]) -> Iterator[Known]:
        """Log-probabilities of the whole vocabulary."""
        rows, longest = Rows(prompts), max(map(len, responses))
        padded = np.array([[*tokens, *[END] * (longest - len(tokens))] for tokens in responses])
        steps = np.empty((longest, len(responses), VOCABULARY))
        for t in range(longest):
            steps[t] = log_softmax(self.logits(rows))
            rows.append(padded[:, t])
        for i, tokens in enumerate(responses):
            yield Known(steps[: len(tokens), i])


class Rows:
    """What a model sees of B sequences."""

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        self.last = np.array([prompt[-1] for prompt in prompts])
        self.before = np.array([prompt[-2] for prompt in prompts])
        self.position = np.array([len(prompt) for prompt in prompts])
        self.bag = np.array([np.bincount(prompt, minlength=VOCABULARY) for prompt in prompts], dtype=float)

    def append(self, tokens: np.ndarray) -> None:
        """Append one token to each sequence."""
        self.before, self.last = self.last, tokens
        self.position = self.position + 1
        self.bag[np.arange(len(tokens)), tokens] += 1


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities, float64 (B, V)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


Warp = Callable[[np.ndarray, Rows, int], np.ndarray]
"""Changes logits, float64 (B, V), of a step."""


@dataclass
class Sampling:
    """A sampler over a model, exact by default; every field is a fault or a setting.

    Attributes:
        model: that samples.
        rng: random numbers.
        warp: changes logits before sampling.
        uniforms: random numbers on (0, 1) of a step for rows of (prompts, samples), in place of independent ones.
        reported: model of reported log-probabilities; None for the sampling one.
        reported_temperature: temperature of these.
        drafter: policy of drafts that are verified; None for plain sampling.
        lenience: factor of the acceptance probability.
        subtracted: share of the draft's probability that the residual distribution lacks, 1 if exact.
        keeps_rejected: whether a rejected token is kept, and sampling begins after it.
        loses_end: whether a draft is stored without its end token.
        late: whether positions are one too high after a rejection.
        left: tokens of the prompt that are kept.
        arrange: changes the order of responses.
        by_probability: whether random numbers run over tokens by decreasing probability.
    """

    model: Model
    rng: np.random.Generator
    warp: Warp = lambda logits, rows, step: logits
    uniforms: Callable[[np.random.Generator, int, int], np.ndarray] = lambda rng, prompts, samples: rng.random(
        (prompts, samples)
    )
    reported: Model | None = None
    reported_temperature: float = 1.0
    drafter: Model | None = None
    lenience: float = 1.0
    subtracted: float = 1.0
    keeps_rejected: bool = False
    loses_end: bool = False
    late: bool = False
    left: int = 10**6
    arrange: Callable[[list[list[Sampled]]], list[list[Sampled]]] = lambda responses: responses
    by_probability: bool = False
    name: str = "sampler"

    def __call__(self, prompts: list[list[int]], samples: int, max_tokens: int) -> list[list[Sampled]]:
        """Sample responses."""
        flat = [prompt[-self.left :] for prompt in prompts for _ in range(samples)]
        rows, tokens, reports = Rows(flat), [], []
        drafts = self._drafts(prompts, samples, max_tokens)
        on_draft = np.full(len(flat), self.drafter is not None)
        for step in range(max_tokens):
            logits = self.model.logits(rows)
            log_probs = log_softmax(self.warp(logits, rows, step))
            reported = log_softmax(
                (self.reported.logits(rows) if self.reported else logits) / self.reported_temperature
            )
            u = self.uniforms(self.rng, len(prompts), samples).ravel()
            token, on_draft, rejected = self._next(log_probs, u, rows, drafts[:, step], on_draft)
            rows.append(token)
            rows.position = rows.position + (rejected & self.late)
            tokens.append(token)
            reports.append(reported[np.arange(len(flat)), token])
        found = list(map(_response, np.array(tokens).T, np.array(reports).T))
        return self.arrange([found[i : i + samples] for i in range(0, len(found), samples)])

    def _drafts(self, prompts: list[list[int]], samples: int, max_tokens: int) -> np.ndarray:
        """Drafts, int (B, T), filled up with end tokens."""
        drafts = np.zeros((len(prompts) * samples, max_tokens), dtype=int)
        if self.drafter:
            plain = Sampling(self.drafter, self.rng)(prompts, samples, max_tokens)
            for row, each in zip(drafts, (each for group in plain for each in group), strict=True):
                row[: len(each.tokens)] = each.tokens
        return drafts

    def _next(
        self, log_probs: np.ndarray, u: np.ndarray, rows: Rows, draft: np.ndarray, on_draft: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Next token of each row, whether it still follows its draft, and whether the draft was rejected here."""
        p, every = np.exp(log_probs), np.arange(len(u))
        rejected = np.zeros(len(u), dtype=bool)
        if self.drafter:
            q = np.exp(log_softmax(self.drafter.logits(rows)))
            accepted = on_draft & (self.rng.random(len(u)) * q[every, draft] < self.lenience * p[every, draft])
            ended = on_draft & (draft == END) & self.loses_end
            rejected = on_draft & ~accepted & ~ended
            residual = np.maximum(p - self.subtracted * q, 0)
            residual /= np.maximum(residual.sum(axis=1, keepdims=True), 1e-300)
            p = np.where(rejected[:, None], residual, p)
            accepted &= ~ended
        order = np.argsort(-p, axis=1) if self.by_probability else np.tile(np.arange(VOCABULARY), (len(u), 1))
        index = (np.take_along_axis(p, order, axis=1).cumsum(axis=1) < u[:, None]).sum(axis=1)
        token = order[every, np.minimum(index, VOCABULARY - 1)]
        if self.drafter:
            token = np.where(accepted | (rejected & self.keeps_rejected), draft, token)
            on_draft = accepted
        return token, on_draft, rejected


def _response(tokens: np.ndarray, reported: np.ndarray) -> Sampled:
    (ends,) = np.nonzero(tokens == END)
    length = ends[0] + 1 if len(ends) else len(tokens)
    return Sampled(tokens[:length].tolist(), reported[:length].tolist())


def tempered(temperature: float) -> Warp:
    """Division of the logits."""
    return lambda logits, rows, step: logits / temperature


def only(keep: Callable[[np.ndarray, int], np.ndarray]) -> Warp:
    """Only tokens whose probabilities, float64 (B, V), are kept, bool (B, V)."""
    return lambda logits, rows, step: np.where(keep(np.exp(log_softmax(logits)), step), logits, -1e9)


def top_p(mass: float) -> Warp:
    """The most probable tokens that have the mass together."""

    def keep(probs: np.ndarray, step: int) -> np.ndarray:
        order = np.argsort(-probs, axis=1)
        before = np.take_along_axis(probs, order, axis=1).cumsum(axis=1)
        before = np.pad(before[:, :-1], ((0, 0), (1, 0)))
        kept = np.zeros(probs.shape, dtype=bool)
        np.put_along_axis(kept, order, before < mass, axis=1)
        return kept

    return only(keep)


def top_k(count: int) -> Warp:
    """The most probable tokens."""
    return only(lambda probs, step: probs >= np.sort(probs, axis=1)[:, [-count]])


def repetition(penalty: float) -> Warp:
    """Logits of tokens that occurred, divided if positive and multiplied if negative."""
    return lambda logits, rows, step: np.where(
        rows.bag > 0, np.where(logits > 0, logits / penalty, logits * penalty), logits
    )


def biased(logits: np.ndarray, rows: Rows, step: int) -> np.ndarray:
    """A bias of one token."""
    logits = logits.copy()
    logits[:, 5] += 0.5
    return logits


def late_end(logits: np.ndarray, rows: Rows, step: int) -> np.ndarray:
    """No end token among the first four."""
    logits = logits.copy()
    logits[:, END] -= 1e9 * (step < 4)
    return logits


def greedy_first(logits: np.ndarray, rows: Rows, step: int) -> np.ndarray:
    """The most probable first token."""
    return logits * 1e6 if step == 0 else logits


class SameEachStep:
    """Random numbers of a generator that is seeded again in every step."""

    def __init__(self) -> None:
        self.kept: np.ndarray | None = None
        self.count = 0

    def __call__(self, rng: np.random.Generator, prompts: int, samples: int) -> np.ndarray:
        """The numbers of the first step, in all steps."""
        if self.kept is None:
            self.kept = rng.random((prompts, samples))
        return self.kept


class SameEachCall:
    """A generator that is seeded again in every call."""

    def __init__(self, steps: int = 32) -> None:
        self.step, self.steps = 0, steps

    def __call__(self, rng: np.random.Generator, prompts: int, samples: int) -> np.ndarray:
        """The numbers of a step."""
        found = np.random.default_rng(self.step % self.steps).random((prompts, samples))
        self.step += 1
        return found


def copied(responses: list[list[Sampled]]) -> list[list[Sampled]]:
    """The first response of a group also in place of the second one."""
    return [[group[0], group[0], *group[2:]] for group in responses]


def swapped(responses: list[list[Sampled]]) -> list[list[Sampled]]:
    """Responses of the first two prompts exchanged, as by a wrong reshape."""
    return [responses[1], responses[0], *responses[2:]]


def transposed(responses: list[list[Sampled]]) -> list[list[Sampled]]:
    """A batch of (samples, prompts) read as (prompts, samples)."""
    flat = [group[i] for i in range(len(responses[0])) for group in responses]
    return [flat[i : i + len(responses[0])] for i in range(0, len(flat), len(responses[0]))]


class FirstFinished(Sampling):
    """More responses than requested, of which the shortest ones are returned, as if the others came too late."""

    def __call__(self, prompts: list[list[int]], samples: int, max_tokens: int) -> list[list[Sampled]]:
        """Sample a quarter more responses."""
        every = super().__call__(prompts, samples * 5 // 4, max_tokens)
        return [sorted(group, key=lambda each: len(each.tokens))[:samples] for group in every]


class OneDraft(Sampling):
    """The first sample's draft for all samples of a prompt."""

    def _drafts(self, prompts: list[list[int]], samples: int, max_tokens: int) -> np.ndarray:
        drafts_PGT = super()._drafts(prompts, samples, max_tokens).reshape(len(prompts), samples, max_tokens)
        return drafts_PGT[:, :1].repeat(samples, axis=1).reshape(-1, max_tokens)


class LongDrafts(Sampling):
    """Drafts selected after they were sampled: the longer one of two."""

    def _drafts(self, prompts: list[list[int]], samples: int, max_tokens: int) -> np.ndarray:
        one, other = (super(LongDrafts, self)._drafts(prompts, samples, max_tokens) for _ in range(2))
        longer = (one != END).sum(axis=1) >= (other != END).sum(axis=1)
        return np.where(longer[:, None], one, other)


class LaterStale(Sampling):
    """Weights of an earlier step from the second call on."""

    calls = 0

    def __call__(self, prompts: list[list[int]], samples: int, max_tokens: int) -> list[list[Sampled]]:
        """Sample responses."""
        self.calls += 1
        if self.calls == 2:
            self.reported, self.model = self.model, self.model.drifted(DRIFT)
        return super().__call__(prompts, samples, max_tokens)


def base_2(responses: list[list[Sampled]]) -> list[list[Sampled]]:
    """Reported logarithms to base 2."""
    return [[Sampled(e.tokens, (np.array(e.log_probs) / np.log(2)).tolist()) for e in group] for group in responses]


def late_by_one(responses: list[list[Sampled]]) -> list[list[Sampled]]:
    """Each token with the reported log-probability of the one before."""
    return [[Sampled(e.tokens, [0.0, *list(e.log_probs or ())[:-1]]) for e in group] for group in responses]


def coarse(rng: np.random.Generator, prompts: int, samples: int) -> np.ndarray:
    """Random numbers of 8 bits."""
    return (rng.integers(256, size=(prompts, samples)) + 0.5) / 256


COLD = {"temperature": 0.8, "reported_temperature": 1.0}
"""Settings of a certificate: the sampler should have temperature 0.8 and report log-probabilities at 1."""
DRIFT, FAR = 0.15, 0.25
"""Noise between policy and drafter, at which the total variation of their tokens is 0.075 and 0.12 on average."""
FAULTS: dict[str, Callable[[Model, np.random.Generator], Sampling]] = {
    "rows transposed (shape bug)": lambda m, r: Sampling(m, r, arrange=transposed),
    "two prompts swapped": lambda m, r: Sampling(m, r, arrange=swapped),
    "residual missing": lambda m, r: Sampling(m, r, drafter=m.drifted(FAR), subtracted=0.0),
    "half of the residual": lambda m, r: Sampling(m, r, drafter=m.drifted(FAR), subtracted=0.5),
    "cut off by one": lambda m, r: Sampling(m, r, drafter=m.drifted(DRIFT), keeps_rejected=True),
    "lenience e^0.5": lambda m, r: Sampling(m, r, drafter=m.drifted(DRIFT), lenience=float(np.exp(0.5))),
    "draft's end token lost": lambda m, r: Sampling(m, r, drafter=m.drifted(DRIFT), loses_end=True),
    "positions one too high after a cut": lambda m, r: Sampling(m, r, drafter=m.drifted(DRIFT), late=True),
    "stale weights": lambda m, r: Sampling(m.drifted(DRIFT), r),
    "top-p 0.95 left on": lambda m, r: Sampling(m, r, warp=top_p(0.95)),
    "top-k 20 of 32 left on": lambda m, r: Sampling(m, r, warp=top_k(20)),
    "min-p 0.05 left on": lambda m, r: Sampling(
        m, r, warp=only(lambda p, step: p >= 0.05 * p.max(axis=1, keepdims=True))
    ),
    "temperature 0.8 applied twice": lambda m, r: Sampling(m, r, warp=tempered(0.64)),
    "temperature 0.8 ignored": Sampling,
    "repetition penalty 1.1": lambda m, r: Sampling(m, r, warp=repetition(1.1)),
    "end token suppressed at first": lambda m, r: Sampling(m, r, warp=late_end),
    "log-probabilities of another policy": lambda m, r: Sampling(m, r, reported=m.drifted(DRIFT)),
    "log-probabilities after temperature 0.8": lambda m, r: Sampling(
        m, r, warp=tempered(0.8), reported_temperature=0.8
    ),
    "random numbers shared by the rows": lambda m, r: Sampling(
        m, r, uniforms=lambda rng, prompts, samples: np.tile(rng.random((1, samples)), (prompts, 1))
    ),
    "same random numbers in every step": lambda m, r: Sampling(m, r, uniforms=SameEachStep()),
    "same seed in every call": lambda m, r: Sampling(m, r, uniforms=SameEachCall()),
    "one response of a group copied": lambda m, r: Sampling(m, r, arrange=copied),
    "prompt truncated at the left": lambda m, r: Sampling(m, r, left=LEFT),
    "greedy first token": lambda m, r: Sampling(m, r, warp=greedy_first),
    "bias 0.5 of one token": lambda m, r: Sampling(m, r, warp=biased),
    "first 32 of 40 responses to end": FirstFinished,
    "one draft for a whole group": lambda m, r: OneDraft(m, r, drafter=m.drifted(DRIFT)),
    "the longer one of two drafts": lambda m, r: LongDrafts(m, r, drafter=m.drifted(DRIFT)),
    "stale weights from the second call on": LaterStale,
    "log-probabilities to base 2": lambda m, r: Sampling(m, r, arrange=base_2),
    "log-probabilities late by one token": lambda m, r: Sampling(m, r, arrange=late_by_one),
    "random numbers of 8 bits": lambda m, r: Sampling(m, r, uniforms=coarse, by_probability=True),
}
EXACT: dict[str, Callable[[Model, np.random.Generator], Sampling]] = {
    "plain sampling": Sampling,
    "speculative, exact": lambda m, r: Sampling(m, r, drafter=m.drifted(DRIFT)),
}


def certificate(make: Callable[[Model, np.random.Generator], Sampling], seed: int, **settings: object) -> Certificate:
    """Certificate of a sampler over the model of a seed, at the default sizes."""
    rng = np.random.default_rng([seed, 1])
    prompts = [rng.integers(1, VOCABULARY, rng.integers(4, 13)).tolist() for _ in range(PROMPTS)]
    model = Model(seed)
    sampler = make(model, rng)
    others = {"the earlier policy": sampler.drafter or model.drifted(DRIFT)}
    return certify(sampler, model, prompts, others=others, seed=seed, **settings)


def settings_of(name: str) -> dict[str, float]:
    """Temperatures that the certificate of a fault gets."""
    return COLD if "temperature 0.8" in name else {}


def main() -> None:
    """Print how often each sampler fails, its first failure's most frequent test, tokens, and processor seconds."""
    header = ["sampler", "failed", "without the earlier policy", "first by", "tokens", "processor s"]
    rows = []
    for name, make in (EXACT | FAULTS).items():
        runs, began = HONEST // len(EXACT) if name in EXACT else RUNS, time.process_time()
        found = [certificate(make, seed, **settings_of(name)) for seed in range(runs)]
        seconds = (time.process_time() - began) / runs
        failed = [each.failures for each in found if each.verdict is Verdict.FAILS]
        without = [tests for tests in failed if any(not test.name.startswith("nearness") for test in tests)]
        first = [tests[0].name for tests in failed]
        named = max(set(first), key=first.count) if first else "-"
        tokens = sum(each.tokens for each in found) // runs
        counts = [f"{len(failed)} of {runs}", f"{len(without)} of {runs}"]
        rows.append([name, *counts, named, f"{tokens:,}", f"{seconds:.2f}"])
        echo(f"{name}: {counts[0]}", err=True)
        if name in EXACT:
            # Whether p-values are those of an exact sampler shows at levels that are reached.
            smallest = np.array([min(result.corrected for result in each.results) for each in found])
            at = ", ".join(f"{(smallest <= level).sum()} at a level of {level:g}" for level in (0.01, 0.05, 0.2))
            echo(f"{name} would have failed in {at}")
    print(table(header, rows, left=["first by"], wraps=["sampler", "without the earlier policy", "first by"]))
