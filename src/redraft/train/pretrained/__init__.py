"""Pretrained models: GGUF files, packages that hold them, precision and memory."""
