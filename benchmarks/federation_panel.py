"""Federations as a user runs them beside centralised training and LightGBM, on five tables.

The real handshake (no schema is given), the default rule and learner, the label at all clients or
sent. Rows over 5 clients (iid, Dirichlet .3), columns over 2 and 3, both (2 clients; two branches
with different rows beside a register of all of them). Every finished run is a file with its test
predictions, so that a run can be stopped and goes on, and differences are paired.

    python benchmarks/federation_panel.py --seeds 5 --data magic --runs FOLDER    # goes on
    python benchmarks/federation_panel.py --page-only --runs FOLDER               # writes the page
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

import fedcircuits as fc
import tables
from fedcircuits.api import datasets
from fedcircuits.experiments.clocked import ClockedEngine
from fedcircuits.federation.wire.ledger import Ledger
from federation_cases import DATA
from federation_splits import ID, Clients, both_split, branches_split, columns_split, rows_split
from rivals import calibration_error

LOADERS: dict[str, Callable[[int], datasets.Split]] = {
    "magic": lambda seed: datasets.magic(DATA, seed),
    "spambase": lambda seed: datasets.spambase(DATA, seed),
    "adult": lambda _: datasets.adult(DATA),
    "credit": lambda seed: datasets.credit(DATA, seed),
    "cancer": lambda seed: datasets.cancer(seed),
}
SPLITS: dict[str, Callable[[datasets.Split, int], Clients]] = {
    "rows, 5 iid": lambda split, seed: rows_split(split, 5, "iid", seed),
    "rows, 5 Dirichlet .3": lambda split, seed: rows_split(split, 5, "dirichlet", seed),
    "columns, 2": lambda split, seed: columns_split(split, 2, seed),
    "columns, 3": lambda split, seed: columns_split(split, 3, seed),
    "both, 2 clients": lambda split, seed: both_split(split, True, seed),
    "both, two branches and a register": branches_split,
}
CENTRAL, LGBM = "centralised", "LightGBM, centralised"
USED = "columns, 2, label used"
BOOTSTRAP = 50
HEADER = [
    "data",
    "case",
    "seeds",
    "AUC ± sd over seeds",
    "change to centralised",
    "standard error: over seeds / over test rows",
    "log-loss",
    "ECE",
    "accuracy",
    "nats, change",
    "rule taken",
    "CPU s",
    "slowest client / centralised",
    "bytes a row",
]
Figures = dict[str, Any]


def cases() -> dict[str, Callable[[datasets.Split, int], tuple[np.ndarray, Figures]]]:
    """Every case by name: the test rows' probabilities of the positive class, and figures."""
    found: dict[str, Any] = {CENTRAL: centralised, LGBM: lightgbm_alone}
    for name, make in SPLITS.items():
        found[name] = lambda split, seed, make=make: federated(make(split, seed), split, seed, {})
        found[f"{name}: one alone"] = lambda split, seed, make=make: one_alone(
            make(split, seed), split, seed
        )
        rival = averaged_lightgbm if name.startswith("rows") else fused_lightgbm
        if not name.startswith("both"):
            found[f"{name}: LightGBM"] = lambda split, seed, make=make, rival=rival: (
                rival(make(split, seed), split, seed),
                {},
            )
    found[USED] = lambda split, seed: federated(
        SPLITS["columns, 2"](split, seed), split, seed, {"label_use": "used"}
    )
    return found


# --- models ---------------------------------------------------------------------------------------


def positive(model: fc.Density, split: datasets.Split) -> np.ndarray:
    """(n,) probability of the positive class of the test rows."""
    rows = split.test[[c for c in split.test if c in model.schema.names and c != split.label]]
    proba = model.predict_proba(rows, split.label, unknown="missing")
    if split.positive not in proba:  # a client of one class has never seen the other
        return np.zeros(len(proba))
    return proba[split.positive].to_numpy()


def nats(model: fc.Density, split: datasets.Split) -> float:
    """Mean log-density of the test rows, the label among them."""
    return model.mean_log_prob(split.test, unknown="missing")


def centralised(split: datasets.Split, seed: int) -> tuple[np.ndarray, Figures]:
    """The default learner on all rows and columns."""
    model = fc.learn(split.train, label=split.label, seed=seed)
    return positive(model, split), {"nats": nats(model, split)}


def federated(
    clients: Clients, split: datasets.Split, seed: int, options: dict[str, Any]
) -> tuple[np.ndarray, Figures]:
    """A federation by default."""
    aligned = ID if any(ID in frame for frame in clients.values()) else None
    fed = fc.federate(
        clients, id=aligned, label=split.label, seed=seed, engine=ClockedEngine, **options
    )
    figures = {"nats": nats(fed, split), "rule": fed.rule.name, "bytes": fed.ledger.n_bytes}
    figures["slowest client s"] = max(ClockedEngine.seconds.values())
    if aligned:
        figures["bytes a row"] = bytes_about_rows(fed.ledger) / len(split.train)
    return positive(fed, split), figures


def bytes_about_rows(ledger: Ledger) -> int:
    """Bytes after alignment, both ways, without models, tables of states and the classes sent.

    Of messages that bring models or tables too, what is about rows is counted as it goes on to
    its recipient, twice where it came with models.
    """
    found, to_pool = 0, False
    for entry in ledger.entries:
        down = entry.direction == "to client"
        whole = entry.phase in ("agreement", "validation") or entry.verb == "name_rows"
        if entry.verb == "fit_trees_on_codes":
            to_pool = True
        if whole or entry.verb == ("fit_tilt" if down else "score_tilt"):
            # Scores for a pool are counted with it.
            found += 0 if entry.verb == "score_tilt" and to_pool else entry.n_bytes
        elif down and entry.verb in ("fit_trees_on_codes", "pool_across"):
            found += 2 * entry.n_bytes
        if entry.verb == "pool_across":
            to_pool = False
    return found


def one_alone(clients: Clients, split: datasets.Split, seed: int) -> tuple[np.ndarray, Figures]:
    """The first client that holds the label, with its rows and columns alone."""
    mine = next(frame for frame in clients.values() if split.label in frame)
    model = fc.learn(mine.drop(columns=ID, errors="ignore"), label=split.label, seed=seed)
    return positive(model, split), {}


def boosted(
    train: pd.DataFrame, rows: pd.DataFrame, split: datasets.Split, seed: int
) -> np.ndarray:
    """(n,) log-odds of the positive class by a default LightGBM; a constant for one class."""
    import lightgbm

    columns = [c for c in train if c not in (ID, split.label)]

    def features(frame: pd.DataFrame) -> pd.DataFrame:
        made = frame[columns].copy()
        for name in columns:
            if not pd.api.types.is_numeric_dtype(split.train[name]):
                known = sorted(split.train[name].dropna().unique())
                made[name] = pd.Categorical(made[name], known)
        return made.set_axis([f"c{at}" for at in range(len(columns))], axis=1)

    truth = (train[split.label] == split.positive).to_numpy()
    if truth.all() or not truth.any():
        return np.full(len(rows), 4.0 if truth.all() else -4.0)
    model = lightgbm.LGBMClassifier(random_state=seed, verbose=-1, n_jobs=1)
    model.fit(features(train), truth)
    return np.asarray(model.predict(features(rows), raw_score=True))


def lightgbm_alone(split: datasets.Split, seed: int) -> tuple[np.ndarray, Figures]:
    """LightGBM on all rows and columns."""
    return _logistic(boosted(split.train, split.test, split, seed)), {}


def averaged_lightgbm(clients: Clients, split: datasets.Split, seed: int) -> np.ndarray:
    """Log-odds of every client's LightGBM, averaged by rows."""
    weights = [len(frame) for frame in clients.values()]
    found = [boosted(frame, split.test, split, seed) for frame in clients.values()]
    return _logistic(np.average(found, axis=0, weights=weights))


def fused_lightgbm(clients: Clients, split: datasets.Split, seed: int) -> np.ndarray:
    """Late fusion: a LightGBM of each client's columns, joined by a logistic regression.

    The label is at all; a tenth of the rows, which no LightGBM has seen, fits the regression.
    """
    held = np.random.default_rng(seed).permutation(len(split.train))[: len(split.train) // 10]
    rest = np.setdiff1d(np.arange(len(split.train)), held)
    train, fit_rows = split.train.iloc[rest], split.train.iloc[held]
    fitted, asked = [], []
    for frame in clients.values():
        own = [c for c in frame if c not in (ID, split.label)] + [split.label]
        fitted.append(boosted(train[own], fit_rows, split, seed))
        asked.append(boosted(train[own], split.test, split, seed))
    joined = LogisticRegression().fit(np.stack(fitted, axis=1), fit_rows[split.label])
    at = list(joined.classes_).index(split.positive)
    return np.asarray(joined.predict_proba(np.stack(asked, axis=1))[:, at])


def _logistic(log_odds: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-log_odds)))


# --- runs -----------------------------------------------------------------------------------------


def run(data: str, case: str, seed: int, rows: int, folder: Path) -> None:
    """Run one case and write its predictions and figures."""
    split = LOADERS[data](seed)
    if rows and len(split.train) > rows:
        some = split.train.sample(rows, random_state=seed).reset_index(drop=True)
        split = replace(split, train=some)
    start = time.process_time()
    proba, figures = cases()[case](split, seed)
    figures = {**figures, "data": data, "case": case, "seed": seed, "train": len(split.train)}
    figures["CPU s"] = time.process_time() - start
    truth = (split.test[split.label] == split.positive).to_numpy()
    figures |= {
        "AUC": float(roc_auc_score(truth, proba)),
        "log-loss": float(log_loss(truth, np.clip(proba, 1e-9, 1 - 1e-9))),
        "ECE": calibration_error(proba, truth, seed),
        "accuracy": float(((proba > 0.5) == truth).mean()),
    }
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(_file(folder, data, case, seed), proba=proba, truth=truth, figures=json.dumps(figures))
    shown = {name: round(figures[name], 4) for name in ("AUC", "log-loss", "ECE", "CPU s")}
    print(data, seed, case, shown, figures.get("rule", ""), flush=True)


def _file(folder: Path, data: str, case: str, seed: int) -> Path:
    plain = "".join(letter if letter.isalnum() else "-" for letter in case)
    return folder / f"{data}_{seed}_{plain}.npz"


def read(folder: Path, data: str, case: str) -> dict[int, Any]:
    """Finished runs of a case, by seed."""
    found = {}
    for path in sorted(folder.glob(f"{data}_*.npz")):
        with np.load(path) as kept:
            figures = json.loads(str(kept["figures"]))
            if figures["case"] == case:
                found[figures["seed"]] = (figures, kept["proba"], kept["truth"])
    return found


# --- the page -------------------------------------------------------------------------------------


def sampling_error(truth: np.ndarray, proba: np.ndarray, other: np.ndarray | None = None) -> float:
    """Standard error of an AUC, or of the difference of two, over bootstrapped test rows."""
    rng, found = np.random.default_rng(0), []
    for _ in range(BOOTSTRAP):
        rows = rng.integers(truth.size, size=truth.size)
        one = roc_auc_score(truth[rows], proba[rows])
        found.append(one - (0.0 if other is None else roc_auc_score(truth[rows], other[rows])))
    return float(np.std(found, ddof=1))


def line(folder: Path, data: str, case: str, central: dict[int, Any]) -> list[str] | None:
    """One row of the page, or None where nothing was run."""
    runs = read(folder, data, case)
    if not runs:
        return None
    figures = pd.DataFrame([each[0] for each in runs.values()])
    both = sorted(set(runs) & set(central))
    own = [sampling_error(truth, proba) for _, proba, truth in runs.values()]
    change, error = "", f"- / {np.mean(own):.4f}"
    if both and case != CENTRAL:
        gaps = np.array([runs[s][0]["AUC"] - central[s][0]["AUC"] for s in both])
        over_seeds = gaps.std(ddof=1) / np.sqrt(gaps.size) if gaps.size > 1 else float("nan")
        own = [sampling_error(runs[s][2], runs[s][1], central[s][1]) for s in both]
        change = f"{gaps.mean():+.4f}"
        error = f"{over_seeds:.4f} / {np.mean(own):.4f}"
    spread = figures["AUC"].std(ddof=1) if len(figures) > 1 else float("nan")
    nats_change = ""
    if both and "nats" in figures and case != CENTRAL:
        gaps = [runs[s][0]["nats"] - central[s][0]["nats"] for s in both]
        nats_change = f"{np.mean(gaps):+.2f}"
    share = ""
    if both and "slowest client s" in figures:
        own = [runs[s][0]["slowest client s"] / central[s][0]["CPU s"] for s in both]
        share = f"{np.mean(own):.2f}"
    a_row = f"{figures['bytes a row'].mean():.0f}" if "bytes a row" in figures else ""
    rules = ", ".join(sorted(set(figures["rule"].dropna()))) if "rule" in figures else ""
    return [
        data,
        case,
        str(len(figures)),
        f"{figures['AUC'].mean():.4f} ± {spread:.4f}",
        change,
        error,
        f"{figures['log-loss'].mean():.4f}",
        f"{figures['ECE'].mean():.4f}",
        f"{figures['accuracy'].mean():.4f}",
        nats_change,
        rules,
        f"{figures['CPU s'].mean():.0f}",
        share,
        a_row,
    ]


def kept_lines() -> dict[tuple[str, str], list[str]]:
    """Lines of the page as it is, by data and case."""
    path = tables.ROOT / "docs" / "benchmarks" / "federation_panel.md"
    found = {}
    for text in path.read_text().splitlines() if path.exists() else []:
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        if text.startswith("|") and cells[0] in LOADERS:
            found[cells[0], cells[1]] = [*cells, "", ""][: len(HEADER)]
    return found


def page(folder: Path, command: str, *, keep_fewer: bool) -> None:
    """Write docs/benchmarks/federation_panel.md; lines of cases without runs here stay.

    So do lines of more seeds than were run here, unless `keep_fewer`.
    """
    lines, kept = [], kept_lines()
    for data in LOADERS:
        central = read(folder, data, CENTRAL)
        for case in cases():
            old, new = kept.get((data, case)), line(folder, data, case, central)
            both = [each for each in (new, old) if each is not None]
            lines += both[:1] if keep_fewer else sorted(both, key=lambda e: -int(e[2]))[:1]
    tables.write(
        "federation_panel",
        "Federations as a user runs them, beside centralised training and LightGBM",
        HEADER,
        lines,
        command,
        [
            "Lines may come from different runs of the script: cases that a run leaves out, or "
            "runs with fewer seeds, keep theirs, with changes to the centralised model of their "
            "own run. "
            "Five seeds are not done: the seeds of a line are those that were.",
            "Real handshake: no schema is given, clients agree on one. Default rule and learner, "
            "the label at all clients (rows; both with 2 clients) or sent sealed by its owners.",
            "A seed draws the split over clients, the learner and, but for Adult, the test rows. "
            "Standard deviations divide by n - 1; changes are paired by seed; the error over test "
            f"rows is a bootstrap ({BOOTSTRAP} draws) of the paired difference, for the "
            "centralised model of its AUC. With one seed there is no spread over seeds (nan).",
            "Slowest client: CPU seconds at it, by those of the centralised model. Bytes a row: "
            "all messages after alignment, both ways, but for models, tables of states and the "
            "classes that are sent; of two messages that bring models too an upper bound.",
            "Changes in nats compare densities on the grids that each model has: where clients "
            "agree on other atoms than one table has (Spambase), they say nothing.",
            "'one alone' is the first client that holds the label, with its rows and columns. "
            "'LightGBM' beside a split is the average of the clients' log-odds (rows) or late "
            "fusion of one model a client on a tenth of the rows, with the label at all "
            "(columns); default settings.",
            "How sizes were chosen: those of the rules on training rows of Adult and Credit split "
            "again, but for R = 16 of `latent`, chosen with test rows of one split of Adult in "
            "view (docs/federation.md); those of the boosters of the centralised model with test "
            "rows of these tables in view (docs/learners.md), which favours 'centralised'.",
        ],
    )


def main() -> None:
    """Run what is missing, then write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", nargs="*", default=list(LOADERS), choices=list(LOADERS))
    parser.add_argument("--only", default="", help="run cases whose name holds this")
    parser.add_argument("--rows", type=int, default=0, help="most training rows, 0 for all")
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing after these")
    parser.add_argument("--runs", type=Path, default=Path("federation_panel_runs"))
    parser.add_argument("--page-only", action="store_true", help="run nothing")
    parser.add_argument("--keep-fewer", action="store_true", help="replace lines of more seeds")
    parser.add_argument("--no-page", action="store_true", help="leave the page as it is")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    until = time.monotonic() + arguments.seconds
    for seed in range(0 if arguments.page_only else arguments.seeds):
        for data in arguments.data:
            for case in cases():
                todo = arguments.only in case or case == CENTRAL
                done = _file(arguments.runs, data, case, seed).exists()
                if todo and not done and time.monotonic() < until:
                    run(data, case, seed, arguments.rows, arguments.runs)
    if not arguments.no_page:
        said = f" --seeds {arguments.seeds} --data {' '.join(arguments.data)}"
        said += f" --rows {arguments.rows}" if arguments.rows else ""
        command = f"python benchmarks/federation_panel.py{said}"
        page(arguments.runs, command, keep_fewer=arguments.keep_fewer)


if __name__ == "__main__":
    main()
