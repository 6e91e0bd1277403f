"""`fedcircuits demo`: one table split three ways over clients, one model from each, a report."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from fedcircuits.api import partition
from fedcircuits.api.datasets import Split, loans, random_split
from fedcircuits.api.federate import federate
from fedcircuits.api.learn import learn
from fedcircuits.cli.federation_file.draft import missing_spellings
from fedcircuits.cli.output import Output
from fedcircuits.density import Density
from fedcircuits.errors import FedcircuitsError, FedcircuitsWarning, unknown_name
from fedcircuits.report.scores import label_scores
from fedcircuits.schema import read
from fedcircuits.schema.identifiers import identifiers
from fedcircuits.schema.numbers import is_number

MOST_ROWS, FEWEST_ROWS = 8000, 100  # of a table of the user's own
SPLITS = {"rows": "rows split", "columns": "columns split", "both": "rows and columns"}


def run(
    out: Output,
    seed: int,
    data: Path | None = None,
    label: str | None = None,
    sep: str | None = None,
    report: Path = Path("report.html"),
) -> None:
    """Split, train, query, compare with the whole table and each client alone, write a report."""
    if report.is_dir() or not report.parent.exists():
        raise FedcircuitsError(f"cannot write {report}: not a file in an existing folder")
    split = loans(seed=seed) if data is None else _own(out, data, label, sep, seed)
    n_clients = 4 if split.train.shape[1] > 8 else 2
    out.say(
        f"{'Generated loans' if data is None else data}: {len(split.train)} rows and "
        f"{split.train.shape[1]} columns to learn from, {len(split.test)} rows held out; "
        f"{n_clients} clients."
    )
    rows: list[list[Any]] = []
    answers: dict[str, Any] = {"n_clients": n_clients}
    feds: dict[str, Any] = {}
    with out.progress() as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", FedcircuitsWarning)
        step, steps = 0, 2 + (1 + n_clients) * len(SPLITS)

        def begin(text: str) -> None:
            nonlocal step
            progress(step / steps, text)
            step += 1

        begin("all rows in one place")
        model, seconds = _timed(learn, split.train, split.label, seed=seed)
        answers["centralised"] = scores = _scores(model, split)
        rows.append(["all in one place", *scores.values(), seconds, None])
        for name, words in SPLITS.items():
            shares = _shares(split.train, name, split.label, n_clients, seed)
            begin(f"{words}: federated")
            id = None if name == "rows" else partition.ID
            fed, seconds = _timed(federate, shares, id, split.label, seed=seed)
            feds[name] = fed
            scores = _scores(fed, split)
            rows.append([f"{words}: federated", *scores.values(), seconds, fed.ledger.n_bytes])
            answers[name] = {
                "setting": fed.setting, "rule": fed.rule.name, "bytes": fed.ledger.n_bytes,
                "seconds": seconds, **scores, "alone": {},
            }  # fmt: skip
            for client, own in shares.items():
                begin(f"{words}: {client} alone")
                if split.label not in own:
                    rows.append([f"  {client} alone: no label", *[None] * 5])
                    continue
                own = own.drop(columns=partition.ID, errors="ignore")
                alone, seconds = _timed(learn, own, split.label, seed=seed)
                scores = answers[name]["alone"][client] = _scores(alone, split)
                nats = scores["log_prob"] if len(alone.schema) == split.train.shape[1] else None
                rows.append(
                    [f"  {client} alone", scores["accuracy"], scores["auc"], nats, seconds, None]
                )
        begin("writing the report")
        feds["columns"].report(report, split.test, label=split.label)
    out.table(
        "on the held-out rows",
        ["", "accuracy", "AUC", "nats per row", "seconds", "bytes moved"],
        [[row[0], *[_short(value) for value in row[1:]]] for row in rows],
    )
    out.say("(nats per row are shown where all columns are modelled)")
    _questions(out, feds["columns"], split, answers, seed)
    _bytes(out, feds, answers)
    answers["report"] = str(report)
    out.say(
        f"\n{report} shows the model from split columns: scores, who holds and adds what, what was "
        "sent. Open it in a browser."
    )
    out.result(answers)


def _own(out: Output, data: Path, label: str | None, sep: str | None, seed: int) -> Split:
    """Return a table of the user's own with a quarter of its rows held out."""
    frame = read(data, sep=sep)
    if label is None or label not in frame.columns:
        names = [str(name) for name in frame.columns]
        said = f"the table has {', '.join(names)}"
        if label is not None:
            said = unknown_name("column", label, names, "the table")
        raise FedcircuitsError(f"say which column is predicted: --label COLUMN ({said})")
    if is_number(frame[label]):
        raise FedcircuitsError(
            f"the demo predicts classes, and {label!r} holds {frame[label].nunique()} different "
            "numbers: cut it into classes, or learn it with fedcircuits learn --label"
        )
    spellings = missing_spellings({"": frame})
    if spellings:
        out.note(f"read as missing: {', '.join(map(repr, spellings))}")
        frame = frame.replace(list(spellings), None).infer_objects()
        for name in frame.columns:
            numbers = pd.to_numeric(frame[name], errors="coerce")
            if numbers.notna().sum() == frame[name].notna().sum():
                frame[name] = numbers
    frame = frame[frame[label].notna()]
    for name, why in identifiers(frame, {label}).items():
        out.note(f"left out column {name!r}: {why}, as an identifier has")
        frame = frame.drop(columns=name)
    counts = frame[label].value_counts()
    if len(frame) < FEWEST_ROWS or frame.shape[1] < 4 or len(counts) < 2 or counts.min() < 8:
        raise FedcircuitsError(
            f"the demo needs {FEWEST_ROWS} rows, three columns besides the label and two classes "
            f"of eight rows or more; found {len(frame)} rows, {frame.shape[1]} columns and classes "
            f"of {', '.join(map(str, counts.head(8)))} rows"
        )
    if len(frame) > MOST_ROWS:
        out.note(f"{MOST_ROWS} of {len(frame)} rows are used, so that it takes about a minute")
        frame = frame.sample(MOST_ROWS, random_state=seed)
    return random_split(frame, label, counts.index[-1], seed, 0.25)


def _timed(make: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    made = make(*arguments, **options)
    return made, time.perf_counter() - start


def _shares(
    train: pd.DataFrame, name: str, label: str, n_clients: int, seed: int
) -> dict[str, pd.DataFrame]:
    """Return the table split over the clients; with columns split, one of them has the label."""
    if name == "rows":
        return partition.iid(train, n_clients, seed)
    if name == "columns":
        return partition.random_columns(train, n_clients, label=label, seed=seed)
    return partition.hybrid(train, n_clients, label=label, seed=seed)


def _scores(model: Density, split: Split) -> dict[str, float]:
    proba = model.predict_proba(split.test, split.label, unknown="missing")
    found = label_scores(proba, split.test[split.label])
    nats = model.mean_log_prob(split.test, unknown="missing")
    return {"accuracy": found.accuracy, "auc": found.auc, "log_prob": nats}


def _short(value: Any) -> Any:
    return f"{value:.3f}" if isinstance(value, float) else value


def _questions(out: Output, fed: Any, split: Split, answers: dict[str, Any], seed: int) -> None:
    """Show queries that only a joint distribution answers, on the model of split columns."""
    away = max(fed.clients)
    rest = fed.without(away)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedcircuitsWarning)
        missing = _scores(rest, split)
    out.say(
        f"\nThe model from {len(fed.clients)} silos of columns, asked:\n"
        f"- without {away} (its {len(fed.schema) - len(rest.schema)} columns summed out exactly, "
        f"nothing trained again): accuracy {missing['accuracy']:.3f}, AUC {missing['auc']:.3f}"
    )
    answers["missing silo"] = {"client": away, **missing}
    given = {split.label: split.positive}
    numbers = [v.name for v in fed.schema if not v.is_coded and v.time is None][:3]
    facts = [
        [
            name,
            fed.expectation(name),
            fed.expectation(name, given),
            fed.variance(name, given) ** 0.5,
        ]
        for name in numbers
    ]
    if facts:
        out.table(
            f"given {split.label} = {split.positive}",
            ["variable", "mean", "mean given", "sd given"],
            facts,
        )
    drawn = fed.condition(given).sample(3, seed=seed).iloc[:, :5]
    answers["sample"] = drawn.to_dict("records")
    rows = [list(row) for row in drawn.itertuples(index=False, name=None)]
    title = f"three samples given {split.label} = {split.positive}, first columns"
    out.table(title, [str(name) for name in drawn.columns], rows)
    gone = [name for name in fed.schema.names if name not in rest.schema.names]
    case = split.test[split.test[split.label] == split.positive].head(1)
    best = fed.mpe(case.drop(columns=gone))
    answers["mpe"] = best[gone].to_dict("records")[0]
    out.table(
        f"most probable completion ({best.attrs['method']}) of what {away} would know of one case",
        ["variable", "completed", "true"],
        [[name, best[name].iloc[0], case[name].iloc[0]] for name in gone[:4]],
    )


def _bytes(out: Output, feds: dict[str, Any], answers: dict[str, Any]) -> None:
    """Show measured bytes beside FedAvg and SplitNN for the same clients and rows."""
    rows = []
    for name, fed in feds.items():
        table = fed.communication()
        measured, rival = table.iloc[0], table.iloc[4 if name == "columns" else 3]
        rows.append(
            [SPLITS[name], fed.rule.name, int(measured["bytes"]), rival["what"].split(",")[0],
             int(rival["bytes"]), f"{rival['times measured']:.2g}x"]
        )  # fmt: skip
        answers[name]["communication"] = table.to_dict("records")
    out.table(
        "bytes of one training, beside the formula of the usual rival (50 rounds or epochs)",
        ["", "rule", "ours", "rival", "rival's", ""],
        rows,
    )
