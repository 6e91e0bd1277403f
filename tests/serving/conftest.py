"""A model of people that the tests of the service share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    rng = np.random.default_rng(7)
    sex = rng.choice(["Male", "Female"], 400)
    age = rng.normal(np.where(sex == "Male", 45.0, 35.0), 8.0)
    return pd.DataFrame(
        {
            "age": np.where(rng.random(400) < 0.1, np.nan, age),
            "sex": sex,
            "visits": rng.poisson(np.where(sex == "Male", 1.0, 4.0)),
            "member": rng.random(400) < 0.3,
        }
    )


@pytest.fixture(scope="module")
def path(people: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("serve") / "people.fc"
    fc.learn(people, learner="mixture", label="sex").save(file)
    return file


@pytest.fixture(scope="module")
def model(path: Path) -> Any:
    return fc.load(path)
