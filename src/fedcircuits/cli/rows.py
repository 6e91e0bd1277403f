"""Rows as the command line names them: a table in a file, or images in a folder or NPZ file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedcircuits.density.pictures import PICTURES, Pictures, read_images
from fedcircuits.schema import Schema
from fedcircuits.schema.reading.known import read_known
from fedcircuits.schema.reading.parquet import is_parquet


def holds_images(path: Path) -> bool:
    """Whether a path is a folder or an NPZ file, which hold images; not a folder of Parquet."""
    return (path.is_dir() and not is_parquet(path)) or path.suffix.lower() == ".npz"


def read_rows(path: Path, sep: str | None, schema: Schema) -> Any:
    """Return the rows of a path for a model: a DataFrame, or an array of images."""
    return read_images(path)[0] if holds_images(path) else read_known(path, schema, sep=sep)


def is_picture(path: Path | None) -> bool:
    """Whether an answer goes to a picture file."""
    return path is not None and path.suffix.lower() in PICTURES


def write_grid(images: Any, path: Path) -> None:
    """Write images to one picture file as a grid, small ones enlarged."""
    Pictures(images).save(path, scale=max(1, 64 // max(images.shape[1:3])))
