"""Decoding: how the engine makes tokens. A decoding that is faster draws from the same law."""

from typing import Literal

from redraft.config.base import Config


class Plain(Config):
    """One token of every response in each pass over the policy."""

    kind: Literal["plain"] = "plain"


Decoding = Plain
"""Of every decoding; self-speculation will be another."""
