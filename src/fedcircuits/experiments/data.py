"""Data sets of the experiments, by name; nothing is downloaded."""

from __future__ import annotations

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.datasets import make_classification

from fedcircuits.api import datasets
from fedcircuits.api.datasets import Split
from fedcircuits.experiments.experiment import ExperimentError
from fedcircuits.schema.images import image_frame

FILES = {
    "income": "adult.parquet", "credit": "give_me_some_credit.parquet", "mnist": "mnist.npz",
    "magic": "magic_telescope.parquet", "spambase": "spambase.parquet",
    "tiny-imagenet-32": "tiny_imagenet_train.parquet",
    "tiny-imagenet-64": "tiny_imagenet_train.parquet", "celeba": "celeba10k.parquet",
}  # fmt: skip


def available(name: str, folder: Path | None) -> str | None:
    """Return None where a data set can be loaded, else what to fetch."""
    file = FILES.get(name)
    if file is None or (folder is not None and (folder / file).is_file()):
        return None
    return f"{name}: fetch {file} and pass its folder (--data DIR)"


def load(name: str, folder: Path | None, seed: int, most_rows: int | None = None) -> Split:
    """Return training and test rows of a table with a label.

    Args:
        name: of the data set.
        folder: that holds its file.
        seed: of the split, and of generated data.
        most_rows: training rows to keep, drawn by the seed, and as many test rows; None for all.
    """
    here = folder or Path()
    makers: dict[str, Callable[[], Split]] = {
        "income": lambda: datasets.adult(here),
        "credit": lambda: datasets.credit(here, seed),
        "cancer": lambda: datasets.cancer(seed),
        "magic": lambda: datasets.magic(here, seed),
        "spambase": lambda: datasets.spambase(here, seed),
        "loans": lambda: datasets.loans(seed=seed),
        "digits": lambda: datasets.digits(seed),
        "synthetic": lambda: synthetic(seed),
        "mnist": lambda: mnist(here),
    }
    if name not in makers:
        raise ExperimentError(f"no table {name!r}; known are {', '.join(makers)}")
    split = makers[name]()
    if most_rows is None:
        return split
    rng = np.random.default_rng([seed, most_rows])

    def some(frame: pd.DataFrame) -> pd.DataFrame:
        kept = np.sort(rng.permutation(len(frame))[:most_rows])
        return frame.iloc[kept].reset_index(drop=True)

    return replace(split, train=some(split.train), test=some(split.test))


def synthetic(seed: int, n_rows: int = 2000) -> Split:
    """Return the synthetic data of the paper's Table 3: 20 informative features, two classes."""
    x, y = make_classification(
        n_samples=2 * n_rows, n_features=20, n_informative=20, n_redundant=0, n_classes=2,
        n_clusters_per_class=1, class_sep=2.0, random_state=seed,
    )  # fmt: skip
    frame = pd.DataFrame(x, columns=[f"x{at:02d}" for at in range(20)])
    frame["label"] = np.where(y == 1, "one", "zero")
    train, test = frame.iloc[:n_rows], frame.iloc[n_rows:].reset_index(drop=True)
    return Split(train, test, "label", "one")


def mnist(folder: Path) -> Split:
    """Return MNIST as columns of pixels and a label."""
    found = np.load(folder / FILES["mnist"])
    parts = [
        image_frame(found[f"x_{part}"]).assign(digit=found[f"y_{part}"].astype(str))
        for part in ("train", "test")
    ]
    return Split(parts[0], parts[1], "digit", "1")


def images(
    name: str, folder: Path | None, most: int | None, size: int | None = None
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return training and test images (n, height, width, 3) of a data set of pictures.

    Args:
        name: of the data set.
        folder: that holds its files.
        most: training images to keep, from the beginning (they are shuffled), and as many test
            images; None for all.
        size: pixels of a side, by default as the name says.
    """
    here = folder or Path()
    if name == "celeba":
        found = _pictures(here / FILES[name], size or 64, (9, 19, 79, 89), None)
        return found[:9000][:most], found[9000:][:most]
    side = size or int(name.rsplit("-", 1)[1])
    return (
        _pictures(here / "tiny_imagenet_train.parquet", side, None, most),
        _pictures(here / "tiny_imagenet_val.parquet", side, None, most),
    )


@lru_cache(maxsize=2)  # training and test images: the cells of a data set follow each other
def _pictures(
    path: Path, side: int, crop: tuple[int, int, int, int] | None, most: int | None
) -> NDArray[np.uint8]:
    """Return the first pictures of a file, (n, side, side, 3), never to be written to."""
    import pyarrow.parquet as pq
    from PIL import Image

    def decoded(jpeg: bytes) -> NDArray[np.uint8]:
        picture = Image.open(io.BytesIO(jpeg)).convert("RGB")
        picture = picture if crop is None else picture.crop(crop)
        return np.asarray(picture.resize((side, side), Image.Resampling.BOX))

    with ThreadPoolExecutor() as pool:
        found = np.stack(list(pool.map(decoded, pq.read_table(path)["jpeg"][:most].to_pylist())))
    found.flags.writeable = False
    return found
