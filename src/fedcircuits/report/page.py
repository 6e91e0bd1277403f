"""Renders the report of a model as one HTML page that needs nothing from the network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment

from fedcircuits import encoding
from fedcircuits.arrays import FloatArray
from fedcircuits.errors import FedcircuitsError, unknown_name
from fedcircuits.report import about_federation, figures, held_out, networks, of_images
from fedcircuits.report.meanings import explained
from fedcircuits.report.section import Section
from fedcircuits.report.words import used
from fedcircuits.schema import Data, Variable
from fedcircuits.schema.images import encode_images, is_images, is_pixel
from fedcircuits.schema.reading.known import read_known

SAMPLES = 5000
VARIABLES_SHOWN, MOVERS_SHOWN = 24, 8
CATEGORIES_SHOWN, BINS, POINTS = 10, 30, 25
ROOM = 6.4  # rem for an inch of a figure
WIDE = 32.0  # rem from which a figure has a row of its own


def write_report(
    model: Any,
    path: str | Path,
    rows: Data | None = None,
    *,
    label: str | None = None,
    seed: int = 0,
    figures_to: str | Path | None = None,
    scored: Any = None,
) -> Path:
    """Writes a report of a model to one HTML file and returns its path.

    Args:
        model: a density.
        path: where the page goes.
        rows: held-out rows, in which the model's scores and marginals are shown beside the data.
        label: variable whose prediction is scored; by default the one it was trained for.
        seed: of the samples that are drawn.
        figures_to: a folder that also gets every figure as an SVG file.
        scored: the model whose scores on the rows are shown, where the model itself has learned
            from them: it was learned in the same way without them.
    """
    if not isinstance(path, str | Path):
        raise FedcircuitsError(f"report takes the path of a file, found {type(path).__name__}")
    target = Path(path)
    if target.is_dir() or not target.parent.exists():
        raise FedcircuitsError(f"cannot write {target}: not a file in an existing folder")
    if isinstance(rows, np.ndarray) and is_images(rows):
        table = encode_images(model.schema, rows)
        table = table.columns([n for n in model.schema.names if is_pixel(n)])  # no label is known
        rows = table.schema.decode(np.where(table.observed, table.values, np.nan), table.index)
    frame = None if rows is None else read_known(rows, model.schema)
    label = label or trained_for(model)
    if label is not None and label not in model.schema:
        raise FedcircuitsError(unknown_name("variable", label, model.schema.names, "the model"))
    parts = list(sections(model, frame, label, seed, scored))
    words = used(parts)
    if words is not None:
        parts.append(words)
    text = _render(model, label, frame, parts)
    encoding.write(target, text.encode())
    if figures_to is not None:
        _write_figures(Path(figures_to), parts)
    return target


def trained_for(model: Any) -> str | None:
    """Name of the label a model was trained to predict, if it says so."""
    report = getattr(model, "fit_report", None)
    label = getattr(model, "label", None) or getattr(report, "label", None)
    label = label or getattr(getattr(model, "fitted", None), "label", None)
    return label if isinstance(label, str) and label in model.schema else None


def sections(
    model: Any, rows: pd.DataFrame | None, label: str | None, seed: int, scored: Any = None
) -> Iterable[Section]:
    """Yields the sections of a report in the order of the page."""
    drawn = model.sample(SAMPLES, seed=seed)
    names = networks.names_drawn(model.schema.names, label)
    pictured = of_images.section(model, rows, drawn, label)
    several = len(names) > 1 and pictured is None
    shared = model.mutual_information_matrix(names) if several else pd.DataFrame()
    if rows is not None:
        yield held_out.section(model if scored is None else scored, rows, label, scored is not None)
    if about_federation.is_federation(model):
        yield from about_federation.sections(model, rows, label)
    if label is not None and several:
        yield _movers(model, label, drawn, shared)
    yield pictured or _marginals(model, rows, drawn)
    if several:
        yield _dependence(shared, label)
    yield _how_fitted(model)


def _movers(model: Any, label: str, drawn: pd.DataFrame, matrix: pd.DataFrame) -> Section:
    """Which variables say most about the label, and how its distribution moves with each."""
    shared = matrix[label].drop(index=label).sort_values(ascending=False).head(MOVERS_SHOWN)
    names, values = list(shared.index), shared.to_numpy(dtype=float)
    title = f"mutual information with {label}, nats"
    pictures = [(title, figures.ranking(names, values, title, "nats"))]
    pictures += [_effect(model, label, name, drawn) for name in names[:6]]
    moved = "mean" if model.schema[label].outcomes is None else "probability"
    return Section(
        f"What moves {label}",
        f"How much each variable alone says about {label}, and how its {moved} moves with the "
        "variable, all others summed out exactly.",
        pictures=pictures,
    )


def _effect(model: Any, label: str, name: str, drawn: pd.DataFrame) -> tuple[str, str]:
    variable: Variable = model.schema[name]
    title = f"{label} given {name}"
    if variable.is_coded and variable.outcomes is not None:
        counts = drawn[name].value_counts()
        there = [v for v in variable.outcomes if counts.get(v, 0) > 0]
        if not there:
            return title, ""
        common = set(sorted(there, key=lambda v: -counts[v])[:CATEGORIES_SHOWN])
        values = [v for v in there if v in common]
        title += _of_all(len(values), len(variable.outcomes))
        series, y = _answers(model, label, pd.DataFrame({name: values}), drawn)
        return title, figures.bars([str(v) for v in values], series, title, y)
    known = drawn[name].dropna()
    ends = 0.01 * (len(known) - 1), 0.99 * (len(known) - 1)  # without the farthest values
    chosen = known.sort_values().iloc[np.linspace(*ends, POINTS).astype(int)].unique()
    asked = pd.Series(chosen)
    points = held_out.numbers(variable, asked)
    series, y = _answers(model, label, pd.DataFrame({name: asked}), drawn)
    dates = _is_dates(variable)
    return title, figures.lines(points, series, title, name, y, dates=dates)


def _of_all(n_shown: int, n_all: int) -> str:
    """How many categories a picture leaves out, in brackets."""
    return f" (the {n_shown} commonest of {n_all})" if n_shown < n_all else ""


def _answers(
    model: Any, label: str, rows: pd.DataFrame, drawn: pd.DataFrame
) -> tuple[dict[str, FloatArray], str]:
    """What is said of the label given each row, by name, and what that is."""
    variable: Variable = model.schema[label]
    short = figures.shortened(label, 16)
    if variable.outcomes is None:
        mean = held_out.numbers(variable, model.predict(rows, label))
        return {label: mean}, f"mean of {short}"
    proba = model.predict_proba(rows, label, impossible="nan")
    if proba.shape[1] == 2:
        rarer = held_out.rarer(proba.columns, drawn[label].dropna())
        return {label: proba[rarer].to_numpy()}, f"p({short} = {figures.shortened(rarer, 12)})"
    counts = drawn[label].value_counts()
    shown = sorted(proba.columns, key=lambda y: -counts.get(y, 0))[:3]
    return {
        figures.shortened(y, 16): np.asarray(proba[y], dtype=np.float64) for y in shown
    }, f"p({short} = ...)"


def _marginals(model: Any, rows: pd.DataFrame | None, drawn: pd.DataFrame) -> Section:
    pictures = []
    for name in list(model.schema.names)[:VARIABLES_SHOWN]:
        real = None if rows is None or name not in rows.columns else rows[name].dropna()
        variable = model.schema[name]
        n_bars = len(variable.outcomes) if variable.is_coded else 0
        title = name + _of_all(CATEGORIES_SHOWN, n_bars) if n_bars > CATEGORIES_SHOWN else name
        pictures.append((title, _marginal(variable, real, drawn[name].dropna())))
    words = "Samples of the model" + ("." if rows is None else " beside the held-out rows.")
    left = len(model.schema) - VARIABLES_SHOWN
    if left > 0:
        words += f" The first {VARIABLES_SHOWN} variables; {left} more are not drawn."
    return Section("Single variables", words, pictures=pictures)


def _marginal(variable: Variable, real: pd.Series[Any] | None, drawn: pd.Series[Any]) -> str:
    series = {} if real is None or real.empty else {"rows": real}
    series["model"] = drawn
    title = f"distribution of {variable.name}"
    if variable.is_coded or (variable.outcomes is not None and len(variable.outcomes) <= 12):
        spelled = {key: _spelled(variable, values) for key, values in series.items()}
        every = {key: values.value_counts(normalize=True) for key, values in spelled.items()}
        # Also those that the model knows and few rows have, or none.
        commonest = pd.DataFrame(every).max(axis=1).sort_values(ascending=False, kind="stable")
        names = list(commonest.index[:CATEGORIES_SHOWN])
        if _is_ordered(variable):
            names.sort(key=float)
        shares = {key: values.reindex(names).fillna(0.0) for key, values in every.items()}
        found = {key: np.asarray(values, dtype=np.float64) for key, values in shares.items()}
        return figures.bars(names, found, title, "share of rows")
    numbers = {key: held_out.numbers(variable, values) for key, values in series.items()}
    first_numbers = next(iter(numbers.values()))
    low, high = np.quantile(first_numbers, [0.005, 0.995])
    edges = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
    if variable.kind == "count":  # every bin holds as many whole numbers
        step = max(1.0, np.ceil((high - low) / BINS))
        edges = np.arange(np.floor(low), np.ceil(high) + step + 1.0, step) - 0.5
    counts = {
        key: np.asarray(np.histogram(values, edges)[0], dtype=np.float64) / max(len(values), 1)
        for key, values in numbers.items()
    }
    return figures.histograms(edges, counts, title, dates=_is_dates(variable))


def _is_dates(variable: Variable) -> bool:
    return (variable.time or "").startswith("date")


def _is_ordered(variable: Variable) -> bool:
    """Whether the values are numbers, which have an order of their own."""
    values = variable.outcomes or ()
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)


def _spelled(variable: Variable, values: pd.Series[Any]) -> pd.Series[Any]:
    """Values as text; whole numbers as such, though gaps among them make them fractions."""
    if _is_ordered(variable):
        return values.map(lambda value: f"{float(value):g}")
    return values.astype(str)


def _dependence(matrix: pd.DataFrame, label: str | None) -> Section:
    title = "mutual information of pairs of variables, nats"
    tree = networks.dependence_tree(matrix, label)
    words = "the tree of strongest dependences, mutual information in nats beside its lines"
    drawing = figures.drawn(
        networks.tree_size(tree), words, lambda axes: networks.paint_tree(axes, tree, label)
    )
    return Section(
        "What hangs together",
        "Mutual information of each pair under the model: zero where the two are independent.",
        pictures=[(title, figures.heat_map(matrix, title, "nats")), (words, drawing)],
    )


def _how_fitted(model: Any) -> Section:
    report = getattr(model, "fit_report", None)
    facts = [("kind", type(model).__name__), ("parameters", f"{model.n_parameters:,}")]
    lines: list[str] = []
    if about_federation.is_federation(model):
        more, lines = about_federation.fits(model)
        facts += more
    if report is not None:
        facts += [("learner", report.learner), ("seconds", f"{report.seconds:.1f}")]
        facts += [(str(k), _short(v)) for k, v in {**report.sizes, **report.kept}.items()]
        lines += [explained(str(line)) for line in report.warnings]
    text = "The fit gave these warnings." if lines else "The fit gave no warning."
    if report is not None:
        text += " The table has sizes and choices of the learner, which docs/learners.md explains."
    return Section("How it was fitted", text, facts, lines=lines)


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_short(each)}" for key, each in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.4f}".rstrip("0").rstrip(".")
    return f"{value:,}" if isinstance(value, int | np.integer) else str(value)


def _render(model: Any, label: str | None, rows: pd.DataFrame | None, parts: list[Section]) -> str:
    source = files("fedcircuits.report").joinpath("page.html").read_text(encoding="utf-8")
    environment = Environment(autoescape=True)
    environment.filters |= {"cell": _cell, "rem": _rem, "wide": lambda svg: _rem(svg) > WIDE}
    return environment.from_string(source).render(
        sections=parts,
        label=label,
        n_rows=None if rows is None else len(rows),
        n_variables=len(model.schema),
        title=_title(model),
    )


def _title(model: Any) -> str:
    if about_federation.is_federation(model):
        return f"One model from {len(model.clients)} clients"
    size = of_images.size(model)
    return f"A model of {len(model.schema)} variables" if size is None else f"A model of {size}"


def _rem(svg: str) -> float:
    """Width in which a figure's letters are as large as the page's small print."""
    found = re.search(r'<svg[^>]* width="([\d.]+)pt"', svg)
    return 24.0 if found is None else float(found[1]) / 72 * ROOM


def _write_figures(folder: Path, parts: list[Section]) -> None:
    for part in parts:
        for title, svg in part.pictures:
            name = "".join(c if c.isalnum() else "-" for c in f"{part.title} {title}".lower())
            # Outside the page there is no text colour to take.
            text = svg.replace("currentColor", "#444444")
            encoding.write(folder / f"{name[:80]}.svg", text.encode())
