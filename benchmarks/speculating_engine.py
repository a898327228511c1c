"""Self-speculation against plain decoding in the in-process engine, side by side, by batch size.

`python -m benchmarks.speculating_engine`. Plain and speculating engines decode the same prompts in turn; a ratio is of
the medians of their seconds a token. The drafter is fake-quantised: it computes with floats, so on a processor a draft
costs what a token of the policy costs, and speculation can only lose there. τ is what it would have to win with.
"""

import argparse
import statistics
import time

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from redraft.cli.terminal import table
from redraft.engines.torch.engine import TorchEngine
from redraft.engines.torch.self_speculation import Fixed, SelfSpeculativeEngine
from redraft.rollout.engine import Inversion
from redraft.rollout.streams import stream, uniforms

VOCABULARY, PROMPT, LIMIT, ROUNDS = 512, 16, 64, 5
BATCHES = (1, 4, 16, 64)
NOTHING = np.zeros(0, dtype=np.int32)


def make_model(hidden: int, layers: int, sharpness: float, device: str) -> Qwen3ForCausalLM:
    """A model with random weights, whose laws are as sharp as the head is large."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=hidden // 32,
        num_key_value_heads=max(hidden // 64, 1), head_dim=32, intermediate_size=3 * hidden,
        max_position_embeddings=256, tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).to(device)
    with torch.no_grad():
        model.lm_head.weight.mul_(sharpness)
    return model


def decode(engine: TorchEngine, batch: int, turn: int) -> float:
    """Seconds a token of a batch of responses without stop tokens."""

    async def one(number: int) -> int:
        prompt = stream(0, "prompts", number).integers(0, VOCABULARY, PROMPT).tolist()
        async with engine.session(prompt) as session:
            draws = Inversion(uniforms(0, "turn", turn, number, count=LIMIT))
            return len((await session.decode(NOTHING, LIMIT, draws)).tokens)

    began = time.perf_counter()
    tokens = sum(engine.run(*map(one, range(batch))))
    if engine.device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / tokens


def compare(model: Qwen3ForCausalLM, batch: int, proposals: int, bits: int) -> list[str]:
    """A row of the table."""
    room = {"stops": (), "max_length": PROMPT + LIMIT, "max_rows": batch}
    plain = TorchEngine(model, **room)
    speculating = SelfSpeculativeEngine(model, Fixed(proposals), proposals, bits=bits, **room)
    seconds: dict[str, list[float]] = {"plain": [], "speculating": []}
    drafting, taus = [], []
    for turn in range(ROUNDS + 1):
        found = {"plain": decode(plain, batch, turn), "speculating": decode(speculating, batch, turn)}
        if turn:  # the first warms up
            done = speculating.speculated
            drafting.append(done.drafting_seconds / (done.drafting_seconds + done.verification_seconds))
            taus.append(done.block_efficiency or 1.0)
            for name, each in found.items():
                seconds[name].append(each)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return [
        str(batch), str(proposals), f"{medians['plain'] * 1e6:,.0f}", f"{medians['speculating'] * 1e6:,.0f}",
        f"{medians['plain'] / medians['speculating']:.2f}", f"{statistics.mean(taus):.2f}",
        f"{(statistics.mean(taus) - 1) / proposals:.1%}", f"{statistics.mean(drafting):.0%}",
    ]  # fmt: skip


HEADER = ["batch", "γ", "plain µs/token", "speculating", "speedup", "τ", "acceptance", "drafting"]


def main(arguments: list[str] | None = None) -> None:
    """Print a table for W4 and W8."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--sharpness", type=float, default=20.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args([] if arguments is None else arguments)
    torch.set_num_threads(1)
    model = make_model(asked.hidden, asked.layers, asked.sharpness, asked.device)
    for bits in (4, 8):
        rows = [compare(model, batch, proposals, bits) for batch in BATCHES for proposals in (3, 7)]
        print(f"\nW{bits}, {asked.device}, hidden size {asked.hidden}, {asked.layers} layers")
        print(table(HEADER, rows))


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
