"""What commands print: tables within the terminal's columns, mistakes in lines, and one JSON document."""

import json
import pickle

import numpy as np
import pytest

from redraft.cli.terminal import document, error_text, records, table
from redraft.errors import UserError
from redraft.messages import echo

HEADER = ["cell", "owner", "steps"]
ROWS = [["spec_rl/grpo", "a process on a node with a long name, and its Slurm job", "1/30"], ["b", "[8, 9]", "2,000"]]


def test_a_table_fits_the_terminal_by_breaking_the_columns_that_may_be_broken(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    lines = table(HEADER, ROWS, left=["owner"], wraps=["owner"]).splitlines()
    assert max(map(len, lines)) <= 50
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == ["cell", "spec_rl/grpo", "b"]
    assert " ".join(" ".join(lines).split()).count("Slurm job") == 1
    start = lines[0].index("owner")
    assert lines[-1][start:].startswith("[8, 9]"), "brackets are text"
    assert {len(line) for line in lines if line.endswith(("steps", "1/30", "2,000"))} == {len(lines[0])}, "to the right"
    monkeypatch.setenv("COLUMNS", "100")
    assert len(table(HEADER, ROWS, left=["owner"], wraps=["owner"]).splitlines()) == 3, "nothing is broken without need"


@pytest.mark.parametrize(("wide", "wraps"), [(True, ["owner"]), (False, [])])
def test_a_wide_table_and_one_that_cannot_be_broken_have_one_line_a_row(monkeypatch, wide, wraps):
    monkeypatch.setenv("COLUMNS", "30")
    header, first, _ = table(HEADER, ROWS, left=["owner"], wraps=wraps, wide=wide).splitlines()
    assert header.split() == HEADER
    assert all(part in first for part in ROWS[0])


MISTAKE = UserError("no such cell", file="a/cells.yaml", key="cell", value="x", allowed=[f"name-{i}" for i in range(9)])


def test_a_mistake_is_broken_into_lines_whose_lists_stay_in_their_column(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert error_text(MISTAKE).splitlines() == [
        "error: a/cells.yaml: no such cell",
        "  key:     cell",
        "  value:   'x'",
        "  allowed: name-0, name-1, name-2,",
        "           name-3, name-4, name-5,",
        "           name-6, name-7, name-8",
    ]


def test_a_mistake_that_needs_doing_has_a_hint_which_it_keeps_when_it_is_told_otherwise_or_sent():
    mistake = UserError("this run is not finished", key="cell", value="x", hint="`redraft run x`")
    assert str(mistake).splitlines()[-1] == "  hint:    `redraft run x`"
    assert "allowed" not in str(mistake)
    told = MISTAKE.replace(message="cell b: no such cell", file="b.yaml")
    assert str(told) == str(MISTAKE).replace("a/cells.yaml: no such", "b.yaml: cell b: no such")
    assert mistake.replace(key="run").hint == mistake.hint
    sent = pickle.loads(pickle.dumps(mistake))
    assert (str(sent), sent.hint) == (str(mistake), mistake.hint)


def test_a_mistake_keeps_its_lines_in_a_job_s_log_which_is_searched(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    assert error_text(MISTAKE) == f"error: {MISTAKE}"


def test_a_document_is_json_also_where_numbers_are_not():
    rows = [{"a": float("nan"), "b": (1, float("inf")), "c": {"d": None}, "n": np.int64(7), "x": np.float64("nan")}]
    found = json.loads(document("list", {"preset": "tiny"}, rows, ["note"]))
    assert found == {
        "command": "list",
        "asked": {"preset": "tiny"},
        "notes": ["note"],
        "rows": [{"a": None, "b": [1, None], "c": {"d": None}, "n": 7, "x": None}],
    }


def test_rows_of_texts_have_numbers_where_the_texts_are_numbers():
    assert records(["a", "b", "c", "d"], [["1,234", "0.50", "-", "never"]]) == [
        {"a": 1234, "b": 0.5, "c": None, "d": "never"}
    ]


HOSTILE = {
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "done\rfailed": r"done\rfailed",
    "a\x9b2Jb": r"a\x9b2Jb",
    "\x08\x7f": r"\x08\x7f",
    "\u202etxt.exe\u2066": r"\u202etxt.exe\u2066",
    "a\u2028b\u200bc\ufeff": r"a\u2028b\u200bc\ufeff",
    "\U000e0041": r"\U000e0041",
}


@pytest.mark.parametrize(("text", "shown"), HOSTILE.items())
def test_control_characters_are_printed_as_escapes(text, shown, capsys):
    echo(text)
    echo(text, err=True, nl=False)
    error = UserError(f"no such {text}", file=f"a/{text}", key=text, value=text, allowed=[text], hint=text)
    assert (*capsys.readouterr(),) == (f"{shown}\n", shown)
    assert str(error).count(shown) == 6
    first, second = table(["name", "n"], [[text, "1"], ["x", "1"]]).splitlines()[1:]
    assert first.startswith(shown)
    assert len(first) == len(second), "widths are those of the escapes"
    printed = document("list", {}, [{text: text}], [text])
    assert json.loads(printed)["rows"] == [{text: text}]
    assert all(character in "\n" or character.isprintable() for character in printed)


def test_other_characters_are_printed_as_they_are(capsys):
    text = "Ünïcödé 你好 שלום\t\U0001f469\u200d\U0001f4bb\nnext line"
    echo(text)
    assert capsys.readouterr().out == f"{text}\n"
    assert table(["a"], [["b\nc"]]) == "a\nb\\nc", "a row stays one row"
