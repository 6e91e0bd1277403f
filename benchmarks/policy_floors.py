"""Federations whose clients have policies beside the same ones without: change of AUC.

Rows over 5 clients, columns over 2, both; default policies (the label is *used*), and policies
that allow the label to be sent. Data, splits and default settings are those of
`federation_panel.py`. Every finished run is a file, so that a run can be stopped and goes on.

    python benchmarks/policy_floors.py --seeds 3 --runs FOLDER        # writes its page
    python benchmarks/policy_floors.py --data adult --rows 8000 --runs FOLDER
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
from sklearn.metrics import roc_auc_score

from fedcircuits.federation.policy.policy import Policy
from federation_panel import LOADERS, SPLITS, centralised, federated
from tables import write

CENTRAL = "centralised"
CHOSEN = {"rows": "rows, 5 iid", "columns": "columns, 2", "both": "both, 2 clients"}
POLICIES: dict[str, Policy | None] = {
    "none": None,
    "default (label used)": Policy(),
    "default, label sent": Policy(label="sent"),
}
CASES = [
    (split, policy)
    for split in CHOSEN
    for policy in POLICIES
    if split != "rows" or policy != "default, label sent"  # where all hold the label, nobody asks
]


def measured(data: str, seed: int, rows: int, split_name: str, policy: str) -> dict[str, Any]:
    """AUC, nats, rule and CPU seconds of one run."""
    split = LOADERS[data](seed)
    if rows and len(split.train) > rows:
        some = split.train.sample(rows, random_state=seed).reset_index(drop=True)
        split = replace(split, train=some)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if split_name == CENTRAL:
            proba, figures = centralised(split, seed)
        else:
            chosen = POLICIES[policy]
            options = {} if chosen is None else {"policies": chosen}
            proba, figures = federated(
                SPLITS[CHOSEN[split_name]](split, seed), split, seed, options
            )
    truth = (split.test[split.label] == split.positive).to_numpy()
    figures |= {"data": data, "seed": seed, "split": split_name, "policy": policy}
    figures |= {"train": len(split.train), "CPU s": time.process_time() - start}
    return {**figures, "AUC": float(roc_auc_score(truth, proba))}


def page(folder: Path, command: str) -> None:
    """Write docs/benchmarks/policy_floors.md from the runs in a folder."""
    runs = pd.DataFrame([json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))])
    lines: list[list[Any]] = []
    for data in [name for name in LOADERS if name in set(runs["data"])]:
        mine = runs[runs["data"] == data]
        central = mine[mine["split"] == CENTRAL].set_index("seed")["AUC"]
        for split, policy in CASES:
            found = mine[(mine["split"] == split) & (mine["policy"] == policy)].set_index("seed")
            both = sorted(set(found.index) & set(central.index))
            if not both:
                continue
            gaps = (found["AUC"] - central)[both]
            spread = f" ± {gaps.std(ddof=1):.4f}" if len(both) > 1 else ""
            cells = [data, split, policy, f"{gaps.mean():+.4f}{spread}"]
            plain = mine[(mine["split"] == split) & (mine["policy"] == "none")].set_index("seed")
            beside = sorted(set(both) & set(plain.index))
            cost = (
                "" if policy == "none" else f"{(found['AUC'] - plain['AUC'])[beside].mean():+.4f}"
            )
            rules = ", ".join(sorted(set(found["rule"])))
            cells += [cost, rules, f"{found['CPU s'].mean():.0f}", str(len(both))]
            lines.append([*cells, int(found["train"].max())])
    heads = ["data", "split", "policy", "AUC, change to centralised", "to the run without policies"]
    notes = [
        "Default rule, learner and settings; splits of benchmarks/federation_panel.py: rows over "
        "five clients (iid), columns over two, both over two. Mean and standard deviation over "
        "seeds, the same seeds in both columns.",
        "Default policies: the label is used, not sent; groups of five rows; categories of fewer "
        "than five rows are hidden. Where every client holds the label, *used* and *sent* are one.",
    ]
    heads += ["rule taken", "CPU s", "seeds", "training rows"]
    write(
        "policy_floors",
        "Default policies and the floors of federation",
        heads,
        lines,
        command,
        notes,
    )


def main() -> None:
    """Run what has no file yet, then write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", action="append", choices=sorted(LOADERS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=0, help="of the training rows, 0 for all")
    parser.add_argument("--runs", type=Path, default=Path("runs/policy_floors"))
    parser.add_argument("--page-only", action="store_true")
    chosen = parser.parse_args()
    chosen.runs.mkdir(parents=True, exist_ok=True)
    names = chosen.data or ["adult", "magic"]
    for seed in range(0 if chosen.page_only else chosen.seeds):
        for data in names:
            for split, policy in [(CENTRAL, "none"), *CASES]:
                plain = "".join(
                    c if c.isalnum() else "-" for c in f"{data} {seed} {split} {policy}"
                )
                file = chosen.runs / f"{plain}.json"
                if not file.exists():
                    figures = measured(data, seed, chosen.rows, split, policy)
                    file.write_text(json.dumps(figures))
                    print(figures, flush=True)
    rows = f" --rows {chosen.rows}" if chosen.rows else ""
    page(chosen.runs, f"python benchmarks/policy_floors.py --seeds {chosen.seeds}{rows}")


if __name__ == "__main__":
    main()
