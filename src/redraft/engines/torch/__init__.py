"""The in-process engine: PyTorch over transformers' models."""
