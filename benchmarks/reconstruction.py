"""Rows that a passive server reconstructs from all that it saw, whatever the messages are called.

    .venv/bin/python benchmarks/reconstruction.py 2000   # writes docs/benchmarks/reconstruction.md

The server keeps every reply and every gathered model. Arrays about single rows are found by their
shapes: `per_row` looks for axes as long as a set of rows that both sides know, in arrays and in
headers, and for whole numbers packed into bytes. The attacker of `recovered` also knows all cells
of half of the rows, and says for each other row the world (combination of cells) that is likeliest

- from the model alone,
- from the model and the codes that are declared,
- from everything that was seen: known rows with the same or the nearest values, and worlds whose
  log-likelihoods under the gathered models are the values received.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from scipy.spatial import cKDTree

from fedcircuits import federate
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.engines import LocalEngine
from fedcircuits.schema import Schema
from recorder import Recorder
from row_arrays import Seen, per_row
from tables import ROOT, write

ID, LABEL = "pid", "income"
SAME = 1e-6  # nats
MOST_WORLDS = 20_000
PRIOR = 1.0  # known rows that the model counts for


@dataclass(frozen=True)
class Recovery:
    """Shares of a client's rows and cells.

    Attributes:
        rows: rows of which every cell is right.
        cells: cells that are right.
        hits: (n,) which rows are whole.
    """

    rows: float
    cells: float
    hits: BoolArray


@dataclass(frozen=True)
class Reconstruction:
    """What each kind of guess recovers of one client's rows."""

    by_model: Recovery
    by_codes: Recovery
    by_all: Recovery

    @property
    def gain(self) -> tuple[float, float]:
        """Rows recovered beyond the guess from model and codes, and the standard error of that."""
        apart = self.by_all.hits.astype(float) - self.by_codes.hits
        return float(apart.mean()), float(apart.std(ddof=1) / np.sqrt(apart.size))


def recovered(
    client: str, frame: pd.DataFrame, fed: Any, seen: Sequence[Seen], seed: int = 0
) -> Reconstruction:
    """Attack one client's rows.

    Where cells have too many combinations, or are numbers, the attacker is told which combinations
    occur; that helps every guess.

    Args:
        client: whose.
        frame: its rows, without the id.
        fed: the federated model, with what was gathered.
        seen: what `per_row` found.
        seed: of the choice of known rows.
    """
    names = list(frame)
    worlds = _worlds(frame, fed.schema.select(names))
    both = pd.concat([worlds, frame], ignore_index=True)
    number = both.groupby(names, dropna=False, sort=False).ngroup().to_numpy()  # worlds come first
    truth = number[len(worlds) :]
    prior = np.exp(np.asarray(fed.marginal(names).log_prob(worlds), dtype=float))  # (W,)
    known = np.random.default_rng(seed).random(len(frame)) < 0.5
    mine = [each for each in seen if each.client == client and (each.rows >= 0).all()]
    codes = _table([each for each in mine if each.is_code], len(frame))
    every = _table(mine, len(frame))
    cells = np.column_stack(
        [pd.factorize(worlds[name], use_na_sentinel=False)[0] for name in names]
    )  # (W, D)

    def scored(posterior: FloatArray) -> Recovery:
        guess = posterior.argmax(axis=1)
        right = np.empty((len(guess), len(names)), dtype=bool)
        target = truth[~known]
        for column, own in enumerate(cells.T):
            to_state = csr_array((np.ones(own.size), (own, np.arange(own.size))))  # (states, W)
            mass = (to_state @ posterior.T).T  # (n, states)
            right[:, column] = mass.argmax(axis=1) == own[target]
        hits = guess == target
        return Recovery(float(hits.mean()), float(right.mean()), hits)

    alone = np.repeat(prior[None], int((~known).sum()), axis=0)
    by_model = scored(alone)
    by_codes = _best([by_model, scored(_same(codes, known, truth, alone))])
    attempts = [by_codes, scored(_same(every, known, truth, _same(codes, known, truth, alone)))]
    if any(each.values.dtype.kind == "f" for each in mine):
        near = cKDTree(_scaled(every)[known]).query(_scaled(every)[~known])[1]
        attempts.append(scored(alone + 2 * _ones(truth[known][near], len(worlds))))
        matches = _matches(mine, client, fed, worlds, len(frame))  # (n, W)
        attempts.append(scored(alone + 2 * matches[~known]))
    return Reconstruction(by_model, by_codes, _best(attempts))


def _best(attempts: Sequence[Recovery]) -> Recovery:
    """The best by whole rows, with the most cells of any."""
    best = max(attempts, key=lambda each: each.rows)
    return replace(best, cells=max(each.cells for each in attempts))


def _worlds(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Combinations of cells: all of them, or those that occur where they are too many."""
    if all(variable.is_coded for variable in schema) and not frame.isna().any(axis=None):
        states = [variable.categories for variable in schema]
        if np.prod([len(each) for each in states], dtype=float) <= MOST_WORLDS:
            return pd.DataFrame(list(itertools.product(*states)), columns=list(frame))
    return frame.drop_duplicates(ignore_index=True)


def _table(seen: Sequence[Seen], n: int) -> FloatArray:
    """(n, k) values side by side; nan for rows that nothing was said about."""
    parts = []
    for each in seen:
        part = np.full((n, each.values.shape[1]), np.nan)
        part[each.rows] = each.values
        parts.append(part)
    return np.concatenate([np.zeros((n, 1)), *parts], axis=1)


def _same(values: FloatArray, known: BoolArray, truth: IntArray, prior: FloatArray) -> FloatArray:
    """(t, W) worlds of known rows with the same values, the prior counting for `PRIOR` rows."""
    near = np.round(np.nan_to_num(values, nan=-1e9, neginf=-1e8), 4)
    keys = np.unique(near, axis=0, return_inverse=True)[1].ravel()
    counts = np.zeros((keys.max() + 1, prior.shape[1]))
    np.add.at(counts, (keys[known], truth[known]), 1.0)
    found: FloatArray = PRIOR * prior / prior.sum(axis=1, keepdims=True) + counts[keys[~known]]
    return found


def _scaled(values: FloatArray) -> FloatArray:
    filled = np.nan_to_num(values, nan=0.0, neginf=-1e3)
    spread: FloatArray = filled / np.maximum(filled.std(axis=0), 1e-12)
    return spread


def _ones(at: IntArray, width: int) -> FloatArray:
    found = np.zeros((at.size, width))
    found[np.arange(at.size), at] = 1.0
    return found


def _matches(
    seen: Sequence[Seen], client: str, fed: Any, worlds: pd.DataFrame, n: int
) -> FloatArray:
    """(n, W) share of the received numbers that each world has under some gathered model."""
    own = []
    for key, model in fed.fitted.models.items():
        if key.client == client:
            own.append(np.asarray(model.log_prob(worlds[list(model.schema.names)]), dtype=float))
    found, asked = np.zeros((n, len(worlds))), np.zeros(n)
    for each in seen:
        if each.values.dtype.kind != "f" or not own:
            continue
        for column in each.values.T.astype(float):
            finite = np.isfinite(column)
            if not finite.any():
                continue
            fits = [np.abs(column[finite][:, None] - values) < SAME for values in own]
            best = max(fits, key=lambda fit: fit.any(axis=1).mean())
            if best.any(axis=1).mean() > 0.99:  # which model a vector is of shows in its values
                found[each.rows[finite]] += best
                asked[each.rows[finite]] += 1
    shares: FloatArray = found / np.maximum(asked, 1)[:, None]
    return shares


def adult(setting: str, n: int) -> dict[str, pd.DataFrame]:
    """Rows of Adult over three clients (rows) or two (columns, both), with the label at each."""
    from fedcircuits import datasets

    rows = datasets.adult(ROOT.parent / "shared" / "data").train.iloc[:n].copy()
    if setting == "rows":
        return {k: rows.iloc[at::3].reset_index(drop=True) for at, k in enumerate("abc")}
    rows[ID] = [f"p{at}" for at in range(len(rows))]
    own = ["age", "sex", "race", "hours-per-week"]
    rest = [name for name in rows if name not in own]
    share = slice(0, n) if setting == "columns" else slice(n // 4, n)
    b = rows[[*own, LABEL, ID]].iloc[share].sample(frac=1, random_state=3)
    a = rows[rest] if setting == "columns" else rows[rest].iloc[: 3 * n // 4]
    return {"a": a.reset_index(drop=True), "b": b.reset_index(drop=True)}


def line(setting: str, n: int) -> list[list[Any]]:
    """Lines of the table: each client of a default federation of Adult."""
    tables = adult(setting, n)
    specs = {
        name: ClientSpec(name, frame, "hclt", id=ID if ID in frame else None)
        for name, frame in tables.items()
    }
    engine = Recorder(LocalEngine({name: spec.make() for name, spec in specs.items()}))
    fed = federate(engine=engine, id=None if setting == "rows" else ID, label=LABEL)
    seen = per_row(engine, {name: len(frame) for name, frame in tables.items()}, n // 8)
    found = []
    for name, frame in tables.items():
        result = recovered(name, frame.drop(columns=ID, errors="ignore"), fed, seen)
        cells = [setting, fed.rule.name, name, len(frame), frame.shape[1] - (ID in frame)]
        for each in (result.by_model, result.by_codes, result.by_all):
            cells += [f"{each.rows:.3f}", f"{each.cells:.3f}"]
        found.append([*cells, f"{fed.ledger.bits(name):.1f}"])
    return found


def main() -> None:
    """Attack default federations of Adult and write the page."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    guesses = ("model alone", "model and codes", "all that was seen")
    heads = [f"{what}: {share}" for what in guesses for share in ("rows", "cells")]
    write(
        "reconstruction",
        "Rows that a passive server recovers from default federations",
        ["split", "rule", "client", "rows", "columns", *heads, "bits a row"],
        [each for setting in ("rows", "columns", "both") for each in line(setting, n)],
        f"python benchmarks/reconstruction.py {n}",
        [
            f"Adult, {n} rows, `federate` with its defaults, one seed. Shares of rows with every "
            "cell right, and of cells; numbers count as right where they are exact.",
            "Every guess may use the list of combinations of cells that occur, the two on the "
            "right also all cells of half of the rows; shares are of the other half. A server "
            "without such knowledge reaches less. Compare the last two.",
            "Codes are those of the client itself. Bits a row are what the ledger counts, one of "
            "them for the digest of the id.",
        ],
    )


if __name__ == "__main__":
    main()
