"""The grader, the arithmetic task and its tokenizer."""

import gc
import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from math_verify.errors import TimeoutException

from redraft.config.data import ArithmeticProblems, ProblemFile
from redraft.errors import UserError
from redraft.tasks import grading
from redraft.tasks.answers import GradedAnswer, Outcome, box, boxed, grade_choice, letter
from redraft.tasks.arithmetic import MODULUS, Sum, sample_problems
from redraft.tasks.grading import compare, grade, is_correct
from redraft.tasks.problem_splits import split_of
from redraft.tasks.problems import Problem, load_problems
from redraft.tasks.tokenizer import BOX, EOS, PAD, make_tokenizer

sums = st.builds(
    Sum,
    st.integers(0, MODULUS - 1),
    st.lists(st.integers(1, 9).flatmap(lambda n: st.sampled_from([n, -n])), min_size=1, max_size=6).map(tuple),
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42}", "42"),
        (r"\boxed{7} no, \boxed{42}.", "42"),  # the last box counts
        (r"\boxed{\frac{1}{2}}", "0.5"),
        (r"\boxed{0.5}", r"\frac{1}{2}"),
        (r"\boxed{\frac{2}{4}}", r"\frac{1}{2}"),
        (r"\boxed{x^2+2x+1}", "(x+1)^2"),
        (r"\boxed{ 042 }", "42"),
        (r"\boxed{\sqrt{8}}", r"2\sqrt{2}"),
        (r"\boxed{\{1,2\}}", r"\{2,1\}"),
        (r"\boxed{50\%}", "0.5"),  # the grammar for ANTLR 4.9 alone reads no percentage
        (r"\boxed{0.5}", r"50\%"),
        (r"\boxed{4.5 \times 10^{33}}", "4.5e33"),  # not Euler's number
        (r"\boxed{3e-5}", r"3 \times 10^{-5}"),
        (r"\boxed{9^{9^{9^9}}}", "9^{9^{9^9}}"),  # equal as text, so never computed
    ],
)
def test_right(text, answer):
    assert is_correct(text, answer) is True


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{41}", "42"),
        (r"\boxed{42} no, \boxed{7}", "42"),
        ("42", "42"),  # not boxed
        ("", "42"),
        (r"\boxed{}", "42"),
        (r"\boxed{42", "42"),  # not closed
        (r"\boxed{42} or \boxed{42", "42"),  # the last box is not closed
        ("boxed{42}", "42"),
        (r"\boxed{the answer}", "42"),
        (r"\boxed{-42}", "42"),
        (r"\boxed{4 2 7}", "42"),
        (r"\boxed{4.5 \times 10^{32}}", "4.5e33"),
        (r"\boxed{2e-19}", "1e-19"),  # both are below what math-verify tells from 0
        (r"\boxed{1e999}", "1e999999999"),
    ],
)
def test_wrong(text, answer):
    assert is_correct(text, answer) is False


@pytest.mark.parametrize(
    "content", [r"\frac{1}{0}", r"\frac{}{}", "(" * 100, r"\int_{", "\x00", "^", r"\left(\right", "1/0"]
)
def test_what_cannot_be_parsed_is_wrong_and_raises_nothing(content):
    assert is_correct(f"\\boxed{{{content}}}", "42") is False


@pytest.mark.parametrize(
    ("text", "answer", "verdict"),
    [
        (r"so \boxed{ 42 }", "42", GradedAnswer(Outcome.CORRECT, "42")),
        (r"so \boxed{41}", "42", GradedAnswer(Outcome.WRONG, "41")),
        ("so 42", "42", GradedAnswer(Outcome.NO_ANSWER)),
        (r"so \boxed{42", "42", GradedAnswer(Outcome.NO_ANSWER)),
        (r"so \boxed{ }", "42", GradedAnswer(Outcome.NO_ANSWER)),
        (" \n", "42", GradedAnswer(Outcome.EMPTY)),
        (
            r"so \boxed{42}",
            "",
            GradedAnswer(Outcome.ERROR, "42"),
        ),  # an answer that cannot be read is not a wrong response
        (r"so \boxed{42}", " ", GradedAnswer(Outcome.ERROR, "42")),
    ],
)
def test_outcomes(text, answer, verdict):
    assert grade(text, answer) == verdict


def test_an_error_of_the_grader_is_told_apart_and_does_not_escape(monkeypatch):
    def fails(*_, **__):
        raise RecursionError

    monkeypatch.setattr("redraft.tasks.grading.verify", fails)
    assert grade(r"\boxed{43}", "4343") == GradedAnswer(Outcome.ERROR, "43")
    assert is_correct(r"\boxed{43}", "4343") is False


@pytest.fixture
def one_second(monkeypatch):
    monkeypatch.setattr("redraft.tasks.grading.SECONDS", 1)


HOSTILE = {
    "power": "9^{9^{9^9}}",
    "shift": "2^{2^{36}}",
    "factorial": "100000000!",
    "sum": r"\sum_{n=1}^{10000000} \sqrt{n}",
    "expansion": "(x+y+z+1)^{200}",
    "brackets": "(" * 5_000 + "1" + ")" * 5_000,
    "prose": "word and " * 11_000,
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_answer_times_out_and_the_second_time_costs_nothing(one_second, content):
    text = f"\\boxed{{{content}}}"
    began = time.process_time()
    assert grade(text, "42").outcome is Outcome.TIMEOUT
    assert time.process_time() - began < 6  # reading and comparing have a second each, garbage the rest
    began = time.process_time()
    assert is_correct(text, "42") is False
    assert time.process_time() - began < 0.1


@pytest.mark.parametrize(
    "content",
    ["1" * 100_000, r"\frac{1}{" * 200 + "1" + "}" * 200, "\\frac" * 20_000, "," * 50_000, "0." + "1" * 3_000, "{" * 9],
    ids=["digits", "fractions", "commands", "commas", "decimals", "unclosed"],
)
def test_a_huge_answer_is_not_right_and_takes_seconds(one_second, content):
    began = time.process_time()
    assert is_correct(f"\\boxed{{{content}}}", "42") is False
    assert time.process_time() - began < 6


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_alarm_that_the_garbage_collector_swallows_comes_again(one_second, monkeypatch):
    """A signal during a garbage collection is handled in the callbacks, which ignore exceptions."""
    swallowed = []

    def callback(*_):
        deadline = time.monotonic() + 1.2
        while not swallowed and time.monotonic() < deadline:
            try:
                time.sleep(0.01)
            except TimeoutException as error:
                swallowed.append(error)
                raise

    def collect_for_ever(_):
        gc.callbacks.append(callback)
        try:
            gc.collect()
        finally:
            gc.callbacks.remove(callback)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            pass

    monkeypatch.setattr(grading, "read_latex", collect_for_ever)
    began = time.monotonic()
    assert compare("4343.25", "4343.2500") is Outcome.TIMEOUT
    assert swallowed
    assert time.monotonic() - began < 5


def test_alarms_are_as_before(one_second):
    import signal

    before = signal.getsignal(signal.SIGALRM)
    compare("8^{8^{8^8}}", "42")
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.alarm(0) == 0


def test_an_answer_that_took_too_long_to_read_once_is_read_again(monkeypatch):
    slow = [True]
    read = grading.read

    def once(content):
        if slow:
            slow.clear()
            raise TimeoutException
        return read(content)

    monkeypatch.setattr(grading, "read", once)
    assert compare("43", "86/2") is Outcome.TIMEOUT
    assert compare("43.0", "86/2") is Outcome.CORRECT


def test_a_thread_is_rejected_instead_of_grading_everything_wrong():
    raised = []

    def work():
        try:
            grade(r"\boxed{4242}", "4242")
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "main thread" in raised[0]
    assert is_correct(r"\boxed{4242}", "4242")


@given(st.text(max_size=60), st.text(max_size=20))
def test_no_exception_escapes_the_grader(content, answer):
    verdict = grade(f"\\boxed{{{content}}}", answer)
    assert verdict.outcome in Outcome
    assert bool(verdict.extracted) is (verdict.outcome not in {Outcome.NO_ANSWER, Outcome.EMPTY})


@pytest.mark.parametrize(
    "content",
    [
        "C",
        " C ",
        "(C)",
        r"\text{C}",
        r"\textbf{(C)}",
        r"\text{(C)}",
        r"\mathrm{C}",
        r"\textbf{\text{C}}",
        "C.",
        "C)",
        "C:",
        "C) some text",
        "C: 3 A",
        "(C) some text",
        "(C).",
        "C.\nsome text",
        r"\text{C. some text}",
        "$C$",
        r"\(C\)",
        r"\textbf{(C)}\ 12",
        r"\textbf{(C) }12",
        r"\text{(C)} 12",
        r"\textbf{(C)} \frac{1}{2}",
        r"\text{$C$}",
        r"\mathrm{C}:\;\frac{1}{2}",
        r"(C)~12",
        r"C)\quad 12",
        "(C) a line of Best fit",
        "(C) points A and B",
        "(C) A and B",
        "C. A, B",
        "(C) Both (A) and (B)",
        "(C) neither A nor B",
        "(C) energy (E)",
        "(C) vitamin (D)",
        "(C) Both (D) and (E)",
        "(C) neither (D) nor (E)",
        "(C) Statement (D) is true",
        "C. elegans, D. melanogaster",
        "C. D. melanogaster and E. coli",
        "C. D. melanogaster, E. coli",
        "C. D. E. Smith",
        "(C) from (D) to (E)",
        "C. Hepatitis D. E.",
        "C) Because D) is wrong, E) is wrong",
        "C. D. melanogaster",
        "C. vitamin D. complex",
        "(C) (E)-but-2-ene",
        "(C) P(A) + P(B)",
        "(C) 2(A) + 3(B)",
        "(C) Band (B)",
        "(C) or (C)",
        r"\textbf{(C)} \textbf{(C)}",
        r"\textbf{(C)}\ \mathbf{A}\mathbf{B}",
        "C) P(A | D) * P(D | E) * P(E | A)",
        "C) line (C, D), (D, E)",
        "C. None of the above",
        "(C) All of (A), (B) and (D)",
    ],
)
def test_a_letter_is_read(content):
    assert letter(content) == "C"
    text = f"\\boxed{{A}} no, \\boxed{{{content}}}"
    assert grade_choice(text, "C") == GradedAnswer(Outcome.CORRECT, "C")
    assert grade_choice(text, "B") == GradedAnswer(Outcome.WRONG, "C")


@pytest.mark.parametrize(
    "content",
    [
        "c",
        "K",
        "CA",
        "Carbon",
        "C, D",
        "C and D",
        "C or D",
        "C some text",
        "(C",
        "(C)D",
        "C.5",
        "CO_2",
        "2",
        "2C",
        "-C",
        "the answer is C",
        r"\text{A}\text{C}",
        r"\text{C}12",
        r"\text{C}\text{. some text}",
        r"\text{C} and \text{D}",
        "(C) or (D)",
        "(C) or D",
        "(C) AND D.",
        "(C) , D",
        "C. or D",
        "C) and (D)",
        "(C) and B or D",
        "(C), (A), and (D)",
        "(C) (D)",
        "(C) 5 or (D) 7",
        "(C) 5, (D) 7",
        "(C) 5 (D) 7",
        r"\textbf{(C)} \text{ and } \textbf{(D)}",
        r"\textbf{(C)} or \textbf{(D)}",
        r"\textbf{(C)}\quad\textbf{(D)}",
        r"\textbf{(C)}\ 5\textbf{(D)}\ 7",
        r"\text{(C)} or (D)",
        r"\text{(C) or D}",
        r"\text{(C) or }\text{(D)}",
        "$(C)$ or $(D)$",
        r"\text{C}~12",
        r"\mathrm{C}_2",
        "Ⅽ",
        "С",
        "not C",
        "C. 0 D. 1 E. 2",
        "C. 0\nD. 1",
        r"C. 0 \\ D. 1",
        "C) x D) y E) z",
        "C: x, D: y",
        "C. D. E.",
        "(C) True; (D) False",
        "(C) velocity\n(D) speed",
        "C. None D. One E. Two",
        "C) All D) Some E) None",
        "C. a" + "\n" * 50_000 + "x D. b E. c",
    ],
)
def test_nothing_else_is_a_letter(content):
    assert letter(content) is None
    assert grade_choice(f"\\boxed{{{content}}}", "C") == GradedAnswer(Outcome.WRONG, content)


@pytest.mark.parametrize(
    ("text", "answer", "verdict"),
    [
        ("C", "C", GradedAnswer(Outcome.NO_ANSWER)),
        ("", "C", GradedAnswer(Outcome.EMPTY)),
        (r"\boxed{}", "C", GradedAnswer(Outcome.NO_ANSWER)),
        (r"\boxed{C}", "2", GradedAnswer(Outcome.ERROR, "C")),
        (r"\boxed{C}", "", GradedAnswer(Outcome.ERROR, "C")),
        (r"\boxed{C}", "ABC", GradedAnswer(Outcome.ERROR, "C")),
    ],
)
def test_outcomes_of_choices(text, answer, verdict):
    assert grade_choice(text, answer) == verdict


def test_braces_nest_in_a_box():
    assert boxed(r"a \boxed{\frac{1}{2}} b") == r"\frac{1}{2}"
    assert boxed(r"\boxed{1} \boxed{{2}{3}}}") == "{2}{3}"
    assert boxed(r"\boxed{\frac{1}{2}") is None


@given(sums)
def test_working_ends_in_the_right_box_and_takes_up_every_term(problem):
    working = problem.working()
    assert working.endswith(box((problem.first + sum(problem.terms)) % 100))
    assert is_correct(working, str(problem.answer))
    assert working.count(";") == len(problem.terms) + 1
    values = [int(step.rpartition("=")[2]) for step in working.split(";")[:-1]]
    steps = [(after - before) % MODULUS for before, after in pairwise(values)]
    assert steps == [term % MODULUS for term in problem.terms]


@given(sums, st.integers(1, 9))
def test_a_slip_spoils_the_answer(problem, error):
    assert not is_correct(problem.working({0: error}), str(problem.answer))


def test_splits_are_disjoint_and_drawn_without_repetition():
    train, held_out = (sample_problems(300, 2, 3, "both", split, seed=0) for split in ("train", "held-out"))
    assert len({*train, *held_out}) == 600
    assert {split_of(problem.prompt) for problem in train} == {"train"}
    assert {split_of(problem.prompt) for problem in held_out} == {"held-out"}


def test_a_draw_depends_on_its_seed_alone():
    assert sample_problems(20, 4, 7, "both", "train", 0) == sample_problems(20, 4, 7, "both", "train", 0)
    assert sample_problems(20, 4, 7, "both", "train", 0) != sample_problems(20, 4, 7, "both", "train", 1)


def test_problems_are_as_configured():
    problems = sample_problems(100, 3, 5, "minus", "train", 0)
    assert {1 + len(problem.terms) for problem in problems} == {3, 4, 5}
    assert {term for problem in problems for term in problem.terms} == set(range(-9, 0))
    loaded = load_problems(ArithmeticProblems(size=100, min_terms=3, max_terms=5, signs="minus"))
    assert loaded == [Problem(problem.prompt, str(problem.answer)) for problem in problems]
    assert Sum(75, (6, -2, 8)).prompt == "75a+6b-2c+8="


def test_tokenizer_has_a_token_for_every_character_of_the_task():
    tokenizer = make_tokenizer()
    assert len(tokenizer) == 44
    assert (tokenizer.pad_token, tokenizer.eos_token) == (PAD, EOS)
    assert tokenizer(BOX)["input_ids"] == [tokenizer.convert_tokens_to_ids(BOX)]


@given(sums)
def test_text_comes_back_from_its_tokens(problem):
    tokenizer = make_tokenizer()
    text = problem.prompt + problem.working()
    tokens = tokenizer(text)["input_ids"]
    assert tokenizer.decode(tokens) == text
    assert len(tokens) == len(text) - len(BOX) + 1
    assert tokenizer.pad_token_id not in tokens


def test_tokenizer_is_the_same_when_loaded(tmp_path):
    from transformers import AutoTokenizer

    text = Sum(75, (6, -2)).working()
    make_tokenizer().save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    ids = make_tokenizer()(text)["input_ids"]
    assert loaded(text)["input_ids"] == ids
    ending = [*ids, loaded.eos_token_id]
    assert loaded.batch_decode([ending], skip_special_tokens=True) == [text]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"problem": "1+1", "answer": 2}\n', "wrong number"),
        ('{"problem": "1+1"}\n{"problem": "1+2", "answer": 3}\n', "lacks a key"),
        ('{"problem": "1+1", "answer": 2}\nnonsense\n', "line 2 is not JSON"),
        ("[1]\n[2]\n", "line 1"),
    ],
)
def test_a_wrong_problem_file_is_named(tmp_path, content, message):
    file = tmp_path / "problems.jsonl"
    file.write_text(content)
    with pytest.raises(UserError, match=message) as error:
        load_problems(ProblemFile(path=str(file), size=2))
    assert error.value.file == file


def test_a_problem_file_is_read_in_order(tmp_path):
    file = tmp_path / "problems.jsonl"
    file.write_text('{"problem": "1+1", "answer": 2}\n{"problem": "x", "answer": "y", "level": 3}\n')
    data = ProblemFile(path=str(file), size=2, template="{problem}")
    assert load_problems(data) == [Problem("1+1", "2"), Problem("x", "y")]
    with pytest.raises(UserError, match="missing"):
        load_problems(ProblemFile(path=str(tmp_path / "other.jsonl"), size=2))


def test_equal_texts_are_right_before_anything_is_parsed(monkeypatch):
    def parsed(*_):
        raise AssertionError("it was parsed")

    monkeypatch.setattr(grading, "read", parsed)
    many = "\\{" + ",".join(map(str, range(1500))) + "\\}"
    assert compare(many, f" {many} ") is Outcome.CORRECT
