"""The part of a report about a model of images: real and drawn ones, and hidden halves painted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedcircuits.report import figures
from fedcircuits.report.section import Section
from fedcircuits.schema import images

SHOWN = 40  # images of a grid
PAINTED = 8
ACROSS = 10


def section(
    model: Any, rows: pd.DataFrame | None, drawn: pd.DataFrame, label: str | None
) -> Section | None:
    """Samples beside held-out images, means, and painted halves; None without pixels.

    Args:
        model: a density.
        rows: held-out rows, or None.
        drawn: samples.
        label: of which the mean image of each class is shown, or None.
    """
    whole = size(model)
    if whole is None:
        return None
    pixels = pixel_names(model)
    pictures = []
    if rows is not None and set(pixels) <= set(rows.columns):
        pictures.append(_grid("held-out images", _images(rows[pixels].head(SHOWN))))
    pictures.append(_grid("images that the model draws", _images(drawn[pixels].head(SHOWN))))
    means = [] if len(pictures) < 2 or rows is None else [rows[pixels].mean()]
    means = [*means, drawn[pixels].mean()]
    whose = "mean of the held-out images, and of the model's" if means[1:] else "the model's mean"
    pictures.append(_grid(whose, _images(pd.DataFrame(means))))
    if label is not None and label in drawn:
        mean = drawn[pixels].groupby(drawn[label]).mean().head(SHOWN)
        names = ", ".join(map(str, mean.index))
        pictures.append(_grid(f"the model's mean for each {label}: {names}", _images(mean)))
    if means[1:] and rows is not None:
        pictures.append(_painted(model, rows, pixels))
    pixels_are = f"{len(pixels)} of the variables are pixels or channels of pixels"
    return Section("Images", f"{whole[0].upper()}{whole[1:]}: {pixels_are}.", pictures=pictures)


def size(model: Any) -> str | None:
    """Return height and width of a model's images in words; None where few variables are pixels."""
    pixels = pixel_names(model)
    if len(pixels) < 2 or len(pixels) * 2 < len(model.schema):
        return None
    places = images.pixel_places(model.schema.select(pixels)) or []
    high, wide = (len({place[axis] for place in places}) for axis in (0, 1))
    colour = "colour " if len({place[2] for place in places}) > 1 else ""
    return f"{colour}images of {high} x {wide} pixels"


def pixel_names(model: Any) -> list[str]:
    """Names of the variables that are pixels."""
    return [v.name for v in model.schema if images.is_pixel(v.name)]


def _painted(model: Any, rows: pd.DataFrame, pixels: list[str]) -> tuple[str, str]:
    """Images with their lower halves hidden, and the mean of what the model knows of these."""
    given = rows[pixels].head(PAINTED).astype(float)
    places = images.pixel_places(model.schema.select(pixels)) or []
    heights = np.array([row for row, _, _ in places])
    low = heights > (heights.min() + heights.max()) / 2
    hidden = given.copy()
    hidden.loc[:, low] = np.nan
    means = model.sample(10, given=hidden, seed=0)[pixels].to_numpy(dtype=float)
    filled = means.reshape(len(given), -1, len(pixels)).mean(axis=1)
    title = "held-out images, and the mean of ten draws of their lower halves given the upper ones"
    both = np.concatenate([_images(given), _images(pd.DataFrame(filled, columns=pixels))])
    return _grid(title, both, across=len(given))


def _images(frame: pd.DataFrame) -> NDArray[np.generic]:
    values = frame.to_numpy(dtype=float)
    return np.ma.filled(images.images_from_pixels(list(frame.columns), values), 0)


def _grid(title: str, found: NDArray[np.generic], across: int = ACROSS) -> tuple[str, str]:
    return title, figures.images(found, title, min(across, len(found)))
