"""Configuration of trainers, which are part of a run's identity, and of engines and evaluation, which are not."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from redraft.config.base import (
    MOST_BATCHED_TOKENS,
    MOST_CPUS,
    MOST_GPUS,
    MOST_NODES,
    MOST_PROMPTS,
    MOST_RESPONSES,
    MOST_ROWS,
    MOST_STEPS,
    MOST_TOKENS,
    Config,
    Name,
    invalid,
)
from redraft.config.capability import Capability
from redraft.config.verl_keys import BITWISE_VALUES, checked_site_keys, leaves

Reward = Literal["last_box", "boxed_or_numeric", "release"]
"""Rule that rewards a response (docs/grading.md)."""

Clock = Literal["steps", "training_steps"]
"""Clock of a run: number of rollout batches, or number of update batches."""


class TrainerConfig(Config):
    """Settings of the training loop that change what is learned.

    Each paper sets the fields without a default (`experiments/<paper>/hyperparameters.yaml`).
    """

    epochs: int | float = Field(gt=0, le=1e6)
    """Passes over the training data; the last one may be partial."""
    prompts_per_step: int = Field(ge=1, le=MOST_PROMPTS)
    """Prompts in one rollout batch; divides the number of problems."""
    prompts_per_batch: int | None = Field(default=None, ge=1, le=MOST_PROMPTS)
    """Prompts in one update batch, gathered over as many steps as needed; `prompts_per_step` if empty."""
    group_size: int = Field(ge=2, le=MOST_RESPONSES)
    """Rollouts for each prompt (n)."""
    prompts_per_update: int = Field(ge=1, le=MOST_PROMPTS)
    """Prompts in one optimiser update (the mini-batch); divides the update batch."""
    updates_per_batch: int | None = Field(default=None, ge=1, le=MOST_PROMPTS)
    """Optimiser updates per update batch; replaces `prompts_per_update`. Groups are distributed as evenly as possible,
    and there are at most as many updates as groups."""
    learning_rate: float = Field(gt=0, le=1000)
    """Learning rate of the actor, constant after the warm-up."""
    warmup_steps: int = Field(default=0, ge=0, le=MOST_STEPS)
    """Update batches over which the learning rate rises linearly from 0, as in verl."""
    weight_decay: float = Field(ge=0, le=1000)
    """Weight decay of AdamW."""
    gradient_clip: float = Field(gt=0, le=1e30)
    """Maximum norm of the gradient."""
    max_prompt_tokens: int = Field(ge=1, le=MOST_TOKENS)
    """Maximum prompt length, tokens; a longer prompt is an error."""
    max_response_tokens: int = Field(ge=1, le=MOST_TOKENS)
    """Maximum response length, tokens, with the end-of-sequence token."""
    temperature: float = Field(default=1.0, ge=0.001, le=1000)
    """Temperature of rollouts. Training divides all logits by it: for sampling, for verification of drafts, and for the
    log-probabilities of policy and reference policy. Evaluation has a separate temperature."""
    reward: Reward = "last_box"
    """Graded part of a response: `last_box` the last box only; `boxed_or_numeric`, as in SPEC-RL's paper, the last
    number if there is no box; `release`, as in its release, all LaTeX of the response. Evaluation always grades the
    last box. Data with instructions or with options have another rule (`Run.reward`)."""
    fresh_samples: int = Field(default=1, ge=0, le=MOST_RESPONSES)
    """Additional samples without reuse per prompt of a step, for `fresh_reward` (docs/metrics.md); not trained on."""
    evaluate_every: int = Field(ge=1, le=MOST_STEPS)
    """Ticks of the evaluation clock between saved and evaluated policies; the last policy always is one of them."""
    evaluation_clock: Clock = "steps"
    """`steps` counts rollout batches, `training_steps` update batches, which are fewer if a schedule filters groups."""

    @field_validator("prompts_per_update")
    @classmethod
    def _divides(cls, prompts: int, earlier: ValidationInfo) -> int:
        # Fields are validated in their order, so both are known here, unless they are wrong themselves.
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
        """Number of groups of each optimiser update of a batch with `groups` groups; all above 0."""
        if self.updates_per_batch is None:
            whole, rest = divmod(groups, self.prompts_per_update)
            return [self.prompts_per_update] * whole + [rest] * (rest > 0)
        least, more = divmod(groups, self.updates_per_batch)
        sizes = [least + 1] * more + [least] * (self.updates_per_batch - more)
        # With fewer groups than updates some updates would have none.
        return [size for size in sizes if size]

    @property
    def most_prompts_per_update(self) -> int:
        """Prompts of the largest optimiser update of a batch."""
        return max(self.groups_of_updates(self.batch_prompts))

    def steps_per_epoch(self, problems: int) -> int:
        """Steps of one pass over `problems` problems."""
        # Whole steps: schedules reject a number of problems that they would cut (`ScheduleMethod.check`).
        return problems // self.prompts_per_step

    def steps(self, problems: int) -> int:
        """Total number of steps."""
        # A share of an epoch below one step still trains one.
        return max(round(self.epochs * self.steps_per_epoch(problems)), 1)

    def evaluates(self, done: int, steps: int, training_steps: int, updated: bool) -> bool:
        """True if a policy is evaluated: by the evaluation clock, or because it is the last one.

        Args:
            done: number of finished steps.
            steps: number of steps of the run.
            training_steps: number of update batches in the finished steps.
            updated: true if the last step had an update batch.
        """
        by_training_steps = self.evaluation_clock == "training_steps"
        # A step without an update leaves the ticks as they are: it would evaluate the same policy again.
        ticks, ticked = (training_steps, updated) if by_training_steps else (done, True)
        return done == steps or (ticked and ticks % self.evaluate_every == 0)


class EngineSettings(Config):
    """Execution of a run. These settings change results by floating-point noise only, with these exceptions.

    `dtype` is part of a run's identity (docs/real-model.md). The transformers backend of evaluation samples in batches
    of `max_rows`. With a decoding of `when: threshold` or `roofline` it decides which passes speculate, whose tokens
    depend on other random numbers. On several GPUs or nodes verl distributes sequences by length, so mini-batches
    differ. `draft_chunk` changes the number of verified draft tokens, but no response.
    """

    gpus: int = Field(default=0, ge=0, le=MOST_GPUS)
    """GPUs per node of a training run; the in-process engine computes on one of them."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device; `auto` selects a GPU if there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "fastest"] = "auto"
    """Precision of the models' computation: `auto` is float32 in the in-process engine and on CPUs, and bfloat16 for
    verl and vLLM on GPUs. With `bfloat16` the in-process trainer keeps weights, gradients and AdamW's moments in
    float32. `fastest`, of the in-process engine, is the faster of the two on the machine that starts the first campaign
    (docs/real-model.md)."""
    threads: int = Field(default=1, ge=1, le=MOST_CPUS)
    """CPU threads, and cores of a job; two processes with one thread are faster than one process with two. Each process
    of verl computes with one thread, and vLLM chooses its number itself."""
    max_rows: int = Field(default=256, ge=1, le=MOST_ROWS)
    """Maximum number of sequences in the KV cache."""
    max_batched_tokens: int = Field(default=16384, ge=1, le=MOST_BATCHED_TOKENS)
    """Maximum number of tokens in one prefill or scoring pass."""
    draft_chunk: int | None = Field(default=None, ge=1, le=MOST_TOKENS)
    """Number of draft tokens scored in one pass. Chunks after the first rejection are not scored (`tokens_verified`
    counts the scored tokens). If empty, a draft is scored in one pass."""
    rows_per_micro_batch: int = Field(default=256, ge=1, le=MOST_ROWS)
    """Sequences in one forward and backward pass of the actor; under verl on GPUs `max_tokens_per_gpu` decides."""
    grading_workers: int = Field(default=1, ge=1, le=MOST_CPUS)
    """Processes that grade responses during generation; under verl one per rollout worker."""
    checkpoint_every: int = Field(default=8, ge=1, le=MOST_STEPS)
    """Steps between checkpoints."""
    gpu_memory_utilization: float = Field(default=0.8, gt=0, le=1)
    """Share of GPU memory for vLLM, in training and evaluation; 0.8 in SPEC-RL's scripts. No effect on a CPU."""
    eager: bool = True
    """Run vLLM without CUDA graphs, in training and evaluation; true in SPEC-RL's release. Decoding is slower without
    them and verification is not, so a speedup belongs to one of the two values (docs/verl.md). No effect on a CPU."""
    bitwise: bool = False
    """Compute the same results to the last bit for any order and size of batches, at a cost in time (docs/verl.md): in
    training, and in evaluation by the backend `torch`."""


class InProcessEngine(EngineSettings):
    """In-process PyTorch engine under this project's trainer, on one device."""

    kind: Literal["torch"] = "torch"
    draft_chunk: int | None = Field(default=64, ge=1, le=MOST_TOKENS)
    """Number of draft tokens scored in one pass. A draft of less than 1.5 chunks is scored in one pass."""
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability)
    """Capabilities of this engine and its trainer."""
    calibrations: dict[Name, str] = {}
    """Model of the papers to a file with the roofline of the preset's model for it (`redraft calibrate`), for cells
    that speculate by a roofline. The workflow measures the roofline of other models."""

    @model_validator(mode="after")
    def _reproducible(self) -> "InProcessEngine":
        if self.bitwise and (self.device == "cuda" or self.dtype in ("bfloat16", "fastest") or self.threads > 1):
            message = "bitwise holds in this engine on a CPU with one thread in float32; on GPUs use engine.kind verl"
            raise invalid(message, "false", ("bitwise",), value=True)
        return self

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
    """Capabilities of verl and its vLLM. It scores only a draft's own tokens and the most probable tokens."""
    nodes: int = Field(default=1, ge=1, le=MOST_NODES)
    """Nodes of a training run, in a Slurm job (docs/slurm.md)."""
    tensor_parallel: int = Field(default=1, ge=1, le=MOST_GPUS)
    """GPUs of one vLLM replica in training; evaluation uses one GPU. Divides `gpus`."""
    max_tokens_per_gpu: int = Field(default=16384, ge=1, le=MOST_BATCHED_TOKENS)
    """Maximum number of tokens in one forward and backward pass on a GPU (dynamic batch size); verl's default. No
    effect on a CPU."""
    offload: bool = False
    """Move weights and optimiser state from a GPU to host memory while vLLM decodes."""
    seeds: Literal["request", "step"] = "request"
    """What vLLM's random numbers are seeded for: each request, or each replica and step. With seeds of requests vLLM
    samples row by row in Python, and a repeated step has the same tokens. With seeds of steps it has not, since the
    numbers of a request depend on the batch around it."""
    gpu_memory: float | None = Field(default=79.6, gt=0, le=10**5)
    """Memory of one GPU, GiB, for the check that a run fits (docs/paper-scale.md); an H100 of 80 GB has 79.6. Without
    a value nothing is checked."""
    verl: Annotated[dict[str, Any], AfterValidator(checked_site_keys)] = {}
    """Further dotted keys of verl's configuration and their values, except those that decide what is learned. A
    precision (`dtype`, `mixed_precision`) is part of a run's identity."""

    @model_validator(mode="after")
    def _reproducible(self) -> "VerlEngine":
        if not self.bitwise:
            return self
        # With a seed of the step, a request's numbers depend on the batch around it.
        if self.seeds != "request":
            raise invalid("bitwise needs a seed for each request", "request", ("seeds",), value=self.seeds)
        for key, value in self.verl_leaves.items():
            # By the last name, since actor, critic, reference policy and rollout have one key each.
            needed = BITWISE_VALUES.get(key.rpartition(".")[2], value)
            if value != needed:
                raise invalid("bitwise is not known to hold with this", str(needed), ("verl", key), value=value)
        return self

    @property
    def verl_leaves(self) -> dict[str, Any]:
        """`verl` with mappings flattened to dotted keys, for checks of single keys."""
        return leaves(self.verl)

    @field_validator("dtype")
    @classmethod
    def _own_precision(cls, dtype: str) -> str:
        if dtype != "auto":
            raise ValueError("must be auto: verl uses float32 on a CPU and bfloat16 on GPUs")
        return dtype


Engine = Annotated[InProcessEngine | VerlEngine, Field(discriminator="kind")]
"""Training engine with its trainer."""


class Evaluation(Config):
    """Sampling of policies on benchmarks. Backends have different random streams, so samples differ."""

    backend: Literal["torch", "transformers", "vllm"] = "torch"
    """Backend: the in-process engine, transformers' `generate`, or vLLM in this process."""
    harness: Literal["redraft", "lm-eval"] = "redraft"
    """Harness that sends problems to the backend: this project, or lm-eval with generated task files."""
    lighteval: bool = False
    """Grade IFEval with lighteval too, in a separate environment."""
