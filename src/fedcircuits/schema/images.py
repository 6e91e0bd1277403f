"""Images as tables: every pixel a named variable, so that patches federate like columns.

A grey image (h, w) has variables "pixel_RRR_CCC"; a colour image (h, w, 3) has three for each
pixel, with "_R", "_G", "_B" (or "_Y", "_Co", "_Cg" after the reversible colour transform) at the
end. Names say where a pixel is, whatever part of the image a client holds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedcircuits.errors import QueryError, SchemaError
from fedcircuits.schema.colour import N_LEVELS, from_ycocg, to_ycocg
from fedcircuits.schema.schema import Schema
from fedcircuits.schema.table import Table
from fedcircuits.schema.variable import Variable

Colour = Literal["rgb", "ycocg"]
LABEL = "label"
CHANNELS: dict[str, tuple[str, ...]] = {"rgb": ("R", "G", "B"), "ycocg": ("Y", "Co", "Cg")}
# Highest level of each channel; a pixel without a channel is gray.
_TOPS = dict.fromkeys(CHANNELS["rgb"], 255) | {
    name: n - 1 for name, n in zip(CHANNELS["ycocg"], N_LEVELS, strict=True)
}
_NAME = re.compile(r"pixel_(\d+)_(\d+)(?:_(\w+))?")


def image_schema(height: int, width: int, channels: int = 1, colour: Colour = "rgb") -> Schema:
    """The schema of images of one size, pixels in row-major order, channels innermost."""
    if channels not in (1, 3):
        raise SchemaError(f"images have 1 or 3 channels, found {channels}")
    if colour not in CHANNELS or (colour == "ycocg" and channels != 3):
        raise SchemaError(
            f"colour is 'rgb' or, for three channels, 'ycocg'; found {colour!r} and {channels}"
        )
    ends = {"": 255}
    if channels == 3:
        ends = {f"_{name}": _TOPS[name] for name in CHANNELS[colour]}
    return Schema(
        tuple(
            pixel_variable(f"pixel_{row:03d}_{column:03d}{end}", top)
            for row in range(height)
            for column in range(width)
            for end, top in ends.items()
        )
    )


def image_table(
    images: NDArray[np.generic], observed: NDArray[np.bool_] | None = None, colour: Colour = "rgb"
) -> Table:
    """Return images as an encoded table, one variable a pixel.

    Args:
        images: Levels 0 .. 255, shape (n, h, w) or (n, h, w, 3); a masked array's masked pixels
            are missing.
        observed: Which pixels are known, shaped like the images or without the channels.
        colour: "rgb" keeps the channels, "ycocg" transforms them reversibly; a log-mass means
            the same in both. A pixel missing one channel is then missing altogether.

    Returns:
        The table; its schema names the pixels.
    """
    if isinstance(images, np.ma.MaskedArray):
        known = ~np.ma.getmaskarray(images)
        observed = known if observed is None else known & observed
        images = images.filled(0)
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] != 3):
        raise SchemaError(f"images are (n, h, w) or (n, h, w, 3), found shape {images.shape}")
    if 0 in images.shape[1:]:
        raise SchemaError(f"images have no pixels: shape {images.shape}")
    numbers = np.asarray(images)
    if numbers.dtype.kind not in "iuf":
        raise SchemaError(f"images hold levels 0..255, found {numbers.dtype}")
    if observed is not None:
        if observed.shape == images.shape[:3] and images.ndim == 4:
            observed = np.repeat(observed[..., None], 3, axis=3)
        if observed.shape != images.shape:
            raise SchemaError(f"a mask of shape {observed.shape} for images {images.shape}")
        numbers = np.where(observed, numbers, 0)
    wrong = (numbers < 0) | (numbers > 255) | (numbers != np.floor(numbers))
    if wrong.any():
        first = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise SchemaError(
            f"images hold whole levels 0..255, found {numbers[first]} at {first} and "
            f"{int(wrong.sum()) - 1} more; scale floats by 255 and round first"
        )
    channels = 1 if images.ndim == 3 else 3
    schema = image_schema(images.shape[1], images.shape[2], channels, colour)
    if colour == "ycocg":
        if observed is not None:
            observed = np.repeat(observed.all(axis=3, keepdims=True), 3, axis=3)
        numbers = to_ycocg(numbers.astype(np.int16))
    n = len(images)
    values = numbers.reshape(n, len(schema)).astype(np.float64)
    known = np.ones(values.shape, dtype=bool) if observed is None else observed.reshape(n, -1)
    return Table(schema, np.where(known, values, 0.0), known, pd.RangeIndex(n))


def is_images(data: object) -> bool:
    """Whether something is an array of images rather than a table."""
    return isinstance(data, np.ndarray) and data.dtype.names is None and data.ndim in (3, 4)


def is_pixel(name: str) -> bool:
    """Whether a variable of this name is a pixel, or one channel of one."""
    return _NAME.fullmatch(name) is not None


def image_frame(images: NDArray[np.generic]) -> pd.DataFrame:
    """Return levels (n, h, w), (n, h, w, 1) or (n, h, w, 3) as a column for each pixel."""
    channels = 1 if images.ndim == 3 else images.shape[3]
    names = image_schema(images.shape[1], images.shape[2], channels).names
    return pd.DataFrame(images.reshape(len(images), len(names)), columns=list(names))


def encode_images(schema: Schema, images: NDArray[np.generic]) -> Table:
    """Images as rows of a schema of pixels, which may hold some of them only (a patch).

    The colour transform is the schema's; pixels the schema does not know are left out, and
    variables that are no pixels (a label, say) are not observed.
    """
    pixels = [name for name in schema.names if _NAME.fullmatch(name)]
    if not pixels:
        raise QueryError("the model is not over pixels, so it cannot be asked about images")
    places = pixel_places(schema.select(pixels)) or []
    names = {channel for _, _, channel in places}
    colour: Colour = "ycocg" if names & set(CHANNELS["ycocg"]) else "rgb"
    table = image_table(images, colour=colour)
    absent = [name for name in pixels if name not in table.schema]
    if absent:
        raise QueryError(
            f"images of shape {images.shape[1:]} lack {len(absent)} pixel(s) of the model, first "
            f"{absent[0]!r}"
        )
    at = [schema.position(name) for name in pixels]
    whole, chosen = Table.empty(schema, len(table)), table.columns(pixels)
    whole.values[:, at], whole.observed[:, at] = chosen.values, chosen.observed
    return whole


def labelled_images(
    images: NDArray[np.generic], labels: Sequence[object] | None, colour: Colour = "rgb"
) -> Table:
    """Images as a table, with a variable "label" where labels are given."""
    table = image_table(images, colour=colour)
    if labels is None:
        return table
    if len(labels) != len(images):
        raise SchemaError(f"{len(labels)} labels for {len(images)} images")
    known = pd.DataFrame({LABEL: list(labels)})
    schema = Schema.infer(known, {LABEL: "categorical"})
    coded = schema.encode(known)
    return table.with_column(schema.variables[0], coded.values[:, 0], coded.observed[:, 0])


def pixel_columns(frame: pd.DataFrame) -> dict[str, int]:
    """Highest level by name of the columns that hold pixels.

    These are named so and hold whole levels throughout: 0 .. 255, of Co and Cg 0 .. 510.
    """
    tops, doubtful = {}, []
    for name, dtype in zip(frame.columns, frame.dtypes, strict=True):
        match = _NAME.fullmatch(str(name))
        top = None if match is None else _TOPS.get(match[3] or "R")
        if top is not None and dtype.kind in "iuf":
            tops[str(name)] = top
            if dtype != np.uint8:
                doubtful.append(str(name))
    levels = frame[doubtful].to_numpy(dtype=float, na_value=np.nan)  # (n, pixels)
    highest = [tops[name] for name in doubtful]
    with np.errstate(invalid="ignore"):
        right = (levels >= 0) & (levels <= highest) & (levels == np.floor(levels))
    for name, good in zip(doubtful, (right | np.isnan(levels)).all(axis=0), strict=True):
        if not good:
            del tops[name]
    return tops


def pixels_in_colour(frame: pd.DataFrame, colour: Colour) -> pd.DataFrame:
    """Return a table with its red, green and blue pixels in another colour.

    "rgb" changes nothing; "ycocg" replaces the three columns of every pixel by Y, Co and Cg, all
    missing where one of the three is. Other columns stay, and so do pixels that are in Y, Co and Cg
    already.
    """
    if colour != "ycocg":
        return frame
    found = [(name, match) for name in frame.columns if (match := _NAME.fullmatch(str(name)))]
    if all(match[3] in CHANNELS["ycocg"] for _, match in found) and found:
        return frame
    stems = dict.fromkeys(str(name)[: match.end(2)] for name, match in found)
    names = [[f"{stem}_{c}" for c in CHANNELS["rgb"]] for stem in stems]
    lacking = [name for three in names for name in three if name not in frame.columns]
    if lacking or not stems:
        raise SchemaError(
            "colour='ycocg' needs pixels with the channels R, G and B, found "
            + (f"no column {lacking[0]!r}" if lacking else "no pixels")
        )
    flat = [name for three in names for name in three]
    levels = frame[flat].to_numpy(dtype=float, na_value=np.nan).reshape(len(frame), -1, 3)
    lost = np.isnan(levels).any(axis=2)  # (n, pixels)
    changed = to_ycocg(np.where(lost[..., None], 0, levels).astype(np.int16))
    values: NDArray[np.generic] = changed
    if lost.any():
        values = np.where(lost[..., None], np.nan, changed)
    columns = [f"{stem}_{c}" for stem in stems for c in CHANNELS["ycocg"]]
    made = pd.DataFrame(values.reshape(len(frame), -1), index=frame.index, columns=columns)
    return pd.concat([made, frame.drop(columns=flat)], axis=1)


def table_in_colour(table: Table, colour: Colour) -> Table:
    """Return a table of pixels in another colour (see `pixels_in_colour`)."""
    if colour == "rgb":
        return table
    pixels = [name for name in table.schema.names if _NAME.fullmatch(name)]
    chosen = table.columns(pixels) if pixels else Table.empty(table.schema, 0)
    cells = np.where(chosen.observed, chosen.values, np.nan)
    frame = pixels_in_colour(pd.DataFrame(cells, columns=pixels or None), colour)
    if list(frame.columns) == pixels:
        return table
    others = [v for v in table.schema if v.name not in chosen.schema]
    at = [table.schema.position(v.name) for v in others]
    levels = frame.to_numpy(dtype=float)  # (n, pixels)
    known = ~np.isnan(levels)
    variables = [pixel_variable(n, _TOPS[n.rpartition("_")[2]]) for n in frame.columns]
    return replace(
        table,
        schema=Schema((*variables, *others)),
        values=np.column_stack([np.where(known, levels, 0.0), table.values[:, at]]),
        observed=np.column_stack([known, table.observed[:, at]]),
    )


@lru_cache(maxsize=2**14)
def pixel_variable(name: str, top: int) -> Variable:
    """The variable of one pixel with the levels 0 .. top."""
    return Variable(name, "count", domain=(0.0, float(top)), closed=True, declared=True)


def pixel_places(schema: Schema) -> list[tuple[int, int, str]] | None:
    """Row, column and channel of every variable, None if one of them is no pixel."""
    found = [_NAME.fullmatch(name) for name in schema.names]
    if any(match is None for match in found):
        return None
    return [(int(m[1]), int(m[2]), m[3] or "") for m in found if m is not None]


def images_from_pixels(
    names: Sequence[str],
    values: NDArray[np.float64],
    like: NDArray[np.generic] | None = None,
) -> NDArray[np.generic]:
    """Return images (n, h, w) or (n, h, w, 3) in gray or red, green and blue.

    Levels that no colour has (a sampled YCoCg-R triple may leave the cube) are clipped. Pixels that
    are in neither argument are masked; without such pixels the answer is a plain array.

    Args:
        names: of the columns; those that are no pixels are left out.
        values: levels (n, D); a pixel whose level is NaN or infinite is unknown.
        like: images (n, h, w) or (n, h, w, 3) that were completed: the answer has their shape and
            dtype, and every pixel they know as they have it. Without them the answer is the
            smallest rectangle around the pixels, in uint8.
    """
    found = [(at, match) for at, name in enumerate(names) if (match := _NAME.fullmatch(str(name)))]
    if not found:
        raise QueryError("there are no images: no variable is named pixel_ROW_COLUMN[_CHANNEL]")
    rows, columns = (np.array([int(m[part]) for _, m in found]) for part in (1, 2))
    channels = [m[3] or "" for _, m in found]
    order = next((c for c in (*CHANNELS.values(), ("",)) if set(channels) <= set(c)), None)
    if order is None:
        raise QueryError(f"pixels have the channels {sorted(set(channels))}, expected one of rgb")
    if like is None:
        rows, columns = rows - rows.min(), columns - columns.min()
        height, width = int(rows.max()) + 1, int(columns.max()) + 1
    else:
        height, width = like.shape[1:3]
    levels = np.full((len(values), height, width, len(order)), np.nan)  # (n, h, w, c)
    at_channel = np.array([order.index(channel) for channel in channels])
    levels[:, rows, columns, at_channel] = values[:, [at for at, _ in found]]
    unknown = ~np.isfinite(levels)
    levels[unknown] = 0.0
    if order == CHANNELS["ycocg"]:
        unknown = np.repeat(unknown.any(axis=3, keepdims=True), 3, axis=3)
        levels = from_ycocg(np.round(levels).astype(np.int16)).astype(np.float64)
    levels = np.clip(np.round(levels), 0, 255)
    if len(order) == 1:
        levels, unknown = levels[..., 0], unknown[..., 0]
    if like is not None:
        known = ~np.ma.getmaskarray(like)
        levels, unknown = np.where(known, np.ma.getdata(like), levels), unknown & ~known
    answer = levels.astype(np.uint8 if like is None else like.dtype)
    return np.ma.masked_array(answer, unknown) if unknown.any() else answer
