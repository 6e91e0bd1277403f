"""Calibration of per-class evidence: it mends double counting, and is kept only where it helps."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.rule import LEARNER
from fedcircuits.federation.agreement import ProductOfClasses
from fedcircuits.federation.client.calibration import (
    Calibration,
    fit_calibration,
    label_log_joint,
    log_loss,
)


def evidence(n: int, copies: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(n, copies, 2) log p(x | y) of one normal observation, told several times, and y."""
    y = rng.integers(0, 2, n)
    x = rng.normal(2.0 * y - 1.0, 1.5)
    one = np.stack([-0.5 * ((x + 1) / 1.5) ** 2, -0.5 * ((x - 1) / 1.5) ** 2], axis=1)
    return np.repeat(one[:, None, :], copies, axis=1), y


def test_evidence_told_twice_is_halved(rng: np.random.Generator) -> None:
    log_probs, y = evidence(20_000, 2, rng)
    found = fit_calibration(log_probs, y, np.log([0.5, 0.5]))
    assert found is not None
    assert found.weights.sum() == pytest.approx(1.0, abs=0.06)
    assert found.gain > 0.05


def test_evidence_told_once_is_left_as_it_is(rng: np.random.Generator) -> None:
    log_probs, y = evidence(4000, 1, rng)
    found = fit_calibration(log_probs, y, np.log([0.5, 0.5]))
    assert found is None or found.weights[0] == pytest.approx(1.0, abs=0.1)


def test_few_rows_are_not_enough(rng: np.random.Generator) -> None:
    log_probs, y = evidence(60, 2, rng)
    assert fit_calibration(log_probs, y, np.log([0.5, 0.5])) is None


def test_rows_with_an_impossible_class_are_left_out(rng: np.random.Generator) -> None:
    log_probs, y = evidence(1000, 2, rng)
    log_probs[::10, 0, 1] = -np.inf
    found = fit_calibration(log_probs, y, np.log([0.5, 0.5]))
    assert found is not None
    assert np.isfinite(found.weights).all()


def conflicting(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """(n, 2, 2) evidence of two clients, which say little alone and much where they agree."""
    f = rng.normal(0.0, 1.0, (n, 2))  # log-odds
    logit = 0.3 * f.sum(axis=1) + 1.2 * f[:, 0] * f[:, 1]
    y = (rng.random(n) < 1.0 / (1.0 + np.exp(-logit))).astype(int)
    return np.stack([-f / 2, f / 2], axis=2), y


def test_evidence_that_depends_on_anothers_is_weighed_in_pairs(rng: np.random.Generator) -> None:
    log_probs, y = conflicting(6000, rng)
    found = fit_calibration(log_probs, y, np.log([0.5, 0.5]))
    assert found is not None
    assert found.weights.size >= 2 + 1 * 2
    # e = +-f / 2 for the two classes, so the pair's coefficients differ by 4 x 1.2.
    assert found.weights[3] - found.weights[2] == pytest.approx(4.8, abs=0.6)


def test_pairs_are_not_taken_where_they_say_nothing_new(rng: np.random.Generator) -> None:
    """Rows of one halved weight: held-out loss may pick a pair by chance, but then a tiny one."""
    log_probs, y = evidence(20_000, 2, rng)
    found = fit_calibration(log_probs, y, np.log([0.5, 0.5]))
    assert found is not None
    assert np.abs(found.weights[2:]).max(initial=0.0) < 0.1


def test_products_vanish_for_a_client_whose_cells_are_missing(rng: np.random.Generator) -> None:
    log_probs, y = conflicting(2000, rng)
    found = fit_calibration(log_probs, y, np.log([0.5, 0.5]))
    assert found is not None
    silent = log_probs.copy()
    silent[:, 1] = 0.0  # log of a sum over everything
    alone = Calibration(np.array([found.weights[0], 0.0]), found.bias, 0.0)
    squares = found.weights[4:6]  # of the first client, where squares were taken
    expected = alone.log_posterior(silent) if not squares.any() else None
    if expected is None:
        kept = np.concatenate([alone.weights, np.zeros(2), squares, np.zeros(2)])
        expected = Calibration(kept, found.bias, 0.0).log_posterior(silent)
    np.testing.assert_allclose(found.log_posterior(silent), expected, atol=1e-12)


def test_a_constant_over_classes_changes_nothing(rng: np.random.Generator) -> None:
    """log p(x_S | y) + k(x_S) says the same of y."""
    log_probs, _ = conflicting(50, rng)
    found = Calibration(rng.normal(size=2 + 2 + 4), np.log([0.4, 0.6]), 0.0)
    shifted = log_probs + rng.normal(size=(50, 2, 1))
    np.testing.assert_allclose(
        found.log_posterior(shifted), found.log_posterior(log_probs), atol=1e-10
    )


def test_posterior_sums_to_one(rng: np.random.Generator) -> None:
    log_probs, _ = evidence(50, 3, rng)
    found = Calibration(np.array([0.3, 0.4, 0.2]), np.log([0.2, 0.8]), 0.1)
    assert np.exp(found.log_posterior(log_probs)).sum(axis=1) == pytest.approx(np.ones(50))


def test_log_loss_by_hand() -> None:
    log_joint = np.log(np.array([[0.2, 0.6], [0.1, 0.1]]))
    assert log_loss(log_joint, np.array([1, 0])) == pytest.approx(-np.log([0.75, 0.5]).mean())
    assert log_loss(np.array([[0.0, -np.inf]]), np.array([1])) == np.inf


def test_label_log_joint_is_the_joint_for_every_class(rng: np.random.Generator) -> None:
    rows = pd.DataFrame({"x": rng.choice(["0", "1"], 50), "y": rng.choice(["a", "b"], 50)})
    model = fc.learn(rows, learner=LEARNER)
    table = model.schema.encode(rows)
    found = label_log_joint(model, table, "y")
    for code, value in enumerate(model.schema["y"].categories):
        asked = model.log_prob(rows.assign(y=value))
        np.testing.assert_allclose(found[:, code], asked, rtol=0, atol=1e-11)
    assert label_log_joint(model, table, None).shape == (50, 1)


def overlapping(n: int, seed: int) -> pd.DataFrame:
    """The same evidence about y at both clients: the plain product counts it twice."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    seen = np.where(rng.random(n) < 0.75, y, 1 - y)
    frame = {f"x{j}": np.where(rng.random(n) < 0.97, seen, 1 - seen) for j in range(4)}
    text = pd.DataFrame(frame).astype(str)
    return text.assign(y=np.where(y, "yes", "no"), id=np.arange(n))


@pytest.mark.parametrize("shared", [True, False])
def test_a_federation_that_counts_evidence_twice_is_mended(shared: bool) -> None:
    table, test = overlapping(6000, 0), overlapping(4000, 1)
    label = ["y"] if shared else []
    frames = {"a": table[["id", "x0", "x1", "y"]], "b": table[["id", "x2", "x3", *label]]}
    losses = {}
    for rows in (0, 2000):
        rule = ProductOfClasses(calibration_rows=rows)
        fed = fc.federate(frames, id="id", label="y", learner=LEARNER, agreement=rule)
        assert fed.fitted is not None
        assert (fed.fitted.calibration is not None) == bool(rows)
        told = fed.predict_proba(test.drop(columns=["y", "id"]), "y")
        chosen = np.where(test["y"] == "yes", told["yes"], told["no"])
        losses[rows] = -np.log(chosen).mean()
    assert losses[2000] < losses[0] - 0.02


def test_rows_for_calibration_are_not_fitted_on() -> None:
    table = overlapping(3000, 0)
    frames = {"a": table[["id", "x0", "x1", "y"]], "b": table[["id", "x2", "x3", "y"]]}
    fed = fc.federate(frames, id="id", label="y", learner=LEARNER, agreement="product")
    assert fed.fitted is not None
    rows = fed.fitted.rows
    for client in ("a", "b"):
        assert sum(n for key, n in rows.items() if key.client == client) == 3000 - 300


def test_the_label_never_leaves_its_owner_for_calibration() -> None:
    """Where every client has the label there is no message that carries it."""
    table = overlapping(3000, 0)
    frames = {"a": table[["id", "x0", "x1", "y"]], "b": table[["id", "x2", "x3", "y"]]}
    fed = fc.federate(frames, id="id", label="y", learner=LEARNER, agreement="product")
    verbs = {entry.verb for entry in fed.ledger.entries}
    assert "calibrate" in verbs
    assert "send_label" not in verbs


def test_missing_cells_are_calibrated_too() -> None:
    table = overlapping(3000, 0)
    frames = {"a": table[["id", "x0", "x1", "y"]], "b": table[["id", "x2", "x3", "y"]]}
    fed = fc.federate(frames, id="id", label="y", learner=LEARNER, agreement="product")
    told = fed.predict_proba(pd.DataFrame({"x0": ["1", None]}), "y")
    assert np.isfinite(told.to_numpy()).all()
    assert told.sum(axis=1).to_numpy() == pytest.approx(np.ones(2))


# --- label skew where rows are split --------------------------------------------------------------


def skewed_clients(shares: list[float], n: int = 1500, seed: int = 0) -> dict[str, pd.DataFrame]:
    """Clients whose share of "yes" differs, and whose x3 has a scale of its own."""
    rng = np.random.default_rng(seed)
    frames = {}
    for at, share in enumerate(shares):
        y = (rng.random(n) < share).astype(int)
        frame = {f"x{j}": np.where(rng.random(n) < 0.7, y, 1 - y) for j in range(3)}
        frame["x3"] = (rng.random(n) < 0.1 + 0.8 * at / len(shares)).astype(int)
        text = pd.DataFrame(frame).astype(str)
        frames[f"c{at}"] = text.assign(y=np.where(y, "yes", "no"))
    return frames


def test_a_rare_class_that_few_clients_have_is_skew_too() -> None:
    """Shares of 0 to 8 % are close to each other, but the class lies at one client."""
    fed = fc.federate(skewed_clients([0.005, 0.005, 0.08], 3000), label="y", learner=LEARNER)
    assert fed.fitted is not None
    assert fed.fitted.calibration is not None


def test_posteriors_are_rebased_under_label_skew_only() -> None:
    even = fc.federate(skewed_clients([0.3, 0.3, 0.3]), label="y", learner=LEARNER)
    skewed = fc.federate(skewed_clients([0.05, 0.3, 0.9]), label="y", learner=LEARNER)
    assert even.fitted is not None
    assert skewed.fitted is not None
    assert even.fitted.calibration is None
    assert skewed.fitted.calibration is not None


def test_rebased_posteriors_by_hand() -> None:
    frames = skewed_clients([0.1, 0.8])
    fed = fc.federate(frames, label="y", learner=LEARNER)
    rows = frames["c0"].drop(columns="y")[:20]
    prior = pd.concat(frames.values())["y"].value_counts(normalize=True)
    total, weights = np.zeros(len(rows)), 0.0
    for frame in frames.values():
        joint = type(LEARNER)(label="y").fit(fed.schema.encode(frame), np.random.default_rng(0))
        given = {
            y: np.exp(joint.condition({"y": y}).log_prob(rows)) * prior[y] for y in prior.index
        }
        weight = 2 / (1 / frame["y"].value_counts()).sum()
        total += weight * given["yes"] / (given["yes"] + given["no"])
        weights += weight
    np.testing.assert_allclose(fed.predict_proba(rows, "y")["yes"], total / weights, atol=1e-9)


def test_rebasing_predicts_better_under_skew_and_leaves_the_density_alone() -> None:
    frames = skewed_clients([0.05, 0.2, 0.95])
    test = pd.concat(skewed_clients([0.4, 0.4, 0.4], 1000, seed=5).values(), ignore_index=True)
    losses, densities = {}, {}
    for rebase in (False, True):
        rule = ProductOfClasses(rebase=rebase)
        fed = fc.federate(frames, label="y", learner=LEARNER, agreement=rule)
        told = fed.predict_proba(test.drop(columns="y"), "y")
        chosen = np.where(test["y"] == "yes", told["yes"], told["no"])
        losses[rebase] = -np.log(chosen).mean()
        densities[rebase] = fed.mean_log_prob(test)
    assert losses[True] < losses[False] - 0.02
    assert densities[True] == densities[False]


def test_a_client_that_leaves_changes_the_prior_too() -> None:
    frames = skewed_clients([0.05, 0.3, 0.9])
    fed = fc.federate(frames, label="y", learner=LEARNER)
    rest = fc.federate(
        {name: frame for name, frame in frames.items() if name != "c1"}, label="y", learner=LEARNER
    )
    rows = frames["c1"].drop(columns="y")[:30]
    np.testing.assert_allclose(
        fed.without("c1").predict_proba(rows, "y"), rest.predict_proba(rows, "y"), atol=1e-12
    )


def test_one_class_clients_keep_the_mixture() -> None:
    frames = skewed_clients([0.0, 1.0])
    fed = fc.federate(frames, label="y", learner=LEARNER)
    assert fed.fitted is not None
    assert fed.fitted.calibration is None
