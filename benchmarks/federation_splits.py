"""Splits of one table over clients, as the federation benchmark makes them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from fedcircuits.api import datasets

ID = "row_id"
Clients = dict[str, pd.DataFrame]


def rows_split(split: datasets.Split, n: int, how: str, seed: int) -> Clients:
    """Rows over n clients: iid, Dirichlet(.3) over the classes, or one class a client."""
    rng, frame = np.random.default_rng(seed), split.train
    label = frame[split.label].to_numpy()
    owner = rng.permutation(np.arange(len(frame)) % n)
    if how == "dirichlet":
        for value in np.unique(label):
            share = rng.dirichlet(np.full(n, 0.3))
            mine = np.flatnonzero(label == value)
            owner[mine] = rng.choice(n, size=mine.size, p=share)
    if how == "one class":
        n_positive = max(1, n // 2)
        positive = label == split.positive
        owner = np.where(positive, owner % n_positive, n_positive + owner % (n - n_positive))
    return {f"c{i}": frame[owner == i].reset_index(drop=True) for i in range(n)}


def columns_split(split: datasets.Split, n: int, seed: int) -> Clients:
    """Columns over n clients at random; the first has the label."""
    frame = split.train.assign(**{ID: np.arange(len(split.train))})
    names = [c for c in split.train.columns if c != split.label]
    parts = np.array_split(np.random.default_rng(seed).permutation(names), n)
    return {
        f"c{i}": frame[[ID, *part, *([split.label] if i == 0 else [])]]
        for i, part in enumerate(parts)
    }


def both_split(split: datasets.Split, share_label: bool, seed: int) -> Clients:
    """Two clients: 30 % of the columns at both, 40 % of the rows at both."""
    rng = np.random.default_rng(seed)
    frame = split.train.assign(**{ID: np.arange(len(split.train))})
    names = rng.permutation([c for c in split.train.columns if c != split.label])
    n_shared = max(1, round(0.3 * names.size))
    shared, rest = list(names[:n_shared]), np.array_split(names[n_shared:], 2)
    order = rng.permutation(len(frame))
    first, both, second = np.split(order, [int(0.3 * len(frame)), int(0.7 * len(frame))])
    label = [split.label]
    return {
        "c0": frame.iloc[np.sort(np.r_[first, both])][[ID, *shared, *rest[0], *label]],
        "c1": frame.iloc[np.sort(np.r_[both, second])][
            [ID, *shared, *rest[1], *(label if share_label else [])]
        ],
    }


def branches_split(split: datasets.Split, seed: int) -> Clients:
    """Two branches with half of the columns and of the rows each, a register with the others.

    The branches hold the label; the register holds its columns of all rows.
    """
    rng = np.random.default_rng(seed)
    frame = split.train.assign(**{ID: np.arange(len(split.train))})
    names = rng.permutation([c for c in split.train.columns if c != split.label])
    mine, others = np.array_split(names, 2)
    order = rng.permutation(len(frame))
    halves = np.array_split(order, 2)
    branch = [ID, *mine, split.label]
    return {
        "north": frame.iloc[np.sort(halves[0])][branch].reset_index(drop=True),
        "south": frame.iloc[np.sort(halves[1])][branch].reset_index(drop=True),
        "register": frame[[ID, *others]],
    }


def synthetic(n_rows: int, seed: int = 0) -> datasets.Split:
    """A made-up table of any length: eight columns that depend on a class of six, and a label."""
    rng = np.random.default_rng(seed)
    hidden = rng.integers(6, size=n_rows)
    frame = pd.DataFrame(
        {f"number {j}": rng.normal(hidden % (j + 2), 0.5 + 0.1 * j) for j in range(4)}
        | {
            f"letter {j}": np.where(
                rng.random(n_rows) < 0.7, (hidden + j) % 5, rng.integers(5, size=n_rows)
            )
            for j in range(4)
        }
    )
    for j in range(4):
        frame[f"letter {j}"] = np.array(list("abcde"))[frame[f"letter {j}"]]
    chance = 1 / (1 + np.exp(1.5 - frame["number 0"] - (hidden % 2)))
    frame["label"] = np.where(rng.random(n_rows) < chance, "yes", "no")
    return datasets.Split(frame, frame[:1000], "label", "yes")
