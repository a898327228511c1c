"""Rows of problem files, JSON Lines or Parquet, and the values in them. Every error names the file and the line or row.

Fractions in JSON are read as `Decimal`, so that no digit of an answer is lost.
"""

import codecs
import json
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from redraft.config.data import INSTRUCTION_COLUMNS
from redraft.errors import UserError
from redraft.files import RepeatedKeyError, errors_of_reading, json_object
from redraft.tasks.answers import LETTERS, box, boxed
from redraft.tasks.characters import plain
from redraft.tasks.instruction_arguments import normalized
from redraft.tasks.notation import rewrite

PARQUET = b"PAR1"
UNREADABLE = {
    codecs.BOM_UTF32_LE: "text in UTF-32",  # before UTF-16, whose byte order mark is its beginning
    codecs.BOM_UTF32_BE: "text in UTF-32",
    codecs.BOM_UTF16_LE: "text in UTF-16",
    codecs.BOM_UTF16_BE: "text in UTF-16",
    b"\x1f\x8b": "compressed by gzip",
    b"BZh": "compressed by bzip2",
    b"\xfd7zXZ": "compressed by xz",
    b"(\xb5/\xfd": "compressed by zstd",
    b"PK\x03\x04": "a zip archive",
    b"ARROW1": "an Arrow file",
}
"""First bytes of files that are not read, and what such a file is."""
READABLE = "JSON Lines in UTF-8, or Parquet"

EXTRACT: dict[str, Callable[[str], str | None]] = {
    "text": lambda text: text,
    "box": boxed,
    "####": lambda text: text.rpartition("####")[2].strip() if "####" in text else None,
}
"""Part of a text that is the answer, by its name in `answer_from`."""
ESCAPE_READ_AS_CONTROL = re.compile(
    "[\0-\x08\x0b\x0c\x0e-\x1f\x7f]|\t(?:ext|frac|heta|imes|an|au|o(?![a-z]))|\r(?:ight|ho|angle|m\\b)|\n(?:eq|abla)"
)
"""Control characters, also blanks before the rest of a LaTeX command whose single backslash JSON took for an escape."""
LARGEST_EXPONENT = 300
"""Largest power of ten, positive or negative, of a number that is an answer; math-verify computes with floats."""


@dataclass(frozen=True)
class Row:
    """One problem of a file.

    Attributes:
        file: the file.
        position: `line 3`, or in Parquet `row 3`; the first is 1.
        columns: the values by the names of their columns.
    """

    file: Path
    position: str
    columns: dict[str, Any]

    def error(self, message: str, key: str, value: Any, allowed: str | Iterable[str] | None = None) -> UserError:
        """A UserError about a value of this row."""
        if isinstance(value, str | Decimal):
            shown = str(value)[-80:].encode(errors="backslashreplace").decode()
        else:
            shown = json.dumps(value) if value is None or isinstance(value, bool) else reprlib.repr(value)
        return UserError(f"{self.position}: {message}", file=self.file, key=key, value=shown, allowed=allowed)

    def value(self, path: str) -> Any:
        """The value at a path of keys of objects and indices of lists, joined by dots."""
        value: Any = self.columns
        for part in path.split("."):
            try:
                value = value[int(part) if isinstance(value, list) else part]
            except (KeyError, IndexError, ValueError, TypeError):  # an index of a text is a TypeError
                raise UserError(
                    f"{self.position} lacks a key", file=self.file, key=path, allowed=self.columns
                ) from None
        return value

    def text(self, path: str) -> str:
        """The text at a path."""
        value = self.value(path)
        if isinstance(value, str):
            return self._usable(value, path, "the text is blank")
        error = self.error("the value is not text", path, value)
        if isinstance(value, list) and value and isinstance(value[-1], dict) and "content" in value[-1]:
            error = error.replace(hint=f"`{path}.-1.content` is the text of the last message")
        raise error

    def answer(self, path: str, part: str = "text") -> str:
        """The answer at a path: text or a part of it (`EXTRACT`), a number, or an object with IFEval's columns."""
        value = self.value(path)
        if isinstance(value, dict) and set(INSTRUCTION_COLUMNS) <= value.keys():
            return self._instructions(value, path)
        if not isinstance(value, str):
            return self._number(value, path)
        self._usable(value, path, "the problem has no answer")
        answer = EXTRACT[part](value) or ""
        if not answer.strip():
            raise self.error("the problem has no answer", path, value)
        self._check_boxed(answer, path)
        return answer

    def _check_boxed(self, answer: str, path: str) -> None:
        """Reject an answer that earns nothing when a response has exactly it in a box, or that no response writes."""
        if control := ESCAPE_READ_AS_CONTROL.search(answer):
            message = f"the answer has the control character {control[0][0]!r}, which no response writes"
            raise self.error(message, path, answer).replace(hint="JSON has two backslashes for one, as in `\\\\frac`")
        if not rewrite(answer):
            raise self.error("nothing of this answer is left without delimiters and punctuation", path, answer)
        # The cheap comparison first; it settles nearly all answers.
        content = boxed(box(answer))
        if content is not None and rewrite(content) == rewrite(answer):
            return
        from redraft.tasks.grading import is_correct  # sympy takes a second to load, and few answers need it

        if not is_correct(box(answer), answer):
            message = f"a response with this answer in its box earns nothing, since the box holds {content!r}"
            if content is None:
                message = "the braces of this answer are not balanced: a box around it has no end"
            hint = "`answer_from: box` takes what is in the answer's last box" if "\\boxed" in answer else None
            raise self.error(message, path, answer, "LaTeX with balanced braces").replace(hint=hint)

    def instructions(self, paths: Sequence[str]) -> str:
        """The columns at these paths as one JSON object, which `redraft.tasks.instructions` grades against."""
        return self._instructions({path.rpartition(".")[2]: self.value(path) for path in paths}, ", ".join(paths))

    def _instructions(self, columns: dict[str, Any], path: str) -> str:
        try:
            record = normalized(columns)
        except UserError as error:
            raise error.replace(message=f"{self.position}: {error.message}", file=self.file) from None
        self._usable(json.dumps(record, ensure_ascii=False), path, "the problem has no answer")
        return json.dumps(record)

    def options(self, path: str) -> tuple[list[str], list[str]]:
        """Labels and texts of the options at a path.

        The value is a list of texts, whose labels are A, B, C, …; an object with the lists `text` and `label`, or its
        list `text`; or an object from labels to texts. In Parquet, such an object has all labels of the file, so that
        those without a text are left out.
        """
        value = self.value(path)
        whole = self.value(path.removesuffix(".text")) if path.endswith(".text") else value
        labels: Any
        if isinstance(whole, dict) and {"text", "label"} <= whole.keys():
            labels, texts = whole["label"], whole["text"]
        elif isinstance(value, dict):
            # By length first, so that option 10 comes after option 9.
            given = sorted((len(label), label) for label, text in value.items() if text is not None)
            labels = [label for _, label in given]
            texts = [value[label] for label in labels]
        else:
            texts = value
            labels = list(LETTERS[: len(value)]) if isinstance(value, list) else None
        if isinstance(texts, list) and isinstance(labels, list) and 2 <= len(texts) == len(labels):
            labels = [str(label).strip() for label in labels]
            if labels in (list(LETTERS[: len(labels)]), [str(index + 1) for index in range(len(labels))]):
                return labels, [self._option(text, path) for text in texts]
        allowed = f"2 to {len(LETTERS)} options: a list, or an object with labels A, B, C, … or 1, 2, 3, …"
        raise self.error("these are not options", path, value, allowed)

    def _option(self, value: Any, path: str) -> str:
        return self._usable(value, path, "an option is blank") if isinstance(value, str) else self._number(value, path)

    def letter(self, path: str, labels: Sequence[str], part: str = "text") -> str:
        """The letter of the option that the answer at a path names: by its label, or by a number that counts from 0.

        Text such as "1" is no number: where the labels are letters it may count from 0 or from 1.
        """
        value = self.value(path)
        answer = plain(self.answer(path, part)).strip()
        if answer in labels:
            return LETTERS[labels.index(answer)]
        # A number as in MMLU's file, where 0 is A.
        counted = not isinstance(value, str) and labels[0] == LETTERS[0] and answer.isdecimal()
        if counted and int(answer) < len(labels):
            return LETTERS[int(answer)]
        numbers = f", or a number from 0 to {len(labels) - 1}" if labels[0] == LETTERS[0] else ""
        raise self.error("the answer names no option", path, value, f"{', '.join(labels)}{numbers}")

    def _number(self, value: Any, path: str) -> str:
        """A number as text; one without a fraction becomes an integer."""
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            raise self.error("the value is neither text nor a number", path, value)
        if isinstance(value, int):
            return str(value)
        if not math.isfinite(value) or abs((exact := Decimal(str(value))).adjusted()) > LARGEST_EXPONENT:
            raise self.error("the value is no number that can be compared", path, value)
        if isinstance(value, _Lossy) or (isinstance(value, float) and abs(value) >= 2**53):
            raise self.error("a float lacks digits of an integer as large as this; write it as text", path, value)
        if exact == exact.to_integral_value():
            return str(int(exact))
        return str(float(exact)) if Decimal(str(float(exact))) == exact else format(exact, "f")

    def _usable(self, text: str, path: str, blank: str) -> str:
        """The text, if something of it is visible and UTF-8 can encode it; `blank` is the error's message if not."""
        if re.search("[\ud800-\udfff]", text):
            raise self.error("the text has half of a surrogate pair, which is no character", path, text)
        if not any(character.isprintable() and not character.isspace() for character in text):
            raise self.error(blank, path, text)
        return text


def read_rows(file: Path) -> list[Row]:
    """Read a file of problems, JSON Lines or Parquet, whatever its name.

    A byte order mark of UTF-8, the line ends of every system and blank lines are accepted.

    Raises:
        UserError: if the file is something else (the error says what), or a line is not one JSON object.
    """
    if file.exists() and not file.is_file():
        raise UserError(f"this is {'a folder' if file.is_dir() else 'no regular file'}", file=file, allowed=READABLE)
    with errors_of_reading(file, OSError):
        content = file.read_bytes()
    if content.startswith(PARQUET) or file.suffix == ".parquet":
        return _parquet(file)
    kind = next((name for start, name in UNREADABLE.items() if content.startswith(start)), "")
    if not kind and b"\0" in content:
        kind = "binary, or text in UTF-16"
    if kind:
        raise UserError(f"this file is {kind}", file=file, allowed=READABLE)
    return _json_lines(file, content)


class _Lossy(float):
    """A float of a narrow column that may lack digits of an integer."""


def _parquet(file: Path) -> list[Row]:
    import numpy as np
    import pyarrow
    import pyarrow.parquet

    # Not by pandas, which makes floats of integers in columns and objects with empty values.
    with errors_of_reading(file, OSError, ValueError):
        table = pyarrow.parquet.ParquetFile(file).read()
    names = table.schema.names
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError("a column occurs twice", file=file, key=twice[0])
    with errors_of_reading(file, OSError, ValueError):
        rows = table.to_pylist()
    narrow = {pyarrow.float16(): (np.float16, 2**11), pyarrow.float32(): (np.float32, 2**24)}
    types = pyarrow.types

    def exact(value: Any, kind: pyarrow.DataType) -> Any:
        """Replace the narrow floats of a value by their shortest decimals."""
        if value is None:
            return None
        if kind in narrow:
            width, limit = narrow[kind]
            # The shortest decimal that the type rounds to this value: 0.1, and not 0.10000000149011612.
            shortest = Decimal(str(width(value)))
            return _Lossy(value) if shortest.is_finite() and abs(shortest) >= limit else shortest
        if types.is_struct(kind):
            return {field.name: exact(value[field.name], field.type) for field in kind}
        if types.is_dictionary(kind):
            return exact(value, kind.value_type)
        if types.is_map(kind):
            return [(exact(key, kind.key_type), exact(item, kind.item_type)) for key, item in value]
        if isinstance(value, list) and hasattr(kind, "value_type"):
            return [exact(each, kind.value_type) for each in value]
        return value

    for column in table.schema:
        # Most columns have none, and a walk over all their values would take long.
        if "float" in str(column.type):
            for row in rows:
                row[column.name] = exact(row[column.name], column.type)
    return [Row(file, f"row {number}", columns) for number, columns in enumerate(rows, start=1)]


def _json_lines(file: Path, content: bytes) -> list[Row]:
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        before = error.object[: error.start].count(b"\n")
        raise UserError(
            f"line {before + 1} is not UTF-8 (byte {error.object[error.start]:#x})",
            file=file,
            allowed=READABLE,
            hint="`iconv -f latin1 -t utf-8` converts Latin-1",
        ) from None
    rows = []
    # Not `splitlines`, which also splits at characters that JSON allows within a text, such as U+2028.
    for number, line in enumerate(re.split("\r\n|\r|\n", text), start=1):
        if not line.strip():
            continue
        try:
            columns = json.loads(line, parse_float=Decimal, object_pairs_hook=json_object)
        except RepeatedKeyError as error:
            raise UserError(f"line {number}: a key occurs twice", file=file, key=error.key) from None
        except (ValueError, RecursionError, ArithmeticError):  # the latter for exponents beyond those of `Decimal`
            raise UserError(f"line {number} is not JSON", file=file, value=line[:80], allowed=READABLE) from None
        if not isinstance(columns, dict):
            raise UserError(f"line {number} is not an object", file=file, value=line[:80], allowed="one object a line")
        rows.append(Row(file, f"line {number}", columns))
    return rows
