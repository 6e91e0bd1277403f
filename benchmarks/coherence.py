"""Whether the label's posterior is the density's own, by rule, checked by enumeration.

    .venv/bin/python benchmarks/coherence.py      # writes docs/benchmarks/coherence.md, a minute

A discrete table (4 columns and a label, 4,000 rows) is learned centrally, by two clients that share
its columns and by three clients that share its rows with classes spread unevenly. All cells of the
joint are enumerated, so p(y | x) of the density is known and is compared with `predict_proba`.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd

import fedcircuits as fc
from tables import write

LABEL, ID = "y", "id"


def table(n: int = 4000, seed: int = 0) -> pd.DataFrame:
    """Rows driven by one hidden class of three, which the label depends on."""
    rng = np.random.default_rng(seed)
    hidden = rng.integers(0, 3, n)
    y = (rng.random(n) < 0.2 + 0.25 * hidden).astype(int)
    columns = {
        "a": np.where(rng.random(n) < 0.7, hidden, rng.integers(0, 3, n)),
        "b": (hidden + y + (rng.random(n) < 0.2)) % 3,
        "c": np.where(rng.random(n) < 0.8, y, 1 - y),
        "d": (hidden == 1) ^ (rng.random(n) < 0.15),
        LABEL: y,
    }
    frame = pd.DataFrame({name: values.astype(int).astype(str) for name, values in columns.items()})
    return frame.assign(**{ID: np.arange(n)})


def compare(model: Any) -> tuple[float, float, float]:
    """Largest gap of `predict_proba` to the density, share of mass with another argmax, and the
    largest gap of `predict_proba` with absent columns to the same of the marginal."""
    names = list(model.schema.names)
    cells = itertools.product(*(model.schema[name].categories for name in names))
    joint = pd.DataFrame(list(cells), columns=names)
    joint["p"] = np.exp(model.log_prob(joint[names]).to_numpy())
    inputs = [name for name in names if name != LABEL]
    own = joint.pivot_table(index=inputs, columns=LABEL, values="p", aggfunc="sum")
    mass = own.sum(axis=1).to_numpy()
    own = own.div(own.sum(axis=1), axis=0)
    rows = own.index.to_frame(index=False)
    found = model.predict_proba(rows, LABEL)[list(own.columns)].to_numpy()
    gap = float(np.abs(found - own.to_numpy()).max())
    other = float(mass[found.argmax(1) != own.to_numpy().argmax(1)].sum())
    few = rows[inputs[:2]].drop_duplicates().reset_index(drop=True)
    smaller = model.marginal([*inputs[:2], LABEL])
    absent = model.predict_proba(few, LABEL).to_numpy() - smaller.predict_proba(few, LABEL)
    return gap, other, float(np.abs(absent.to_numpy()).max())


def main() -> None:
    """Learn every case and write the page."""
    rows = table()
    shared = {"A": rows[[ID, "a", "b", LABEL]], "B": rows[[ID, "c", "d", LABEL]]}
    owned = {"A": shared["A"], "B": rows[[ID, "c", "d"]]}
    rng = np.random.default_rng(5)
    spread = np.where(
        rows[LABEL] == "1",
        rng.choice(3, len(rows), p=[0.8, 0.15, 0.05]),
        rng.choice(3, len(rows), p=[0.05, 0.25, 0.7]),
    )
    skewed = {f"c{k}": rows[spread == k].drop(columns=ID).reset_index(drop=True) for k in range(3)}
    even = fc.partition.iid(rows.drop(columns=ID), 3)
    keyed: dict[str, Any] = {"id": ID, "label": LABEL}
    models = {
        ("one table", "-"): fc.learn(rows.drop(columns=ID), label=LABEL),
        ("columns, label shared", "product"): fc.federate(shared, agreement="product", **keyed),
        ("columns, label at one", "latent"): fc.federate(owned, agreement="latent", **keyed),
        ("columns, label at one", "joint"): fc.federate(
            owned, agreement="joint", trust="one owner", **keyed
        ),
        ("rows, iid", "product"): fc.federate(even, label=LABEL, agreement="product"),
        ("rows, classes uneven", "product"): fc.federate(skewed, label=LABEL, agreement="product"),
        ("rows, classes uneven", "independent"): fc.federate(
            skewed, label=LABEL, agreement="independent"
        ),
    }
    lines = []
    for (split, rule), model in models.items():
        gap, other, absent = compare(model)
        lines.append([split, rule, f"{gap:.1e}", f"{other:.1%}", f"{absent:.1e}"])
    write(
        "coherence",
        "The label's posterior beside the density's own",
        [
            "split",
            "rule",
            "largest \\|predict_proba - exp(log_prob(x, y) - log_prob(x))\\|",
            "mass with another likeliest class",
            "largest \\|predict_proba with two columns absent - the marginal's\\|",
        ],
        lines,
        "python benchmarks/coherence.py",
        [
            "4 discrete columns and a binary label, 4,000 generated rows, all cells enumerated, "
            "default learner.",
            "1e-16 is rounding: density and label are one circuit (docs/federation.md).",
        ],
    )


if __name__ == "__main__":
    main()
