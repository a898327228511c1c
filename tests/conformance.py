"""Verdicts of the rules of `redraft.tasks.rewards`, and of two more, on the same texts: the table of `docs/grading.md`.

`python tests/conformance.py` prints the table.
"""

import re

from math_verify import LatexExtractionConfig, parse, verify

from redraft.tasks.answers import box
from redraft.tasks.rewards import REWARDS

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")


def anywhere(text: str, answer: str) -> bool:
    """math-verify's default configuration on the whole text: LaTeX or a plain expression, boxed or not."""
    gold = parse(box(answer), extraction_config=[LatexExtractionConfig(boxed_match_priority=0)])
    return bool(verify(gold, parse(text)))


def last_number(text: str, answer: str) -> bool:
    """True if the last number in the text is the answer, like lm-eval's `flexible-extract` of GSM8K."""
    numbers, wanted = NUMBER.findall(text), answer.strip().strip("$")
    if not numbers or not NUMBER.fullmatch(wanted):
        return False
    return float(numbers[-1].replace(",", "")) == float(wanted.replace(",", ""))


RULES = {f"`{name}`": rule for name, rule in REWARDS.items()} | {
    "math-verify's default": anywhere,
    "last number": last_number,
}
"""Rules of papers for grades and rewards."""
CASES = (
    (r"So the answer is $\boxed{42}$.", "42"),
    (r"\boxed{7} was wrong, it is \boxed{42}", "42"),
    (r"\boxed{42} was wrong, it is \boxed{7}", "42"),
    (r"It is \boxed{42}, for x = 3.", "42"),
    ("The answer is 42.", "42"),
    ("The answer is $42$.", "42"),
    ("#### 42", "42"),
    ("We tried 42, but the answer is 7.", "42"),
    ("Forty-two.", "42"),
    (r"\boxed{42", "42"),
    (r"\boxed 42", "42"),
    (r"\fbox{42}", "42"),
    (r"\boxed{\frac{1}{2}}", "0.5"),
    ("The answer is 1/2.", r"\frac{1}{2}"),
    (r"\boxed{50\%}", "0.5"),
    (r"\boxed{1,000}", "1000"),
    (r"\boxed{42\text{ cm}}", "42"),
    (r"\boxed{90^\circ}", "90"),
    (r"\boxed{x=42}", "42"),
    (r"\boxed{2,1}", r"\{1,2\}"),
    (r"\boxed{(1,2)}", "(1,2)"),
    (r"\boxed{(2,1)}", "(1,2)"),
    (r"\boxed{[0,1)}", "[0,1)"),
    (r"\boxed{2x+1}", "1+2x"),
    (r"\boxed{4.5 \times 10^{33}}", "4.5e33"),
    (r"\boxed{3.14159}", r"\pi"),
    ("", "42"),
)
"""Pairs of a response and the answer it is compared with."""


def table() -> str:
    """A Markdown table with one line per case and one column per rule."""
    lines = [["response", "answer", *RULES], ["---"] * (2 + len(RULES))]
    for text, answer in CASES:
        verdicts = ["right" if rule(text, answer) else "–" for rule in RULES.values()]
        lines.append([f"`{text}`" if text else "(empty)", f"`{answer}`", *verdicts])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    print(table())
