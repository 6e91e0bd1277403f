"""A circuit, a forest, an EiNet and a Gaussian mixture side by side; EiNets that hold patches."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.engine import table
from contracts.federations import ID, LABEL
from fedcircuits.api import partition
from fedcircuits.federation.model.ensemble import FederatedEnsemble
from fedcircuits.learners.hclt.learner import Hclt
from fedcircuits.learners.trees import ForestClassifier
from fedcircuits.schema.images import image_frame

# The rules here send the server row evidence, or are compared with such as do.
federate = functools.partial(fc.federate, trust="one owner")

pytestmark = pytest.mark.slow

pytest.importorskip("torch")
from fedcircuits.learners import EiNet  # noqa: E402

EINET = EiNet(width=4, epochs=2, device="cpu")
DENSITIES: dict[str, Any] = {"a": Hclt(n_states=4), "b": EINET, "c": "gaussian-mixture"}
WITH_A_FOREST: dict[str, Any] = {**DENSITIES, "d": ForestClassifier(n_trees=5)}
TEST = table(seed=3, n=80).drop(columns=ID)


def rows_over(names: str) -> dict[str, pd.DataFrame]:
    rows = table(n=90 * len(names)).drop(columns=ID)
    return {
        name: rows.iloc[at :: len(names)].reset_index(drop=True) for at, name in enumerate(names)
    }


@pytest.mark.parametrize("operation", ["average", "vote"])
def test_four_kinds_of_model_make_one_classifier(operation: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"label": LABEL, "operation": operation, "learner": WITH_A_FOREST}
    fed = federate(rows_over("abcd"), **options)
    assert isinstance(fed, FederatedEnsemble)
    assert fed.clients == ("a", "b", "c", "d")
    proba = fed.predict_proba(TEST)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)
    assert (fed.predict(TEST) == TEST[LABEL]).mean() > 0.75
    fed.save(tmp_path / "mixed.fc")
    again = fc.load(tmp_path / "mixed.fc")
    np.testing.assert_allclose(again.predict_proba(TEST), proba, rtol=0, atol=1e-12)
    with federate(rows_over("abcd"), placement="remote", **options) as remote:
        assert remote.is_remote
        np.testing.assert_allclose(remote.predict_proba(TEST), proba, rtol=0, atol=1e-9)


@pytest.mark.parametrize("rule", ["product", "independent"])
def test_three_kinds_of_density_make_one_density_of_rows(rule: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"label": LABEL, "learner": DENSITIES, "agreement": rule}
    fed = federate(rows_over("abc"), **options)
    scores = fed.log_prob(TEST)
    assert np.isfinite(scores).all()
    fed.save(tmp_path / "mixed.fc")
    np.testing.assert_allclose(
        fc.load(tmp_path / "mixed.fc").log_prob(TEST), scores, rtol=0, atol=1e-9
    )
    with federate(rows_over("abc"), placement="remote", **options) as remote:
        np.testing.assert_allclose(remote.log_prob(TEST), scores, rtol=0, atol=1e-9)
        here, there = (m.predict_proba(TEST.drop(columns=LABEL), LABEL) for m in (fed, remote))
        np.testing.assert_allclose(here, there, rtol=0, atol=1e-9)


@pytest.mark.parametrize("rule", ["latent", "em"])
def test_three_kinds_of_density_make_one_density_of_columns(rule: str, tmp_path: Path) -> None:
    rows = table(n=200)
    clients = {
        "a": rows[[ID, "height", "colour", LABEL]],
        "b": rows[[ID, "visits"]],
        "c": rows[[ID, "size"]],
    }
    options: dict[str, Any] = {"id": ID, "label": LABEL, "learner": DENSITIES, "n_clusters": 4}
    fed = federate(clients, agreement=rule, **options)
    assert fed.dropped == {}
    scores = fed.log_prob(TEST)
    assert np.isfinite(scores).all()
    fed.save(tmp_path / "mixed.fc")
    np.testing.assert_allclose(
        fc.load(tmp_path / "mixed.fc").log_prob(TEST), scores, rtol=0, atol=1e-9
    )
    with federate(clients, agreement=rule, placement="remote", **options) as remote:
        np.testing.assert_allclose(remote.log_prob(TEST), scores, rtol=0, atol=1e-9)


# --- images ---------------------------------------------------------------------------------------


def bars(n: int = 240, seed: int = 0) -> Any:
    """(n, 4, 6) images of a bar, upright or lying; which one shows in both halves."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 20, size=(n, 4, 6))
    upright = rng.random(n) < 0.5
    images[upright, :, 1::3] += 200
    images[~upright, 1:3, :] += 200
    return images


def test_images_split_by_rows_are_images_everywhere() -> None:
    images = bars()
    fed = federate({"a": images[:120], "b": images[120:]}, learner=EINET)
    assert fed.setting == "horizontal"
    assert all(v.kind == "count" and v.domain == (0.0, 255.0) for v in fed.schema)
    test = image_frame(bars(60, seed=1))
    noise = image_frame(np.random.default_rng(2).integers(0, 256, size=(60, 4, 6)))
    assert fed.log_prob(test).mean() > fed.log_prob(noise).mean() + 20
    assert np.isfinite(fed.log_prob(noise)).all()  # levels that nobody's images have


def test_patches_of_images_know_of_each_other() -> None:
    """The left half of a bar says what the right half looks like, through latent classes alone."""
    frame = image_frame(bars(400))
    patches = partition.columns(frame, partition.image_patches(4, 6, 1, 2))
    options: dict[str, Any] = {"id": partition.ID, "learner": EINET}
    fed = federate(patches, agreement="latent", n_clusters=2, n_classes=2, **options)
    alone = federate(patches, agreement="independent", glueing="naive", n_clusters=1, **options)
    assert fed.setting == "vertical"
    test = image_frame(bars(100, seed=1))
    assert fed.log_prob(test).mean() > alone.log_prob(test).mean() + 0.3
    left = patches["client-1"].columns.drop(partition.ID)
    right = [name for name in fed.schema.names if name not in set(left)]
    completed = fed.mpe(test[list(left)])
    upright = test["pixel_000_001"] > 100
    lies = completed[right][["pixel_001_003", "pixel_002_005"]].mean(axis=1) > 100
    assert (lies != upright).mean() > 0.95
    with federate(
        patches, agreement="latent", n_clusters=2, n_classes=2, placement="remote", **options
    ) as remote:
        np.testing.assert_allclose(remote.log_prob(test), fed.log_prob(test), rtol=0, atol=1e-9)
