"""Storage: every answer survives, and a save that fails loses nothing."""

from __future__ import annotations

import copy
import os
import pickle
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.by_hand import ROWS, assert_same_answers, stored_circuit
from fedcircuits import Circuit, Schema, Variable, build, encoding
from fedcircuits.api.load import from_bytes
from fedcircuits.density.fit_report import FitReport
from fedcircuits.errors import StorageError
from oracles.random_circuits import seeded_case


@pytest.fixture(scope="module")
def circuit() -> Circuit:
    return stored_circuit()


@pytest.fixture(scope="module")
def saved(circuit: Circuit) -> bytes:
    return encoding.pack(circuit.to_record())


# --- exact ----------------------------------------------------------------------------------------


def test_every_query_survives_to_the_last_bit(circuit: Circuit, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "model.fc"
    circuit.save(path)
    again = fc.load(path)
    assert isinstance(again, Circuit)
    assert_same_answers(again, circuit)
    assert again.fit_report == circuit.fit_report
    assert again.n_parameters == circuit.n_parameters
    assert repr(again) == repr(circuit)
    pd.testing.assert_frame_equal(again.sample(50, seed=1), circuit.sample(50, seed=1))
    pd.testing.assert_frame_equal(again.sample(3, ROWS, seed=2), circuit.sample(3, ROWS, seed=2))
    pd.testing.assert_frame_equal(again.mpe(ROWS), circuit.mpe(ROWS))
    for name in ("income", "visits", "age", "pixel", "smokes"):
        for order in (1, 2, 3):
            assert again.moment(name, order) == circuit.moment(name, order)
    pd.testing.assert_frame_equal(again.covariance(), circuit.covariance(), check_exact=True)
    one, two = (m.condition(job="clerk", age=40.0).marginal(["visits"]) for m in (again, circuit))
    assert one.expectation("visits") == two.expectation("visits")


@pytest.mark.parametrize("seed", range(6))
def test_random_circuits_are_packed_and_unpacked_exactly(seed: int) -> None:
    case = seeded_case(seed, ("real", "hist", "flag") if seed % 2 else ("dial", "flag", "count"))
    data = encoding.pack(case.circuit.to_record())
    again = from_bytes(data)
    assert encoding.pack(again.to_record()) == data
    rows = case.worlds.frame.iloc[:: max(1, len(case.worlds.frame) // 100)]
    assert again.log_prob(rows).tolist() == case.circuit.log_prob(rows).tolist()


def test_the_file_is_plain_safetensors_without_pickle(saved: bytes) -> None:
    from safetensors.numpy import load

    arrays = load(saved)
    assert {"is_sum", "first_edge", "child", "log_weight"} <= set(arrays)
    assert b"pickle" not in saved
    assert saved.find(b"\x80\x04\x95") == -1


def test_a_failed_save_keeps_the_old_file(
    circuit: Circuit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.fc"
    circuit.save(path)
    before = path.read_bytes()

    def broken(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", broken)
    with pytest.raises(StorageError, match=r"cannot write .*No space left"):
        circuit.save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.fc"]


def test_a_directory_is_no_place_to_save_to(circuit: Circuit, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot write"):
        circuit.save(tmp_path)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_a_saved_file_has_the_mode_of_any_new_file(mask: int, mode: int, tmp_path: Path) -> None:
    path = tmp_path / "model.fc"
    before = os.umask(mask)
    try:
        encoding.write(path, b"one")
        assert stat.S_IMODE(path.stat().st_mode) == mode
        path.chmod(0o640)
        encoding.write(path, b"two")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640  # as if written in place
    assert path.read_bytes() == b"two"
    assert [p.name for p in tmp_path.iterdir()] == ["model.fc"]


def test_a_report_with_numpy_values_and_nan_is_saved(tmp_path: Path) -> None:
    schema = Schema((Variable("c", "categorical", (np.int64(1), np.str_("a"))),))
    report = FitReport(
        "mine",
        np.float32(1.5),
        sizes={"bins": np.int64(3), 4: np.array([1.0, np.nan]), "nested": {"t": (np.bool_(True),)}},
        curve=(np.float64(-1.0), float("nan"), -np.inf),
        kept={"path": Path("x"), "none": None, "inf": np.inf},
        warnings=("careful",),
    )
    circuit = build.circuit(schema, build.categorical("c", [0.5, 0.5]))
    replace(circuit, fit_report=report).save(tmp_path / "m.fc")
    again = fc.load(tmp_path / "m.fc").fit_report
    assert again is not None
    assert again.sizes == {"bins": 3, "4": [1.0, None], "nested": {"t": [True]}}
    assert again.kept == {"path": "x", "none": None, "inf": "inf"}
    assert again.curve[0] == -1.0
    assert np.isnan(again.curve[1])
    assert again.curve[2] == -np.inf
    assert (again.learner, again.seconds, again.warnings) == ("mine", 1.5, ("careful",))


def test_only_a_regular_file_is_replaced(circuit: Circuit, tmp_path: Path) -> None:
    """A device, pipe, folder or link of that name stays as it is, and nothing is left beside it."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "target").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "dangling").symlink_to(tmp_path / "absent")
    before = sorted(tmp_path.iterdir())
    cases = {"pipe": "a pipe", "folder": "a folder", "link": "a symbolic link"}
    for name, found in {**cases, "dangling": "a symbolic link"}.items():
        with pytest.raises(StorageError, match=f"cannot write .*{name}: {found} of that name"):
            circuit.save(tmp_path / name)
    with pytest.raises(StorageError, match="a device of that name"):
        circuit.save("/dev/null")
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "target").read_bytes() == b"mine"
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_copies_of_a_model_that_has_answered_hold_no_addresses() -> None:
    rows = pd.DataFrame({"a": [0.5, 1.5, 2.5, 4.0] * 20, "b": ["x", "y", "y", "x"] * 20})
    model = fc.learn(rows, label="b")
    before = model.predict_proba(rows, "b"), model.expectation("a", rows[["b"]])
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for found in (again, *again.__dict__.values()):
            assert "compiled" not in getattr(found, "__dict__", {})
        pd.testing.assert_frame_equal(again.predict_proba(rows, "b"), before[0])
        pd.testing.assert_series_equal(again.expectation("a", rows[["b"]]), before[1])
