"""Load public tables for experiments from a folder you name; nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    return random_split(frame, "SeriousDlqin2yrs", 1, seed, test_share)


def cancer(seed: int = 0, test_share: float = 0.2) -> Split:
    """Return Breast Cancer Wisconsin (diagnostic) from scikit-learn, split at random."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer(as_frame=True)
    frame: pd.DataFrame = bunch.data.rename(columns=lambda name: name.replace(" ", "_"))
    frame = frame.assign(diagnosis=bunch.target_names[bunch.target])
    return random_split(frame, "diagnosis", "malignant", seed, test_share)


def loans(n_rows: int = 4000, seed: int = 0, test_share: float = 0.65) -> Split:
    """Return generated loans of five kinds of customers, whose default every column bears on.

    Columns depend on each other through the kind of customer, which is not in the table, and on
    the default through effects of their own, of many categories: a part of the rows or of the
    columns predicts it clearly worse than all of them. All numbers are whole.
    """
    rng = np.random.default_rng([2025, seed])
    kind = rng.integers(5, size=n_rows)
    columns: dict[str, NDArray[Any]] = {}
    risk = np.zeros(n_rows)
    for name, size in (("region", 14), ("sector", 16), ("purpose", 14), ("channel", 12)):
        shares = rng.dirichlet(np.full(size, 2.0), size=5).cumsum(axis=1)  # (5, size), by kind
        code = (shares[kind] < rng.random((n_rows, 1))).sum(axis=1).clip(max=size - 1)
        risk += rng.normal(size=size)[code]
        columns[name] = np.array([f"{name} {at + 1}" for at in range(size)])[code]
    income = np.exp(rng.normal(7.6 + 0.12 * kind, 0.4))
    age = (18 + rng.gamma(6, 7, n_rows)).clip(18, 90)
    balance = np.exp(rng.normal(6 + 0.4 * (kind % 3), 1.0))
    card_use = rng.beta(1.5 + kind, 3.0)
    late = rng.poisson(0.4 + 0.5 * (kind % 2) + 1.2 * card_use)
    years = rng.exponential(4.0 + kind)
    risk += 3.2 * card_use + 0.75 * late - 2.7 * np.log(income) - 0.02 * age
    risk += (late > 1) & (card_use > 0.6)  # more than the sum of the two
    risk -= 0.5 * np.log(balance) + 0.1 * years
    chance = 1 / (1 + np.exp(1.0 - 1.1 * (risk - np.median(risk))))
    for name, values in (
        ("income", income), ("age", age), ("balance", balance), ("card_use", 100 * card_use),
        ("late_payments", late), ("years_as_customer", years),
    ):  # fmt: skip
        columns[name] = values.round().astype(np.int64)
    columns["default"] = np.where(rng.random(n_rows) < chance, "yes", "no")
    return random_split(pd.DataFrame(columns), "default", "yes", seed, test_share)


def magic(folder: str | Path, seed: int = 0, test_share: float = 0.25) -> Split:
    """MAGIC gamma telescope, split at random."""
    frame = pd.read_parquet(_existing(folder, "magic_telescope.parquet"))
    return random_split(frame, "class", "g", seed, test_share)


def spambase(folder: str | Path, seed: int = 0, test_share: float = 0.25) -> Split:
    """Spambase, split at random."""
    frame = pd.read_parquet(_existing(folder, "spambase.parquet"))
    return random_split(frame, "spam", 1, seed, test_share)


def digits(seed: int = 0, test_share: float = 0.25) -> Split:
    """Digits of 8 x 8 pixels, built into scikit-learn, split at random; ten classes."""
    from sklearn.datasets import load_digits

    bunch = load_digits(as_frame=True)
    return random_split(bunch.data.assign(digit=bunch.target), "digit", 1, seed, test_share)


def wine(seed: int = 0, test_share: float = 0.25) -> Split:
    """Wine, built into scikit-learn, split at random; three classes."""
    from sklearn.datasets import load_wine

    bunch = load_wine(as_frame=True)
    frame = bunch.data.rename(columns=lambda name: name.replace("/", "_"))
    return random_split(frame.assign(cultivar=bunch.target), "cultivar", 1, seed, test_share)


def random_split(
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
