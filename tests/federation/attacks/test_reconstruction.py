"""A passive server reconstructs rows from all that it saw, under every rule, and fails.

It keeps every message and every model, and knows half of the rows. Where no row evidence is
declared it recovers no more of the others than a guess from the model and the declared codes.
What is about single rows is found by shape, so that a message added later is looked at too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits import encoding
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.engines import LocalEngine
from fedcircuits.federation.wire.verbs import Level
from reconstruction import Reconstruction, recovered
from recorder import Recorder
from row_arrays import Seen, opaque, per_row

N, ID, LABEL = 420, "id", "y"
LEAST = 50  # entries: more than states of a column or clusters, fewer than rows
DECLARED: list[tuple[str, str, dict[str, Any]]] = [
    ("rows", "product", {}),
    ("rows", "independent", {}),
    ("rows", "joint", {}),
    ("rows", "auto", {}),
    ("columns", "product", {}),
    ("columns", "independent", {}),
    ("columns", "latent", {}),
    ("columns", "latent", {"table": True}),
    ("columns", "auto", {}),
    ("both", "product", {}),
    ("both", "independent", {}),
    ("both", "latent", {}),
    ("both", "anchors", {}),
    ("both", "auto", {}),
]
EVIDENCE = [
    ("columns", "em", {"n_clusters": 4}),
    ("columns", "joint", {"n_classes": 6, "tilt": False}),
]


def people() -> pd.DataFrame:
    """Discrete columns that depend on each other; some worlds are common, most are rare."""
    rng = np.random.default_rng(7)
    y = rng.integers(2, size=N)
    hidden = rng.integers(3, size=N) + y
    rows = pd.DataFrame({ID: 10_000 + rng.permutation(N), LABEL: np.where(y == 1, "yes", "no")})
    for name, size in {"a0": 5, "a1": 3, "s0": 3, "b0": 7, "b1": 4, "b2": 3}.items():
        noise = np.minimum(rng.geometric(0.5, N) - 1, size - 1)
        rows[name] = [f"v{v}" for v in (hidden + noise) % size]
    return rows


def clients(setting: str) -> dict[str, pd.DataFrame]:
    """The table over two or three clients, of which each has rows that others do not hold."""
    rows = people()
    if setting == "rows":
        return {
            name: rows.drop(columns=ID).iloc[at::3].reset_index(drop=True)
            for at, name in enumerate("abc")
        }
    if setting == "columns":
        b = rows[[ID, "b0", "b1", "b2"]].iloc[20:].sample(frac=1, random_state=3)
        return {
            "a": rows[[ID, "a0", "a1", "s0", LABEL]].iloc[:-13],
            "b": b.reset_index(drop=True),
        }
    return {
        "a": rows[[ID, "a0", "a1", "s0", LABEL]].iloc[: int(0.7 * N)],
        "b": rows[[ID, "s0", "b0", "b1", "b2", LABEL]].iloc[int(0.3 * N) :].reset_index(drop=True),
    }


def attacked(
    setting: str, rule: str, options: dict[str, Any]
) -> tuple[Any, Recorder, list[Seen], dict[str, Reconstruction]]:
    tables = clients(setting)
    engine = Recorder(
        LocalEngine(
            {
                name: ClientSpec(
                    name,
                    frame,
                    "hclt",
                    id=ID if ID in frame else None,
                    kinds={column: "categorical" for column in frame if column != ID},
                ).make()
                for name, frame in tables.items()
            }
        )
    )
    id = None if setting == "rows" else ID
    fed = fc.federate(engine=engine, id=id, label=LABEL, agreement=rule, **options)
    seen = per_row(engine, {name: len(frame) for name, frame in tables.items()}, LEAST)
    found = {
        name: recovered(name, frame.drop(columns=ID, errors="ignore"), fed, seen)
        for name, frame in tables.items()
    }
    return fed, engine, seen, found


@pytest.mark.parametrize(("setting", "rule", "options"), DECLARED)
def test_no_more_is_recovered_than_from_the_model_and_declared_codes(
    setting: str, rule: str, options: dict[str, Any]
) -> None:
    fed, engine, seen, found = attacked(setting, rule, options)
    for each in seen:
        where = f"{each.verb}.{each.field} of {each.client}"
        assert each.level is Level.BOUNDED_CODES, f"{where} is about single rows: {each.level}"
        if (each.rows >= 0).all():
            told = np.log2(len(np.unique(each.values, axis=0)))
            assert told <= each.bits + 1e-9, f"{where} tells {told:.1f} bits, {each.bits} declared"
    for client, result in found.items():
        gain, error = result.gain
        assert gain <= 0.01 + 2 * error, client
        assert result.by_all.cells - result.by_codes.cells <= 0.01 + 2 * error, client
        codes = {each.values.tobytes(): each for each in seen if each.client == client}
        told = sum(np.log2(len(np.unique(each.values, axis=0))) for each in codes.values())
        assert told <= fed.ledger.bits(client) <= 12
    _looks_random(opaque(engine))


@pytest.mark.parametrize(("setting", "rule", "options"), EVIDENCE)
def test_the_attack_recovers_rows_where_row_evidence_is_declared(
    setting: str, rule: str, options: dict[str, Any]
) -> None:
    _, _, seen, found = attacked(setting, rule, {**options, "trust": "one owner"})
    assert any(each.level is Level.ROW_EVIDENCE for each in seen)
    for client, result in found.items():
        assert result.gain[0] > 0.2, client
        assert result.by_all.rows > 0.6, client


def test_a_message_that_says_too_much_is_found_without_its_name() -> None:
    """Log-likelihoods, packed cells or a list in the header, added to a reply of aggregates."""
    _, engine, _, _ = attacked("columns", "product", {})
    at = next(
        at for at, x in enumerate(engine.messages)
        if x.verb == "fit_tilt" and x.client == "b" and not x.to_client
    )  # fmt: skip
    honest = engine.messages[at]
    frame = clients("columns")["b"]
    states = pd.factorize(frame["b0"])[0]
    sizes = {name: len(each) for name, each in clients("columns").items()}
    for leak in ("array", "transposed", "part", "header"):
        record = encoding.unpack(honest.data)
        if leak == "header":
            record.header["reasons"] = [int(state) for state in states]
        else:
            values = {"array": states * 0.1, "part": states[:77] * 0.1}.get(
                leak, np.stack([states, states]) * 0.1
            )
            record.arrays["more"] = values
        found = per_row(_with(engine, at, encoding.pack(record)), sizes, LEAST)
        assert [each for each in found if each.level is Level.AGGREGATES], leak


def _with(engine: Recorder, at: int, data: bytes) -> Recorder:
    changed = Recorder(engine.inner)
    changed.messages = list(engine.messages)
    old = changed.messages[at]
    changed.messages[at] = type(old)(old.verb, old.client, old.to_client, data)
    return changed


def _looks_random(data: bytes) -> None:
    """Bytes of ciphertext and digests are uniform: chi square within five deviations."""
    if len(data) < 5 * 256:
        return
    counts = np.bincount(np.frombuffer(data, dtype=np.uint8), minlength=256)
    expected = len(data) / 256
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi - 255) < 5 * np.sqrt(2 * 255)
