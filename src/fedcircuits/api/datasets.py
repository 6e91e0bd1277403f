"""Load public tables for experiments from a folder you name; nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedcircuits.errors import SchemaError, unknown_name

DEBD = (
    "nltcs", "msnbc", "kdd", "plants", "baudio", "jester", "bnetflix", "accidents", "tretail",
    "pumsb_star", "dna", "kosarek", "msweb", "book", "tmovie", "cwebkb", "cr52", "c20ng", "bbc",
    "ad",
)  # fmt: skip


@dataclass(frozen=True)
class Split:
    """A table with its label, in training and test rows.

    Attributes:
        train: rows to learn from.
        test: held-out rows.
        label: name of the label column.
        positive: the label value whose probability is scored.
    """

    train: pd.DataFrame
    test: pd.DataFrame
    label: str
    positive: object


def _existing(folder: str | Path, name: str) -> Path:
    path = Path(folder) / name
    if not path.is_file():
        raise SchemaError(f"no file {path}: pass the folder that holds {name}")
    return path


def adult(folder: str | Path) -> Split:
    """Return Adult (Census Income) with the UCI split; "?" stays a category, as in the files."""
    frame = pd.read_parquet(_existing(folder, "adult.parquet"))
    train, test = (
        frame[frame["split"] == part].drop(columns="split").reset_index(drop=True)
        for part in ("train", "test")
    )
    return Split(train, test, "income", ">50K")


def credit(folder: str | Path, seed: int = 0, test_share: float = 0.2) -> Split:
    """Return Give Me Some Credit, split at random."""
    frame = pd.read_parquet(_existing(folder, "give_me_some_credit.parquet")).drop(columns="id")
    return _random_split(frame, "SeriousDlqin2yrs", 1, seed, test_share)


def cancer(seed: int = 0, test_share: float = 0.2) -> Split:
    """Return Breast Cancer Wisconsin (diagnostic) from scikit-learn, split at random."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer(as_frame=True)
    frame: pd.DataFrame = bunch.data.rename(columns=lambda name: name.replace(" ", "_"))
    frame = frame.assign(diagnosis=bunch.target_names[bunch.target])
    return _random_split(frame, "diagnosis", "malignant", seed, test_share)


def magic(folder: str | Path, seed: int = 0, test_share: float = 0.25) -> Split:
    """MAGIC gamma telescope, split at random."""
    frame = pd.read_parquet(_existing(folder, "magic_telescope.parquet"))
    return _random_split(frame, "class", "g", seed, test_share)


def spambase(folder: str | Path, seed: int = 0, test_share: float = 0.25) -> Split:
    """Spambase, split at random."""
    frame = pd.read_parquet(_existing(folder, "spambase.parquet"))
    return _random_split(frame, "spam", 1, seed, test_share)


def digits(seed: int = 0, test_share: float = 0.25) -> Split:
    """Digits of 8 x 8 pixels, built into scikit-learn, split at random; ten classes."""
    from sklearn.datasets import load_digits

    bunch = load_digits(as_frame=True)
    return _random_split(bunch.data.assign(digit=bunch.target), "digit", 1, seed, test_share)


def wine(seed: int = 0, test_share: float = 0.25) -> Split:
    """Wine, built into scikit-learn, split at random; three classes."""
    from sklearn.datasets import load_wine

    bunch = load_wine(as_frame=True)
    frame = bunch.data.rename(columns=lambda name: name.replace("/", "_"))
    return _random_split(frame.assign(cultivar=bunch.target), "cultivar", 1, seed, test_share)


def _random_split(
    frame: pd.DataFrame, label: str, positive: object, seed: int, test_share: float
) -> Split:
    """Return a random split in which every class has the same share of test rows."""
    rng = np.random.default_rng(seed)
    held = np.zeros(len(frame), dtype=bool)
    for _, rows in frame.reset_index(drop=True).groupby(label).groups.items():
        chosen = rng.permutation(np.asarray(rows))[: round(test_share * len(rows))]
        held[chosen] = True
    train, test = (frame[mask].reset_index(drop=True) for mask in (~held, held))
    return Split(train, test, label, positive)


def debd(folder: str | Path, name: str) -> dict[str, NDArray[np.uint8]]:
    """Return train, valid and test rows of one of the twenty binary density-estimation sets."""
    if name not in DEBD:
        raise SchemaError(unknown_name("dataset", name, DEBD))
    with np.load(_existing(Path(folder) / "debd", f"{name}.npz")) as packed:
        n_vars = int(packed["n_vars"])
        return {
            part: np.unpackbits(packed[part], axis=1, count=n_vars)
            for part in ("train", "valid", "test")
        }
