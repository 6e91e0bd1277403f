"""How well the label can be told from what each party receives, by agreement rule.

    .venv/bin/python benchmarks/privacy.py      # writes docs/privacy.md, about a minute

Breast cancer data, columns split at random over three clients, the label at the first one only,
all rows aligned. Every message is recorded and searched for hints (`federation.leakage`).
"""

from __future__ import annotations

from pathlib import Path
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
from fedcircuits.federation.wire import messages as m
from leakage import named_choices, recover_label
from recorder import Recorder

RUNS: list[tuple[str, dict[str, Any]]] = [
    ("independent", {}),
    ("product", {}),
    ("latent", {}),
    ("latent", {"label_private": True}),
    ("latent", {"table": True}),
    ("latent", {"table": True, "mechanism": "randomised-response", "epsilon": 2.0}),
    ("latent", {"table": True, "mechanism": "randomised-response", "epsilon": 0.5}),
    ("em", {}),
    ("joint", {}),
    ("joint", {"label_private": True}),
]
OWNER, OTHER = "client-1", "client-2"
DOCS = Path(__file__).parent.parent / "docs" / "privacy.md"


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
                id=partition.ID, label=split.label, engine=engine, agreement=rule, **options
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
    DOCS.write_text(page(lines, majority, own_columns(shares[OTHER], truth)))
    print(f"written to {DOCS}")


def own_columns(rows: pd.DataFrame, truth: Any) -> float:
    """How well the other client could tell the label from its own columns, had it some labels."""
    tree = DecisionTreeClassifier(max_depth=4, random_state=0)
    told = cross_val_predict(tree, rows.drop(columns=partition.ID), truth, cv=5)
    return float((told == truth).mean())


def page(lines: list[str], majority: float, own: float) -> str:
    """The whole page."""
    leaves = "\n".join(
        f"| `{name}` | {'; '.join(kind().leaves_client)} |" for name, kind in sorted(RULES.items())
    )
    return f"""# What leaves a client

Rows stay where they are. What does leave, in every run:

- **Handshake**: names and kinds of columns, categories, row counts, counts of missing cells, and of
  every number a *sketch*: values that at least `min_rows` (5) rows share, and means of at least
  that many neighbouring rows. Lowest and highest values are not told. A category is told as it is,
  however rare: do not federate columns of free text or names.
- **Alignment** (columns split): digests of ids, keyed with a salt of the run. The server knows the
  salt, so it can test guesses of ids that can be guessed; `id_secret="..."`, which the clients
  agree on and the server does not know, prevents that. An id that another client does not hold is
  seen by the server as a digest and by no client. Ids themselves are never sent. From then on a
  client's aligned rows are known by their order, drawn at random; no message names a row.
- **Models**: circuits on the agreed grid (gathered), or nothing but answers (remote). A circuit is
  a summary of rows; no differential privacy is claimed for it.
- A client is told the agreed categories and grids of its own columns only.

By rule, besides:

| rule | what leaves a client |
|---|---|
{leaves}

`fedcircuits inspect model.fc` prints this for the rule of a model, `fed.ledger.table()` the bytes.
Tests plant canaries (values of single rows, ids, categories of the label) and search every encoded
message of every rule for them: `tests/federation/test_privacy.py`.

## How well the label can be told from what a party receives

Breast cancer data, columns at random over three clients, label at the first, all rows aligned.
Accuracy of the label told from the best single hint (an index per row renamed at best, or numbers
per row through a tree of depth 4 on held-out rows), with the message it came from. Always saying
the majority gives {majority:.3f}; a client that knew labels would reach {own:.3f} from its own
columns alone, so figures near that say that features predict the label, not that it was sent.

| rule | server | another client | |
|---|---|---|---|
{chr(10).join(lines)}

1.000 at `product`, `counts` and `latent` is by design: the owner clusters within the label's
classes, so the index of a row gives its class away, up to renaming for other clients (the server
can name the classes, since the model it glues predicts the label). Use `label_private=True` where
that must not be; it costs accuracy. Under randomised response the server reads less from an index
the smaller epsilon is; the epsilon is that of one index in one run, and covers neither the circuits
nor the exact number of rows of each cluster.

`joint` over split rows sends counts of pairs of states and expected counts as they are, ones among
them: at a small client a count of one is a row's pair of values, as fine as the agreed grid. What
the server needs is the sum over clients, and with `masked=True` that is all it can read: clients
mask their terms by what they draw from `id_secret`, and the masks cancel. This protects against a
server that follows the protocol and looks; one that invents clients, or clients that tell it their
secret, can take the masks off. A client that insists writes `rounds = "masked"` into its policy.

Made by `.venv/bin/python benchmarks/privacy.py`.
"""


if __name__ == "__main__":
    main()
