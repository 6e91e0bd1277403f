"""Images through the public surface: learn, ask, save, load; labels; colours; bad input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits

import fedcircuits as fc
from fedcircuits.errors import QueryError, SchemaError

OPTIONS = {"width": 12, "epochs": 8, "batch": 64, "device": "cpu"}


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Real 8 x 8 digits with levels 0..240."""
    bunch = load_digits()
    return (bunch.images * 15).astype(np.uint8), bunch.target


@pytest.fixture(scope="module")
def model(digits: tuple[np.ndarray, np.ndarray]) -> fc.Density:
    images, labels = digits
    return fc.learn(images[:900], label=labels[:900], learner="einet", **OPTIONS)


@pytest.mark.slow
def test_a_model_of_images_beats_guessing(
    model: fc.Density, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    images, labels = digits
    log_mass = model.log_prob(images[900:])
    assert log_mass.index.equals(pd.RangeIndex(len(images) - 900))
    assert log_mass.mean() > -64 * np.log(256)  # the uniform mass of 64 pixels
    right = (model.predict(images[900:], "label") == labels[900:]).mean()
    assert right > 0.4  # chance is 0.1


def test_a_masked_pixel_is_marginalised(
    model: fc.Density, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    image = digits[0][900:901]
    mask = np.zeros(image.shape, dtype=bool)
    mask[0, 3, 4] = True
    without = model.log_prob(np.ma.masked_array(image, mask)).iloc[0]
    every = np.repeat(image, 256, axis=0)
    every[:, 3, 4] = np.arange(256)
    assert without == pytest.approx(np.logaddexp.reduce(model.log_prob(every)), abs=1e-4)


def test_inpainting_keeps_what_is_known(
    model: fc.Density, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    images = digits[0][900:905]
    mask = np.zeros(images.shape, dtype=bool)
    mask[:, :4] = True
    painted = model.sample(given=np.ma.masked_array(images, mask), seed=1)
    np.testing.assert_array_equal(painted[:, 4:], images[:, 4:])


def test_saved_and_loaded_it_answers_the_same(
    model: fc.Density, digits: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    model.save(tmp_path / "digits.fc")
    loaded = fc.load(tmp_path / "digits.fc")
    images = digits[0][:20]
    pd.testing.assert_series_equal(loaded.log_prob(images), model.log_prob(images))


def test_a_colour_transform_keeps_the_meaning_of_mass() -> None:
    rng = np.random.default_rng(0)
    grey = rng.integers(0, 200, (300, 4, 4, 1))
    images = (grey + rng.integers(0, 5, (300, 4, 4, 3))).astype(np.uint8)
    plain, moved = (
        fc.learn(images, learner="einet", colour=colour, **OPTIONS) for colour in ("rgb", "ycocg")
    )
    # Channels that move together: the transform makes them nearly independent.
    assert moved.mean_log_prob(images) > plain.mean_log_prob(images)


def test_images_of_another_size_are_refused(model: fc.Density) -> None:
    with pytest.raises(QueryError, match=r"shape \(4, 4\) lack 48 pixel"):
        model.log_prob(np.zeros((1, 4, 4), dtype=np.uint8))


def test_levels_outside_0_to_255_are_refused() -> None:
    with pytest.raises(SchemaError, match=r"levels 0\.\.255, found 300"):
        fc.learn(np.full((5, 2, 2), 300), learner="einet")


def test_a_table_model_is_not_asked_about_images() -> None:
    model = fc.learn(pd.DataFrame({"a": np.arange(60) % 3}), learner="factorised")
    with pytest.raises(QueryError, match="not over pixels"):
        model.log_prob(np.zeros((1, 2, 2), dtype=np.uint8))
