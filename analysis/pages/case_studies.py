"""Case studies that `redraft.evaluate.cases` chose from a run, as HTML and Markdown."""

from typing import Any

from redraft.analysis.tables.render import TEMPLATES
from redraft.config import Experiments
from redraft.errors import UserError
from redraft.files import write_atomically
from redraft.layout import Layout
from redraft.result_files import OBJECT, read_with_hash, write_with_hash


def write_cases(preset: str, paper: str) -> None:
    """Write the case studies that were chosen from a run, as HTML and Markdown (rule `cases`)."""
    experiments = Experiments()
    declared = experiments.figures(paper).cases
    if not declared:
        raise UserError("this paper has no case studies", file=experiments.path(paper, "figures.yaml"), key="cases")
    stem = Layout(preset).cases(paper)
    content = read_with_hash(stem.with_suffix(".json"), OBJECT, "run", "cases")
    write_with_hash(stem.with_suffix(".html"), html(content, declared.numbers, paper))
    write_atomically(stem.with_suffix(".md"), markdown(content, declared.numbers))


def html(content: dict[str, Any], numbers: list[int], paper: str) -> str:
    """An HTML fragment with one article per case; identifiers begin with the paper.

    `numbers` are the paper's figure numbers, one per kind of case.
    """
    cases = [case | {"number": number} for number, case in zip(numbers, content["cases"], strict=True)]
    return TEMPLATES.get_template("cases.html.j2").render(cases=cases, run=content["run"], paper=paper)


def markdown(content: dict[str, Any], numbers: list[int]) -> str:
    """The case studies in Markdown."""
    parts = [f"Case studies from {content['run']}.\n"]
    for number, case in zip(numbers, content["cases"], strict=True):
        parts.append(f"**Figure {number}.** {case['title']}\n")
        parts += [f"Absent: {case['absent']}.\n"] if "absent" in case else _blocks(case)
    return "\n".join(parts)


def _blocks(case: dict[str, Any]) -> list[str]:
    kept, length = case["prefix_length"], case["draft_length"]
    at = "kept whole" if case["rejected"] is None else f"cut before token {case['rejected']['index'] + 1}"
    facts = (
        f"Step {case['step'] + 1}, prompt {case['prompt']}, sample {case['sample']}. The draft was sampled at "
        f"step {case['old_step'] + 1} and is {at}: {kept} of {length} tokens. The new rollout has {case['length']} "
        f"tokens. "
        f"Reward: {case['reward']['old']:g} before, {case['reward']['new']:g} now. The answer is {case['answer']}.\n"
    )
    texts = {
        "problem": case["problem"],
        "verified prefix": case["verified_prefix"],
        "rejected": case["rejected_tail"],
        "continuation": case["continuation"],
    }
    return [facts, *(f"{name}:\n\n{_quoted(text)}\n" for name, text in texts.items() if text)]


def _quoted(text: str) -> str:
    """An indented code block: a rollout may contain the marks of a fenced one."""
    return "\n".join(f"    {line}" for line in text.split("\n"))
