"""All benchmarks."""

from benchmarks import drafts, engine, gpu_rollout, vllm_rollout, vllm_scoring, workflow

drafts.main()
engine.main()
gpu_rollout.main()
vllm_rollout.main()
vllm_scoring.main()
workflow.main()
