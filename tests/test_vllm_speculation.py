"""Why self-speculation is unsupported under vLLM: its own speculative sampling has another distribution on this
build."""

import pytest

from redraft.lab.audit import vllm_speculation

pytestmark = pytest.mark.servers
PLAIN, *SPECULATING = vllm_speculation.MODES


def test_the_audit_finds_nothing_wrong_without_speculation():
    assert vllm_speculation.audit(PLAIN).verdict == "not rejected"


@pytest.mark.parametrize("mode", SPECULATING)
def test_the_installed_vllm_speculates_with_a_wrong_distribution(mode):
    found = vllm_speculation.audit(mode)
    assert found.verdict == "wrong", f"{found}: compose it with the methods now (docs/selfspec.md)"
