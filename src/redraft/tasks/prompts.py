"""Encoding of problems as prompts: one user message of the chat template, or the plain text without a template."""

from collections.abc import Sequence
from typing import Any

from tokenizers.models import WordLevel

from redraft.errors import UserError

DATE = "26 Jul 2024"
"""Date in prompts of Llama 3.2, whose template otherwise writes today's date. This date is the template's fallback."""


def encode(tokenizer: Any, texts: Sequence[str], chat: str = "auto") -> list[list[int]]:
    """Encode texts as prompts, each followed by the template's opening of the model's answer.

    SPEC-RL uses Qwen's chat template. The tiny models have no template.

    Args:
        chat: `auto`, `required` or `never`; see `redraft.config.data.Sampling`.

    Raises:
        UserError: if a template is required and the tokenizer has none, or it has no token for a character.
    """
    template = getattr(tokenizer, "chat_template", None)
    if chat == "required" and not template:
        raise UserError(
            "this model's tokenizer has no chat template, and the protocol needs one",
            file=getattr(tokenizer, "name_or_path", None),
            key="chat",
            value=chat,
            allowed="a tokenizer with a chat template, or the protocol's `chat: auto`",
        )
    if chat == "never" or not template:
        prompts = [list(tokens) for tokens in tokenizer(list(texts))["input_ids"]]
        _check_characters(tokenizer, texts, prompts)
        return prompts
    messages = [[{"role": "user", "content": text}] for text in texts]
    chats = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, date_string=DATE)
    # The template writes all special tokens itself, also the beginning of the sequence.
    return [list(tokens) for tokens in tokenizer(chats, add_special_tokens=False)["input_ids"]]


def check_lengths(prompts: Sequence[Sequence[int]], most: int) -> None:
    """Check that no training prompt has more than `trainer.max_prompt_tokens` tokens.

    Raises:
        UserError: with the length of the longest prompt.
    """
    if (longest := max(map(len, prompts))) > most:
        raise UserError(
            "a prompt is longer than the limit",
            key="trainer.max_prompt_tokens",
            value=most,
            allowed=f"at least {longest}",
        )


def _check_characters(tokenizer: Any, texts: Sequence[str], prompts: Sequence[Sequence[int]]) -> None:
    """Check that the tokenizer of a tiny model has a token for each character; it would encode others as padding."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    if not isinstance(model, WordLevel):
        return
    for text, prompt in zip(texts, prompts, strict=True):
        if tokenizer.pad_token_id in prompt:
            raise UserError(
                "the model's tokenizer has no token for some characters of a prompt",
                key="characters",
                value=text[:200],
                allowed="".join(sorted(token for token in tokenizer.get_vocab() if len(token) == 1)),
                hint="`characters: ascii` of a tiny model has tokens for all of ASCII",
            )
