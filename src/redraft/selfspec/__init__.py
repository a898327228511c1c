"""When self-speculation pays: calibrated roofline, toggle, ladder (EfficientRollout, docs/selfspec.md)."""
