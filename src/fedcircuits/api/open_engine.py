"""The running engine of a federation, its clients made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from fedcircuits.api.client_spec import CLIENT_FROM_SPEC, ClientSpec, as_table
from fedcircuits.api.learn import is_number
from fedcircuits.api.settings import RunSettings
from fedcircuits.api.watched import Stages
from fedcircuits.engines import DeclaresOptions, HasRowsThere, LocalEngine, engine_named
from fedcircuits.errors import FederationError, unknown_name
from fedcircuits.federation.wire.transport import Transport
from fedcircuits.schema import Data


def open_engine(
    settings: RunSettings, clients: Mapping[str, Data] | None, stages: Stages | None = None
) -> Transport:
    """Return the running engine of a run, its clients made; an engine may report progress too."""
    engine: Any = settings.engine
    if isinstance(engine, str):
        engine = engine_named(engine)
    if isinstance(engine, Transport) and not isinstance(engine, type):
        if clients is not None:
            raise FederationError("an engine that runs has its clients: pass clients=None")
        return engine
    if clients is not None and not isinstance(clients, Mapping):
        raise FederationError(
            f"clients is a mapping from names to tables, found {type(clients).__name__}: "
            "clients={NAME: rows, ...}"
        )
    if not clients:
        raise FederationError("federate needs at least one client: clients={NAME: rows}")
    options = dict(settings.engine_options)
    if isinstance(engine, DeclaresOptions):
        for name in options:
            if name not in engine.OPTIONS:
                raise FederationError(unknown_name("option", name, engine.OPTIONS, "the engine"))
        if stages is not None and "progress" in engine.OPTIONS:
            options.setdefault("progress", stages.part)
    specs = {}
    there = {}
    for name, data in ((str(name), data) for name, data in clients.items()):
        table: pd.DataFrame | Path
        if not isinstance(engine, HasRowsThere):
            table = as_table(name, data)
        elif engine.is_there(data):
            there[name], table = data, pd.DataFrame()  # the engine hands the rows to the client
        elif isinstance(data, (str, os.PathLike)):
            table = Path(data)  # a file of the client's machine, which need not be this one
        else:
            table = as_table(name, data)
        _refuse_numeric_label(name, table, settings)
        specs[name] = ClientSpec(
            name,
            table,
            settings.learner_of(name),
            id=settings.id,
            kinds=settings.kinds_with_label(),
            missing_values=tuple(settings.missing_values),
            id_secret=settings.id_secret,
        )
    if engine is LocalEngine:
        return LocalEngine({name: spec.make() for name, spec in specs.items()})
    if there:
        options["rows"] = there
    encoded = {name: spec.to_bytes() for name, spec in specs.items()}
    made: Transport = engine(encoded, CLIENT_FROM_SPEC, **options)
    return made


def _refuse_numeric_label(name: str, table: pd.DataFrame | Path, settings: RunSettings) -> None:
    """Refuse a label of many numbers: each would silently become a class of its own."""
    label = settings.label
    if label is None or label in settings.kinds or not isinstance(table, pd.DataFrame):
        return
    if label in table.columns and is_number(table[label], settings.missing_values):
        raise FederationError(
            f"client {name!r}: the label {label!r} holds {table[label].nunique()} different "
            "numbers, and a federation predicts classes: cut it into classes, or leave label= out "
            f"and ask expectation({label!r}); kinds={{{label!r}: 'categorical'}} makes each a class"
        )
