"""Images in, images out: every query asked with images answers as it does asked by columns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from PIL import Image

import fedcircuits as fc
from fedcircuits.errors import LearningError, QueryError, SchemaError
from fedcircuits.schema.colour import to_ycocg
from fedcircuits.schema.images import CHANNELS

pytest.importorskip("torch")
from fedcircuits.learners import EiNet

Images = NDArray[np.uint8]
SIDE = 6
SMALL: dict[str, Any] = {"width": 4, "epochs": 2, "batch": 20, "device": "cpu"}


def pictures(n: int, channels: int, seed: int = 0) -> Images:
    """Bright or dark noise with a bright half, (n, 6, 6) or (n, 6, 6, 3)."""
    rng = np.random.default_rng(seed)
    shape = (n, SIDE, SIDE) if channels == 1 else (n, SIDE, SIDE, 3)
    levels = rng.integers(0, 40, size=shape)
    levels[:, : SIDE // 2] += rng.integers(0, 2, size=(n, *[1] * (len(shape) - 1))) * 180
    return levels.astype(np.uint8)


def by_columns(images: Images, colour: str) -> pd.DataFrame:
    """The same images as a column for each pixel and channel, NaN where masked."""
    hidden = np.ma.getmaskarray(images)
    levels = np.ma.getdata(images).astype(float)
    ends: tuple[str, ...] = ("",)
    if images.ndim == 4:
        ends = tuple(f"_{name}" for name in CHANNELS[colour])
    if colour == "ycocg":
        levels = to_ycocg(levels.astype(np.int16)).astype(float)
        hidden = np.repeat(hidden.any(axis=3, keepdims=True), 3, axis=3)
    levels[hidden] = np.nan
    names = [f"pixel_{r:03d}_{c:03d}{e}" for r in range(SIDE) for c in range(SIDE) for e in ends]
    return pd.DataFrame(levels.reshape(len(images), -1), columns=names)


def half_hidden(images: Images) -> Any:
    """The images with their upper half masked, and one channel of one pixel where there are 3."""
    mask = np.zeros(images.shape, dtype=bool)
    mask[:, : SIDE // 2] = True
    if images.ndim == 4:
        mask[0, -1, -1, 1] = True
    return np.ma.masked_array(images, mask)


@dataclass
class Case:
    """A model with the images to ask it about."""

    model: fc.Density
    images: Images
    colour: str

    @property
    def target(self) -> str:
        """A pixel in the masked half."""
        return self.model.schema.names[0]


@pytest.fixture(
    scope="module",
    params=["gray", "rgb", "ycocg", "gray conditioned", "gray federated", "ycocg federated"],
)
def case(request: pytest.FixtureRequest) -> Case:
    kind, _, more = request.param.partition(" ")
    channels, colour = (1, "rgb") if kind == "gray" else (3, kind)
    images = pictures(60, channels)
    if more == "federated":
        learner = EiNet(**SMALL, colour=colour)
        made: fc.Density = fc.federate({"a": images[:25], "b": images[25:]}, learner=learner)
    else:
        options = {"colour": colour} if channels == 3 else {}
        made = fc.learn(images, learner="einet", **SMALL, **options)
    if more == "conditioned":
        made = made.condition({"pixel_005_005": fc.between(0, 39)})
    return Case(made, pictures(5, channels, seed=1), colour)


@pytest.mark.parametrize("masked", [False, True])
def test_numbers_are_those_by_columns(case: Case, masked: bool) -> None:
    images = half_hidden(case.images) if masked else case.images
    frame, model = by_columns(images, case.colour), case.model
    pd.testing.assert_series_equal(model.log_prob(images), model.log_prob(frame))
    assert np.isfinite(model.log_prob(images)).all()
    for query in (model.expectation, model.variance):
        pd.testing.assert_series_equal(query(case.target, images), query(case.target, frame))
    pd.testing.assert_series_equal(
        model.predict(images, case.target), model.predict(frame, case.target)
    )
    event = {case.target: fc.between(0, 100)}
    pd.testing.assert_series_equal(
        model.probability(event, images), model.probability(event, frame)
    )
    pd.testing.assert_series_equal(
        model.cdf(case.target, 50, images), model.cdf(case.target, 50, frame)
    )


def test_completions_are_images_and_those_by_columns(case: Case) -> None:
    images = half_hidden(case.images)
    frame, model = by_columns(images, case.colour), case.model
    known = ~images.mask
    answers = {
        "mpe": (model.mpe(images), model.mpe(frame)),
        "sample": (model.sample(given=images, seed=3), model.sample(given=frame, seed=3)),
        "mean": (model.impute(images), model.impute(frame)),
        "expectation": (model.expectation(images), model.impute(frame)),
        "likeliest": (model.impute(images, "likeliest"), model.impute(frame, "likeliest")),
        "drawn": (model.impute(images, "sample", seed=4), model.impute(frame, "sample", seed=4)),
    }
    for name, (painted, table) in answers.items():
        assert type(painted) is np.ndarray, name
        assert painted.shape == case.images.shape, name
        assert painted.dtype == np.uint8, name
        assert np.array_equal(painted[known], case.images[known]), name
        expected = np.asarray(model.to_images(table))
        expected[known] = case.images[known]  # a channel known of a pixel that lacks another
        assert np.array_equal(painted, expected), name
    draws = model.impute(images, draws=3, seed=5)
    tables = model.impute(frame, draws=3, seed=5)
    assert len(draws) == 3
    for painted, table in zip(draws, tables, strict=True):
        assert np.array_equal(painted[:, :3], model.to_images(table)[:, :3])


def test_several_samples_for_each_image(case: Case) -> None:
    images = half_hidden(case.images)
    drawn = case.model.sample(2, images, seed=0)
    assert drawn.shape == (10, *case.images.shape[1:])
    known = np.repeat(~images.mask, 2, axis=0)
    assert np.array_equal(drawn[known], np.repeat(case.images, 2, axis=0)[known])


def test_samples_without_evidence_are_images_on_request(case: Case) -> None:
    table = case.model.sample(7, seed=1)
    assert isinstance(table, pd.DataFrame)
    painted = case.model.sample(7, seed=1, as_images=True)
    assert painted.shape == (7, *case.images.shape[1:])
    assert painted.dtype == np.uint8
    assert np.array_equal(painted, case.model.to_images(table))
    assert isinstance(case.model.mpe(half_hidden(case.images), as_images=False), pd.DataFrame)


def test_the_dtype_of_the_images_stays(case: Case) -> None:
    wide = half_hidden(case.images).astype(np.int32)
    assert case.model.impute(wide).dtype == np.int32


def test_a_whole_image_comes_back_whatever_its_colour(case: Case) -> None:
    """The colour transform is reversible, also by way of columns."""
    frame = by_columns(case.images, case.colour)
    assert np.array_equal(case.model.to_images(frame), case.images)
    assert np.array_equal(case.model.impute(case.images), case.images)


def test_a_label_is_predicted_from_images() -> None:
    images = pictures(60, 1)
    bright = np.where(images[:, 0, 0] > 100, "bright", "dark")
    model = fc.learn(images, label=bright, learner="einet", **SMALL)
    frame = by_columns(images, "rgb")
    proba = model.predict_proba(images, "label")
    pd.testing.assert_frame_equal(proba, model.predict_proba(frame, "label"))
    assert (model.predict(images, "label") == bright).mean() > 0.9
    assert model.impute(half_hidden(images)).shape == images.shape
    assert "label" in model.impute(half_hidden(images), as_images=False)


def test_pixels_that_the_model_does_not_have_are_masked_or_kept() -> None:
    images = pictures(40, 1)
    model = fc.learn(images, learner="einet", **SMALL)
    part = model.condition({"pixel_000_000": int(images[0, 0, 0])})
    drawn = part.sample(3, seed=0, as_images=True)
    assert drawn.shape == (3, SIDE, SIDE)
    assert np.array_equal(np.argwhere(drawn.mask), [[n, 0, 0] for n in range(3)])
    painted = part.impute(half_hidden(images[:2]))
    assert painted.mask[:, 0, 0].all()
    assert painted.mask.sum() == 2
    patch = model.marginal([n for n in model.schema.names if n[6:9] in ("001", "002")])
    assert patch.sample(4, seed=0, as_images=True).shape == (4, 2, SIDE)


def test_images_for_a_table_of_other_things_are_refused() -> None:
    table = pd.DataFrame({"x": np.arange(20.0) ** 2, "y": np.arange(20) % 3})
    model = fc.learn(table, learner="factorised")
    with pytest.raises(QueryError, match="not over pixels"):
        model.log_prob(pictures(2, 1))
    with pytest.raises(QueryError, match="no images"):
        model.sample(2, as_images=True)


@pytest.mark.parametrize("how", ["learner", "option", "table"])
def test_the_colour_is_an_option_of_the_learner(how: str) -> None:
    images = pictures(40, 3)
    if how == "option":
        model = fc.learn(images, learner="einet", colour="ycocg", **SMALL)
    elif how == "table":
        frame = by_columns(images, "rgb").assign(kind=["x", "y"] * 20)
        model = fc.learn(frame, learner=EiNet(**SMALL, colour="ycocg"))
    else:
        model = fc.learn(images, learner=EiNet(**SMALL, colour="ycocg"))
    assert model.schema.names[:3] == ("pixel_000_000_Y", "pixel_000_000_Co", "pixel_000_000_Cg")
    assert np.isfinite(model.log_prob(images)).all()
    assert model.sample(2, seed=0, as_images=True).shape == (2, SIDE, SIDE, 3)


def test_a_colour_that_does_not_fit_is_refused() -> None:
    with pytest.raises(LearningError, match="colour 'hsv'"):
        EiNet(colour="hsv")  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match="three channels"):
        fc.learn(pictures(20, 1), learner=EiNet(**SMALL, colour="ycocg"))
    with pytest.raises(SchemaError, match="channels R, G and B"):
        fc.federate({"a": pictures(20, 1)}, learner=EiNet(**SMALL, colour="ycocg"))


# --- grids ----------------------------------------------------------------------------------------


def test_a_grid_of_images_is_written_and_holds_them(tmp_path: Path) -> None:
    images = pictures(5, 3)
    path = fc.show(images, columns=3).save(tmp_path / "grid.png")
    read = np.asarray(Image.open(path))
    assert read.shape == (2 * 7 - 1, 3 * 7 - 1, 3)
    assert np.array_equal(read[7:, 7:13], images[4])
    assert (read[7:, 14:] == 255).all()  # no sixth image
    large = np.asarray(Image.open(fc.show(images).save(tmp_path / "large.png", scale=3)))
    assert large.shape == (39, 60, 3)


def test_masked_pixels_stand_out() -> None:
    read = fc.show(half_hidden(pictures(1, 1))).grid()
    assert (read[:3] == (214, 39, 40)).all()
    assert np.array_equal(read[3:, :, 0], pictures(1, 1)[0, 3:])


def test_samples_write_themselves(case: Case, tmp_path: Path) -> None:
    drawn = case.model.sample_images(4, seed=0)
    drawn.save(tmp_path / "grid.png")
    assert np.asarray(Image.open(tmp_path / "grid.png")).shape == (13, 13, 3)
    assert drawn._repr_png_().startswith(b"\x89PNG")


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"shape \(n, h, w\)"):
        fc.show(np.zeros((4, 4)))
