"""A calculator for verl's tool agent, and a tiny model that calls it: run this file in an empty folder.

A prompt is a sum such as `3+4=`. The model writes the call `c3+4`, the tool answers `7`, and the model answers with a
box. verl loads this file for the tool and its parser (`multi_turn.function_tool_path`, `multi_turn.format`).
"""

import json
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.function_tool import function_tool

from redraft.tasks.tokenizer import make_tokenizer

FORMAT = "redraft_letter_c"
CALLS = "REDRAFT_TEST"
"""Environment variable with the folder of `calls.txt`, where the tool writes its calls."""
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %};{{ m.content }};"
    "{% elif m.role == 'assistant' %}{{ m.content }}<eos>{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
SUMS = [(left, right) for left in range(8) for right in range(4)]


@function_tool
def calculator(left: int, right: int) -> str:
    """Add two numbers, and log the call.

    Args:
        left: a number.
        right: another number.
    """
    with (Path(os.environ[CALLS]) / "calls.txt").open("a") as file:
        file.write(f"{left}+{right}\n")
    return str(left + right)


@ToolParser.register(FORMAT)
class LetterC(ToolParser):
    """Reads `c3+4` as a call of the calculator."""

    async def extract_tool_calls(self, responses_ids, tools=None):
        text = self.tokenizer.decode(responses_ids, skip_special_tokens=True)
        call = re.fullmatch(r"c(\d+)\+(\d+)", text)
        if not call:
            return text, []
        arguments = {"left": int(call[1]), "right": int(call[2])}
        return text, [FunctionCall(name="calculator", arguments=json.dumps(arguments))]


def prepare():
    """Write a model that mostly calls the tool correctly, data and a reward into the current folder."""
    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape, **ends))
    texts = [f"{i}+{j}=c{i}+{j}<eos>;{i + j};\\boxed{{{i + j}}}<eos>" for i, j in SUMS]
    batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained("model")
    tokenizer.save_pretrained("model")
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"{i}+{j}="}],
            "reward_model": {"style": "rule", "ground_truth": str(i + j)},
            "extra_info": {"index": number},
        }
        for number, (i, j) in enumerate(SUMS)
    ]
    pq.write_table(pa.Table.from_pylist(rows), "data.parquet")
    Path("reward.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):\n"
        "    return float(solution_str.replace('<eos>', '').endswith('\\\\boxed{' + ground_truth + '}'))\n"
    )


if __name__ == "__main__":
    prepare()
