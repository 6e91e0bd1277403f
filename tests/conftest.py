"""What every test gets: a seeded generator, no network, one hypothesis profile, skips by extras."""

from __future__ import annotations

import socket
from collections.abc import Generator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from fedcircuits.errors import FedcircuitsError

settings.register_profile(
    "fedcircuits",
    derandomize=True,  # the same examples in every run
    deadline=None,  # the machine may be busy
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
settings.load_profile("fedcircuits")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one running engine go to one worker, so that it is started once."""
    for item in items:
        if item.get_closest_marker("engine") is not None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


# Of a Python for which not every extra is installed, the tests that need a missing one are skipped;
# where all are there, an error that asks for one is a failure.
MISSING = [name for name in ("torch", "ray", "nvflare", "fastapi") if find_spec(name) is None]


def _skipping() -> Generator[None, Any, Any]:
    try:
        return (yield)
    except FedcircuitsError as error:
        if MISSING and "needs an extra" in str(error):
            pytest.skip(f"not installed: {', '.join(MISSING)}; {error}")
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    """Skip a test whose fixtures need an extra that is not installed."""
    return (yield from _skipping())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """Skip a test that needs an extra that is not installed."""
    return (yield from _skipping())


@pytest.fixture
def rng() -> np.random.Generator:
    """The same random numbers in every run of a test."""
    return np.random.default_rng(20240229)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that opens a connection beyond this machine fails instead."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else "localhost"
        if host not in ("localhost", "127.0.0.1", "::1"):
            raise RuntimeError(f"a test tried to reach {address!r}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
