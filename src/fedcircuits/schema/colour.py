"""YCoCg-R: a reversible colour transform, integers to integers, so an image keeps its mass.

Red, green and blue of neighbouring brightness move together; after the transform most of an image
is in Y, and Co and Cg are near zero. Y stays in 0 .. 255, Co and Cg span 511 values each, kept
here as 0 .. 510 by adding 255.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedcircuits.errors import SchemaError

N_LEVELS = (256, 511, 511)


def to_ycocg(images: NDArray[np.integer]) -> NDArray[np.int16]:
    """Y, Co + 255, Cg + 255 of red, green, blue; shape (..., 3) both."""
    if images.shape[-1:] != (3,):
        raise SchemaError(f"YCoCg-R needs three channels last, found shape {images.shape}")
    red, green, blue = (images[..., c].astype(np.int16) for c in range(3))
    orange = red - blue
    middle = blue + (orange >> 1)
    chroma = green - middle
    luma = middle + (chroma >> 1)
    return np.stack([luma, orange + 255, chroma + 255], axis=-1)


def from_ycocg(transformed: NDArray[np.integer]) -> NDArray[np.int16]:
    """The inverse of `to_ycocg`; values outside 0 .. 255 come back for impossible inputs."""
    luma, orange, chroma = (transformed[..., c].astype(np.int16) for c in range(3))
    orange, chroma = orange - 255, chroma - 255
    middle = luma - (chroma >> 1)
    green = chroma + middle
    blue = middle - (orange >> 1)
    return np.stack([blue + orange, green, blue], axis=-1)
