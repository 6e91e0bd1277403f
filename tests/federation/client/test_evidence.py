"""Evidence about rows as it travels between clients: one byte a row and model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.errors import StorageError
from fedcircuits.federation.client.label.evidence import STEPS_A_NAT, Evidence, parted
from fedcircuits.federation.client.label.validation import Validation, evidence
from fedcircuits.federation.wire.names import NONE, JobId, JobKind, ModelName

MODELS = [ModelName(JobId(JobKind.CLASSES, 0), c) for c in range(3)]


def tilted(model: ModelName, y: int) -> ModelName:
    return ModelName(model.job, model.cls, NONE, "tables", y)


def test_log_likelihoods_come_back_within_half_a_step() -> None:
    rng = np.random.default_rng(0)
    bases = [rng.normal(-40, 4, size=(200, width)) for width in (1, 2, 1)]
    bases[0][3], bases[1][4, 1] = -np.inf, -np.inf
    for base in bases:
        base[7] = -np.inf  # a row that no model finds possible
    sent = Evidence(bases, None, np.zeros(3))
    found = Evidence.of_bytes(sent.packed(), 200).of_models(MODELS)
    for base, values in zip(bases, found, strict=True):
        assert (np.isfinite(base) == np.isfinite(values)).all()
        known = np.isfinite(base)
        assert np.abs(base[known] - values[known]).max() <= 0.5 / STEPS_A_NAT + 1e-4
    assert sent.packed().size < 200 * (4 + 4) + 100


def test_what_is_far_below_the_likeliest_is_not_impossible() -> None:
    sent = Evidence([np.array([[0.0]]), np.array([[-500.0]])], None, np.zeros(2))
    found = Evidence.of_bytes(sent.packed(), 1).of_models(MODELS[:2])
    assert found[0][0, 0] == 0.0
    assert -40 < found[1][0, 0] < -30


def test_tilted_models_are_untilted_ones_and_scores_of_the_tables() -> None:
    rng = np.random.default_rng(1)
    base, scores = rng.normal(-9, 1, size=(50, 1)), rng.normal(size=(50, 2))
    scores -= scores.mean(axis=1, keepdims=True)
    names = [tilted(MODELS[0], y) for y in range(2)]
    sent = Evidence([base], scores, np.array([0.25, -1.5]))
    assert parted(names, apart=True) == ([MODELS[0]], [0, 0])
    found = Evidence.of_bytes(sent.packed(), 50).of_models(names)
    for y, constant in enumerate((0.25, -1.5)):
        expected = base + scores[:, [y]] + constant
        assert np.abs(found[y] - expected).max() <= 0.5 / STEPS_A_NAT + 0.02
    assert sent.packed().size < 50 * 6 + 100  # a byte of the model and one of the tables


@pytest.mark.parametrize("cut", [1, 8, 150])
def test_evidence_that_does_not_fit_is_an_error(cut: int) -> None:
    packed = Evidence([np.zeros((40, 1))], None, np.zeros(1)).packed()
    with pytest.raises(StorageError, match="evidence of"):
        Evidence.of_bytes(packed[:-cut], 40)
    with pytest.raises(StorageError, match="evidence of 1 models, expected 2"):
        Evidence.of_bytes(packed, 40).of_models(MODELS[:2])


def two_clients(gaps: float) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(3)
    z = rng.integers(4, size=1500)
    table = pd.DataFrame({f"x{j}": rng.normal(z % (j + 2), 0.6) for j in range(4)})
    table["x3"] = table["x3"].mask(rng.random(1500) < gaps)
    table["y"] = np.where(rng.random(1500) < 0.2 + 0.2 * z, "yes", "no")
    table["id"] = np.arange(1500)
    return {"a": table[["id", "x0", "x1", "y"]], "b": table[["id", "x2", "x3"]]}


def both_split() -> dict[str, pd.DataFrame]:
    """Clients that share some columns and not others: their models are of parts of a tilt."""
    a, b = two_clients(0.0).values()
    whole = a.merge(b, on="id")
    columns = (["id", "x0", "x1", "y"], ["id", "x0", "x2", "y"], ["id", "x0", "x3", "y"])
    return {name: whole[kept] for name, kept in zip("abc", columns, strict=True)}


@pytest.mark.parametrize(
    "clients",
    [
        pytest.param(two_clients(0.0), id="columns"),
        pytest.param(two_clients(0.1), id="gaps", marks=pytest.mark.slow),
        pytest.param(both_split(), id="both", marks=pytest.mark.slow),
    ],
)
def test_candidates_are_scored_as_by_exact_evidence(
    clients: dict[str, pd.DataFrame], monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained() -> Any:
        return fc.federate(clients, id="id", label="y", head=False)

    coarse = trained()

    def said(self: Validation, models: Any, name: str, n_rows: int) -> Evidence:
        rows = self._have().rows(self._aligned.named(name))
        label, client = self._label, self.name
        bases = [evidence("label", n_rows, self._model(e), rows, label, client) for e in models]
        return Evidence(bases, None, np.zeros(len(models)))

    monkeypatch.setattr(Validation, "_evidence", said)
    monkeypatch.setattr(
        "fedcircuits.federation.client.label.validation.Evidence.packed",
        lambda self: _exact(self),
    )
    monkeypatch.setattr(
        "fedcircuits.federation.client.label.validation.Evidence.of_bytes",
        staticmethod(lambda packed, _: _EXACT[int(packed[0])]),
    )
    exact = trained()
    assert coarse.rule == exact.rule
    pairs = list(zip(coarse.why.candidates, exact.why.candidates, strict=True))
    assert any(each.nats is not None for each, _ in pairs)
    for one, other in pairs:
        if one.nats is not None:
            assert one.log_loss == pytest.approx(other.log_loss, abs=0.005)
            assert one.nats == pytest.approx(other.nats, abs=0.01)


_EXACT: list[Evidence] = []


def _exact(evidence: Evidence) -> np.ndarray:
    _EXACT.append(evidence)
    return np.array([len(_EXACT) - 1], dtype=np.uint8)


@pytest.mark.slow
def test_clusters_and_classes_are_not_sent_twice() -> None:
    """The trial's are those of the run: all aligned rows are clustered in both."""
    fed = fc.federate(two_clients(0.0), id="id", label="y")
    sent = fed.ledger.table(["verb", "direction"]).set_index(["verb", "direction"])["messages"]
    tried = [each.rule for each in fed.why.candidates if each.nats is not None]
    assert fed.rule.name == "latent"
    n_clusterings = sum(rule.startswith("latent") for rule in tried)
    assert sent["cluster", "to client"] == 2 * n_clusterings
    assert sent["assign", "to client"] == 2 * n_clusterings
