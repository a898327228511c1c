"""Instruction prompts made here: the same checkers as IFEval's, topics of one split, and nothing of IFEval."""

import json
import re
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redraft.config.generated import InstructionName, InstructionPrompts
from redraft.errors import UserError
from redraft.tasks import instruction_kinds as kinds
from redraft.tasks.instruction_kinds import COMMON, ENDINGS, FORMS, KINDS, QUESTIONS, TOPICS, WORDS
from redraft.tasks.instruction_prompts import (
    COPY,
    OWN_CONFLICTS,
    YES_OR_NO,
    choose,
    fits,
    sample_problem,
    sample_problems,
)
from redraft.tasks.instructions import conflicts, follows, grade_instructions
from redraft.tasks.problem_splits import split_of
from redraft.tasks.problems import load_problems
from redraft.tasks.rewards import rewards_of
from tests.ifeval_responses import LANGUAGES, following

IFEVAL = Path(__file__).parents[2] / "shared/data/benchmarks/ifeval.jsonl"
EVERY = list(KINDS)


@pytest.fixture(scope="module")
def apart():
    return conflicts()


def asked(prompt):
    """Names and arguments of a prompt's instructions."""
    record = json.loads(prompt.answer)
    return list(zip(record["instruction_id_list"], record["kwargs"], strict=True))


def obeying(prompt):
    """A response that follows a prompt's one instruction."""
    name, arguments = asked(prompt)[0]
    match name, arguments:
        case "language:response_language", {"language": "it"}:
            return "Il comitato si è riunito lunedì per parlare del porto. Nessuno si è opposto."
        case "keywords:letter_frequency", {"let_relation": "less than"}:
            return "It is a kite at sea."
        case "keywords:letter_frequency", {"letter": letter, "let_frequency": count}:
            return f"So {letter * count}."
        case "keywords:forbidden_words", _:
            return "Birds sing."
        case "length_constraints:number_words" | "length_constraints:number_sentences", {"relation": "less than"}:
            return "Birds sing."
        case "length_constraints:number_sentences", {"num_sentences": count}:
            return "A bird sang. " * count
        case "change_case:capital_word_frequency", {"capital_frequency": count}:
            return "NOW! " * count
    return following(json.loads(prompt.answer), 1)


def disobeying(prompt):
    """A response that does not follow a prompt's one instruction."""
    name, arguments = asked(prompt)[0]
    match name, arguments:
        case "keywords:forbidden_words", {"forbidden_words": words}:
            return f"They sing {words[0]} dance."
        case "keywords:letter_frequency", {"let_relation": "less than", "letter": letter, "let_frequency": count}:
            return letter * count
        case "length_constraints:number_words" | "length_constraints:number_sentences", {"relation": "less than"}:
            return "A bird sang. " * 40
        case "punctuation:no_comma", _:
            return "Birds, bees."
    return "A bird sang"


@pytest.mark.parametrize("name", EVERY)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=12, deadline=None)
def test_a_response_that_follows_an_instruction_is_rewarded_and_one_that_does_not_is_not(name, apart, seed):
    prompt = sample_problem(np.random.default_rng(seed), [name], 1, apart)
    texts = [obeying(prompt), disobeying(prompt)]
    assert rewards_of(texts, prompt.answer, "instructions")[0] == [1.0, 0.0], (prompt, texts)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_the_reward_is_the_strict_verdict_of_the_evaluation_s_grader_on_all_instructions(apart, seed):
    prompt = sample_problem(np.random.default_rng(seed), EVERY, 3, apart)
    for text in (
        following(json.loads(prompt.answer), seed % 50),
        obeying(prompt),
        disobeying(prompt),
        "",
        prompt.prompt,
    ):
        graded = grade_instructions(prompt.prompt, text, prompt.answer)
        assert follows(text, prompt.answer) == all(graded.strict)


def test_a_part_of_the_instructions_earns_nothing():
    answer = json.dumps(
        {"key": 1, "instruction_id_list": ["punctuation:no_comma", "change_case:english_lowercase"], "kwargs": [{}, {}]}
    )
    texts = ["all of this is written in small letters", "No commas but a capital letter", "small letters, and a comma"]
    assert rewards_of(texts, answer, "instructions")[0] == [1.0, 0.0, 0.0]


def test_a_response_on_which_a_checker_fails_earns_nothing():
    answer = json.dumps({"key": 1, "instruction_id_list": ["detectable_format:json_format"], "kwargs": [{}]})
    assert rewards_of(["[" * 100_000, "[]"], answer, "instructions")[0] == [0.0, 1.0]


@pytest.mark.parametrize("name", EVERY)
def test_the_prompt_says_every_argument_that_the_checker_gets(name, apart):
    rng = np.random.default_rng(0)
    for _ in range(30):
        prompt = sample_problem(rng, [name], 1, apart)
        ((found, arguments),) = asked(prompt)
        assert found == name
        words = re.sub(
            "fewer than|under", "less than", re.sub("or more|no fewer than|has to occur", "at least", prompt.prompt)
        )
        for key, value in arguments.items():
            for each in value if isinstance(value, list) else [value]:
                shown = kinds.LANGUAGES[each] if key == "language" else str(each)
                assert shown in words, (prompt, key)


def test_instructions_that_exclude_each_other_never_stand_together(apart):
    rng = np.random.default_rng(1)
    counts, pairs = set(), set()
    for _ in range(3000):
        chosen = choose(rng, EVERY, int(rng.integers(1, 4)), apart)
        counts.add(len(chosen))
        assert len(set(chosen)) == len(chosen)
        for i, one in enumerate(chosen):
            for other in chosen[:i]:
                assert other not in apart[one]
                assert one not in apart[other]
                assert frozenset((one, other)) not in OWN_CONFLICTS
                pairs.add(frozenset((one, other)))
    assert counts == {1, 2, 3}
    compatible = sum(fits(one, [other], apart) for one in EVERY for other in EVERY) // 2
    assert len(pairs) == compatible > 100, "every pair that fits is drawn"


def test_our_own_conflicts_are_none_of_ifeval_s_and_each_can_exclude_each_other(apart):
    assert not [pair for pair in OWN_CONFLICTS for one in pair if set(pair) - {one} <= apart[one]]
    assert all(pair <= set(EVERY) for pair in OWN_CONFLICTS)
    for word in COMMON:
        assert not any(re.search(rf"\b{word}\b", text) for text in WORDS), "words to use are none to avoid"


def test_what_is_copied_stands_before_and_can_be_copied_without_commas(apart):
    rng = np.random.default_rng(2)
    prompts = [sample_problem(rng, EVERY, 3, apart) for _ in range(2000)]
    copied = [(p, a["prompt_to_repeat"]) for p in prompts for name, a in asked(p) if name == COPY]
    assert len(copied) > 50
    assert any(len(asked(prompt)) == 3 for prompt, _ in copied)
    for prompt, request in copied:
        assert [name for name, _ in asked(prompt)].index(COPY) == len(asked(prompt)) - 1, "nothing follows it"
        assert prompt.prompt.startswith(request + "\n")
        assert follows(
            request + " Done.", json.dumps({"key": 1, "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]})
        )


def test_only_yes_or_no_questions_ask_for_yes_no_or_maybe(apart):
    rng = np.random.default_rng(3)
    for _ in range(500):
        prompt = sample_problem(rng, EVERY, 3, apart)
        question = any(prompt.prompt.startswith(form.format(prompt.topic)) for form in QUESTIONS)
        assert question == ([name for name, _ in asked(prompt)] == [YES_OR_NO])


def test_a_draw_follows_from_its_seed_and_splits_share_no_topic():
    train, again, other, held_out = (
        sample_problems(300, EVERY, 3, split, seed)
        for split, seed in (("train", 0), ("train", 0), ("train", 1), ("held-out", 0))
    )
    assert train == again != other
    assert len({p.prompt for p in train}) == 300
    assert not {p.topic for p in [*train, *other]} & {p.topic for p in held_out}
    assert {split_of(p.topic) for p in held_out} == {"held-out"}
    assert len({json.loads(p.answer)["key"] for p in [*train, *held_out]}) == 600
    assert {name for p in train for name, _ in asked(p)} == set(EVERY)


def test_more_prompts_than_there_are_is_one_clear_error():
    with pytest.raises(UserError, match="fewer different problems") as error:
        sample_problems(5000, [YES_OR_NO], 1, "train", 0)
    assert (error.value.key, error.value.value) == ("data.size", 5000)
    topics = [topic for topic in TOPICS if split_of(topic) == "train"]
    assert len(sample_problems(len(topics) * len(QUESTIONS), [YES_OR_NO], 1, "train", 0)) == len(topics) * len(
        QUESTIONS
    )


def test_configured_prompts_are_drawn_with_their_checkers_arguments():
    data = InstructionPrompts(size=20, instructions=["punctuation:no_comma"], split="held-out", seed=3)
    drawn = sample_problems(20, ["punctuation:no_comma"], 1, "held-out", 3)
    assert [(p.prompt, p.answer) for p in load_problems(data)] == [(p.prompt, p.answer) for p in drawn]


def test_the_configuration_offers_every_instruction_that_ifeval_has_and_no_other(apart):
    assert set(get_args(InstructionName)) == set(KINDS) == set(apart)


def grams(text, n):
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


def test_no_prompt_shares_eight_words_in_a_row_or_a_topic_with_ifeval(apart):
    if not IFEVAL.exists():
        pytest.skip(f"{IFEVAL.name} is not there: third-party data are not part of the repository")
    theirs = [json.loads(line)["prompt"] for line in IFEVAL.read_text().splitlines()]
    eights = set().union(*(grams(text, 8) for text in theirs))
    ours = [p.prompt for split in ("train", "held-out") for p in sample_problems(1500, EVERY, 3, split, 0)]
    assert not {text.strip().lower() for text in ours} & {text.strip().lower() for text in theirs}
    assert not [gram for text in ours for gram in grams(text, 8) if gram in eights]
    requests = [form.format(topic) for form in (*FORMS, *QUESTIONS) for topic in TOPICS]
    sixes = set().union(*(grams(text, 6) for text in theirs))
    assert not [gram for text in requests for gram in grams(text, 6) if gram in sixes]
    assert not [topic for topic in TOPICS if len(topic.split()) > 2 and any(topic in text.lower() for text in theirs)]
    assert not [phrase for phrase in ENDINGS if any(phrase.lower() in text.lower() for text in theirs)]


def test_languages_are_those_that_the_checker_tells_apart(apart):
    for code in set(kinds.LANGUAGES) & set(LANGUAGES):
        answer = json.dumps(
            {"key": 1, "instruction_id_list": ["language:response_language"], "kwargs": [{"language": code}]}
        )
        assert follows(LANGUAGES[code], answer)
        assert not follows("This is written in English and in nothing else.", answer)
