"""Labels of images by a convolutional network: one density, estimates that say their error."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

import fedcircuits as fc
from contracts.coherence import check_coherence
from fedcircuits import encoding
from fedcircuits.errors import StorageError

torch = pytest.importorskip("torch")
from fedcircuits.learners.einet import ClassifiedEiNet, EiNetDensity  # noqa: E402
from fedcircuits.learners.einet.head import completions  # noqa: E402
from fedcircuits.learners.einet.head.conv_net import Canvas, fit_conv_net  # noqa: E402

N_PIXELS = 4


@pytest.fixture(scope="module")
def tiny() -> ClassifiedEiNet:
    """A model of four binary pixels and a label that is their parity, nearly."""
    rng = np.random.default_rng(0)
    x = rng.integers(2, size=(600, N_PIXELS))
    x[:, 1] = np.where(rng.random(600) < 0.8, x[:, 0], x[:, 1])
    y = (x.sum(axis=1) + (rng.random(600) < 0.1)) % 2
    names = [f"pixel_000_00{at}" for at in range(N_PIXELS)]
    frame = pd.DataFrame(x, columns=names).astype(str).assign(label=np.where(y == 1, "odd", "even"))
    base = fc.learn(
        frame, label="label", learner="einet", width=3, epochs=4, batch=50, precision="float64"
    )
    assert isinstance(base, EiNetDensity)  # four pixels in a row are no image to convolve
    table = base.schema.encode(frame)
    canvas = Canvas((1, 4, 4), np.array([0, 3, 5, 10]))
    net = fit_conv_net(
        canvas, table.values[:, :N_PIXELS], table.values[:, N_PIXELS].astype(int), np.ones(600), 2,
        seed=0, device=torch.device("cpu"),
    )  # fmt: skip
    return ClassifiedEiNet(base, dataclasses.replace(net, temperature=1.5))


@pytest.mark.parametrize("listed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_query_answers_from_one_distribution(
    tiny: ClassifiedEiNet, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All completions summed: to rounding. Drawn: within the stated errors."""
    if not listed:
        monkeypatch.setattr(completions, "LISTED", 0)
    check_coherence(tiny, tolerance=1e-6)


def test_the_network_s_label_replaces_the_einet_s_and_not_its_density(
    tiny: ClassifiedEiNet,
) -> None:
    worlds = pd.DataFrame(
        np.indices((2,) * N_PIXELS).reshape(N_PIXELS, -1).T.astype(str),
        columns=list(tiny.schema.names[:N_PIXELS]),
    )
    own = tiny.base.log_prob(worlds)
    pd.testing.assert_series_equal(tiny.log_prob(worlds), own)
    q = tiny.predict_proba(worlds, "label")
    odd = worlds.astype(int).sum(axis=1) % 2 == 1
    assert ((q["odd"] > 0.5) == odd).all()
    joint = tiny.log_prob(worlds.assign(label="odd"))
    np.testing.assert_allclose(joint, own + np.log(q["odd"]), atol=1e-9)


def test_moments_given_the_label_are_those_of_the_enumeration(tiny: ClassifiedEiNet) -> None:
    names = list(tiny.schema.names[:N_PIXELS])
    grid = np.indices((2,) * N_PIXELS).reshape(N_PIXELS, -1).T
    worlds = pd.DataFrame(grid.astype(str), columns=names).assign(label="even")
    mass = np.exp(tiny.log_prob(worlds).to_numpy())
    mass /= mass.sum()
    table = tiny.schema.encode(pd.DataFrame({"label": ["even"]}))
    posterior = tiny.posterior_table(table, 2)[0]
    np.testing.assert_allclose(posterior[1], mass @ grid[:, 2], atol=1e-6)
    event = tiny.probability({names[0]: fc.one_of(["1"])}, given={"label": "even"})
    assert float(event) == pytest.approx(mass @ grid[:, 0], abs=1e-6)


@pytest.fixture(scope="module")
def digits() -> tuple[Any, Any, Any, Any]:
    found = load_digits()
    images, labels = (found.images * 15.9).astype(np.uint8), found.target
    order = np.random.default_rng(0).permutation(len(images))
    train, test = order[:1300], order[1300:]
    return images[train], labels[train], images[test], labels[test]


@pytest.fixture(scope="module")
def model(digits: tuple[Any, ...]) -> ClassifiedEiNet:
    found = fc.learn(digits[0], label=digits[1], learner="einet", width=8, epochs=3, seed=0)
    assert isinstance(found, ClassifiedEiNet)
    return found


@pytest.mark.slow
def test_digits_are_classified(model: ClassifiedEiNet, digits: tuple[Any, ...]) -> None:
    _, _, images, truth = digits
    assert (model.predict(images, "label").astype(int).to_numpy() == truth).mean() > 0.97
    report = model.fit_report
    assert report is not None
    assert report.kept["head (convolutional network)"]["gain"] > 1.0
    half = np.ma.masked_array(images, np.zeros(images.shape, dtype=bool))
    half.mask[:, :4] = True
    proba, error = model.predict_proba(half[:150], "label", with_error=True)
    assert (proba.to_numpy().argmax(axis=1) == truth[:150]).mean() > 0.7
    assert 0 < error.to_numpy().max() < 0.2
    pd.testing.assert_series_equal(model.log_prob(half), model.base.log_prob(half))


@pytest.mark.slow
def test_images_of_a_class_are_drawn_and_painted(
    model: ClassifiedEiNet, digits: tuple[Any, ...]
) -> None:
    _, _, images, _ = digits
    drawn = model.sample(40, {"label": 3}, seed=0, as_images=True)
    assert drawn.shape == (40, 8, 8)
    # What was drawn given a label has this label in the mean probability of its posterior.
    assert model.predict_proba(drawn, "label")[3].mean() > 0.5
    gaps = np.ma.masked_array(images[:5], np.zeros((5, 8, 8), dtype=bool))
    gaps.mask[:, 4:] = True
    for painted in (model.impute(gaps), model.mpe(gaps), model.impute(gaps, how="sample")):
        assert painted.shape == (5, 8, 8)
        np.testing.assert_array_equal(painted[:, :4], images[:5, :4])


@pytest.mark.slow
def test_saved_and_loaded(model: ClassifiedEiNet, digits: tuple[Any, ...], tmp_path: Any) -> None:
    model.save(tmp_path / "m.fc")
    again = fc.load(tmp_path / "m.fc")
    images = digits[2][:20]
    pd.testing.assert_frame_equal(
        again.predict_proba(images, "label"), model.predict_proba(images, "label")
    )
    assert again.fit_report == model.fit_report
    record = model.to_record()
    for name, bad in (
        ("net.layout", np.array([1, 8, 8, 3])),
        ("net.cells", np.zeros(64, dtype=np.int64)),
        ("net.numbers", np.array([1.0, -1.0])),
        ("net.weights.0.bias", np.full(24, np.nan, dtype=np.float32)),
        ("net.weights.0.bias", np.zeros(7, dtype=np.float32)),
    ):
        broken = encoding.Record(record.kind, record.header, {**record.arrays, name: bad})
        with pytest.raises(StorageError, match="network in the file"):
            ClassifiedEiNet.from_record(broken)


@pytest.mark.slow
def test_without_a_head_every_answer_is_exact(digits: tuple[Any, ...]) -> None:
    images, labels, _, _ = digits
    found = fc.learn(
        images[:300], label=labels[:300], learner="einet", width=4, epochs=1, head=False
    )
    assert isinstance(found, EiNetDensity)
    assert found.is_exact


@pytest.mark.slow
def test_labels_of_pure_noise_get_no_head(digits: tuple[Any, ...]) -> None:
    images = digits[0][:400]
    labels = np.random.default_rng(1).integers(3, size=400)
    found = fc.learn(images, label=labels, learner="einet", width=4, epochs=1, seed=0)
    assert isinstance(found, EiNetDensity)
    assert found.fit_report is not None
    assert not found.fit_report.kept["head (convolutional network)"]["kept"]
