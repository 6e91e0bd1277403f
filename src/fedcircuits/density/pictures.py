"""Images as files: a grid of images written as one picture, and images read from folders."""

from __future__ import annotations

import io
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcircuits.errors import SchemaError

UNKNOWN = (214, 39, 40)  # red, green and blue of a masked pixel
BORDER = 255  # level of the lines between images
PICTURES = (".png", ".jpg", ".jpeg")  # endings of picture files


@dataclass(frozen=True, eq=False, repr=False)
class Pictures:
    """Images side by side in a grid.

    Attributes:
        images: levels 0..255, shape (n, h, w) or (n, h, w, 3); masked pixels are drawn in red.
        columns: images in one row of the grid; about the square root of n by default.
    """

    images: NDArray[np.generic]
    columns: int | None = None

    def __post_init__(self) -> None:
        shape = self.images.shape
        if len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] != 3) or 0 in shape:
            raise SchemaError(
                f"a grid of images needs shape (n, h, w) or (n, h, w, 3), found {shape}"
            )
        if self.columns is not None and self.columns < 1:
            raise SchemaError(f"a grid has at least 1 column, found {self.columns}")

    def __repr__(self) -> str:
        return f"Pictures({len(self.images)} images of {self.images.shape[1:]})"

    def grid(self) -> NDArray[np.uint8]:
        """Return one image (H, W, 3) with all images in rows, a line of one pixel between them."""
        n, height, width = self.images.shape[:3]
        levels = np.clip(np.ma.getdata(self.images), 0, 255).astype(np.uint8)
        unknown = np.ma.getmaskarray(self.images)
        if levels.ndim == 3:
            levels = np.repeat(levels[..., None], 3, axis=3)  # (n, h, w, 3)
        else:
            unknown = np.asarray(unknown.any(axis=3))  # (n, h, w)
        levels[unknown] = UNKNOWN
        columns = min(self.columns or math.ceil(math.sqrt(n)), n)
        rows = math.ceil(n / columns)
        shape = rows * (height + 1) - 1, columns * (width + 1) - 1, 3
        canvas = np.full(shape, BORDER, dtype=np.uint8)
        for at, image in enumerate(levels):
            top, left = at // columns * (height + 1), at % columns * (width + 1)
            canvas[top : top + height, left : left + width] = image
        return canvas

    def save(self, path: str | Path, *, scale: int = 1) -> Path:
        """Write the grid to a picture file, PNG or what the name ends with; return its path.

        Args:
            path: of the file.
            scale: pixels of the file for one pixel of the images, in each direction.
        """
        self._picture(scale).save(path)
        return Path(path)

    def _repr_png_(self) -> bytes:
        """The grid as a notebook shows it, small images enlarged."""
        file = io.BytesIO()
        self._picture(max(1, 480 // max(self.grid().shape))).save(file, format="png")
        return file.getvalue()

    def _picture(self, scale: int) -> Any:
        from PIL import Image  # takes a while to import

        large = self.grid().repeat(scale, axis=0).repeat(scale, axis=1)
        return Image.fromarray(large)


def show(images: NDArray[np.generic], columns: int | None = None) -> Pictures:
    """Return images (n, h, w) or (n, h, w, 3) as a grid that notebooks draw and `.save` writes."""
    return Pictures(np.ma.asanyarray(images), columns)


def read_images(path: Path) -> tuple[NDArray[np.generic], list[str] | None]:
    """Return the images (n, h, w) or (n, h, w, 3) of a folder or file, and a label for each.

    A folder holds PNG or JPEG files of one size, in the order of their names; pixels that are
    transparent are masked. Where it holds folders of such files instead, each of these is a label.
    An NPZ file holds the array "images" and may hold "labels", and "mask", true where a pixel is
    unknown. Without labels the second answer is None.
    """
    if not path.is_dir():
        return _from_npz(path)
    groups = {"": path}
    if not _files(path):
        groups = {each.name: each for each in sorted(path.iterdir()) if each.is_dir()}
    files = [(name, file) for name, folder in groups.items() for file in _files(folder)]
    if not files:
        raise SchemaError(f"{path} holds no images: expected files ending in {', '.join(PICTURES)}")
    read = [_read_picture(file) for _, file in files]  # (h, w, 4) each
    for (_, file), levels in zip(files, read, strict=True):
        if levels.shape != read[0].shape:
            raise SchemaError(
                f"images are of one size: {files[0][1]} is {read[0].shape[:2]}, {file} is "
                f"{levels.shape[:2]}; scale them first"
            )
    every = np.stack(read)  # (n, h, w, 4): red, green, blue, opacity
    images, unknown = every[..., :3], every[..., 3] == 0
    if (images == images[..., :1]).all():
        images = images[..., 0]
    else:
        unknown = np.repeat(unknown[..., None], 3, axis=3)
    labels = None if "" in groups else [name for name, _ in files]
    return (np.ma.masked_array(images, unknown) if unknown.any() else images), labels


def _files(folder: Path) -> list[Path]:
    return sorted(f for f in folder.iterdir() if f.is_file() and f.suffix.lower() in PICTURES)


def _read_picture(path: Path) -> NDArray[np.uint8]:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGBA"))
    except (UnidentifiedImageError, OSError, ValueError) as error:
        raise SchemaError(f"{path} is not a PNG or JPEG image: {error}") from None


def _from_npz(path: Path) -> tuple[NDArray[np.generic], list[str] | None]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        raise SchemaError(f"{path} is not an NPZ file of arrays: {error}") from None
    if "images" not in arrays:
        raise SchemaError(f"{path} has no array 'images'; it has {', '.join(arrays) or 'none'}")
    images: NDArray[np.generic] = arrays["images"]
    if "mask" in arrays:
        mask = arrays["mask"].astype(bool)
        if mask.shape != images.shape:
            raise SchemaError(f"{path}: a mask of shape {mask.shape} for images {images.shape}")
        images = np.ma.masked_array(images, mask)
    labels = [str(label) for label in arrays["labels"]] if "labels" in arrays else None
    return images, labels
