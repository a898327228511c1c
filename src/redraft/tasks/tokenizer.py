"""Tokenizers of the tiny models: one token per character, and one for the opening of a box."""

import string

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, EOS, BOX = "<pad>", "<eos>", "\\boxed{"
CHARACTERS = {
    "arithmetic": string.digits + string.ascii_lowercase + "+-=;",
    "ascii": "".join(map(chr, range(ord(" "), ord("~") + 1))).replace("}", "") + "\n",
}
"""Characters with a token, besides the brace that closes a box, by the configuration's `characters`."""


def make_tokenizer(characters: str = "arithmetic") -> PreTrainedTokenizerFast:
    """Make a fast tokenizer with tokens for `CHARACTERS`, boxes, padding and end of sequence: 44 or 99."""
    tokens = [PAD, EOS, BOX, "}", *CHARACTERS[characters]]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=PAD))
    # A dot is no line break.
    one = "." if characters == "arithmetic" else r"[\s\S]"
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(rf"\\boxed\{{|{one}"), behavior="isolated")
    # Joins tokens without blanks.
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS)
