"""The running engine of a federation, its clients made."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fedcircuits.api.client_spec import CLIENT_FROM_SPEC, ClientSpec, as_table
from fedcircuits.api.partition import client_names
from fedcircuits.api.settings import RunSettings
from fedcircuits.api.watched import Stages
from fedcircuits.engines import DeclaresOptions, HasRowsThere, LocalEngine, engine_named
from fedcircuits.errors import FedcircuitsWarning, FederationError, unknown_name
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.server.circuit_builder import SERVER
from fedcircuits.federation.wire.transport import Transport
from fedcircuits.schema import Data, Kind, read
from fedcircuits.schema.numbers import is_number
from fedcircuits.schema.reading.read import is_one_row

Clients = Mapping[str, Data] | Sequence[Data]  # tables by name, or tables that get names


def named_clients(clients: Clients | None) -> Mapping[str, Data]:
    """Return tables by client name; of a list, files by their stem, others as "client-1", ..."""
    if clients is None or isinstance(clients, Mapping):
        return clients or {}
    is_list = isinstance(clients, list | tuple)
    if not is_list or any(isinstance(data, Mapping) and is_one_row(data) for data in clients):
        raise FederationError(
            "clients is a mapping from names to tables, or a list of tables: "
            f"clients={{NAME: rows, ...}}; found {'rows' if is_list else type(clients).__name__}"
        )
    stems = [Path(data).stem for data in clients if isinstance(data, (str, os.PathLike))]
    if len(stems) == len(clients) and len(set(stems)) == len(stems):
        return dict(zip(stems, clients, strict=True))
    return dict(zip(client_names(len(clients)), clients, strict=True))


def open_engine(
    settings: RunSettings, clients: Clients | None, stages: Stages | None = None
) -> Transport:
    """Return the running engine of a run, its clients made; an engine may report progress too."""
    engine: Any = settings.engine
    if isinstance(engine, str):
        engine = engine_named(engine)
    if isinstance(engine, Transport) and not isinstance(engine, type):
        if clients is not None:
            raise FederationError("an engine that runs has its clients: pass clients=None")
        return engine
    clients = named_clients(clients)
    if not clients:
        raise FederationError("federate needs at least one client: clients={NAME: rows}")
    for name in map(str, clients):
        if not name.strip() or name == SERVER:
            raise FederationError(
                f"a client is called by a name of its own, not {SERVER!r}, which is who puts the "
                f"models together; found {name!r}"
            )
    options = dict(settings.engine_options)
    if isinstance(engine, DeclaresOptions):
        for name in options:
            if name not in engine.OPTIONS:
                raise FederationError(unknown_name("option", name, engine.OPTIONS, "the engine"))
        if stages is not None and "progress" in engine.OPTIONS:
            options.setdefault("progress", stages.answered)
    tables: dict[str, pd.DataFrame | Path] = {}
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
        tables[name] = table
    if settings.drop and not there:
        _check_dropped(tables, settings)
    kinds = _kinds(tables, settings)
    specs = {
        name: ClientSpec(
            name,
            table,
            settings.learner_of(name),
            id=settings.id,
            kinds=kinds,
            drop=tuple(settings.drop),
            missing_values=tuple(settings.missing_values),
            id_secret=settings.id_secret,
            label=settings.label,
            policy=settings.policy_of(name),
        )
        for name, table in tables.items()
    }
    if not isinstance(settings.policies, Policy):
        for name in settings.policies:
            if name not in specs:
                raise FederationError(f"policies: {unknown_name('client', name, list(specs))}")
    if engine is LocalEngine:
        return LocalEngine({name: spec.guarded() for name, spec in specs.items()})
    if stages is not None:
        stages.part(0.0, "starting clients")  # takes seconds where they are processes or silos
    if there:
        options["rows"] = there
    encoded = {name: spec.to_bytes() for name, spec in specs.items()}
    made: Transport = engine(encoded, CLIENT_FROM_SPEC, **options)
    return made


def _check_dropped(tables: Mapping[str, pd.DataFrame | Path], settings: RunSettings) -> None:
    """Refuse columns to leave out that no table has; tables of other machines are not here."""
    known: dict[str, None] = {}
    for table in tables.values():
        if isinstance(table, Path) and not table.exists():
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FedcircuitsWarning)  # said when a client reads it
            known |= dict.fromkeys(map(str, read(table).columns))
    for name in settings.drop:
        if name not in known:
            raise FederationError(f"drop: {unknown_name('column', name, list(known))}")


def _kinds(tables: Mapping[str, pd.DataFrame | Path], settings: RunSettings) -> dict[str, Kind]:
    """Kinds of columns; a label is a number if a table that is here holds many numbers in it."""
    kinds, label = settings.kinds_with_label(), settings.label
    if label is None or label in settings.kinds:
        return kinds
    for table in tables.values():
        if not isinstance(table, pd.DataFrame) or label not in table.columns:
            continue
        if is_number(table[label], settings.missing_values):
            return kinds | {label: "continuous"}
    return kinds
