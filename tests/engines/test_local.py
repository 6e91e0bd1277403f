"""The embedded engine keeps the engine contract."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.engine import EngineContract, specs
from fedcircuits.api.client_spec import client_from_spec
from fedcircuits.engines import LocalEngine


class TestLocalEngine(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> str:
        return "local"

    @pytest.fixture
    def transport(self) -> Any:
        return LocalEngine({name: client_from_spec(data) for name, data in specs().items()})
