"""How a problem is put to a model: as one message of its chat template, or as it stands where there is none."""

from collections.abc import Sequence
from typing import Any

from redraft.errors import UserError

DATE = "26 Jul 2024"
"""Llama 3.2's template writes a date into every prompt: today's, unless it is given one. This is its own fallback."""


def encode(tokenizer: Any, texts: Sequence[str], chat: str = "auto") -> list[list[int]]:
    """Prompts as tokens, with what makes the model answer behind them.

    SPEC-RL uses Qwen's chat template; the tiny models have none.

    Args:
        tokenizer: of transformers.
        texts: problems, with their instructions.
        chat: whether the template is used, see `redraft.config.data.Sampling`.

    Raises:
        UserError: if a template is required and there is none.
    """
    template = getattr(tokenizer, "chat_template", None)
    if chat == "required" and not template:
        raise UserError("this model's tokenizer has no chat template, and the protocol needs one",
                        file=getattr(tokenizer, "name_or_path", None), key="chat", value=chat,
                        allowed="a tokenizer with a chat template, or the protocol's `chat: auto`")  # fmt: skip
    if chat == "never" or not template:
        return [list(tokens) for tokens in tokenizer(list(texts))["input_ids"]]
    messages = [[{"role": "user", "content": text}] for text in texts]
    chats = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, date_string=DATE)
    # The template writes special tokens itself, the beginning of the sequence included.
    return [list(tokens) for tokens in tokenizer(chats, add_special_tokens=False)["input_ids"]]
