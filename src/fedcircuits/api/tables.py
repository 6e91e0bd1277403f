"""What a client may be given: a table, a file to read there, or images."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd

from fedcircuits.errors import FederationError, SchemaError
from fedcircuits.schema import Data, read


def as_table(client: str, data: Data) -> pd.DataFrame | Path:
    """Rows of a client; a path stays a path, for the client itself to read.

    Args:
        client: its name, for errors.
        data: DataFrame, mapping, CSV or Parquet file, or images (n, h, w) or (n, h, w, 3).
    """
    if isinstance(data, (str, os.PathLike)):
        path = Path(data)
        if not path.is_file():
            raise FederationError(f"client {client!r}: no such file: {path}")
        return path
    if isinstance(data, np.ndarray) and data.ndim in (3, 4):
        return image_frame(data)
    try:
        return read(data)
    except SchemaError as error:
        raise FederationError(f"client {client!r}: {error}") from None


def image_frame(images: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> pd.DataFrame:
    """(n, h, w) or (n, h, w, 3) levels as one column a pixel, named by where it is."""
    ends = [""] if images.ndim == 3 or images.shape[3] == 1 else ["_R", "_G", "_B"]
    if images.ndim == 4 and images.shape[3] not in (1, 3):
        raise SchemaError(f"images have 1 or 3 channels, found {images.shape[3]}")
    height, width = images.shape[1:3]
    names = [
        f"pixel_{row:03d}_{column:03d}{end}"
        for row in range(height)
        for column in range(width)
        for end in ends
    ]
    return pd.DataFrame(images.reshape(len(images), -1), columns=names)
