"""Tests whether any sampler samples from a policy's distribution (docs/certify.md). Needs numpy and scipy alone."""

from redraft.certify.certificate import Certificate, Verdict, certify
from redraft.certify.protocol import Known, Policy, Sampled, Sampler

__all__ = ["Certificate", "Known", "Policy", "Sampled", "Sampler", "Verdict", "certify"]
