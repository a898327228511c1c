"""IFEval by lm-eval's checkers, and their sentence splitter."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk import sent_tokenize

from redraft.errors import UserError
from redraft.tasks.instruction_arguments import normalized
from redraft.tasks.instructions import CheckerError, Instructions, grade_instructions, instructions_of
from redraft.tasks.sentences import PARAMETERS, sentence_splitter
from tests.ifeval_responses import answer_of, following, samples

ROOT = Path(__file__).parents[1]
PROMPTS = ROOT.parent / "shared/data/benchmarks/ifeval.jsonl"
PUNKT = "tokenizers/punkt_tab/english"


def answer(*instructions, key=1):
    names, kwargs = zip(*((name, arguments) for name, arguments in instructions), strict=True)
    return json.dumps({"key": key, "instruction_id_list": names, "kwargs": kwargs})


@pytest.fixture(scope="module")
def prompts():
    if not PROMPTS.exists():
        pytest.skip(f"{PROMPTS.name} is not there: third-party data are not part of the repository")
    return [json.loads(line) for line in PROMPTS.read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "arguments", "right", "wrong"),
    [
        ("punctuation:no_comma", {}, "no commas", "a, b"),
        ("change_case:english_lowercase", {}, "all of this is written in small letters", "All of this is not"),
        ("detectable_format:json_format", {}, '```json\n{"a": [1]}\n```', "{'a': 1}"),
        ("startend:end_checker", {"end_phrase": "The end."}, "So it was. The end.", "The end. Or not"),
        ("keywords:frequency", {"keyword": "tea", "frequency": 2, "relation": "at least"}, "tea and tea", "tea"),
        ("length_constraints:number_words", {"num_words": 3, "relation": "less than"}, "two words", "now three words"),
        ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "at least"}, "One. Two.", "One"),
        ("language:response_language", {"language": "de"}, "Das ist ein deutscher Satz.", "This is an English one."),
    ],
)
def test_a_response_that_follows_an_instruction_passes_and_another_does_not(name, arguments, right, wrong):
    assert grade_instructions("p", right, answer((name, arguments))) == Instructions([True], [True])
    assert grade_instructions("p", wrong, answer((name, arguments))) == Instructions([False], [False])
    assert grade_instructions("p", " ", answer((name, arguments))) == Instructions([False], [False])


def test_loose_verdicts_forgive_a_first_line_a_last_line_and_asterisks():
    asked = answer(("punctuation:no_comma", {}), ("startend:end_checker", {"end_phrase": "Bye."}))
    assert grade_instructions("p", "Sure, here:\n*Good*. Bye.", asked) == Instructions([False, True], [True, True])
    assert grade_instructions("p", "Good. Bye.*", asked) == Instructions([True, False], [True, True])


def test_verdicts_depend_on_the_response_alone():
    """The checker draws a letter for the two prompts without one; the language detector always draws."""
    asked = answer(
        ("keywords:letter_frequency", {"letter": "#", "let_frequency": 2, "let_relation": "at least"}),
        ("language:response_language", {"language": "en"}),
    )
    texts = ["a a b c d e e f", "zum xx zz und so on", "qq", "one two three", "ee", "uu ii"]
    first = [grade_instructions("p", text, asked) for text in texts]
    for seed in range(3):
        random.seed(seed)
        expected = random.Random(seed).random()
        assert [grade_instructions("p", text, asked) for text in texts] == first
        assert random.random() == expected, "grading takes no numbers from whoever else draws"
    assert {tuple(one.strict) for one in first} >= {(False, False)}


def letters(character, count, relation):
    return answer(
        ("keywords:letter_frequency", {"letter": character, "let_frequency": count, "let_relation": relation})
    )


@pytest.mark.parametrize(
    ("character", "count", "relation", "text", "followed"),
    [
        ("#", 4, "at least", "# # # # # # # 1 2 3", True),
        ("#", 4, "at least", "# # # 1 2 3", False),
        ("!", 2, "less than", "Yes! No.", True),
        ("!", 2, "less than", "Yes! No!", False),
        ("E", 3, "at least", "Eve e", True),
        ("e", 3, "at least", "#e#e!", False),
    ],
)
def test_the_character_that_the_prompt_asks_for_is_counted(character, count, relation, text, followed):
    verdicts = grade_instructions("p", text, letters(character, count, relation))
    assert (verdicts.strict, verdicts.loose) == ([followed], [followed])
    assert (verdicts.official is None) == character.isalpha()


def test_the_unchanged_checkers_verdict_on_no_letter_is_that_on_a_letter_drawn_and_stands_beside():
    texts = ["# # # #", "a b c d e f", "".join(map(chr, range(97, 123))) * 4]
    official = [grade_instructions("p", text, letters("#", 4, "at least")).official.strict for text in texts]
    assert official == [[False], [False], [True]]
    again = grade_instructions("p", "####", letters("q", 1, "at least"))
    assert (again.strict, again.official) == ([False], None), "the checkers are as before"


@settings(max_examples=60)
@given(st.text(max_size=200), st.data())
def test_every_text_gets_one_verdict_per_instruction_and_strict_implies_loose(text, data):
    known = [
        ("punctuation:no_comma", {}),
        ("startend:quotation", {}),
        ("detectable_format:json_format", {}),
        ("detectable_format:title", {}),
        ("combination:two_responses", {}),
        ("change_case:english_capital", {}),
        ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}),
        ("length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "a"}),
        ("change_case:capital_word_frequency", {"capital_frequency": 1, "capital_relation": "at least"}),
    ]
    asked = answer(*data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=3)))
    verdicts = grade_instructions("p", text, asked)
    assert len(verdicts.strict) == len(verdicts.loose) == len(json.loads(asked)["kwargs"])
    assert all(loose for strict, loose in zip(verdicts.strict, verdicts.loose, strict=True) if strict)
    assert grade_instructions("p", text, asked) == verdicts


def test_a_checker_that_fails_says_on_which_prompt_and_why():
    asked = answer(("detectable_format:json_format", {}), key=77)
    with pytest.raises(CheckerError, match="prompt 77: RecursionError"):
        grade_instructions("p", "[" * 20_000, asked)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("42", "does not hold a prompt's instructions"),
        ("no JSON", "does not hold a prompt's instructions"),
        ('{"key": 1, "kwargs": []}', "does not hold a prompt's instructions"),
        ('{"key": 1, "instruction_id_list": ["punctuation:no_comma"], "kwargs": []}', "numbers of instructions"),
        (answer(("punctuation:no_dots", {})), "unknown instructions"),
    ],
)
def test_an_answer_that_is_no_list_of_instructions_is_rejected(text, message):
    with pytest.raises(UserError, match=message):
        grade_instructions("p", "response", text)


def test_the_error_of_a_missing_column_shows_those_that_are_there():
    with pytest.raises(UserError, match="does not hold a prompt's instructions") as error:
        normalized({"key": 1, "kwargs": []})
    assert error.value.value == "['key', 'kwargs']"
    assert "instruction_id_list" in str(error.value)


def test_all_prompts_can_be_graded_and_every_instruction_can_be_followed_and_not(prompts):
    seen: dict[str, set[bool]] = {}
    for row in samples(prompts[::2]):
        verdicts = grade_instructions(row["prompt"], row["text"], row["answer"])
        for name, verdict in zip(instructions_of(row["answer"])["instruction_id_list"], verdicts.loose, strict=True):
            seen.setdefault(name, set()).add(verdict)
    assert len(seen) == 25
    assert {name for name, verdicts in seen.items() if verdicts != {True, False}} == set()


def test_how_many_verdicts_the_sentence_splitter_can_change(prompts):
    """The upper bound in docs/ifeval.md: instructions whose checkers use the splitter."""
    asking = {"length_constraints:number_sentences", "change_case:capital_word_frequency"}
    of_prompts = [[name for name in row["instruction_id_list"] if name in asking] for row in prompts]
    assert (sum(map(len, of_prompts)), sum(map(bool, of_prompts))) == (77, 64)
    assert sum(len(row["instruction_id_list"]) for row in prompts) == 832


def test_responses_to_grade_are_the_same_every_time(prompts):
    assert [following(row, 3) for row in prompts[:40]] == [following(row, 3) for row in prompts[:40]]
    assert json.loads(answer_of(prompts[0]))["key"] == prompts[0]["key"]


def model(folder, abbreviations="mr\n", names=PARAMETERS):
    """Write made-up English parameters of Punkt."""
    (folder / PUNKT).mkdir(parents=True)
    for name in names:
        (folder / PUNKT / name).write_text(abbreviations if name == "abbrev_types.txt" else "")
    return folder


def split_elsewhere(home, **environment):
    """Output of a new process without a network: the splitter, a text's sentences, and the number of warnings.

    It does not see the parameters of its environment.
    """
    code = (
        "import nltk, os, subprocess, sys, warnings\n"
        "nltk.data.path[:] = [path for path in nltk.data.path if not path.startswith(sys.prefix)]\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always', UserWarning)\n"
        "    from redraft.tasks.sentences import sentence_splitter\n"
        "    from redraft.errors import UserError\n"
        "    try: print(sentence_splitter(), sentence_splitter())\n"
        "    except UserError as error: print('refused', error)\n"
        "    else:\n"
        "        from nltk import sent_tokenize\n"
        "        print(len(sent_tokenize('Mr. Weber left. Nobody saw it.')))\n"
        "print(sum('untrained' in str(w.message) for w in caught))\n"
        "if sys.argv[1:]: subprocess.run([sys.executable, '-c', sys.argv[1]])\n"
    )
    child = code.replace("if sys.argv[1:]", "if False") if environment.pop("child", False) else None
    kept = {k: v for k, v in os.environ.items() if k not in ("NLTK_DATA", "REDRAFT_DATA") and "proxy" not in k.lower()}
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    result = subprocess.run(
        [sys.executable, "-c", code, *([child] if child else [])],
        env=kept | nowhere | {"HOME": str(home)} | {k: str(v) for k, v in environment.items()},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    return result.stdout.splitlines()


def test_trained_parameters_are_found_in_either_configured_folder(tmp_path):
    model(tmp_path / "root/nltk_data")
    assert split_elsewhere(tmp_path, REDRAFT_DATA=tmp_path / "root") == ["punkt_tab punkt_tab", "2", "0"]
    assert split_elsewhere(tmp_path, NLTK_DATA=tmp_path / "root/nltk_data") == ["punkt_tab punkt_tab", "2", "0"]


def test_without_parameters_and_network_punkt_is_untrained_with_one_warning_and_children_know(tmp_path):
    """The abbreviation now ends a sentence; the child neither tries to fetch nor warns again."""
    lines = split_elsewhere(tmp_path, REDRAFT_DATA=tmp_path, child=True)
    own = [line for line in lines if line != "0"]
    assert sorted(lines) == sorted(["untrained untrained", "3", "1", "untrained untrained", "3", "0"]), own


def test_incomplete_or_damaged_parameters_are_named(tmp_path):
    model(tmp_path / "incomplete", names=PARAMETERS[:2])
    (model(tmp_path / "damaged") / PUNKT / "ortho_context.tab").write_text("word\tnumber\n")
    for folder in ("incomplete", "damaged"):
        refused = "\n".join(split_elsewhere(tmp_path, NLTK_DATA=tmp_path / folder))
        assert "incomplete or damaged" in refused
        assert str(tmp_path / folder / PUNKT) in refused


def test_the_splitter_of_an_environment_with_the_parameters_is_trained_and_children_are_told_where_they_are():
    root = Path(sys.prefix) / "nltk_data"
    if not (root / PUNKT).is_dir():
        pytest.skip("punkt_tab could not be fetched when the environment was made")
    assert sentence_splitter() == "punkt_tab"
    assert sent_tokenize("Dr. Weber left. Nobody saw it.") == ["Dr. Weber left.", "Nobody saw it."]
    assert os.environ["NLTK_DATA"].split(os.pathsep)[-1] == str(root)
