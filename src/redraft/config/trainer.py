"""How much is trained (part of a cell's identity), how it is run and what evaluates it (not part of it)."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from redraft.config.base import Config
from redraft.config.capability import Capability
from redraft.config.verl_keys import checked_site_keys


class Trainer(Config):
    """Training loop, as far as it changes what is learned.

    A field without a default is one that every paper states (`experiments/<paper>/hyperparameters.yaml`).
    """

    epochs: int | float = Field(gt=0)
    """Passes over the training data; the last may be cut short."""
    prompts_per_step: int = Field(ge=1)
    """Prompts in one rollout batch; divides the data's size."""
    prompts_per_batch: int | None = Field(default=None, ge=1)
    """Prompts that are trained on at once, gathered over as many steps as it takes; `prompts_per_step` if empty."""
    group_size: int = Field(ge=2)
    """Rollouts a prompt (n)."""
    prompts_per_update: int = Field(ge=1)
    """Prompts in one optimiser update (the mini-batch); divides `prompts_per_batch`."""
    learning_rate: float = Field(gt=0)
    """Actor learning rate, constant."""
    weight_decay: float = Field(ge=0)
    """AdamW weight decay."""
    gradient_clip: float = Field(gt=0)
    """Norm to which gradients are clipped."""
    max_prompt_tokens: int = Field(ge=1)
    """Longest prompt, tokens; verl refuses a longer one."""
    max_response_tokens: int = Field(ge=1)
    """Longest response, tokens, the end-of-sequence token included."""
    fresh_samples: int = Field(default=1, ge=0)
    """New samples a prompt and step whose mean reward is logged as `fresh_reward` (docs/metrics.md); not trained on."""
    evaluate_every: int = Field(ge=1)
    """Steps between the policies that are kept and evaluated; the last one always is."""

    @field_validator("prompts_per_update")
    @classmethod
    def _divides(cls, prompts: int, earlier: ValidationInfo) -> int:
        name = "prompts_per_batch" if earlier.data.get("prompts_per_batch") else "prompts_per_step"
        batch = earlier.data.get(name)
        if batch and batch % prompts:
            raise PydanticCustomError(
                "no_divisor", "prompts_per_update ({prompts}) must divide {name} ({batch})",
                {"prompts": prompts, "name": name, "batch": batch, "expected": f"a divisor of {batch}"},
            )  # fmt: skip
        return prompts

    @property
    def batch_prompts(self) -> int:
        """Prompts that are trained on at once."""
        return self.prompts_per_batch or self.prompts_per_step

    def steps_per_epoch(self, problems: int) -> int:
        """Steps of one pass over so many problems."""
        return problems // self.prompts_per_step

    def steps(self, problems: int) -> int:
        """Steps in all."""
        return max(round(self.epochs * self.steps_per_epoch(problems)), 1)

    def evaluated_steps(self, problems: int) -> list[int]:
        """Steps done by the policies that are evaluated, the last one included, the initial policy not."""
        total = self.steps(problems)
        return [*range(self.evaluate_every, total, self.evaluate_every), total]


class EngineSettings(Config):
    """Where and how a run executes. Nothing here may change its result beyond floating-point noise.

    Two things do: transformers as evaluation's backend draws by batches, which `max_rows` cuts, and over several GPUs
    or nodes verl spreads sequences by their length, which puts other ones into a mini-batch together.
    """

    gpus: int = Field(default=0, ge=0)
    """GPUs that a training run takes, on each of its nodes."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU where there is one."""
    threads: int = Field(default=1, ge=1)
    """CPU threads; one thread in two processes beats two threads in one."""
    max_rows: int = Field(default=256, ge=1)
    """Sequences in the KV cache at once."""
    max_batched_tokens: int = Field(default=16384, ge=1)
    """Tokens in one prefill or scoring pass."""
    rows_per_micro_batch: int = Field(default=256, ge=1)
    """Sequences in one forward and backward pass of the actor."""
    grading_workers: int = Field(default=1, ge=1)
    """Processes that grade responses beside generation; under verl as many as its rollout workers."""
    checkpoint_every: int = Field(default=8, ge=1)
    """Steps between checkpoints."""
    gpu_memory_utilization: float = Field(default=0.8, gt=0, le=1)
    """Share of a GPU's memory that vLLM may fill, in training and in evaluation; SPEC-RL's scripts have 0.8."""
    eager: bool = True
    """Whether vLLM runs without CUDA graphs, in training and in evaluation, as in SPEC-RL's release."""


class InProcessEngine(EngineSettings):
    """This project's trainer over an in-process engine, on one device."""

    kind: Literal["torch"] = "torch"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability)
    """What it can do exactly."""

    @property
    def nodes(self) -> int:
        """Nodes that a training run takes."""
        return 1


class VerlEngine(EngineSettings):
    """verl with vLLM."""

    kind: Literal["verl"] = "verl"
    capabilities: ClassVar[frozenset[Capability]] = frozenset({Capability.STORED_LOG_PROBS})
    """What it can do exactly: vLLM, asked through verl, scores a draft's own tokens and samples the policy."""
    nodes: int = Field(default=1, ge=1)
    """Nodes that a training run takes (in a Slurm job; docs/slurm.md)."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs that one replica of vLLM spans in training; evaluation takes one. Divides `gpus`."""
    max_tokens_per_gpu: int = Field(default=16384, ge=1)
    """Tokens in one forward and backward pass on one GPU (verl's dynamic batch size); verl's default."""
    offload: bool = False
    """Whether weights and optimiser wait in the machine's memory while vLLM decodes."""
    verl: Annotated[dict[str, Any], AfterValidator(checked_site_keys)] = {}
    """Further dotted keys of verl's configuration and their values; none that decides what is learned."""


Engine = Annotated[InProcessEngine | VerlEngine, Field(discriminator="kind")]
"""What trains, and where."""


class Evaluation(Config):
    """What samples policies on benchmarks. Each backend draws in its own way, so results differ as samples do."""

    backend: Literal["torch", "transformers", "vllm"] = "torch"
    """The in-process engine, transformers' `generate`, or vLLM in this process."""
    harness: Literal["redraft", "lm-eval"] = "redraft"
    """What puts the problems to the backend: this project, or lm-eval with the task files made for it."""
    lighteval: bool = False
    """Whether IFEval is graded by lighteval too, in its own environment."""
