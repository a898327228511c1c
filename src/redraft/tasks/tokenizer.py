"""The tokenizer of the tiny task: one token per character, and one for the opening of a box."""

import string

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, EOS, BOX = "<pad>", "<eos>", "\\boxed{"


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Make a fast tokenizer with 44 tokens: digits, small letters, `+-=;`, boxes, padding and end of sequence."""
    tokens = [PAD, EOS, BOX, "}", *string.digits, *string.ascii_lowercase, *"+-=;"]
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=PAD))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\\boxed\{|."), behavior="isolated")
    # Joins tokens without blanks.
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=EOS)
