"""All benchmarks."""

from benchmarks import engine, workflow

engine.main()
workflow.main()
