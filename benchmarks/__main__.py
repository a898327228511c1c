"""All benchmarks."""

from benchmarks import drafts, engine, workflow

drafts.main()
engine.main()
workflow.main()
