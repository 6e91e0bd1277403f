"""Requests to many clients that are large go out in waves; the model does not depend on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.contracts.faults import model_bytes

import fedcircuits as fc
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire import transport
from fedcircuits.federation.wire.transport import WAVE_BYTES, WAVE_CLIENTS, in_waves


def requests_of(n_clients: int, n_bytes: int) -> dict[str, m.Align]:
    rows = np.random.default_rng(0).integers(0, 2**31 - 1, n_bytes // 4, dtype=np.int32)
    return {f"{at:03d}": m.Align(rows) for at in reversed(range(n_clients))}


def test_small_requests_and_those_of_few_clients_go_out_together() -> None:
    assert list(in_waves({})) == []
    assert [len(wave) for wave in in_waves(requests_of(300, 100))] == [300]
    assert [len(wave) for wave in in_waves(requests_of(4, WAVE_BYTES // 3))] == [4]


def test_large_requests_to_many_clients_go_out_in_waves_every_client_once() -> None:
    requests = requests_of(100, WAVE_BYTES // 40)
    waves = list(in_waves(requests))
    assert len(waves) == 3
    assert [client for wave in waves for client in wave] == sorted(requests)
    for wave in waves:
        assert len(wave) <= 41
        assert sum(map(len, wave.values())) < 2 * WAVE_BYTES
    assert waves[0]["000"] == requests["000"].to_bytes()
    assert next(len(wave) for wave in in_waves(requests_of(40, WAVE_BYTES))) == WAVE_CLIENTS


def test_the_model_of_requests_in_waves_is_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    rows = pd.DataFrame(x, columns=["a", "b", "c"])
    rows["label"] = np.where(x.sum(axis=1) + rng.normal(size=400) > 0, "yes", "no")
    parts = fc.partition.iid(rows, 4)
    together = fc.federate(parts, label="label", seed=0)
    monkeypatch.setattr(transport, "WAVE_CLIENTS", 1)
    monkeypatch.setattr(transport, "WAVE_BYTES", 0)
    alone = fc.federate(parts, label="label", seed=0)
    assert model_bytes(together, tmp_path / "0.fc") == model_bytes(alone, tmp_path / "1.fc")
    assert alone.ledger.n_bytes == together.ledger.n_bytes
