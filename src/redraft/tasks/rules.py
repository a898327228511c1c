"""Rules by which papers grade and reward responses, for comparison on the same texts."""

import re

from math_verify import LatexExtractionConfig, parse, verify

from redraft.tasks.rewards import REWARDS

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


def anywhere(text: str, answer: str) -> bool:
    """math-verify's default configuration on the whole text: LaTeX or a plain expression, boxed or not."""
    gold = parse(f"\\boxed{{{answer}}}", extraction_config=[LatexExtractionConfig(boxed_match_priority=0)])
    return bool(verify(gold, parse(text)))


def last_number(text: str, answer: str) -> bool:
    """The last number in the text against the answer's number, as lm-eval's `flexible-extract` of GSM8K."""
    found, wanted = _NUMBER.findall(text), answer.strip().strip("$")
    return bool(found and _NUMBER.fullmatch(wanted)) and _value(found[-1]) == _value(wanted)


def _value(number: str) -> float:
    return float(number.replace(",", ""))


RULES = {
    "`last_box`": REWARDS["last_box"],
    "`boxed_or_numeric`": REWARDS["boxed_or_numeric"],
    "`release`": REWARDS["release"],
    "math-verify's default": anywhere,
    "last number": last_number,
}
