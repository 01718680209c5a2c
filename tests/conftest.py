"""One place for what every test relies on: hypothesis profiles and an environment without settings of ours.

`HYPOTHESIS_PROFILE` picks a profile: `fast` (the default, the same examples each time), `ci` or `deep`.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

_CHECKS = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile("fast", max_examples=40, deadline=None, derandomize=True, suppress_health_check=_CHECKS)
settings.register_profile("ci", max_examples=400, deadline=None, print_blob=True, suppress_health_check=_CHECKS)
settings.register_profile("deep", max_examples=5000, deadline=None, print_blob=True, suppress_health_check=_CHECKS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


@pytest.fixture(autouse=True)
def _no_settings_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's `REGATE_…` variables reach a test that does not set them itself."""
    for name in list(os.environ):
        if name.startswith("REGATE_") and not name.startswith("REGATE_TEST_"):
            monkeypatch.delenv(name)
