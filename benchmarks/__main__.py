"""Entry point that runs all benchmarks."""

from benchmarks import (
    diversity,
    engine,
    gpu_rollout,
    grading,
    memory,
    rewards,
    vllm_rollout,
    vllm_scoring,
    workflow,
)

diversity.main()
engine.main()
gpu_rollout.main()
grading.main()
memory.main()
rewards.main()
vllm_rollout.main()
vllm_scoring.main()
workflow.main()
