"""Prompts: the text alone, or one message of the chat template and the opening of the model's answer."""

import pytest

from redraft.tasks.prompts import DATE, encode
from redraft.tasks.tokenizer import make_tokenizer

TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}={% endif %}{% if date_string == '" + DATE + "' %};{% endif %}"
)
"""Opens the answer by `=`, and writes `;` if it was told the date."""


class BeginsTexts:
    """A tokenizer that begins a text by `-`, as many do, unless it is told not to."""

    name_or_path = "begins"

    def __init__(self, template):
        self.own = make_tokenizer()
        self.own.chat_template = self.chat_template = template

    def __call__(self, texts, add_special_tokens=True):
        return self.own([("-" if add_special_tokens else "") + text for text in texts])

    def apply_chat_template(self, *arguments, **named):
        return self.own.apply_chat_template(*arguments, **named)


def text_of(how, template=TEMPLATE):
    tokenizer = BeginsTexts(template)
    (tokens,) = encode(tokenizer, ["1a+2"], how)
    return tokenizer.own.decode(tokens)


@pytest.mark.parametrize("how", ["auto", "required"])
def test_a_chat_opens_the_answer_knows_the_date_and_begins_as_its_template_does(how):
    assert text_of(how) == "1a+2=;"


def test_without_a_template_or_where_none_is_wanted_the_text_begins_as_the_tokenizer_does():
    assert text_of("never") == text_of("auto", template=None) == "-1a+2"
