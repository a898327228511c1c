"""Rows of problem files: what is read, from a user's file as from a hub data set, and what is rejected."""

import gzip
import json
import math
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from redraft.config import Experiments
from redraft.config.data import BOX, CHOICES, LETTER, HubProblems, ProblemFile, ProblemSet
from redraft.errors import UserError
from redraft.tasks.answers import box, grade_choice
from redraft.tasks.grading import grade, is_correct
from redraft.tasks.instruction_arguments import ARGUMENTS, LANGUAGES, RELATIONS
from redraft.tasks.instructions import _checkers, grade_instructions
from redraft.tasks.problems import DATA_ROOT, Problem, check_answers, load_problems
from redraft.tasks.rewards import rewards_of

ROOT = Path(__file__).parents[1]
IFEVAL = ROOT.parent / "shared/data/benchmarks/ifeval.jsonl"
COLUMNS = ["key", "instruction_id_list", "kwargs"]


@pytest.fixture(params=["file", "hub"])
def loaded(request, tmp_path, monkeypatch):
    """A function that reads one file as a user's and as a hub data set: (content, name, fields) to problems."""
    monkeypatch.setenv(DATA_ROOT, str(tmp_path))

    def load(content, name="problems.jsonl", size=1, **fields):
        file = tmp_path / "a/b" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, pa.Table):
            pq.write_table(content, file)
        else:
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        fields = {"template": "{problem}"} | fields
        if request.param == "hub":
            return load_problems(HubProblems(id="a/b", files=[name], size=size, **fields))
        return load_problems(ProblemFile(path=str(file), size=size, **fields))

    return load


GOOD = '{"problem": "p", "answer": "1"}\n'
WRONG_ANSWERS = {
    "null": "neither text nor a number",
    '""': "has no answer",
    '" \\t"': "has no answer",
    '"\\u200b"': "has no answer",
    "NaN": "no number that can be compared",
    "Infinity": "no number that can be compared",
    "-1e400": "no number that can be compared",
    "1e-400": "no number that can be compared",
    "true": "neither text nor a number",
    "[1]": "neither text nor a number",
    '{"value": 1}': "neither text nor a number",
    '"\\ud800"': "surrogate",
    '"3}"': "earns nothing, since the box holds '3'",
    r'"\\frac{1}{2"': "braces of this answer are not balanced",
    r'"\\{1,2\\}}"': "earns nothing, since the box holds",
    r'"3\\"': "braces of this answer are not balanced",
    r'"so \\boxed{x} and \\boxed{y}"': "earns nothing, since the box holds 'y'",
    '"$"': "nothing of this answer is left",
    '"$.$"': "nothing of this answer is left",
    r'"\\[\\]"': "nothing of this answer is left",
    r'"\frac{1}{2}"': "control character",  # JSON reads a form feed
    r'"5\text{ cm}"': "control character",  # and here a tab
    r'"3\u0007"': "control character",
}


@pytest.mark.parametrize(("answer", "message"), WRONG_ANSWERS.items())
def test_an_answer_that_is_no_text_and_no_number_is_rejected_with_its_line(loaded, answer, message):
    with pytest.raises(UserError, match=rf"line 3: .*{message}") as error:
        loaded(f'{GOOD}\n{{"problem": "p", "answer": {answer}}}\n', size=2)
    assert error.value.key == "answer"
    assert error.value.file.name == "problems.jsonl"


@pytest.mark.parametrize(
    ("answer", "natural"),
    [
        ("\u200b3", "3"),
        ("3\ufeff", "3"),
        ("\uff13", "3"),
        ("\u0663", "3"),
        ("\U0001d7d1", "3"),
        ("\uff081\uff0c2\uff09", "(1,2)"),
        ("x\u2074", "x^4"),
        ("\u215b", r"\frac18"),
        ("\u20115", "-5"),
        (r"\[3\]", "3"),
        (r"\(\frac12\)", "0.5"),
        ("$$3$$", "3"),
        ("$4.5e33$", "4.5e33"),
        (r"\boxed{3}", "3"),
        (r"x=\boxed{3}", "3"),
    ],
)
def test_an_answer_that_is_written_unusually_is_read_and_earns_also_where_a_response_writes_it_usually(
    loaded, answer, natural
):
    (problem,) = loaded(json.dumps({"problem": "p", "answer": answer}))
    assert problem.answer == answer
    for content, gold in ((answer, answer), (natural, answer), (answer, natural)):
        assert is_correct(box(content), gold), (content, gold)
    assert not is_correct(box("17"), answer)


def test_letters_and_boxes_are_read_without_invisible_characters(loaded):
    row = {"problem": "p", "choices": ["w", "x"], "answer": "\u200bB"}
    (problem,) = loaded(json.dumps(row), choices="choices", template="{problem}{choices}")
    assert problem.answer == "B"
    assert grade_choice("\\boxed{\u200b\uff22}", "B").outcome == "correct"
    assert grade("\\boxed{\u200b}", "3").outcome == "no answer"


def test_twenty_thousand_answers_are_checked_in_seconds(tmp_path):
    answers = [rf"\frac{{{i}}}{{7}}+\sqrt{{{i}}}" for i in range(20_000)]
    (file := tmp_path / "p.jsonl").write_text(
        "".join(json.dumps({"problem": "p", "answer": a}) + "\n" for a in answers)
    )
    began = time.process_time()
    assert len(load_problems(ProblemFile(path=str(file), size=20_000))) == 20_000
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    "problem", ["null", '""', '" "', "true", "5", '[{"role": "user", "content": "p"}]', '"\\udfff"']
)
def test_a_problem_that_is_no_text_is_rejected_with_its_line(loaded, problem):
    with pytest.raises(UserError, match=r"line 1: (the value is not text|the text)") as error:
        loaded(f'{{"problem": {problem}, "answer": 1}}\n')
    assert error.value.key == "problem"
    hint = "`problem.-1.content` is the text of the last message" if problem.startswith("[") else None
    assert error.value.hint == hint


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("2", "2"),
        ("27.0", "27"),
        ("2.50", "2.5"),
        ("-0.0", "0"),
        ("1e-07", "1e-07"),
        ("9007199254740993", "9007199254740993"),
        ("9007199254740993.0", "9007199254740993"),  # as a float it would end in 2
        ("0.10000000000000000001", "0.10000000000000000001"),
        ('"025"', "025"),
        ('"None"', "None"),
    ],
)
def test_a_number_is_its_decimal_text_and_text_stays_as_it_is(loaded, number, text):
    assert loaded(f'{{"problem": "p", "answer": {number}}}\n') == [Problem("p", text)]


def test_parquet_is_read_whatever_its_name_and_names_the_row_of_a_mistake(loaded):
    def table(answers, kind=None):
        return pa.table({"problem": ["p"] * len(answers), "answer": pa.array(answers, kind)})

    assert [p.answer for p in loaded(table([1, 2**53 + 1]), "data", size=2)] == ["1", "9007199254740993"]
    assert [p.answer for p in loaded(table([1.0, 2.5]), "data.parquet", size=2)] == ["1", "2.5"]
    for answers, message in (([1, None], "row 2: .*neither"), ([1.0, float("nan")], "row 2: "), ([2.0**53], "row 1: ")):
        with pytest.raises(UserError, match=message):
            loaded(table(answers), "data.parquet", size=len(answers))
    with pytest.raises(UserError, match="damaged"):
        loaded(b"PAR1 and then nothing")


LINE = '{"problem": "Crème", "answer": "1"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LINE.encode("utf-16"), "this file is text in UTF-16"),
        (LINE.encode("utf-32"), "this file is text in UTF-32"),
        (LINE.encode("utf-16-le"), "this file is binary, or text in UTF-16"),
        ((GOOD + LINE).encode("latin-1"), r"line 2 is not UTF-8 \(byte 0xe8\)"),
        (gzip.compress(LINE.encode(), mtime=0), "this file is compressed by gzip"),
        (f"[{LINE}]", "line 1 is not JSON"),
        (f"[{LINE.strip()}]", "line 1 is not an object"),
        ("problem,answer\np,1\n", "line 1 is not JSON"),
        ("[" * 100_000, "line 1 is not JSON"),
        ('{"problem": "p", "answer": "1", "answer": "2"}', "line 1: a key occurs twice"),
    ],
)
def test_what_is_not_json_lines_in_utf_8_is_one_error_that_says_what_it_is(loaded, content, message):
    with pytest.raises(UserError, match=message) as error:
        loaded(content)
    assert error.value.file.name == "problems.jsonl"


def test_a_folder_is_no_file_of_problems(tmp_path):
    with pytest.raises(UserError, match="this is a folder"):
        load_problems(ProblemFile(path=str(tmp_path), size=1))


def test_byte_order_marks_line_ends_and_blank_lines_are_read_and_equal_problems_count_each(loaded):
    whole = [Problem("Crème", "1"), Problem("p", "1"), Problem("Crème", "1")]
    content = "\r\n".join([LINE.strip(), "", " ", GOOD.strip(), LINE.strip()])
    for text in (content, content.replace("\r\n", "\r"), content.replace("\r\n", "\n")):
        assert loaded(text.encode("utf-8-sig"), size=3) == whole


ORIGINS = {"file": {"path": "p.jsonl"}, "hub": {"id": "a/b", "files": ["p.jsonl"]}}


@pytest.mark.parametrize("kind", ORIGINS)
def test_a_prompt_asks_for_what_its_grader_reads_unless_its_template_says_otherwise(kind, tmp_path, monkeypatch):
    for folder in (tmp_path, tmp_path / "a/b"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "p.jsonl").write_text(GOOD)
    monkeypatch.setenv(DATA_ROOT, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    data = {"kind": kind, "size": 1, **ORIGINS[kind]}

    def template(data, **fields):
        return ProblemSet.model_validate({"data": data} | fields).data.template

    (problem,) = load_problems(ProblemSet.model_validate({"data": data}).data)
    assert problem.prompt == BOX.replace("{problem}", "p")
    assert template(data) == BOX
    assert template(data, grading="choice") == LETTER
    assert template(data | {"choices": "options"}, grading="choice") == CHOICES
    assert template(data, grading="instructions") == template(data | {"answer": COLUMNS}, grading="instructions")
    assert template(data | {"answer": COLUMNS}, grading="instructions") == "{problem}"
    assert template(data | {"template": "{problem}!"}, grading="choice") == "{problem}!"
    for fields, message in (
        ({"answer": COLUMNS}, "need grading: instructions"),
        ({"choices": "options"}, "need grading: choice"),
        ({"template": "p"}, "must contain {problem}"),
        ({"template": "{problem} {choices}"}, "choices must name"),
        ({"answer": ["key", "kwargs"]}, "key, instruction_id_list and kwargs"),
    ):
        with pytest.raises(ValueError, match=message):
            template(data | fields)


def test_files_have_the_fields_of_hub_data_sets_and_texts_with_braces_stay_as_they_are(loaded):
    row = {"q": [{"content": r"{choices} \frac{1}{2}"}], "a": r"so \boxed{B}", "o": ["{problem}", "two"]}
    fields = {"problem": "q.-1.content", "answer": "a", "answer_from": "box", "choices": "o", "template": CHOICES}
    (problem,) = loaded(json.dumps(row), **fields)
    assert problem == Problem(
        "{choices} \\frac{1}{2}\nA. {problem}\nB. two\n" + LETTER.partition("\n")[2],
        "B",
    )


OPTIONS = {
    "labels of ARC": ({"text": ["w", "x", "y", "z"], "label": ["1", "2", "3", "4"]}, "4", "D"),
    "letters of ARC": ({"text": ["w", "x", "y", "z", "v"], "label": ["A", "B", "C", "D", "E"]}, "E", "E"),
    "labels that are numbers": ({"text": ["w", "x"], "label": [1, 2]}, 1, "A"),
    "index beside letters": ({"text": ["w", "x"], "label": ["A", "B"]}, 1, "B"),
    "an object of labels": ({"B": "x", "A": "w"}, "B", "B"),
    "a list and an index": (["w", "x"], 1, "B"),
    "a list and an index as a float": (["w", "x"], 1.0, "B"),
    "a list and a letter": (["w", "x"], " A", "A"),
}


@pytest.mark.parametrize(("options", "answer", "letter"), OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("parquet", [False, True], ids=["lines", "parquet"])
def test_an_option_is_named_by_its_label_or_by_an_index_from_0(loaded, options, answer, letter, parquet):
    row = {"problem": "p", "choices": options, "answer": answer}
    content = pa.Table.from_pylist([row]) if parquet else json.dumps(row)
    paths = ["choices", "choices.text"] if isinstance(options, dict) and "text" in options else ["choices"]
    for path in paths:
        (problem,) = loaded(content, choices=path, template="{problem}\n{choices}")
        assert problem.answer == letter
        assert problem.prompt.startswith("p\nA. w\nB. x")
        assert grade_choice(f"\\boxed{{{letter}}}", problem.answer).outcome == "correct"


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (["w", "x"], 2),
        (["w", "x"], -1),
        (["w", "x"], "1"),  # from 0 or from 1?
        (["w", "x"], "b"),
        (["w", "x"], "C"),
        (["w", "x"], "x"),
        (["w", "x"], True),
        (["w", "x"], None),
        (["w", None], 0),
        (["w", " "], 0),
        (["w"], 0),
        (["w"] * 11, 0),
        ("A) w B) x", "A"),
        ({"text": ["w", "x"], "label": ["A"]}, "A"),
        ({"text": ["w", "x"], "label": ["1", "2"]}, "3"),
        ({"text": ["w", "x"], "label": ["1", "2"]}, 0),
        ({"first": "w", "second": "x"}, "first"),
        (None, "A"),
    ],
)
def test_options_and_answers_that_do_not_fit_are_rejected_with_the_line(loaded, options, answer):
    with pytest.raises(UserError, match="line 1: ") as error:
        loaded(
            json.dumps({"problem": "p", "choices": options, "answer": answer}),
            choices="choices",
            template="{problem}{choices}",
        )
    assert error.value.key in ("choices", "answer")


def test_a_grader_takes_the_answers_that_it_can_compare():
    instructed = '{"key": 1, "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}'
    for grading, right, wrong in (
        ("choice", ["A", "J"], ["K", "b", "AB", "42"]),
        ("math", ["42", r"\{1\}", "{1}"], [instructed]),
        ("instructions", [instructed], ["42"]),
    ):
        check_answers([Problem("p", answer) for answer in right], grading, "mine")
        for answer in wrong:
            with pytest.raises(UserError, match="answer of problem 2") as error:
                check_answers([Problem("p", right[0]), Problem("p", answer)], grading, "mine")
            assert error.value.key == "mine, grading"


def ifeval_row(name, **arguments):
    return {"problem": "p", "key": 7, "instruction_id_list": [name], "kwargs": [arguments]}


def test_arguments_of_instructions_are_those_of_the_checkers():
    registry = _checkers().instructions_registry
    checkers = registry.INSTRUCTION_DICT.items()
    assert {name: tuple(checker(name).get_instruction_args_keys()) for name, checker in checkers} == ARGUMENTS
    module = registry.instructions
    assert (set(LANGUAGES.split(", ")), RELATIONS) == (set(module._LANGUAGES), module._COMPARISON_RELATION)


def filled(rows):
    """Rows of IFEval as Parquet: each object has all arguments of the file, empty ones too, and counts are floats."""
    names = {key for row in rows for arguments in row["kwargs"] for key in arguments}
    texts = {key for key in names if any(isinstance(a.get(key), str) for row in rows for a in row["kwargs"])}
    words = {"keywords", "forbidden_words"} & names
    kinds = {
        key: pa.string() if key in texts else pa.list_(pa.string()) if key in words else pa.float64() for key in names
    }
    kwargs = pa.list_(pa.struct(sorted(kinds.items())))
    schema = pa.schema(
        {"problem": pa.string(), "key": pa.float64(), "instruction_id_list": pa.list_(pa.string()), "kwargs": kwargs}
    )
    return pa.Table.from_pylist(rows, schema)


def test_arguments_from_parquet_are_integers_and_only_those_of_the_instruction(loaded):
    rows = [
        ifeval_row("length_constraints:number_words", num_words=3, relation="at least"),
        ifeval_row("keywords:existence", keywords=["b", "c"]),
        ifeval_row("detectable_format:title"),
    ]
    problems = loaded(filled(rows), "p.parquet", size=3, answer=COLUMNS)
    assert [json.loads(problem.answer) for problem in problems] == [{c: row[c] for c in COLUMNS} for row in rows]
    assert '"key": 7, ' in problems[0].answer
    assert '"num_words": 3,' in problems[0].answer or '"num_words": 3}' in problems[0].answer
    verdicts = [grade_instructions(p.prompt, "<<a>> b c", p.answer).strict for p in problems]
    assert verdicts == [[True], [True], [True]]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    assert [json.loads(p.answer) for p in loaded(lines, size=3, answer=COLUMNS)] == [
        json.loads(p.answer) for p in problems
    ]
    nested = json.dumps({"problem": "p", "answer": {column: rows[0][column] for column in COLUMNS}})
    assert [json.loads(p.answer) for p in loaded(nested)] == [json.loads(problems[0].answer)]


@pytest.mark.parametrize(
    ("row", "key"),
    [
        (ifeval_row("length_constraints:number_words", num_words=3.5, relation="at least"), "num_words"),
        (ifeval_row("length_constraints:number_words", num_words="3", relation="at least"), "num_words"),
        (ifeval_row("length_constraints:number_words", num_words=-3, relation="at least"), "num_words"),
        (ifeval_row("length_constraints:number_words", num_words=0, relation="at least"), "kwargs"),
        (ifeval_row("length_constraints:number_words", num_words=True, relation="at least"), "num_words"),
        (ifeval_row("length_constraints:number_words", relation="at least"), "kwargs"),
        (ifeval_row("length_constraints:number_words", num_words=3, relation="more than"), "relation"),
        (ifeval_row("punctuation:no_comma", num_words=3), "kwargs"),
        (ifeval_row("punctuation:no_dots"), "instruction_id_list"),
        (ifeval_row("keywords:existence", keywords="word"), "keywords"),
        (ifeval_row("keywords:letter_frequency", letter="ab", let_frequency=1, let_relation="at least"), "letter"),
        (ifeval_row("language:response_language", language="xx"), "language"),
        (ifeval_row("startend:end_checker", end_phrase="\ud800"), "key"),
        (ifeval_row("punctuation:no_comma") | {"kwargs": []}, "kwargs"),
        (ifeval_row("punctuation:no_comma") | {"kwargs": ["{}"]}, "kwargs"),
        (ifeval_row("punctuation:no_comma") | {"instruction_id_list": "punctuation:no_comma"}, "instruction_id_list"),
        (ifeval_row("punctuation:no_comma") | {"key": None}, "key"),
    ],
)
def test_instructions_that_their_checkers_would_misread_are_rejected_with_the_line(loaded, row, key):
    with pytest.raises(UserError, match="line 1: ") as error:
        loaded(json.dumps(row), answer=COLUMNS)
    assert key in error.value.key
    assert error.value.file.name == "problems.jsonl"


def test_the_real_prompts_of_ifeval_have_the_same_instructions_in_parquet(tmp_path):
    if not IFEVAL.exists():
        pytest.skip("ifeval.jsonl is not there: third-party data are not part of the repository")
    rows = [json.loads(line) for line in IFEVAL.read_text().splitlines()]
    rows = [{"problem": row["prompt"], **{column: row[column] for column in COLUMNS}} for row in rows]
    pq.write_table(filled(rows), tmp_path / "ifeval.parquet")
    data = ProblemFile(path=str(tmp_path / "ifeval.parquet"), size=len(rows), answer=COLUMNS)
    assert [json.loads(p.answer) for p in load_problems(data)] == [{c: row[c] for c in COLUMNS} for row in rows]


def test_training_on_options_and_on_instructions_is_rewarded_as_they_are_evaluated(tmp_path):
    (file := tmp_path / "p.jsonl").write_text("")
    run = Experiments(ROOT).run("spec_rl/grpo-vanilla", 0, "smoke")
    for fields, rule in (({}, "last_box"), ({"choices": "o"}, "choice"), ({"answer": COLUMNS}, "instructions")):
        data = ProblemFile(path=str(file), size=1, **fields)
        assert run.model_copy(update={"data": data}).reward == rule
    texts = [r"\boxed{(B)}", r"\boxed{B. two}", r"\boxed{A}", "B", ""]
    assert rewards_of(texts, "B", "choice")[0] == [1.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        (pa.float32(), [0.1, 1234.56, 99.9, 27.0, 16777215.0], ["0.1", "1234.56", "99.9", "27", "16777215"]),
        (pa.float16(), [0.1, 2047.0], ["0.1", "2047"]),
    ],
)
def test_a_narrow_float_is_its_shortest_decimal(tmp_path, kind, values, texts):
    file = tmp_path / "problems.parquet"
    answers = pa.array(np.array(values, dtype=kind.to_pandas_dtype()), kind)
    pq.write_table(pa.table({"problem": ["p"] * len(values), "answer": answers}), file)
    problems = load_problems(ProblemFile(path=str(file), size=len(values)))
    assert [problem.answer for problem in problems] == texts


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (pa.struct([("truth", pa.float32())]), "answer.truth"),
        (pa.list_(pa.float32()), "answer.0"),
        (pa.large_list(pa.struct([("truth", pa.float32())])), "answer.0.truth"),
    ],
)
def test_a_narrow_float_within_another_value_is_its_shortest_decimal_too(tmp_path, kind, path):
    def nested(value):
        for name in reversed(path.split(".")[1:]):
            value = {name: value} if name == "truth" else [value]
        return value

    answers = pa.array([nested(0.1), nested(123.456)], kind)
    pq.write_table(pa.table({"problem": ["p", "q"], "answer": answers}), file := tmp_path / "problems.parquet")
    problems = load_problems(ProblemFile(path=str(file), size=2, answer=path))
    assert [problem.answer for problem in problems] == ["0.1", "123.456"]
    answers = pa.array([nested(123456789.0)], kind)
    pq.write_table(pa.table({"problem": ["p"], "answer": answers}), file)
    with pytest.raises(UserError, match="lacks digits"):
        load_problems(ProblemFile(path=str(file), size=1, answer=path))


def test_a_column_that_occurs_twice_is_refused(tmp_path):
    """Of two columns of answers one would be taken."""
    arrays = [pa.array(["p"]), pa.array(["2"]), pa.array(["999"])]
    table = pa.Table.from_arrays(arrays, names=["problem", "answer", "answer"])
    pq.write_table(table, file := tmp_path / "problems.parquet")
    with pytest.raises(UserError, match=r"a column occurs twice(.|\n)*answer"):
        load_problems(ProblemFile(path=str(file), size=1))


@pytest.mark.parametrize(
    ("kind", "value"), [(pa.float32(), 2.0**24), (pa.float16(), 2.0**11), (pa.float32(), math.nan)]
)
def test_a_narrow_float_that_may_lack_digits_is_refused(tmp_path, kind, value):
    file = tmp_path / "problems.parquet"
    answers = pa.array(np.array([value], dtype=kind.to_pandas_dtype()), kind)
    pq.write_table(pa.table({"problem": ["p"], "answer": answers}), file)
    with pytest.raises(UserError, match="row 1"):
        load_problems(ProblemFile(path=str(file), size=1))
