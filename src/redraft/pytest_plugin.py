"""pytest plugin: the fixture `certify` fails a test if a sampler does not pass (docs/certify.md)."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def certify() -> Callable[..., Any]:
    """Call `redraft.certify.certify`; the certificate if it passes, else the test fails with its text."""
    # Not at the top: pytest loads plugins also where no test uses them, and numpy may be missing.
    from redraft.certify import Verdict
    from redraft.certify import certify as make

    def certified(*arguments: Any, **settings: Any) -> Any:
        certificate = make(*arguments, **settings)
        if certificate.verdict is not Verdict.PASSES:
            pytest.fail(str(certificate), pytrace=False)
        return certificate

    return certified
