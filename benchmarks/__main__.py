"""Entry point that runs all benchmarks."""

from benchmarks import (
    diversity,
    engine,
    exact_rules,
    gpu_rollout,
    gradient_snr,
    grading,
    memory,
    reuse_simulation,
    rewards,
    self_speculation,
    speculating_engine,
    vllm_rollout,
    vllm_scoring,
    workflow,
)

diversity.main()
engine.main()
exact_rules.main()
gpu_rollout.main()
gradient_snr.main()
grading.main()
memory.main()
reuse_simulation.main()
rewards.main()
self_speculation.main()
speculating_engine.main()
vllm_rollout.main()
vllm_scoring.main()
workflow.main()
