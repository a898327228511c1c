"""Models of Qwen3's shapes with random weights, for benchmarks that need a GPU and have no weights from a hub."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM


@dataclass(frozen=True)
class Shape:
    """Shape of a model, and size of a rollout step."""

    config: Qwen3Config
    prompts: int
    group: int
    prompt_tokens: int
    tokens: int
    rounds: int


def qwen3(**settings: int) -> Qwen3Config:
    """Configuration with Qwen3's tied embeddings and room for 8,192 tokens."""
    return Qwen3Config(max_position_embeddings=8192, tie_word_embeddings=True, **settings)


LARGE = {"prompts": 32, "group": 8, "prompt_tokens": 128, "tokens": 1024, "rounds": 3}
HEADS = {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
SHAPES = {
    "1.7b": Shape(qwen3(vocab_size=151936, hidden_size=2048, intermediate_size=6144, **HEADS), **LARGE),
    "0.6b": Shape(qwen3(vocab_size=151936, hidden_size=1024, intermediate_size=3072, **HEADS), **LARGE),
    "tiny": Shape(
        qwen3(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
              head_dim=16, intermediate_size=64), prompts=4, group=2, prompt_tokens=8, tokens=32, rounds=2),
}  # fmt: skip
"""The shapes of Qwen3-1.7B and Qwen3-0.6B, and one to try a benchmark with."""


def device() -> torch.device:
    """The GPU, or the processor where there is none."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_name() -> str:
    """Name of the device, for titles."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "a processor"


def model_of(shape: Shape) -> Any:
    """A model with random weights on the device, bfloat16 on a GPU and float32 on a processor."""
    torch.manual_seed(0)
    with device():
        model = Qwen3ForCausalLM(shape.config)
    return model.to(torch.bfloat16 if torch.cuda.is_available() else torch.float32).eval()


def chosen(name: str, description: str) -> Iterator[tuple[str, Shape]]:
    """Shapes that a benchmark shall run: the one of `--shape`, or both of Qwen3's; says so where there is no GPU.

    Args:
        name: of the benchmark, for the message.
        description: what it does, for `--help`.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--shape", choices=SHAPES)
    asked = parser.parse_args().shape
    for title in [asked] if asked else ["1.7b", "0.6b"]:
        if title == "tiny" or torch.cuda.is_available():
            yield title, SHAPES[title]
        else:
            print(f"{name}, {title}: skipped. It needs a GPU of 40 GiB that PyTorch's CUDA build sees; `--shape tiny` "
                  "tries it on a processor")  # fmt: skip
