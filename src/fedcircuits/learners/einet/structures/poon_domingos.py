"""Poon-Domingos structure: all axis-aligned rectangles of a grid laid over an image."""

from __future__ import annotations

import numpy as np

from fedcircuits.errors import LearningError
from fedcircuits.learners.einet.structures.regions import GraphBuilder, RegionGraph


def _edges(size: int, pieces: int, axis: str) -> list[int]:
    """Cell borders of one axis: `pieces` cells as equal as whole pixels allow (28/8 = 3.5)."""
    if not 1 <= pieces <= size:
        raise LearningError(
            f"Poon-Domingos: {pieces} pieces along {axis} of {size} pixels; "
            f"expected between 1 and {size}"
        )
    return [int(edge) for edge in np.floor(np.arange(pieces + 1) * size / pieces + 0.5)]


def poon_domingos(
    height: int,
    width: int,
    pieces: int | tuple[int, int] = 8,
    channels: int = 1,
) -> RegionGraph:
    """Every rectangle of grid cells is a region, every straight cut of it a partition.

    Variable (row, column, channel) has index (row * width + column) * channels + channel; the
    channels of a pixel stay together. Cells need not divide the image: with 28 pixels in 8 pieces
    their sides are 3 or 4.

    Args:
        height: Pixel rows.
        width: Pixel columns.
        pieces: Cells per side, one number or (rows, columns).
        channels: Values per pixel.

    Returns:
        The region graph; its leaf regions are the grid's cells.
    """
    tall, wide = (pieces, pieces) if isinstance(pieces, int) else pieces
    rows, columns = _edges(height, tall, "the rows"), _edges(width, wide, "the columns")
    index = np.arange(height * width * channels).reshape(height, width, channels)
    builder = GraphBuilder(index.size)

    def rectangle(top: int, bottom: int, left: int, right: int) -> int:
        key = (top, bottom, left, right)
        block = index[rows[top] : rows[bottom], columns[left] : columns[right]]
        return builder.region(key, (int(v) for v in block.ravel()))

    for tall_now in range(1, tall + 1):
        for wide_now in range(1, wide + 1):
            for top in range(tall - tall_now + 1):
                for left in range(wide - wide_now + 1):
                    bottom, right = top + tall_now, left + wide_now
                    region = rectangle(top, bottom, left, right)
                    for cut in range(top + 1, bottom):
                        upper = rectangle(top, cut, left, right)
                        builder.split(region, (upper, rectangle(cut, bottom, left, right)))
                    for cut in range(left + 1, right):
                        first = rectangle(top, bottom, left, cut)
                        builder.split(region, (first, rectangle(top, bottom, cut, right)))
    root = rectangle(0, tall, 0, wide)
    return builder.finish(root, "poon-domingos")
