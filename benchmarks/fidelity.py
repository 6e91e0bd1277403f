"""How close a model of one table is to its rows: marginals, samples, log-density.

    python benchmarks/fidelity.py --seeds 0 1 2 3 4

Marginals: mean, standard deviation and distribution function of every numeric column against the
training rows, for a centralised model and for federations by rows and by columns. Samples: how
well LightGBM tells them from rows, and how good it is when trained on them. Log-density: beside
Gaussian mixtures with full covariances, in the data's own units (whole numbers: unit cells).
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import cross_val_predict

import fedcircuits as fc
import tables
from learners import DATA

LEVELS = (0.01, 0.05, 0.5, 0.95, 0.99)
Rows = tuple[pd.DataFrame, pd.DataFrame, str | None]
LABELS = {"credit": "SeriousDlqin2yrs", "magic": "class", "spambase": "spam", "cancer": "target"}
FILES = {
    "credit": "give_me_some_credit", "magic": "magic_telescope", "spambase": "spambase",
    "housing": "california_housing",
}  # fmt: skip
MANY_SAMPLES = 4  # times as many as training rows
TRAINED = ("AUC, trained on samples", f"AUC, trained on {MANY_SAMPLES} times as many samples")
REDRAWN = ("AUC, own labels redrawn on rows", f"the same, rows {MANY_SAMPLES} times")
SAMPLE_BOUNDS = {"adult": 0.60, "magic": 0.60, "credit": 0.70, "housing": 0.70}


def rows_of(name: str, seed: int) -> Rows:
    """Training rows, test rows and label: Adult as it is split, others three to one."""
    if name == "adult":
        frame = pd.read_parquet(DATA / "adult.parquet").replace("?", None)
        train, test = (frame[frame["split"] == part] for part in ("train", "test"))
        return train.drop(columns="split"), test.drop(columns="split"), "income"
    if name == "cancer":
        frame = load_breast_cancer(as_frame=True).frame
    else:
        frame = pd.read_parquet(DATA / f"{FILES[name]}.parquet").drop(columns="id", errors="ignore")
    frame = frame.iloc[np.random.default_rng(seed).permutation(len(frame))].reset_index(drop=True)
    cut = 3 * len(frame) // 4
    return frame[:cut], frame[cut:], LABELS.get(name)


# --- marginals ------------------------------------------------------------------------------------


def state_masses(model: fc.Density, name: str) -> tuple[Any, Any]:
    """The grid of a column and the marginal mass of its states, given a value."""
    grid = model.schema[name].grid
    assert grid is not None
    value, log_within = grid.modes()
    n = grid.n_states - grid.missing
    log_prob = model.marginal([name]).log_prob(pd.DataFrame({name: value[:n]})).to_numpy()
    mass = np.zeros(grid.n_states)
    known = log_within[:n] > -np.inf
    mass[:n][known] = np.exp(log_prob - log_within[:n])[known]
    return grid, mass / mass.sum()


def departures(model: fc.Density, train: pd.DataFrame) -> Iterator[tuple[float, float, float]]:
    """Of every numeric column: mean (in standard deviations), spread (share), distribution."""
    for variable in model.schema:
        if variable.is_coded:
            continue
        x = train[variable.name].dropna().to_numpy(dtype=float)
        grid, mass = state_masses(model, variable.name)
        each = grid.moments(1)
        mean = float(mass @ each)
        spread = float(np.sqrt(mass @ (grid.variances() + (each - mean) ** 2)))
        off = []
        for p in LEVELS:
            q = np.quantile(x, p, method="inverted_cdf")
            below = float(mass @ grid.mass_between(-np.inf, q))
            upto = float(mass @ grid.mass_between(-np.inf, np.nextafter(q, np.inf)))
            # A value that repeats in the rows is an atom of them: any level of its step will do.
            repeats = (x == q).sum() > 1
            low, high = ((x < q).mean(), (x <= q).mean()) if repeats else (p, p)
            off.append(max(below - high, low - upto, 0.0))
        sd = float(x.std()) or 1.0
        yield abs(mean - float(x.mean())) / sd, abs(spread / sd - 1), max(off)


def centralised(train: pd.DataFrame, label: str | None, seed: int) -> fc.Density:
    return fc.learn(train, label=label, seed=seed)


def by_rows(train: pd.DataFrame, label: str | None, seed: int) -> fc.Density:
    clients = {name: train.iloc[at::3].reset_index(drop=True) for at, name in enumerate("abc")}
    return fc.federate(clients, label=label, seed=seed)


def by_columns(train: pd.DataFrame, label: str | None, seed: int) -> fc.Density:
    named = train.reset_index(drop=True).rename_axis("row").reset_index()
    columns = [name for name in train.columns if name != label]
    half = len(columns) // 2
    left = ["row", *columns[:half], *([label] if label else [])]
    clients = {"left": named[left], "right": named[["row", *columns[half:]]]}
    return fc.federate(clients, id="row", label=label, seed=seed)


def marginals(
    name: str, how: str, learn: Callable[[pd.DataFrame, str | None, int], fc.Density], seed: int
) -> list[Any]:
    train, _, label = rows_of(name, seed)
    start = time.process_time()
    model = learn(train, label, seed)
    seconds = time.process_time() - start
    found = np.array(list(departures(model, train)))
    times = 1 if learn is centralised else 2
    missed = (found > times * np.array([0.01, 0.05, 0.005])).any(axis=1)
    worst = found.max(axis=0)
    told = f"mean {worst[0]:.4f} sd, sd {100 * worst[1]:.1f} %, F {worst[2]:.4f}"
    bound = f"{0.01 * times:g} sd, {5 * times} %, {0.005 * times:g}"
    holds = f"{(~missed).sum()} of {len(found)} columns"
    return [name, f"marginals, {how}", seed, told, bound, holds, f"{seconds:.1f}"]


# --- samples --------------------------------------------------------------------------------------


def as_features(rows: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """Numbers as floats, the rest as codes of the categories of `like`."""
    made = {}
    for name in like.columns:
        if pd.api.types.is_numeric_dtype(like[name]):
            made[name] = pd.to_numeric(rows[name]).astype(float)
        else:
            levels = sorted(like[name].dropna().astype(str).unique())
            made[name] = pd.Categorical(rows[name].astype(object), levels)
    return pd.DataFrame(made)


def booster(seed: int) -> Any:
    return lightgbm.LGBMClassifier(random_state=seed, verbose=-1, n_jobs=1)


def samples(name: str, seed: int) -> Iterator[list[Any]]:
    train, test, label = rows_of(name, seed)
    start = time.process_time()
    model = fc.learn(train, label=label, seed=seed)
    seconds = f"{time.process_time() - start:.1f}"
    many = model.sample(MANY_SAMPLES * len(train), seed=seed)[list(train.columns)]
    train = train.reset_index(drop=True)
    n = min(len(test), len(train))
    both = pd.concat([as_features(test[:n], train), as_features(many[:n], train)])
    both = as_features(both.reset_index(drop=True), train)
    real = np.repeat([1, 0], n)
    told = cross_val_predict(booster(seed), both, real, cv=3, method="predict_proba")[:, 1]
    auc, bound = roc_auc_score(real, told), SAMPLE_BOUNDS[name]
    yield [name, "AUC of samples against rows", seed, f"{auc:.3f}", bound, auc <= bound, seconds]
    if label is None:
        return
    positive = sorted(train[label].unique())[-1]
    fresh = as_features(test, train).drop(columns=label)

    def auc_of(rows: pd.DataFrame, y: Any) -> float:
        fitted = booster(seed).fit(as_features(rows, train).drop(columns=label), y)
        return float(roc_auc_score(test[label] == positive, fitted.predict_proba(fresh)[:, 1]))

    real_auc = auc_of(train, train[label] == positive)
    for what, rows in zip(TRAINED, (many[: len(train)], many), strict=True):
        auc = auc_of(rows, rows[label] == positive)
        shown = f"{auc:.4f} of {real_auc:.4f}"
        yield [name, what, seed, shown, 0.012, real_auc - auc <= 0.012, seconds]
    # What a sampler that knew every feature exactly would lose: the booster's own probabilities,
    # each row's from folds that did not see it, and labels drawn from them.
    features = as_features(train, train).drop(columns=label)
    own = cross_val_predict(
        booster(seed), features, train[label] == positive, cv=5, method="predict_proba"
    )[:, 1]
    rng = np.random.default_rng(seed)
    for what, times in zip(REDRAWN, (1, MANY_SAMPLES), strict=True):
        rows = pd.concat([train] * times, ignore_index=True)
        auc = auc_of(rows, rng.random(len(rows)) < np.tile(own, times))
        shown = f"{auc:.4f} of {real_auc:.4f}"
        yield [name, what, seed, shown, "-", "-", "-"]


# --- log-density ----------------------------------------------------------------------------------


def log_density(name: str, seed: int) -> list[Any]:
    train, test, _ = rows_of(name, seed)
    train, test = train.dropna(), test.dropna()
    schema = fc.Schema.infer(train)
    schema = schema.with_grids(schema.encode(train))
    names = [v.name for v in schema if v.grid is not None and v.grid.atoms.size == 0]
    train, test = (rows[names].reset_index(drop=True) for rows in (train, test))
    start = time.process_time()
    ours = fc.learn(train, seed=seed).mean_log_prob(test)
    seconds = f"{time.process_time() - start:.1f}"
    mean, sd = train.mean(), train.std()
    z, fresh = (((rows - mean) / sd).to_numpy() for rows in (train, test))
    cut, unit = 9 * len(z) // 10, float(np.log(sd).sum())
    tried = [GaussianMixture(k, random_state=seed).fit(z[:cut]) for k in (8, 16, 32, 64)]
    best = max(tried, key=lambda mixture: mixture.score(z[cut:]))
    theirs = float(best.score(fresh)) - unit
    what = f"log-density of {len(names)} columns without atoms"
    shown = f"Gaussian mixture ({best.n_components}) {theirs:.3f}"
    return [name, what, seed, f"{ours:.3f}", shown, ours > theirs, seconds]


def own_units(name: str, seed: int) -> list[Any]:
    train, test, label = rows_of(name, seed)
    start = time.process_time()
    model = fc.learn(train, label=label, seed=seed)
    seconds = f"{time.process_time() - start:.1f}"
    found = model.mean_log_prob(test, unknown="missing")
    return [name, "log-density of the table", seed, f"{found:.3f}", "-", "-", seconds]


PARTS = ("marginals", "rows", "columns", "samples", "density")
TABLES = ("adult", "credit", "magic", "spambase", "housing", "cancer")


def rows_of_part(part: str, name: str, seed: int) -> list[list[Any]]:
    """Lines of the page for one part, table and seed; none where the part is not for the table."""
    if part == "marginals":
        return [marginals(name, "centralised", centralised, seed)]
    if part == "rows":
        return [marginals(name, "rows, 3 clients", by_rows, seed)]
    if part == "columns":
        return [marginals(name, "columns, 2 clients", by_columns, seed)]
    if part == "samples":
        return list(samples(name, seed)) if name in SAMPLE_BOUNDS else []
    if name in ("magic", "housing"):
        return [log_density(name, seed)]
    return [own_units(name, seed)] if name in ("adult", "credit") else []


def recorded(path: Path, part: str, name: str, seed: int) -> list[list[Any]]:
    """The lines from their record, which is made first where there is none."""
    if not path.exists():
        found = rows_of_part(part, name, seed)
        path.write_text(json.dumps(found, default=lambda value: value.item()))
    return list(json.loads(path.read_text()))


def numbers_in(text: Any) -> list[float]:
    return [float(found) for found in re.findall(r"-?\d+\.\d+|-?\d+", str(text))]


def in_one(rows: list[list[Any]]) -> list[Any]:
    """One line for the seeds of a table and a question."""
    name, what = rows[0][:2]
    _, _, seeds, found, bounds, holds, _ = zip(*rows, strict=True)
    n, bound = len(seeds), bounds[0]
    if "marginals" in what:
        worst = np.max([numbers_in(text) for text in found], axis=0)
        shown = f"mean {worst[0]:.4f} sd, sd {worst[1]:.1f} %, F {worst[2]:.4f}"
        least = min(holds, key=lambda text: numbers_in(text)[0])
        full = sum(numbers_in(text)[0] == numbers_in(text)[1] for text in holds)
        held = f"{least}, all in {full} of {n}"
        return [name, what, n, shown, bound, held]
    held = "-" if holds[0] == "-" else f"{sum(map(bool, holds))} of {n}"
    if "Gaussian" in str(bound):
        theirs = [numbers_in(text)[-1] for text in bounds]
        away = [float(ours) - other for ours, other in zip(found, theirs, strict=True)]
        shown, bound = f"{np.mean(np.array(found, dtype=float)):.3f}", f"{np.mean(theirs):.3f}"
        return [name, f"{what}, Gaussian mixture", n, f"{shown} ({listed(away)})", bound, held]
    if " of " in str(found[0]):
        away = [one - real for one, real in map(numbers_in, found)]
        real = np.mean([numbers_in(text)[1] for text in found])
        shown = f"{np.mean(away):+.4f} of {real:.4f} ({listed(away)})"
        return [name, what, n, shown, bound if bound == "-" else f"-{bound}", held]
    values = [float(one) for one in found]
    return [name, what, n, f"{np.mean(values):.3f} ({', '.join(map(str, found))})", bound, held]


def by_question(rows: list[list[Any]]) -> list[list[list[Any]]]:
    """Lines of the same table and question; how many columns have no atoms depends on the rows."""
    groups: dict[tuple[str, str], list[list[Any]]] = {}
    for row in rows:
        row[1] = re.sub(r"of \d+ columns", "of the columns", row[1])
        groups.setdefault((row[0], row[1]), []).append(row)
    return list(groups.values())


def listed(values: list[float]) -> str:
    return ", ".join(f"{value:+.4f}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--records", type=Path, help="folder of runs done, to go on from")
    parser.add_argument("--only-records", action="store_true", help="run nothing")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks/fidelity.md")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as fresh:
        folder = options.records or Path(fresh)
        folder.mkdir(parents=True, exist_ok=True)
        for part, name, seed in product(options.parts, options.tables, options.seeds):
            path = folder / f"{part}-{name}-{seed}.json"
            if options.only_records and not path.exists():
                continue
            for row in recorded(path, part, name, seed):
                print(*row, sep=" | ", flush=True)
                rows.append(row)
    if options.write:
        tables.write(
            "fidelity",
            "Fidelity of one table's model",
            ["table", "what", "seeds", "found", "bound", "holds"],
            [in_one(list(some)) for some in by_question(rows)],
            "python benchmarks/fidelity.py --write --records FOLDER --seeds "
            + " ".join(map(str, options.seeds)),
            [
                "Seeds in order in brackets; what is not here was not run.",
                "Trained on samples: LightGBM's AUC less that of LightGBM trained on the rows. "
                "As many samples as there are training rows, and four times as many. Labels "
                "drawn once say less than a row's own, whatever the model: *own labels redrawn* "
                "has LightGBM trained on the rows themselves with labels drawn from its own "
                "cross-fitted probabilities.",
                "Marginals: worst column and seed; mean in standard deviations of the rows, "
                "standard deviation in per cent, distribution function at .01, .05, .5, .95, "
                ".99. A client tells of five rows or more together: of 426 rows (Cancer) the "
                "outermost hundredth is four, so that its quantile is known to about a "
                "hundredth.",
                "Log-density in the data's own units, nats per row of the test rows; beside "
                "Gaussian mixtures the differences are in brackets and the mixture's mean is "
                "the bound.",
            ],
        )


if __name__ == "__main__":
    main()
