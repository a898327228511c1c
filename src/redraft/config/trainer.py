"""Trainer (part of a run's identity), and engine and evaluation backend (not part of it)."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from redraft.config.base import Config, Name
from redraft.config.capability import Capability
from redraft.config.verl_keys import checked_site_keys

Reward = Literal["last_box", "boxed_or_numeric", "release"]
"""Rule that rewards a response (docs/grading.md)."""

Clock = Literal["steps", "training_steps"]
"""Clock of a run: its rollout batches, or its update batches."""


class Trainer(Config):
    """Settings of the training loop that change what is learned.

    Every paper states the fields that have no default (`experiments/<paper>/hyperparameters.yaml`).
    """

    epochs: int | float = Field(gt=0)
    """Passes over the training data; the last one may be partial."""
    prompts_per_step: int = Field(ge=1)
    """Prompts in one rollout batch; divides the number of problems."""
    prompts_per_batch: int | None = Field(default=None, ge=1)
    """Prompts in one update batch, gathered over as many steps as needed; `prompts_per_step` if empty."""
    group_size: int = Field(ge=2)
    """Rollouts for each prompt (n)."""
    prompts_per_update: int = Field(ge=1)
    """Prompts in one optimiser update (the mini-batch); divides the update batch."""
    updates_per_batch: int | None = Field(default=None, ge=1)
    """Optimiser updates from one update batch, to which its prompts are dealt as evenly as whole groups allow, so that
    there are no more updates than prompts; takes the place of `prompts_per_update`."""
    learning_rate: float = Field(gt=0)
    """Learning rate of the actor, constant behind the warm-up."""
    warmup_steps: int = Field(default=0, ge=0)
    """Update batches over which the learning rate rises linearly; the first one of them has rate 0, as in verl."""
    weight_decay: float = Field(ge=0)
    """Weight decay of AdamW."""
    gradient_clip: float = Field(gt=0)
    """Maximum norm of the gradient."""
    max_prompt_tokens: int = Field(ge=1)
    """Maximum prompt length, tokens; a longer prompt is an error under verl."""
    max_response_tokens: int = Field(ge=1)
    """Maximum response length, tokens, with the end-of-sequence token."""
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Temperature of rollouts. Logits are divided by it wherever training needs a distribution: where tokens are
    sampled and drafts are verified, and in the log-probabilities of policy and reference policy. Evaluation has its
    own."""
    reward: Reward = "last_box"
    """`last_box` reads the last box alone; `boxed_or_numeric`, as SPEC-RL's paper, without a box the last number;
    `release`, as its release, all LaTeX of the response. Evaluation always grades the last box. Data of kind
    `instructions` have a rule of their own (`Run.reward`)."""
    fresh_samples: int = Field(default=1, ge=0)
    """New samples for each prompt of a step, logged as `fresh_reward` (docs/metrics.md) and not trained on."""
    evaluate_every: int = Field(ge=1)
    """Ticks of the evaluation clock between policies that are kept and evaluated; the last policy always is."""
    evaluation_clock: Clock = "steps"
    """`steps` count rollout batches, `training_steps` update batches, which are fewer where a schedule filters."""

    @field_validator("prompts_per_update")
    @classmethod
    def _divides(cls, prompts: int, earlier: ValidationInfo) -> int:
        name = "prompts_per_batch" if earlier.data.get("prompts_per_batch") else "prompts_per_step"
        batch = earlier.data.get(name)
        if batch and batch % prompts:
            raise PydanticCustomError(
                "no_divisor",
                "prompts_per_update ({prompts}) must divide {name} ({batch})",
                {"prompts": prompts, "name": name, "batch": batch, "expected": f"a divisor of {batch}"},
            )
        return prompts

    @property
    def batch_prompts(self) -> int:
        """Prompts in one update batch."""
        return self.prompts_per_batch or self.prompts_per_step

    def groups_of_updates(self, groups: int) -> list[int]:
        """Groups of each optimiser update from a batch of so many groups, in order, none of them 0."""
        if self.updates_per_batch is None:
            whole, rest = divmod(groups, self.prompts_per_update)
            return [self.prompts_per_update] * whole + [rest] * (rest > 0)
        least, more = divmod(groups, self.updates_per_batch)
        sizes = [least + 1] * more + [least] * (self.updates_per_batch - more)
        return [size for size in sizes if size]

    @property
    def most_prompts_per_update(self) -> int:
        """Prompts of the largest optimiser update of a batch."""
        return max(self.groups_of_updates(self.batch_prompts))

    def steps_per_epoch(self, problems: int) -> int:
        """Steps of one pass over `problems` problems."""
        return problems // self.prompts_per_step

    def steps(self, problems: int) -> int:
        """Total number of steps."""
        return max(round(self.epochs * self.steps_per_epoch(problems)), 1)

    def evaluates(self, done: int, training_steps: int, updated: bool) -> bool:
        """True if the clock says that a policy is evaluated.

        Args:
            done: steps behind the policy.
            training_steps: update batches behind it.
            updated: true if the last of these steps had an update batch.
        """
        by_training_steps = self.evaluation_clock == "training_steps"
        ticks, ticked = (training_steps, updated) if by_training_steps else (done, True)
        return ticked and ticks % self.evaluate_every == 0


class EngineSettings(Config):
    """Execution of a run. These settings change results by no more than floating-point noise, with these exceptions.

    `dtype` is part of a run's identity (docs/real-model.md). The transformers backend of evaluation draws by batches,
    whose size is `max_rows`. Over several GPUs or nodes verl distributes sequences by length, so mini-batches are
    composed differently. `draft_chunk` changes how many draft tokens are verified, and no response.
    """

    gpus: int = Field(default=0, ge=0)
    """GPUs of a training run on each of its nodes."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; `auto` selects a GPU if there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision that models compute in: `auto` is float32 in process, under verl on a processor, and in vLLM on a
    processor; on GPUs verl and vLLM take bfloat16. With `bfloat16` the in-process trainer keeps its weights, their
    gradients and AdamW's moments in float32."""
    threads: int = Field(default=1, ge=1)
    """CPU threads; two processes of one thread are faster than one process of two."""
    max_rows: int = Field(default=256, ge=1)
    """Maximum number of sequences in the KV cache."""
    max_batched_tokens: int = Field(default=16384, ge=1)
    """Maximum number of tokens in one prefill or scoring pass."""
    draft_chunk: int | None = Field(default=None, ge=1)
    """Number of draft tokens scored in one pass; nothing behind the chunk in which a draft is cut is scored
    (`tokens_verified` counts what is). Drafts are scored whole if empty."""
    rows_per_micro_batch: int = Field(default=256, ge=1)
    """Sequences in one forward and backward pass of the actor."""
    grading_workers: int = Field(default=1, ge=1)
    """Processes that grade responses during generation; under verl as many as its rollout workers."""
    checkpoint_every: int = Field(default=8, ge=1)
    """Steps between checkpoints."""
    gpu_memory_utilization: float = Field(default=0.8, gt=0, le=1)
    """Share of GPU memory for vLLM, in training and evaluation; 0.8 in SPEC-RL's scripts."""
    eager: bool = True
    """Run vLLM without CUDA graphs, in training and evaluation; true in SPEC-RL's release."""


class InProcessEngine(EngineSettings):
    """In-process PyTorch engine under this project's trainer, on one device."""

    kind: Literal["torch"] = "torch"
    draft_chunk: int | None = Field(default=64, ge=1)
    """As of every engine; a draft of fewer than one and a half chunks is scored whole."""
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability)
    """Capabilities of this engine and its trainer."""
    calibrations: dict[Name, str] = {}
    """Model of the papers to a file of its stand-in's roofline (`redraft calibrate`), for cells that speculate by one.
    The workflow measures the roofline of a model that is not named here."""

    @property
    def nodes(self) -> int:
        """Nodes of a training run."""
        return 1


class VerlEngine(EngineSettings):
    """vLLM under verl's trainer."""

    kind: Literal["verl"] = "verl"
    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.STORED_LOG_PROBS, Capability.TOP_LOG_PROBS, Capability.RESIDUAL}
    )
    """Capabilities of verl and its vLLM, which scores a draft's own tokens and the top of the distribution, and no
    others."""
    nodes: int = Field(default=1, ge=1)
    """Nodes of a training run, in a Slurm job (docs/slurm.md)."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs of one vLLM replica in training; evaluation uses one GPU. Divides `gpus`."""
    max_tokens_per_gpu: int = Field(default=16384, ge=1)
    """Maximum number of tokens in one forward and backward pass on a GPU (dynamic batch size); verl's default."""
    offload: bool = False
    """Move weights and optimiser state to host memory while vLLM decodes."""
    verl: Annotated[dict[str, Any], AfterValidator(checked_site_keys)] = {}
    """Further dotted keys of verl's configuration and their values, except those that decide what is learned."""

    @field_validator("dtype")
    @classmethod
    def _own_precision(cls, dtype: str) -> str:
        if dtype != "auto":
            raise ValueError("verl has its own: float32 on a processor, bfloat16 on GPUs; leave it auto")
        return dtype


Engine = Annotated[InProcessEngine | VerlEngine, Field(discriminator="kind")]
"""Training engine with its trainer."""


class Evaluation(Config):
    """Sampling of policies on benchmarks. Backends draw from different random streams, so samples differ."""

    backend: Literal["torch", "transformers", "vllm"] = "torch"
    """Backend: the in-process engine, transformers' `generate`, or vLLM in this process."""
    harness: Literal["redraft", "lm-eval"] = "redraft"
    """Harness that sends problems to the backend: this project, or lm-eval with generated task files."""
    lighteval: bool = False
    """Grade IFEval by lighteval as well, in lighteval's own environment."""
