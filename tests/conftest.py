"""One place for what every test relies on: hypothesis profiles and an environment without settings of ours.

`HYPOTHESIS_PROFILE` picks a profile: `fast` (the default, the same examples each time), `ci` or `deep`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.standing import PARAMETERS, is_left_out, stand_on

_CHECKS = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile("fast", max_examples=40, deadline=None, derandomize=True, suppress_health_check=_CHECKS)
settings.register_profile("ci", max_examples=400, deadline=None, print_blob=True, suppress_health_check=_CHECKS)
settings.register_profile("deep", max_examples=5000, deadline=None, print_blob=True, suppress_health_check=_CHECKS)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let somebody ask for more of the simulation, or for one schedule again."""
    group = parser.getgroup("simulation", "tests/simulation: a whole fleet in virtual time")
    group.addoption("--schedules", type=int, metavar="N", help="schedules to run; REGATE_SIMULATE says the same")
    group.addoption("--schedule-seed", type=int, metavar="S", help="run this schedule alone")


@pytest.fixture(autouse=True)
def _no_settings_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's `REGATE_…` variables reach a test that does not set them itself."""
    for name in list(os.environ):
        if name.startswith("REGATE_") and not name.startswith("REGATE_TEST_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Stand on the engine that the test's variant names; everything that is not marked `engines` on SQLite."""
    with stand_on(getattr(request, "param", "sqlite")):
        yield


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test of a module marked `engines` a variant for each engine."""
    if metafunc.definition.get_closest_marker("engines") is not None:
        metafunc.parametrize("engine", PARAMETERS, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the variants that only a full run has."""
    left = [item for item in items if is_left_out(item)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not is_left_out(item)]
