"""Cost of exact reuse compared with SPEC-RL's rule: scoring, judging, and the bytes that a token takes in memory.

`python -m benchmarks exact_rules`. Scoring is a prefill pass of the in-process engine over drafts of a small model at
two sizes of the vocabulary; the further requests of exact rules, besides the draft's log-probabilities, run in turn.
Judging is the rule alone, on synthetic distributions. Seconds are processor seconds of one thread; ratios are medians
over rounds.
"""

import time
from collections.abc import Callable

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks.side_by_side import line, ratio, seconds
from redraft.config.retention import Retention
from redraft.engines.torch.engine import TorchEngine
from redraft.methods.acceptance.block import BlockRule
from redraft.methods.acceptance.ratio import SpecRLRule
from redraft.methods.acceptance.residual import ResidualRule
from redraft.methods.acceptance.rule import Distributions, Rule
from redraft.rollout.engine import Gumbel
from redraft.rollout.memory import Memory
from redraft.rollout.types import Finish, Group, Rollout, Sample, TopLogProbs

PROMPT, TOP, ROUNDS = 16, 32, 5
CASES = ((44, 64, 256), (151_936, 4, 256))
"""Vocabulary, drafts and tokens of each."""
JUDGED = 1024
"""Tokens of a draft that is judged."""


def make_engine(vocabulary: int, drafts: int, length: int) -> TorchEngine:
    """An engine over a model of the tiny preset's size with random weights."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=32,
        intermediate_size=288,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
    )
    room = PROMPT + length
    return TorchEngine(
        Qwen3ForCausalLM(config), stops=(), max_length=room, max_rows=drafts, max_batched_tokens=16 * room
    )


def scoring(vocabulary: int, drafts: int, length: int) -> dict[str, list[float]]:
    """Scoring time of all drafts in seconds, by the requests besides their log-probabilities."""
    engine, random = make_engine(vocabulary, drafts, length), np.random.default_rng(0)
    tokens = random.integers(0, vocabulary, (drafts, length)).astype(np.int32)
    top = min(TOP, vocabulary)
    at = random.integers(0, vocabulary, (drafts, length, top)).astype(np.int32)

    def score(**requested: object) -> Callable[[], object]:
        async def one(number: int) -> None:
            async with engine.session([1] * PROMPT) as session:
                named = {"at": at[number]} if requested.get("at") else {}
                await session.score(tokens[number], **(requested | named))

        return lambda: engine.run(*map(one, range(drafts)))

    alternatives = {
        "the draft (published, one-hot)": score(),
        f"and {top} tokens, and the top {top}": score(at=True, top=top),
        "and tokens sampled by Gumbel noise": score(noise=Gumbel(7)),
    }
    return seconds(f"scoring in process, vocabulary {vocabulary}", alternatives, ROUNDS, time.process_time)


def judging() -> dict[str, list[float]]:
    """Seconds of judging 20 drafts of 1,024 tokens."""
    random = np.random.default_rng(0)
    p, q = (np.log(random.dirichlet(np.ones(TOP), JUDGED)) for _ in range(2))
    support, tokens = np.tile(np.arange(TOP), (JUDGED, 1)), random.integers(0, TOP, JUDGED)
    u, places = 1 - random.random(JUDGED), np.arange(JUDGED)
    new, old = p[places, tokens], q[places, tokens]

    def by(rule: Rule) -> Callable[[], object]:
        def judge() -> None:
            drafts = Distributions(tokens, new, old, support, p, q)
            rule.residual(drafts, rule.kept(rule.accepts(drafts, u)))

        return lambda: [judge() for _ in range(20)]

    alternatives = {"published": by(SpecRLRule()), "residual": by(ResidualRule()), "block": by(BlockRule())}
    return seconds("judging", alternatives, ROUNDS, time.process_time)


def bytes_a_token(top: int) -> float:
    """Bytes of a token in a checkpoint's memory, of rollouts of 1,024 tokens."""
    distribution = TopLogProbs(np.zeros((JUDGED, top), np.int32), np.zeros((JUDGED, top), np.float32)) if top else None
    numbers = np.zeros(JUDGED, np.int32)
    rollout = Rollout(0, 0, numbers, np.zeros(JUDGED, np.float32), numbers, Finish.LENGTH, top=distribution)
    memory = Memory(Retention(visits=1, top=top))
    for prompt in range(64):
        memory.put(Group(prompt, 0, (Sample(Rollout(**(vars(rollout) | {"prompt": prompt})), 0.0),)))
    return len(memory.packed()) / (64 * JUDGED)


def show(measured: dict[str, list[float]], tokens: int) -> None:
    """Print each alternative's seconds, its tokens a second, and its ratio to the first."""
    first = next(iter(measured.values()))
    for name, values in measured.items():
        rate = tokens / np.median(values)
        print(f"{line(name, values)}  {rate:12,.0f} tokens/s  {ratio(values, first):5.2f} x")


def main() -> None:
    """Print all."""
    torch.set_num_threads(1)
    for vocabulary, drafts, length in CASES:
        print(f"\nScoring {drafts} drafts of {length} tokens, vocabulary {vocabulary:,}")
        show(scoring(vocabulary, drafts, length), drafts * length)
    print(f"\nJudging 20 drafts of {JUDGED:,} tokens, {TOP} stored at each")
    show(judging(), 20 * JUDGED)
    print("\nBytes a token in memory: " + ", ".join(f"{bytes_a_token(k):.1f} (top {k})" for k in (0, TOP)))
