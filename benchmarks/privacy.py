"""How well the label can be predicted from what each party receives, by agreement rule.

    .venv/bin/python benchmarks/privacy.py      # writes docs/benchmarks/privacy.md, about a minute

Breast cancer data, columns split at random over three clients, the label at the first one only,
all rows aligned. Every message is recorded and searched for hints (`leakage.py`).
"""

from __future__ import annotations

import datetime
from typing import Any

import pandas as pd
from sklearn.model_selection import cross_val_predict
from sklearn.tree import DecisionTreeClassifier

import fedcircuits as fc
from fedcircuits.api import partition
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.api.datasets import cancer
from fedcircuits.engines import LocalEngine
from fedcircuits.federation.agreement import RULES
from fedcircuits.federation.wire import requests as m
from leakage import named_choices, recover_label
from recorder import Recorder
from tables import FOLDER, machine, wrapped

RUNS: list[tuple[str, dict[str, Any]]] = [
    ("independent", {}),
    ("product", {}),
    ("latent", {}),
    ("latent", {"label_use": "used"}),
    ("latent", {"table": True}),
    ("latent", {"table": True, "mechanism": "randomised-response", "epsilon": 2.0}),
    ("latent", {"table": True, "mechanism": "randomised-response", "epsilon": 0.5}),
    ("em", {}),
    ("joint", {}),
    ("joint", {"label_use": "used"}),
]
OWNER, OTHER = "client-1", "client-2"
DOCS = FOLDER / "privacy.md"


def main() -> None:
    """Run every rule and write the page."""
    split = cancer(0)
    shares = partition.random_columns(split.train, 3, label=split.label)
    truth = (shares[OWNER][split.label] == split.positive).astype(int).to_numpy()
    majority = max(truth.mean(), 1 - truth.mean())
    lines = []
    for rule, options in RUNS:
        members = {
            name: ClientSpec(
                name,
                rows,
                "factorised",
                id=partition.ID,
                kinds={split.label: "categorical"},
                id_secret="of the clients",
            ).make()
            for name, rows in shares.items()
        }
        engine = Recorder(LocalEngine(members))
        words = rule + "".join(f", `{k}={v}`" for k, v in options.items())
        try:
            fc.federate(
                trust="one owner",
                id=partition.ID,
                label=split.label,
                engine=engine,
                agreement=rule,
                **options,
            )
        except fc.FedcircuitsError as error:
            lines.append(f"| {words} | - | - | {error} |")
            continue
        aligned = next(x for x in engine.messages if x.verb == "align" and x.client == OWNER)
        labels = truth[m.Align.from_bytes(aligned.data).rows]  # all rows are aligned at all clients
        named = named_choices([x.data for x in engine.messages if x.to_client], labels.size)
        read = [x.data for x in engine.messages if not x.to_client]
        server = recover_label(read, labels, named)
        read = [x.data for x in engine.messages if x.to_client and x.client == OTHER]
        other = recover_label(read, labels, named)
        lines.append(
            f"| {words} | {server.accuracy:.3f} ({server.source or 'no hint'}) "
            f"| {other.accuracy:.3f} ({other.source or 'no hint'}) | |"
        )
        print(lines[-1])
    DOCS.write_text(wrapped(page(lines, majority, own_columns(shares[OTHER], truth))))
    print(f"written to {DOCS}")


def own_columns(rows: pd.DataFrame, truth: Any) -> float:
    """How well the other client could predict the label from its own columns, with some labels."""
    tree = DecisionTreeClassifier(max_depth=4, random_state=0)
    guessed = cross_val_predict(tree, rows.drop(columns=partition.ID), truth, cv=5)
    return float((guessed == truth).mean())


def page(lines: list[str], majority: float, own: float) -> str:
    """The whole page."""
    leaves = [f"| `{name}` | {'; '.join(kind().reveals)} |" for name, kind in sorted(RULES.items())]
    date = datetime.date.today().isoformat()
    return "\n".join(
        [
            "# What leaves a client, and what it reveals about the label",
            "",
            f"`python benchmarks/privacy.py`, {date}, {machine()}.",
            "",
            "What it means for single rows: [../privacy.md](../privacy.md).",
            "",
            "## By rule, besides schema, row counts and models",
            "",
            "| rule | what leaves a client |",
            "|---|---|",
            *leaves,
            "",
            "## How well the label can be predicted from what a party receives",
            "",
            "Breast cancer data, columns at random over three clients, label at the first, all "
            "rows aligned. Accuracy of the label from the best single hint (an index per row, "
            "renamed at best, or numbers per row through a tree of depth 4 on held-out rows), with "
            f"the message it came from. Always predicting the majority gives {majority:.3f}; a "
            f"client that knew labels would reach {own:.3f} from its own columns alone, so figures "
            "near that show that features predict the label, not that it was sent.",
            "",
            "| rule | server | another client | |",
            "|---|---|---|---|",
            *lines,
        ]
    )


if __name__ == "__main__":
    main()
