"""`fedcircuits demo`: one table split three ways over four clients, one model from each."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import pandas as pd
from sklearn.metrics import roc_auc_score

from fedcircuits.api import partition
from fedcircuits.api.datasets import Split, loans
from fedcircuits.api.federate import federate
from fedcircuits.api.learn import learn
from fedcircuits.cli.output import Output
from fedcircuits.density import Density
from fedcircuits.errors import FedcircuitsWarning

N_CLIENTS = 4
SHOWN = ["income", "card_use", "late_payments"]
SPLITS = {"rows": "rows split", "columns": "columns split", "both": "rows and columns"}


def run(out: Output, seed: int) -> None:
    """Split, train, query, and compare with the whole table and with each client alone."""
    split = loans(seed=seed)
    out.say(
        f"Generated loans: {len(split.train)} rows and {split.train.shape[1]} columns to learn "
        f"from, {len(split.test)} rows held out; {N_CLIENTS} clients."
    )
    rows: list[list[Any]] = []
    answers: dict[str, Any] = {"n_clients": N_CLIENTS}
    feds: dict[str, Any] = {}
    with out.progress() as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", FedcircuitsWarning)
        step, steps = 0, 1 + (1 + N_CLIENTS) * len(SPLITS)

        def begin(text: str) -> None:
            nonlocal step
            progress(step / steps, text)
            step += 1

        begin("all rows in one place")
        model, seconds = _timed(learn, split.train, split.label, seed=seed)
        answers["centralised"] = scores = _scores(model, split)
        rows.append(["all in one place", *scores.values(), seconds, None])
        for name, words in SPLITS.items():
            shares = _shares(split.train, name, split.label, seed)
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
    out.table(
        "on the held-out rows",
        ["", "accuracy", "AUC", "nats per row", "seconds", "bytes moved"],
        [[row[0], *[_short(value) for value in row[1:]]] for row in rows],
    )
    out.say("(nats per row are shown where all columns are modelled)")
    _questions(out, feds["columns"], split, answers, seed)
    _bytes(out, feds, answers)
    out.result(answers)


def _timed(make: Callable[..., Any], *arguments: Any, **options: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    made = make(*arguments, **options)
    return made, time.perf_counter() - start


def _shares(train: pd.DataFrame, name: str, label: str, seed: int) -> dict[str, pd.DataFrame]:
    """Return the table split over the clients; with columns split, one of them has the label."""
    if name == "rows":
        return partition.iid(train, N_CLIENTS, seed)
    if name == "columns":
        return partition.random_columns(train, N_CLIENTS, label=label, seed=seed)
    return partition.hybrid(train, N_CLIENTS, label=label, seed=seed)


def _scores(model: Density, split: Split) -> dict[str, float]:
    proba = model.predict_proba(split.test, split.label)[split.positive]
    truth = split.test[split.label] == split.positive
    return {
        "accuracy": float(((proba > 0.5) == truth).mean()),
        "auc": float(roc_auc_score(truth, proba)),
        "log_prob": model.mean_log_prob(split.test),
    }


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
        f"\nThe model from {N_CLIENTS} silos of columns, asked:\n"
        f"- without {away} (its {len(fed.schema) - len(rest.schema)} columns summed out exactly, "
        f"nothing trained again): accuracy {missing['accuracy']:.3f}, AUC {missing['auc']:.3f}"
    )
    answers["missing silo"] = {"client": away, **missing}
    given = {split.label: split.positive}
    facts = [
        [
            name,
            fed.expectation(name),
            fed.expectation(name, given),
            fed.variance(name, given) ** 0.5,
        ]
        for name in SHOWN
    ]
    out.table(
        f"given {split.label} = {split.positive}",
        ["variable", "mean", "mean given", "sd given"],
        facts,
    )
    drawn = fed.condition(given).sample(3, seed=seed)[SHOWN]
    answers["sample"] = drawn.to_dict("records")
    rows = [[float(v) for v in row] for row in drawn.to_numpy()]
    out.table(f"three samples given {split.label} = {split.positive}", SHOWN, rows)
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
             int(rival["bytes"]), f"{rival['times measured']:.0f}x"]
        )  # fmt: skip
        answers[name]["communication"] = table.to_dict("records")
    out.table(
        "bytes of one training, beside the formula of the usual rival (50 rounds or epochs)",
        ["", "rule", "ours", "rival", "rival's", ""],
        rows,
    )
