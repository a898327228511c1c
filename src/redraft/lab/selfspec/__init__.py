"""When self-speculation pays: fit of the roofline, simulator and replay (EfficientRollout, docs/selfspec.md)."""
