"""All benchmarks."""

from benchmarks import drafts, engine, vllm_rollout, vllm_scoring, workflow

drafts.main()
engine.main()
vllm_rollout.main()
vllm_scoring.main()
workflow.main()
