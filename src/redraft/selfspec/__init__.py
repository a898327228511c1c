"""When self-speculation pays: roofline, its fit, toggle, ladder, simulator (EfficientRollout, docs/selfspec.md)."""
