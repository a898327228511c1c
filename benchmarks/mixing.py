"""Would drafts be verified more cheaply inside decoding passes? A cost model of a pass, and schedules simulated by it.

`python -m benchmarks.mixing [--dtype D]` measures passes of a model of SmolLM2-135M's shape, with random weights, on
one thread, and fits the model: a pass costs a fixed time (reading of weights, and overhead) and a time per token. Then
it simulates a rollout whose drafts are verified in separate passes, as the engine does, and one in which tokens of
drafts fill up decoding passes (token-level batching, as chunked prefill in vLLM). Tokens cost the same in both: mixing
saves the fixed time of the verification passes, and nothing else.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from redraft.cli.terminal import table
from redraft.engines.torch.engine import TorchEngine
from redraft.train.pretrained.precision import DTYPES

ROUNDS, SLOTS = 3, 192
WIDTHS: tuple[tuple[int, int], ...] = ((8, 1), (16, 1), (32, 1), (64, 1), (4, 64), (8, 128))
"""Rows of the measured passes and tokens of each row: decoding, and verification."""
PROMPT, LIMIT, AT_LIMIT = 60, 128, 0.4
"""Tokens of a prompt and, at most, of a response; share of responses that reach the limit."""
WHOLE, BUDGET = 0.25, 4096
"""Share of drafts that are kept whole, and padded tokens of a verification pass, as in the preset smol."""


@dataclass(frozen=True)
class Cost:
    """Seconds of a pass: fixed ones and those of each token through trunk and head."""

    fixed: float
    token: float

    def __call__(self, tokens: int) -> float:
        """Seconds of a pass over this number of tokens."""
        return self.fixed + self.token * tokens


PUBLISHED = {"AMX, bfloat16 (measured there: 1,923 tokens/s at prefill, 195 at 16 rows)": Cost(0.0735, 0.00052)}
"""Machines that are not at hand, one core."""


def smol_shape(dtype: torch.dtype) -> LlamaForCausalLM:
    """A model of SmolLM2-135M's shape with random weights."""
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).to(dtype).eval()


def measured(model: LlamaForCausalLM) -> dict[tuple[int, int], float]:
    """Processor seconds of passes, the least of a few, by rows and tokens of each row."""
    engine = TorchEngine(model, stops=(), max_length=SLOTS, max_rows=max(rows for rows, _ in WIDTHS))
    seconds = dict.fromkeys(WIDTHS, np.inf)
    with engine.passes():
        for _ in range(ROUNDS + 1):  # the first one warms up
            for rows, width in WIDTHS:
                tokens, positions = torch.zeros((rows, width), dtype=torch.long), torch.full((rows,), SLOTS - width)
                began = time.process_time()
                engine._distributions(tokens, positions, SLOTS)
                seconds[rows, width] = min(seconds[rows, width], time.process_time() - began)
    return seconds


def fitted(seconds: dict[tuple[int, int], float]) -> Cost:
    """The cost model with the least sum of squared relative errors."""
    tokens = np.array([rows * width for rows, width in seconds], dtype=float)
    times = np.array(list(seconds.values()))
    (fixed, token), *_ = np.linalg.lstsq(np.stack([1 / times, tokens / times], 1), np.ones(len(times)), rcond=None)
    return Cost(float(fixed), float(token))


@dataclass
class Response:
    """A response with a draft: tokens of the draft, those that are kept, and those to decode after them."""

    draft: int
    kept: int
    rest: int
    scored: int = 0

    @property
    def verified(self) -> bool:
        """Whether the first rejection, or the whole draft, is scored."""
        return self.scored > self.kept or self.scored >= self.draft


def responses(count: int, seed: int = 0) -> list[Response]:
    """Responses with lengths as those of the preset smol, in the engine's order: the longest drafts first."""
    numbers = np.random.default_rng(seed)

    def lengths() -> np.ndarray:
        return np.where(numbers.random(count) < AT_LIMIT, LIMIT, numbers.integers(8, LIMIT, count))

    drafts, new = lengths(), lengths()
    kept = np.where(numbers.random(count) < WHOLE, drafts, (drafts * numbers.random(count)).astype(int))
    # A response is not shorter than what it keeps, and a draft that is kept whole is the response.
    rest = np.where(kept == drafts, 0, np.maximum(new - kept, 1))
    made = [Response(*map(int, each)) for each in zip(drafts, kept, rest, strict=True)]
    return sorted(made, key=lambda one: -one.draft)


@dataclass
class Spent:
    """Seconds of a rollout, its decoding passes and the verification passes beside them, and scored draft tokens."""

    seconds: float = 0.0
    decoding: int = 0
    verifying: int = 0
    scored: int = 0


def separate(work: Sequence[Response], rows: int, cost: Cost, chunk: int = LIMIT) -> Spent:
    """Verification in passes of their own, by the engine's rules of admission."""
    waiting, chunks, left, spent = list(work), [], [], Spent()
    while waiting or chunks or left:
        free = rows - len(left) - len(chunks)
        batch, prompt = [], PROMPT
        if waiting and free and (not left or free >= min(len(waiting), rows // 8)):
            width = PROMPT + min(chunk, waiting[0].draft)
            count = min(free, max(1, BUDGET // width))
            batch, waiting = waiting[:count], waiting[count:]
        elif chunks:
            batch, chunks, prompt = chunks, [], 1
        if batch:
            fed = [min(chunk, one.draft - one.scored) for one in batch]
            spent.seconds += cost(len(batch) * (prompt + max(fed)))  # padded to the longest
            spent.verifying += 1
            for one, tokens in zip(batch, fed, strict=True):
                one.scored += tokens
                spent.scored += tokens
            chunks += [one for one in batch if not one.verified]
            left += [one.rest for one in batch if one.verified and one.rest]
        else:
            spent.seconds += cost(len(left))
            spent.decoding += 1
            left = [rest - 1 for rest in left if rest > 1]
    return spent


def mixed(work: Sequence[Response], rows: int, cost: Cost, tokens: int = 256, chunk: int = LIMIT) -> Spent:
    """Verification in the decoding passes: each takes up to `tokens` tokens of prompts and drafts, without padding."""
    waiting, left, spent = list(work), [], Spent()
    started: list[tuple[Response, int]] = []  # and the tokens of its chunk that are still to feed
    while waiting or started or left:
        decoding, fed, ready = len(left), 0, []
        while fed < tokens and (started or (waiting and len(left) + len(started) + len(ready) < rows)):
            one, needed = started.pop() if started else (waiting[0], PROMPT + min(chunk, waiting.pop(0).draft))
            taken = min(needed, tokens - fed)
            fed += taken
            if taken < needed:
                started.append((one, needed - taken))
                break
            new = min(chunk, one.draft - one.scored)
            one.scored += new
            spent.scored += new
            ready.append(one)
        spent.seconds += cost(decoding + fed)
        spent.decoding += bool(decoding)
        spent.verifying += not decoding
        # What a pass has verified decodes, or has its next chunk scored, from the next pass on.
        started += [(one, min(chunk, one.draft - one.scored)) for one in ready if not one.verified]
        left = [rest - 1 for rest in left if rest > 1] + [one.rest for one in ready if one.verified and one.rest]
    return spent


SCHEDULES: dict[str, Callable[[Sequence[Response], int, Cost], Spent]] = {
    "separate, whole drafts": separate,
    "separate, chunks of 64": lambda work, rows, cost: separate(work, rows, cost, 64),
    "separate, chunks of 32": lambda work, rows, cost: separate(work, rows, cost, 32),
    "separate, chunks of 16": lambda work, rows, cost: separate(work, rows, cost, 16),
    "mixed, 256 tokens a pass": mixed,
    "mixed, 64 tokens a pass": lambda work, rows, cost: mixed(work, rows, cost, 64),
    "mixed, 256, chunks of 32": lambda work, rows, cost: mixed(work, rows, cost, 256, 32),
}
CASES = ((32, 64), (32, 16), (128, 32), (128, 64), (128, 128), (512, 64))
"""Responses and rows."""


def simulated(cost: Cost) -> list[list[str]]:
    """Rows of a table: seconds of each schedule over those of the first, and its passes."""
    rows = []
    for count, at_once in CASES:
        spent = [schedule(responses(count), at_once, cost) for schedule in SCHEDULES.values()]
        bound = spent[0].seconds - spent[0].verifying * cost.fixed
        each = [f"{one.seconds / spent[0].seconds:.3f} ({one.decoding} + {one.verifying})" for one in spent]
        first = f"{spent[0].seconds:.1f} s ({spent[0].decoding} + {spent[0].verifying})"
        rows.append([str(count), str(at_once), first, *each[1:], f"{bound / spent[0].seconds:.3f}"])
    return rows


def main() -> None:
    """Print the fit beside the measured passes, and the simulated schedules for it and for published machines."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--dtype", choices=DTYPES, action="append", help="measure this precision; none for no measuring"
    )
    torch.set_num_threads(1)
    costs = dict(PUBLISHED)
    for dtype in parser.parse_args().dtype or ():
        seconds = measured(smol_shape(DTYPES[dtype]))
        costs[f"this machine, {dtype}"] = cost = fitted(seconds)
        lines = [
            [f"{rows} x {width}", f"{1e3 * time:.0f}", f"{1e3 * cost(rows * width):.0f}"]
            for (rows, width), time in seconds.items()
        ]
        print(table([f"pass, {dtype}", "measured ms", "model ms"], lines))
    for name, cost in costs.items():
        print(f"\n{name}: a pass costs {1e3 * cost.fixed:.0f} ms and {1e3 * cost.token:.2f} ms a token")
        print(table(["responses", "rows", *SCHEDULES, "no fixed cost of verification"], simulated(cost)))


if __name__ == "__main__":
    main()
