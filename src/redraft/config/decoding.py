"""Decoding: generation of tokens by the engine. Every decoding draws from the same law; some are faster."""

from typing import Literal

from redraft.config.base import Config


class Plain(Config):
    """Autoregressive decoding: one token of every response in each forward pass."""

    kind: Literal["plain"] = "plain"


Decoding = Plain
"""Union of all decodings, of which there is one; self-speculation will be another."""
