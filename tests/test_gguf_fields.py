"""What a GGUF file's metadata says of its tokenizer, and which files are refused for it; no GGUF file is read."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from redraft.errors import UserError
from redraft.train.pretrained.gguf import check_fields, corrected
from tests.gguf_files import MERGES, TEMPLATE, TOKENS

FILE = Path("small.gguf")
FIELDS = {
    "general.architecture": "llama",
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.chat_template": TEMPLATE,
}


@pytest.fixture
def tokenizer():
    """As transformers 5.10 reads the file: the beginning for the end, no padding, GPT-2's splitting, spaces tidied."""
    merges = [tuple(merge.split()) for merge in MERGES]
    whole = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, merges))
    whole.pre_tokenizer, whole.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=whole, bos_token=TOKENS[1], eos_token=TOKENS[1], clean_up_tokenization_spaces=True
    )


def test_special_tokens_are_those_that_the_file_names(tokenizer):
    found = corrected(tokenizer, FIELDS)
    assert (found.bos_token_id, found.eos_token_id, found.unk_token_id, found.pad_token_id) == (1, 2, 0, 2)


def test_what_the_file_does_not_name_stays(tokenizer):
    fields = {key: value for key, value in FIELDS.items() if not key.endswith("bos_token_id")}
    assert corrected(tokenizer, fields).bos_token_id == 1


@pytest.mark.parametrize(
    ("model", "split", "found"),
    [
        ("gpt2", "smollm", ["Ġ", "1", "2"]),
        ("gpt2", "gpt-2", ["Ġ1", "2"]),
        ("gpt2", "qwen2", ["Ġ1", "2"]),
        ("llama", "smollm", ["Ġ1", "2"]),
    ],
)
def test_byte_pairs_are_merged_within_what_the_file_splits(tokenizer, model, split, found):
    fields = FIELDS | {"tokenizer.ggml.model": model, "tokenizer.ggml.pre": split}
    assert corrected(tokenizer, fields).tokenize(" 12") == found


def test_decoding_tidies_no_spaces(tokenizer):
    found = corrected(tokenizer, FIELDS)
    text = "it 's 1 . 2 , so ?"
    assert found.decode(found(text)["input_ids"]) == text


def test_a_readable_file_is_taken():
    check_fields(FIELDS, FILE)
    check_fields(FIELDS | {"tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default"}, FILE)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("general.architecture", "mpt"),
        ("general.architecture", None),
        ("tokenizer.chat_template", ""),
        ("tokenizer.chat_template", None),
        ("tokenizer.ggml.pre", "llama-bpe"),
        ("tokenizer.ggml.pre", None),
    ],
)
def test_a_file_that_would_be_read_wrongly_is_rejected(key, value):
    fields = {name: content for name, content in (FIELDS | {key: value}).items() if content is not None}
    with pytest.raises(UserError) as refused:
        check_fields(fields, FILE)
    assert (refused.value.key, refused.value.file) == (key, FILE)
    assert refused.value.value == (None if key == "tokenizer.chat_template" else value)
    assert refused.value.allowed
