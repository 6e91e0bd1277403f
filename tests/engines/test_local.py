"""The embedded engine keeps the engine contract."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.engine import EngineContract, births
from fedcircuits.api.client_spec import born
from fedcircuits.engines import LocalEngine


class TestLocalEngine(EngineContract):
    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls) -> str:
        return "local"

    @pytest.fixture
    def transport(self) -> Any:
        return LocalEngine({name: born(data) for name, data in births().items()})
