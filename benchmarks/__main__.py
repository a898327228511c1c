"""Entry point that runs all benchmarks."""

from benchmarks import diversity, drafts, engine, gpu_rollout, grading, vllm_rollout, vllm_scoring, workflow

diversity.main()
drafts.main()
engine.main()
gpu_rollout.main()
grading.main()
vllm_rollout.main()
vllm_scoring.main()
workflow.main()
