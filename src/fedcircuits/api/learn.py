"""`fc.learn`: learn one density from one table; learners are found by name here."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, cast, get_type_hints

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from fedcircuits import learners
from fedcircuits.api.option_types import expected_of, least_of
from fedcircuits.api.progress import Progress, shown
from fedcircuits.density import Density, Learner
from fedcircuits.density.contracts import LearnsBatches
from fedcircuits.density.evidence import generator
from fedcircuits.errors import LearningError, SchemaError, unknown_name
from fedcircuits.schema import Data, Kind, Schema, images, read
from fedcircuits.schema.encode import check_names
from fedcircuits.schema.events import Event
from fedcircuits.schema.identifiers import left_out, warn_of_left_out
from fedcircuits.schema.infer import Domain
from fedcircuits.schema.numbers import is_number
from fedcircuits.schema.reading.batches import ParquetBatches, infer_schema
from fedcircuits.schema.reading.parquet import ParquetFile, is_parquet

DEFAULT_LEARNER = "hclt"
# Random rows of a file by which identifiers and the kind of the label are known.
TELLING_ROWS = 20_000


def learn(
    data: Data,
    label: Any = None,
    learner: str | Learner = DEFAULT_LEARNER,
    *,
    schema: Schema | None = None,
    kinds: Mapping[str, Kind] | None = None,
    domains: Mapping[str, Domain] | None = None,
    units: Mapping[str, str] | None = None,
    missing_values: Sequence[object] = (),
    names: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    weights: ArrayLike | None = None,
    seed: int = 0,
    progress: Progress | bool | None = None,
    **options: Any,
) -> Density:
    """Learn one density from one table.

    Args:
        data: DataFrame, NumPy array with `names`, CSV or Parquet (path or open file); or images,
            levels 0..255 of shape (n, h, w) or (n, h, w, 3), masked where a pixel is missing. A
            Parquet file or a folder of them that is larger than memory is learned in passes over
            batches, where the learner can (see `Hclt.rows_in_memory`).
        label: a column that is to be predicted well: as a number if it holds more than 20
            different ones, or fractions, else by its categories; `kinds` may say otherwise. For
            images, one value an image; the model calls it "label".
        learner: a name or an object with `fit(table, rng)`.
        schema: of the table; guessed from it if not given.
        kinds: kind by name, where the guess would be wrong.
        domains: (lowest, highest) or categories by name; closed if declared.
        units: unit of measurement by name.
        missing_values: spellings of a missing value besides those pandas knows, "?" say.
        names: column names of a NumPy array.
        drop: columns to leave out. Columns without a value and those that look like identifiers
            (another text in every row, consecutive whole numbers) are left out with a warning
            unless `kinds` names them.
        weights: (n,) how often each row counts.
        seed: the same seed gives the same model.
        progress: True for a bar on standard error (terminal or notebook), or a function that
            learners which take a while call with the fraction done and a few words.
        **options: of the named learner; for images of any learner also colour="ycocg".
    """
    rng = generator(seed, LearningError)
    if images.is_images(data):
        with shown(progress) as report:
            return _learn_images(data, label, learner, report, options, rng)
    if is_parquet(data):
        with shown(progress) as report:
            made = make_learner(learner, options, {"label": label, "progress": report})
            file = ParquetFile(data)  # type: ignore[arg-type]
            if isinstance(made, LearnsBatches) and file.n_rows > made.most_rows(len(file.names)):
                if weights is not None:
                    raise LearningError(
                        f"{file.path} has {file.n_rows} rows, which are learned in batches: "
                        "weights= is for tables in memory; pass rows_in_memory= to read it whole"
                    )
                given = schema, kinds, domains, units
                rows = _in_batches(file, label, drop, missing_values, *given)
                return _naming_label(made.fit_batches(rows, rng), label)
            data = file.read()
    for what, given_list in (("drop", drop), ("missing_values", missing_values)):
        if not isinstance(given_list, str | Collection):
            raise LearningError(f"{what} is a list of texts, found {given_list!r}")
    if schema is not None and not isinstance(schema, Schema):
        raise LearningError(f"schema is a fc.Schema, found {type(schema).__name__}")
    frame = _dropped(read(data, names), drop)
    _check_no_events(frame)
    if isinstance(label, list | set | dict):
        raise LearningError(f"label is the name of one column, found {label!r}")
    if label is not None and label not in frame.columns:
        there = map(str, frame.columns)
        raise LearningError(f"label: {unknown_name('column', label, there, 'the table')}")
    if schema is None:
        if label is not None:
            kinds = {label: _label_kind(frame[label], domains, missing_values), **(kinds or {})}
        declared = {*(kinds or {}), *(domains or {})}
        frame = _without_left_out(frame, declared, missing_values)
        schema = Schema.infer(frame, kinds, domains, units=units, missing_values=missing_values)
    elif kinds or domains or units:
        raise SchemaError("give either a schema or kinds, domains and units, not both")
    row_weights = _weights(weights, frame)
    with shown(progress) as report:
        made = make_learner(learner, options, {"label": label, "progress": report})
        # The table has no name here, so that a learner may let go of it.
        table = partial(schema.encode, frame, missing_values=missing_values, weights=row_weights)
        return _naming_label(made.fit(table(), rng), label)


def _naming_label(model: Density, label: str | None) -> Density:
    """Return the model with a report that names the label, for reports and pages to begin with."""
    report = model.fit_report
    known = getattr(model, "label", None) or report is None or report.label
    if label is None or known or not is_dataclass(model):
        return model
    named: Density = replace(model, fit_report=replace(report, label=label))
    return named


def _in_batches(
    file: ParquetFile,
    label: Any,
    drop: Sequence[str],
    missing_values: Sequence[object],
    schema: Schema | None,
    kinds: Mapping[str, Kind] | None,
    domains: Mapping[str, Domain] | None,
    units: Mapping[str, str] | None,
) -> ParquetBatches:
    """The rows of a file that is not read whole, under a schema of all of them."""
    if label is not None and label not in file.names:
        raise LearningError(f"label: {unknown_name('column', label, file.names, 'the table')}")
    spellings = (missing_values,) if isinstance(missing_values, str) else tuple(missing_values)
    if schema is not None:
        if kinds or domains or units:
            raise SchemaError("give either a schema or kinds, domains and units, not both")
        return ParquetBatches(file, schema, spellings)
    n_some = min(file.n_rows, TELLING_ROWS)
    some = np.random.default_rng(0).choice(file.n_rows, size=n_some, replace=False)
    frame = _dropped(file.take(np.sort(some)), drop)
    check_names(frame)
    given = {} if label is None else {label: _label_kind(frame[label], domains, spellings)}
    found = infer_schema(file, drop, frame, {**given, **(kinds or {})}, domains, units, spellings)
    return ParquetBatches(file, found, spellings)


def _dropped(frame: pd.DataFrame, drop: Sequence[str]) -> pd.DataFrame:
    names = [drop] if isinstance(drop, str) else list(drop)
    absent = [name for name in names if name not in frame.columns]
    if absent:
        raise SchemaError(unknown_name("column", absent[0], map(str, frame.columns), "the table"))
    return frame.drop(columns=names)


def _check_no_events(frame: pd.DataFrame) -> None:
    """Refuse events among the values to learn from: they are evidence for queries."""
    check_names(frame)
    for name in frame.columns:
        if frame[name].dtype == object and any(isinstance(cell, Event) for cell in frame[name]):
            raise SchemaError(
                f"column {name!r} holds an event (between, one_of, ...): events are evidence for "
                "queries; a model is learned from values"
            )


def _without_left_out(
    frame: pd.DataFrame, declared: Collection[str], missing_values: Sequence[object]
) -> pd.DataFrame:
    """The table without empty columns and those that look like identifiers; each is warned of."""
    found = left_out(frame, declared, missing_values)
    warn_of_left_out(found)
    if found and len(found) == len(frame.columns):
        raise SchemaError(
            f"every column looks like an identifier ({', '.join(map(repr, found))}); name the "
            "kinds of those that are to be learned"
        )
    return frame.drop(columns=list(found))


def _label_kind(
    column: pd.Series[Any],
    domains: Mapping[str, Domain] | None,
    missing_values: Sequence[object],
) -> Kind:
    """Return whether a label is predicted as a number or by its categories."""
    domain = (domains or {}).get(str(column.name))
    is_listed = domain is not None and len(domain) != 2
    return "categorical" if is_listed or not is_number(column, missing_values) else "continuous"


def _learn_images(
    data: Any,
    labels: Any,
    learner: str | Learner,
    progress: Progress | None,
    options: dict[str, Any],
    rng: np.random.Generator,
) -> Density:
    """Return a density of images (n, h, w) or (n, h, w, 3), labels one value an image."""
    if isinstance(labels, str):
        raise LearningError("the label of images is an array with one value an image")
    colour = colour_of(learner, options)
    options = {name: value for name, value in options.items() if name != "colour"}
    table = images.labelled_images(data, labels, colour)
    facts = {"label": None if labels is None else images.LABEL, "progress": progress}
    return make_learner(learner, options, facts).fit(table, rng)


def colour_of(learner: object, options: Mapping[str, Any]) -> images.Colour:
    """Return the colour that pixels are learned in: an option, or an attribute of the learner."""
    chosen: Any = options.get("colour", getattr(learner, "colour", "rgb"))
    return cast(images.Colour, chosen)


def make_learner(
    learner: str | Learner, options: Mapping[str, Any], facts: Mapping[str, Any]
) -> Learner:
    """Return a learner by its name, or the learner itself with its open fields filled in.

    Args:
        learner: name or object.
        options: of the named learner.
        facts: label and progress, for the learners that have such a field.
    """
    if not isinstance(learner, str):
        if options:
            raise LearningError(f"options {sorted(options)} belong to the learner you passed")
        if not isinstance(learner, Learner):
            raise LearningError(f"a learner has fit(table, rng), found {type(learner).__name__}")
        if not is_dataclass(learner):
            return learner
        left_open = {
            field.name for field in fields(learner) if getattr(learner, field.name) is None
        }
        filled: Learner = replace(learner, **{k: v for k, v in facts.items() if k in left_open})
        return filled
    if learner not in learners.BY_NAME:
        raise LearningError(unknown_name("learner", learner, sorted(learners.BY_NAME)))
    kind = getattr(learners, learners.BY_NAME[learner])
    known = {field.name: field for field in fields(kind) if field.init}
    for name in options:
        if name not in known:
            names = option_names(learner)
            raise LearningError(unknown_name("option", name, names, f"learner {learner!r}"))
    kinds = get_type_hints(kind)
    for name, value in options.items():
        if (expected := expected_of(value, kinds[name], least_of(known[name]))) is not None:
            raise LearningError(
                f"option {name!r} of learner {learner!r} is {expected}, found {value!r}"
            )
    try:
        made: Learner = kind(**{k: v for k, v in facts.items() if k in known}, **options)
    except TypeError as error:
        raise LearningError(f"learner {learner!r}: {error}") from None
    return made


def option_names(learner: str) -> list[str]:
    """Return the options that users may give a learner by name; none of one that is unknown."""
    if learner not in learners.BY_NAME:
        return []
    kind = getattr(learners, learners.BY_NAME[learner])
    return [f.name for f in fields(kind) if f.init and f.name not in ("label", "progress")]


def _weights(weights: ArrayLike | None, frame: pd.DataFrame) -> Any:
    if weights is None:
        return None
    try:
        array = np.asarray(weights, dtype=float)
    except (TypeError, ValueError):
        raise LearningError(
            f"weights must be {len(frame)} finite numbers >= 0, one a row; found {weights!r}"
        ) from None
    if array.shape != (len(frame),) or not np.isfinite(array).all() or (array < 0).any():
        raise LearningError(
            f"weights must be {len(frame)} finite numbers >= 0, one a row; found {array.shape}"
        )
    return array
