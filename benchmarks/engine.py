"""The in-process engine against transformers' `generate`, and its scoring against its decoding."""

import numpy as np
import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from benchmarks.side_by_side import line, ratio, seconds
from redraft.engines.torch_engine import TorchEngine
from redraft.rollout.streams import uniforms

ROWS = TOKENS = 128
PROMPT = 16
NO_EOS = -1
"""An end-of-sequence token that never comes, so that every response has full length."""


def tiny_model() -> Qwen3ForCausalLM:
    """The tiny preset's architecture with random weights."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=44, hidden_size=96, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=3, head_dim=32,
        intermediate_size=288, max_position_embeddings=512, tie_word_embeddings=False, eos_token_id=None,
        pad_token_id=0, bos_token_id=None,
    )  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def main() -> None:
    """Print tokens a second and ratios."""
    torch.set_num_threads(1)
    model = tiny_model()
    prompts = np.random.default_rng(0).integers(2, 44, (ROWS, PROMPT))
    engine = TorchEngine(model, eos=NO_EOS, max_length=PROMPT + TOKENS, max_rows=ROWS)
    drafts = np.random.default_rng(1).integers(2, 44, (ROWS, TOKENS)).astype(np.int32)
    nothing = np.zeros(0, dtype=np.int32)

    async def decode(row: int) -> None:
        async with engine.session(prompts[row]) as session:
            await session.decode(nothing, TOKENS, uniforms(0, "benchmark", row, count=TOKENS))

    async def score(row: int) -> None:
        async with engine.session(prompts[row]) as session:
            await session.score(drafts[row])

    settings = GenerationConfig(do_sample=True, min_new_tokens=TOKENS, max_new_tokens=TOKENS, pad_token_id=0)
    inputs = torch.from_numpy(prompts)

    def generate() -> None:
        with torch.inference_mode():
            output = model.generate(inputs, attention_mask=torch.ones_like(inputs), generation_config=settings)
        assert output.shape == (ROWS, PROMPT + TOKENS)

    measured = seconds(
        {
            "transformers generate": generate,
            "engine, decoding": lambda: engine.run(*(decode(i) for i in range(ROWS))),
            "engine, verification": lambda: engine.run(*(score(i) for i in range(ROWS))),
        }
    )
    print(f"engine: {ROWS} responses x {TOKENS} tokens, prompts of {PROMPT}, one thread; tokens a second")
    for name, values in measured.items():
        print(line(name, [ROWS * TOKENS / value for value in values], "tok/s"))
    decoding = measured["engine, decoding"]
    print(f"  engine / generate: {ratio(measured['transformers generate'], decoding):.2f}x as fast")
    print(f"  verification / decoding: {ratio(decoding, measured['engine, verification']):.2f}x as fast")
