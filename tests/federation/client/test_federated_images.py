"""Images at several clients: a cheap handshake, the mixture of the clients, gaps, patches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import fedcircuits as fc
from fedcircuits.federation.client.rows.describe import describe
from fedcircuits.schema.images import image_frame, image_schema

pytest.importorskip("torch")
from fedcircuits.learners import EiNet

LEARNER = EiNet(width=4, epochs=2, batch=20, device="cpu", precision="float64")


def bars(n: int, seed: int = 0) -> np.ndarray:
    """(n, 6, 6) images with a bright or a dark left half."""
    rng = np.random.default_rng(seed)
    levels = rng.integers(0, 40, size=(n, 6, 6))
    levels[:, :, :3] += rng.integers(0, 2, size=(n, 1, 1)) * 180
    return levels.astype(np.uint8)


def test_the_federation_is_the_mixture_of_its_clients() -> None:
    images, test = bars(90), bars(30, seed=1)
    made = fc.federate({"a": images[:30], "b": images[30:]}, learner=LEARNER)
    parts = dict(zip(made.owners, made.parts, strict=True))
    assert set(parts) == {"a", "b"}
    masked = np.ma.masked_array(test, np.broadcast_to(np.arange(6) < 3, test.shape))
    for asked in (test, masked):
        by_part = [np.log(n / 90) + parts[c].log_prob(asked) for c, n in (("a", 30), ("b", 60))]
        mixture = np.logaddexp(*by_part)
        np.testing.assert_allclose(made.log_prob(asked), mixture, rtol=0, atol=1e-9)


def test_pixels_at_learners_of_levels_need_no_sketch_and_no_grid() -> None:
    frame = image_frame(bars(40))
    sent = describe(frame, {}, (), 5, sketch_levels=False)
    assert not sent.sketches
    assert not sent.exact
    assert set(sent.n_missing) == set(frame.columns)
    made = fc.federate({"a": bars(30), "b": bars(30, seed=2)}, learner=LEARNER)
    assert made.schema == image_schema(6, 6)


def test_other_learners_still_agree_on_grids_of_pixels() -> None:
    learners = {"a": LEARNER, "b": "factorised"}
    made = fc.federate({"a": bars(60), "b": bars(60, seed=2)}, learner=learners)
    assert all(v.grid is not None for v in made.schema)
    assert np.isfinite(made.log_prob(bars(10, seed=3))).all()


def test_masked_pixels_at_clients_are_summed_out_in_training() -> None:
    images = np.ma.masked_array(bars(60), np.random.default_rng(0).random((60, 6, 6)) < 0.4)
    learner = replace(LEARNER, blur=0.0, leaf_count=5.0)  # smooth: few images, and fewer each
    made = fc.federate({"a": images[:30], "b": images[30:]}, learner=learner)
    assert made.schema == image_schema(6, 6)
    alone = fc.learn(images, learner=learner)
    found, expected = (m.mean_log_prob(bars(30, seed=1)) for m in (made, alone))
    assert found == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
def test_missing_counts_and_kinds_do_not_depend_on_the_dtype(dtype: type) -> None:
    frame = image_frame(bars(20).astype(dtype))
    found = describe(frame.assign(label=["x", "y"] * 10), {}, (), 5, sketch_levels=False)
    assert found.n_missing == dict.fromkeys([*frame.columns, "label"], 0)
    assert [v["kind"] for v in found.schema] == ["count"] * 36 + ["categorical"]
    gaps = frame.astype(float).mask(frame > 200)
    found = describe(gaps, {}, (), 5, sketch_levels=False)
    assert found.n_missing == {name: int(gaps[name].isna().sum()) for name in gaps}
    spelled = describe(frame, {}, (7,), 5, sketch_levels=False)
    assert spelled.n_missing == {name: int((frame[name] == 7).sum()) for name in frame}


def test_patches_at_different_clients_are_one_model_of_images() -> None:
    """Halves of the images as columns, joined by an id."""
    images = bars(80)
    frame = image_frame(images)
    left = [name for name in frame if int(name[-3:]) < 3]
    right = [name for name in frame if name not in left]
    ids = frame.assign(id=[f"i{n}" for n in range(80)])
    clients = {"left": ids[["id", *left]], "right": ids[["id", *right]]}
    made = fc.federate(clients, id="id", learner=LEARNER, agreement="independent")
    test = bars(5, seed=1)
    np.testing.assert_allclose(made.log_prob(test), made.log_prob(image_frame(test)))
    masked = np.ma.masked_array(test, np.broadcast_to(np.arange(6) < 3, test.shape))
    painted = made.impute(masked)
    assert painted.shape == test.shape
    assert np.array_equal(painted[:, :, 3:], test[:, :, 3:])


def test_the_handshake_of_many_pixels_sends_little() -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 24, 24), dtype=np.uint8)
    made = fc.federate({"a": images[:3], "b": images[3:]}, learner=LEARNER, min_rows=1)
    n_messages = 2 * 2  # descriptions and agreed schemas of two clients
    assert made.ledger.of_phase("handshake") < n_messages * 24 * 24 * 250  # bytes for a pixel
