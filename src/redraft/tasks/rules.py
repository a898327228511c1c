"""Three rules by which papers grade responses; this project uses the first. The others serve comparison only."""

import re

from math_verify import LatexExtractionConfig, parse, verify

from redraft.tasks.grading import is_correct

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


def last_box(text: str, answer: str) -> bool:
    """math-verify on the last box, read as LaTeX: `redraft.tasks.grading`."""
    return is_correct(text, answer)


def anywhere(text: str, answer: str) -> bool:
    """math-verify's default configuration on the whole text: LaTeX or a plain expression, boxed or not."""
    gold = parse(f"\\boxed{{{answer}}}", extraction_config=[LatexExtractionConfig(boxed_match_priority=0)])
    return bool(verify(gold, parse(text)))


def last_number(text: str, answer: str) -> bool:
    """The last number in the text against the answer's number, as lm-eval's `flexible-extract` of GSM8K."""
    found = [float(number.replace(",", "")) for number in _NUMBER.findall(text)]
    wanted = _NUMBER.fullmatch(answer.strip().strip("$"))
    return bool(found and wanted) and found[-1] == float(answer.strip().strip("$").replace(",", ""))


RULES = {
    "last box (ours)": last_box,
    "math-verify's default": anywhere,
    "last number": last_number,
}
