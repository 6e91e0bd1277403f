"""Files of the format before are read; files hold registry names, so classes may be renamed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits import encoding
from fedcircuits.api.load import DENSITIES, decode
from fedcircuits.errors import StorageError
from fedcircuits.federation.agreement import RULES, Latent, ProductOfClasses
from fedcircuits.federation.model import storage
from fedcircuits.federation.model.storage import _model_key
from fedcircuits.federation.wire.names import JobId, JobKind

FORMAT_1 = Path(__file__).parent / "data" / "format-1"
# Mean log-likelihood of `rows()` as the version that wrote the file computed it.
MEANS = {
    "circuit": -2.094173365906551,
    "federated-product": -2.678712709229459,
    "federated-latent-table": -2.2925739752404466,
}


def rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.choice(["a", "b"], 120)
    y = np.where(rng.random(120) < 0.8, np.where(x == "a", "no", "yes"), "no")
    return pd.DataFrame({"x": x, "y": y, "z": rng.integers(0, 3, 120) + (x == "a")})


@pytest.mark.parametrize("name", MEANS)
def test_a_file_of_format_1_is_read(name: str, tmp_path: Path) -> None:
    path = FORMAT_1 / f"{name}.safetensors"
    model = fc.load(path)
    assert model.mean_log_prob(rows()) == pytest.approx(MEANS[name], abs=1e-12)
    model.save(tmp_path / "again")
    head = encoding.unpack((tmp_path / "again").read_bytes(), name="again")  # version 2 alone
    assert head.kind in DENSITIES
    assert fc.load(tmp_path / "again").mean_log_prob(rows()) == model.mean_log_prob(rows())


def test_rules_of_format_1_are_today_s_rules() -> None:
    product = fc.load(FORMAT_1 / "federated-product.safetensors")
    latent = fc.load(FORMAT_1 / "federated-latent-table.safetensors")
    assert isinstance(product.rule, ProductOfClasses)
    assert isinstance(latent.rule, Latent)
    assert latent.rule.table
    assert "two" not in product.without("two").owners  # glued again from what the file holds


def test_messages_of_format_1_are_refused() -> None:
    data = (FORMAT_1 / "circuit.safetensors").read_bytes()
    with pytest.raises(StorageError, match="version 1; this fedcircuits reads version 2"):
        encoding.unpack(data)


def test_a_rule_that_is_gone_says_what_to_do(tmp_path: Path) -> None:
    data = (FORMAT_1 / "federated-product.safetensors").read_bytes()
    record = encoding.unpack(data, oldest=1)
    record.header["federation"]["rule"] = {"kind": "Coupled", "options": {}}
    encoding.write(tmp_path / "model", encoding.pack(record))
    with pytest.raises(StorageError, match=r"rule 'Coupled'.*train it again with one of these"):
        fc.load(tmp_path / "model")


@pytest.fixture
def renamed() -> Any:
    """The rules with other class names, as after a change of the code."""
    names = {kind: kind.__name__ for kind in RULES.values()}
    for kind in names:
        kind.__name__ = "Renamed"
    yield
    for kind, name in names.items():
        kind.__name__ = name


@pytest.mark.parametrize("name", RULES)
@pytest.mark.usefixtures("renamed")
def test_a_renamed_rule_is_the_same_in_a_file(name: str) -> None:
    fed: Any = fc.load(FORMAT_1 / "federated-product.safetensors")
    record = replace(fed, rule=RULES[name]()).to_record()
    assert record.header["federation"]["rule"]["name"] == name
    assert b"Renamed" not in encoding.pack(record)
    assert type(storage.from_record(record, decode).rule) is RULES[name]


@pytest.mark.parametrize("job", ["S0", "P3", "P0.1", "L3.2", "A0.1", "B2", "R"])
def test_jobs_of_format_1_are_read_as_their_names_of_today(job: str) -> None:
    assert str(_model_key(["a", job, -1]).job) == job
    assert _model_key(["a", "P3", -1]).job == JobId(JobKind.CLUSTER, part=3)
    with pytest.raises(StorageError, match="job 'K/L'"):
        _model_key(["a", "K/L", -1])
