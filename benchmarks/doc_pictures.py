"""Draws the pictures of docs/concepts.md.

Run: python benchmarks/doc_pictures.py
"""

from __future__ import annotations

import warnings
from pathlib import Path

import fedcircuits as fc
from fedcircuits import build

TO = Path(__file__).parents[1] / "docs" / "images"


def main() -> None:
    """Write circuit, dependences and the three splits as SVG files."""
    warnings.simplefilter("ignore")
    schema = fc.Schema(
        (fc.Variable("age", "continuous"), fc.Variable("loyal", "binary", ("no", "yes")))
    )
    parts = [
        build.product([build.gaussian("age", 30.0, 5.0), build.categorical("loyal", [0.8, 0.2])]),
        build.product([build.gaussian("age", 55.0, 9.0), build.categorical("loyal", [0.3, 0.7])]),
    ]
    build.circuit(schema, build.sum(parts, [0.6, 0.4])).draw(TO / "circuit.svg")
    loans = fc.datasets.loans(seed=0).train
    fc.learn(loans, label="default").draw(TO / "dependence.svg")
    rows = loans.head(300).rename_axis("customer").reset_index()
    settings = {"label": "default", "learner": "factorised", "agreement": "product"}
    branches = fc.partition.iid(rows.drop(columns="customer"), 3)
    fc.federate(branches, **settings).draw(TO / "rows.svg")  # type: ignore[call-overload]
    bank = rows[["customer", "income", "balance", "late_payments", "default"]]
    shop = rows[["customer", "purpose", "channel", "age"]]
    fed = fc.federate({"bank": bank, "shop": shop}, id="customer", **settings)  # type: ignore[call-overload]
    fed.draw(TO / "columns.svg")
    both = fc.partition.hybrid(rows.drop(columns="customer"), 3, label="default", seed=0)
    fc.federate(both, id=fc.partition.ID, **settings).draw(TO / "both.svg")  # type: ignore[call-overload]


if __name__ == "__main__":
    main()
