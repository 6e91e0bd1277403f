"""The registry of leaf families."""

from __future__ import annotations

import pytest

from fedcircuits.circuits.leaves import FAMILIES, family_named
from fedcircuits.errors import StructureError


def test_every_family_is_found_by_its_own_name() -> None:
    assert {name: family_named(name).name for name in FAMILIES} == {n: n for n in FAMILIES}


@pytest.mark.parametrize("name", ["gausian", "", None, ["gaussian"]])
def test_an_unknown_family_is_told_with_those_that_exist(name: str) -> None:
    with pytest.raises(StructureError, match="there are categorical, count_table"):
        family_named(name)
