"""Configuration of generated problems: the tiny arithmetic task, and two tasks in words for pretrained models."""

from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from redraft.config.base import LARGEST_SEED, MOST_PROBLEMS, Config, distinct, invalid

BETWEEN_BLOCKS = 1000
"""Distance between the seeds of data and models in successive blocks of seeds (`Preset.blocks`)."""


BOX = "{problem}\nPlease reason step by step, and put your final answer within \\boxed{}."
"""Prompt template that asks for what the graders read. It is SPEC-RL's."""
Grading = Literal["math", "choice", "instructions", "reasoning_gym"]
"""Grader: the last box by math-verify, the letter in it, checkers of instructions (IFEval), or a scorer of
reasoning-gym."""


class Generated(Config):
    """Problems that are sampled from a seed. Those of the two splits differ in their content."""

    grading: ClassVar[Grading] = "math"
    kind: str
    size: int = Field(default=256, ge=1, le=MOST_PROBLEMS)
    """Number of distinct problems."""
    split: Literal["train", "held-out"] = "train"
    """Split; the two have no problem in common."""
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED)
    """Seed of the problems."""

    def of_block(self, block: int) -> Self:
        """Problems of the same kind for a block of seeds (`Preset.blocks`)."""
        return self.model_copy(update={"seed": self.seed + block * BETWEEN_BLOCKS})


class ArithmeticProblems(Generated):
    """Problems of the tiny arithmetic task (`redraft.tasks.arithmetic`)."""

    kind: Literal["arithmetic"] = "arithmetic"
    min_terms: int = Field(default=4, ge=2, le=1000)
    """Minimum number of terms in a problem."""
    max_terms: int = Field(default=7, ge=2, le=1000)
    """Maximum number of terms in a problem."""
    signs: Literal["both", "minus"] = "both"
    """Operators: `both` adds and subtracts terms, `minus` only subtracts."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_terms > self.max_terms:
            raise invalid(
                f"min_terms ({self.min_terms}) must not exceed max_terms ({self.max_terms})", at=("min_terms",)
            )
        return self


Question = Literal["sum", "total", "difference", "sum_and_difference", "how_many_more", "who_has_more", "who_has_most"]
"""Kind of question of a word problem."""


class WordProblems(Generated):
    """Sums and comparisons in words with the answer in a box (`redraft.tasks.word_problems`).

    The two splits share no combination of a kind of question and its numbers.
    """

    kind: Literal["word_problems"] = "word_problems"
    questions: Annotated[list[Question], distinct("question")] = Field(default=list(get_args(Question)), min_length=1)
    """Kinds of questions, all equally probable."""
    largest: int = Field(default=10, ge=6, le=1000)
    """Largest number in a problem; the smallest is 2."""
    examples: int = Field(default=4, ge=0, le=8)
    """Number of solved problems before each problem, with the same kind of question about other numbers."""
    options: bool = True
    """True if the right answer and a wrong one follow each question."""


InstructionName = Literal[
    "keywords:existence",
    "keywords:frequency",
    "keywords:forbidden_words",
    "keywords:letter_frequency",
    "language:response_language",
    "length_constraints:number_sentences",
    "length_constraints:number_paragraphs",
    "length_constraints:number_words",
    "length_constraints:nth_paragraph_first_word",
    "detectable_content:number_placeholders",
    "detectable_content:postscript",
    "detectable_format:number_bullet_lists",
    "detectable_format:constrained_response",
    "detectable_format:number_highlighted_sections",
    "detectable_format:multiple_sections",
    "detectable_format:json_format",
    "detectable_format:title",
    "combination:two_responses",
    "combination:repeat_prompt",
    "startend:end_checker",
    "startend:quotation",
    "change_case:capital_word_frequency",
    "change_case:english_capital",
    "change_case:english_lowercase",
    "punctuation:no_comma",
]
"""Kind of instruction, by IFEval's name."""


class InstructionPrompts(Generated):
    """Requests with instructions of IFEval's kinds, in this project's words (`redraft.tasks.instruction_prompts`).

    A response is right if it follows all instructions (strict). No topic is in both splits.
    """

    grading: ClassVar[Grading] = "instructions"
    kind: Literal["instructions"] = "instructions"
    instructions: Annotated[list[InstructionName], distinct("instruction")] = Field(
        default=list(get_args(InstructionName)), min_length=1
    )
    """Kinds of instructions, all equally probable as the first of a prompt."""
    max_instructions: int = Field(default=1, ge=1, le=3)
    """Largest number of instructions in a prompt. Instructions that exclude each other are never combined."""
