"""Saves a federated circuit and reads it back: the composite, owners, rule and fitted parts.

Only gathered models can be saved; a model that stays at its client is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from fedcircuits.arrays import Arrays
from fedcircuits.circuits import Composite
from fedcircuits.density import Density
from fedcircuits.density.fit_report import FitReport
from fedcircuits.density.tilt import Tilt, n_states_of
from fedcircuits.encoding import Record
from fedcircuits.errors import MALFORMED, StorageError, warn
from fedcircuits.federation.agreement import RULES
from fedcircuits.federation.agreement.base import Rule
from fedcircuits.federation.client.label.tilting import tables_of, tilt_of
from fedcircuits.federation.model.federated_circuit import FederatedCircuit
from fedcircuits.federation.server.fitted_parts import FittedParts
from fedcircuits.federation.server.heads import ClientHead
from fedcircuits.federation.server.why import TAKEN, Candidate, Why
from fedcircuits.federation.wire.codecs import decode_fields, encode_fields
from fedcircuits.federation.wire.ledger import Ledger
from fedcircuits.federation.wire.names import NONE, JobId, JobKind, ModelKey
from fedcircuits.federation.wire.requests import HeadScores, PoolWeights, TiltTables
from fedcircuits.schema import Schema

KIND = "federated"
# Format 1 wrote class names: the registry name and options that each stands for now.
FORMAT_1_RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "Independent": ("independent", {}),
    "ProductOfClasses": ("product", {}),
    "Latent": ("latent", {}),
    "LatentTable": ("latent", {"table": True}),
    "Anchors": ("anchors", {}),
    "Em": ("em", {}),
    "Joint": ("joint", {}),
}
# Options of rules that older files have and that mean nothing any more.
RETIRED_OPTIONS = {("product", "calibration_rows"), ("product", "rebase")}
POOL_NUMBERS = ("tilt", "limit", "log_loss", "gain", "error", "n_rows")
FORMAT_1_JOB = re.compile(r"([A-Z])(\d*)(?:\.(\d+))?")


def to_record(fed: FederatedCircuit, composite: Record) -> Record:
    """Returns header and arrays; `composite` is the record of the parts and the structure."""
    header, arrays = dict(composite.header), dict(composite.arrays)
    header["federation"] = {
        "owners": list(fed.owners),
        "setting": fed.setting,
        "rule": _rule_to_json(fed.rule),
        "dropped": fed.dropped,
        "id": fed.id,
        "n_rows": fed.n_rows,
        "ledger": fed.ledger.totals(),
        "why": None if fed.why is None else fed.why.to_json(),
        "fitted": _fitted_to_json(fed, arrays),
    }
    return Record(KIND, header, arrays)


def from_record(record: Record, decode: Callable[[Record], Density]) -> FederatedCircuit:
    """Returns the federated circuit of a record; `decode` makes a density of a record."""
    base = Composite.from_record(record, decode)
    try:
        header = record.header["federation"]
        owners = tuple(str(owner) for owner in header["owners"])
        if len(owners) != len(base.parts) or header["setting"] not in (
            "horizontal", "vertical", "hybrid",
        ):  # fmt: skip
            raise StorageError("the federation in the file is not valid: owners or setting")
        fitted = _fitted_from_json(
            header["fitted" if "fitted" in header else "ingredients"], record, base, decode
        )
        return FederatedCircuit(
            base.schema,
            base.parts,
            base.structure,
            base.fit_report,
            owners=owners,
            setting=header["setting"],
            rule=_rule_from_json(header["rule"]),
            fitted=fitted,
            ledger=Ledger.from_totals(header["ledger"]),
            dropped={str(k): str(v) for k, v in header["dropped"].items()},
            n_rows={str(k): int(v) for k, v in header["n_rows"].items()},
            id=id_of(header),
            why=_why(header),
        )
    except StorageError:
        raise
    except MALFORMED as error:
        raise StorageError(f"the federation in the file is not valid: {error!r}") from None


def id_of(header: dict[str, Any]) -> str | None:
    """Return the name of the id column that a file has; None for none."""
    found = header["id"]
    if found is not None and not isinstance(found, str):
        raise StorageError(f"the id in the file is not valid: a column's name, found {found!r}")
    return found


def _why(header: dict[str, Any]) -> Why | None:
    """Why the rule was taken; of files before it was stored, the scores that they have."""
    if header.get("why") is not None:
        return Why.from_json(header["why"])
    older = header.get("fitted", header.get("ingredients")) or {}
    scores, rule = older.get("scores") or {}, header["rule"]
    if not scores or rule is None or "name" not in rule:
        return None
    found = [
        Candidate(name, (), TAKEN if name == rule["name"] else "not taken", float(loss))
        for name, loss in scores.items()
    ]
    return Why(rule["name"], "by log-loss on held-out rows", tuple(found))


def _rule_to_json(rule: Rule | None) -> dict[str, Any] | None:
    """Registry name and settings of a rule; None for a rule of the user's own, or with objects."""
    name = {kind: name for name, kind in RULES.items()}.get(type(rule))
    if name is None or not is_dataclass(rule):
        return None
    options = {f.name: getattr(rule, f.name) for f in fields(rule) if f.init}
    if any(not isinstance(v, (int, float, str, bool, type(None))) for v in options.values()):
        return None
    return {"name": name, "options": options}


def _rule_from_json(entry: dict[str, Any] | None) -> Rule | None:
    if entry is None:
        return None
    found = entry["name"] if "name" in entry else entry["kind"]
    name, added = FORMAT_1_RULES.get(found, (found, {}))
    if name not in RULES:
        raise StorageError(
            f"the file was trained by the rule {found!r}, which this fedcircuits does not have (it "
            f"has {', '.join(RULES)}): train it again with one of these, or load it with the "
            "version that saved it"
        )
    options = {k: v for k, v in entry["options"].items() if (name, k) not in RETIRED_OPTIONS}
    made: Rule = RULES[name](**options, **added)
    return made


def _fitted_to_json(fed: FederatedCircuit, arrays: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the fitted parts as JSON: models are numbers of parts, or stored beside them."""
    found = fed.fitted
    if found is None:
        return None
    number = {id(part): at for at, part in enumerate(fed.parts)}
    models: list[dict[str, Any]] = []
    for at, key in enumerate(sorted(found.models)):
        model = found.models[key]
        entry: dict[str, Any] = {"key": encode_fields(key, "", {}), "rows": found.rows[key]}
        if id(model) in number:
            entry["part"] = number[id(model)]
        else:
            entry |= model.to_record().put_into(arrays, f"beside.{at}.")
        models.append(entry)
    arrays |= {f"table.{name}": np.asarray(t) for name, t in found.tables.items()}
    for at, client in enumerate(sorted(found.tilts)):
        tables = tables_of(found.tilts[client])
        parts = {"widths": tables.widths, "c": tables.c, "g": tables.g, "counts": tables.counts}
        arrays |= {f"tilt.{at}.{name}": np.asarray(part) for name, part in parts.items()}
    for at, client in enumerate(sorted(found.heads)):
        head = found.heads[client]
        arrays |= {f"head.{at}.{name}": array for name, array in head.trees.arrays().items()}
        if head.code_trees is not None:
            arrays |= {f"said.{at}.{name}": a for name, a in head.code_trees.trees.arrays().items()}
            arrays |= {f"leaf.{at}.{name}": a for name, a in head.code_trees.leaf.arrays().items()}
        if head.pool is not None:
            arrays[f"pool.{at}.trees"] = head.pool.trees
            arrays[f"pool.{at}.shift"] = head.pool.shift
    scores = [
        {"client": client, **encode_fields(found.head_scores[client], f"scores.{at}.", arrays)}
        for at, client in enumerate(sorted(found.head_scores))
    ]
    return {
        "schema": found.schema.to_json(),
        "label": found.label,
        "heads": [
            {
                "client": client,
                "columns": list(found.heads[client].columns),
                "together": found.heads[client].n_together,
                "group": found.heads[client].group,
                "sees": list(found.heads[client].codes_of),
                "width": None if (s := found.heads[client].code_trees) is None else s.width,
                "pool": _pool_numbers(found.heads[client]),
            }
            for client in sorted(found.heads)
        ],
        "head_scores": scores,
        "models": models,
        "tables": sorted(found.tables),
        "tilts": [
            {"client": client, "columns": list(found.tilts[client].columns)}
            for client in sorted(found.tilts)
        ],
        "reports": {
            client: {job: [report.to_json() for report in made] for job, made in jobs.items()}
            for client, jobs in found.reports.items()
        },
    }


def _pool_numbers(head: ClientHead) -> dict[str, Any] | None:
    """Returns the numbers of a pool that are no arrays."""
    if head.pool is None:
        return None
    return {name: getattr(head.pool, name) for name in POOL_NUMBERS}


def _model_key(entry: Any) -> ModelKey:
    """Returns the key of a model; format 1 has a list of client, text of the job, and class."""
    if isinstance(entry, dict):
        key: ModelKey = decode_fields(ModelKey, entry, "", {})
        return key
    client, job, cls = entry
    parsed = FORMAT_1_JOB.fullmatch(job)
    if parsed is None:
        raise StorageError(f"the federation in the file is not valid: it has a job {job!r}")
    kind, (space, part) = JobKind(parsed[1]), (int(n) if n else NONE for n in parsed.groups()[1:])
    if kind is JobKind.CLUSTER and part == NONE:  # of the rule anchors: "P" and the cluster
        space, part = NONE, space
    return ModelKey(str(client), JobId(kind, space, part), int(cls))


def _tilt(entry: dict[str, Any], record: Record, at: int) -> Tilt:
    """Returns the tilt of one client."""
    arrays = {n: record.arrays[f"tilt.{at}.{n}"] for n in ("widths", "c", "g", "counts")}
    return tilt_of(TiltTables(columns=[str(name) for name in entry["columns"]], **arrays))


def _head_scores(entry: dict[str, Any], record: Record, at: int, n_classes: int) -> HeadScores:
    """Returns what one client's rows score under the others' trees."""
    scores: HeadScores = decode_fields(HeadScores, entry, f"scores.{at}.", record.arrays)
    wrong = scores.wrong(n_classes)
    if wrong:
        raise StorageError(f"the scores of clients' trees in the file are not valid: {wrong}")
    return scores


def _head(entry: dict[str, Any], record: Record, at: int, n_classes: int) -> ClientHead:
    """Returns the trees of one client."""

    def trees(prefix: str) -> Arrays:
        found = record.arrays.items()
        return {k.removeprefix(prefix): v for k, v in found if k.startswith(prefix)}

    if not int(entry["together"]):
        columns = [str(c) for c in entry["columns"]]
        return ClientHead.of(columns, trees(f"head.{at}."), None, n_classes)
    numbers = {name: entry["pool"][name] for name in POOL_NUMBERS}
    trees_of, shift = record.arrays[f"pool.{at}.trees"], record.arrays[f"pool.{at}.shift"]
    if trees_of.shape != (1,) or not np.isfinite([*trees_of, *shift, *numbers.values()]).all():
        raise StorageError("the pool of a client's trees in the file is not valid")
    pool = PoolWeights(trees=trees_of, shift=shift, **numbers)
    width, code_trees = entry.get("width"), None
    if width is not None:
        code_trees = (trees(f"said.{at}."), trees(f"leaf.{at}."), float(width))
    return ClientHead.of(
        [str(c) for c in entry["columns"]],
        trees(f"head.{at}."),
        pool,
        n_classes,
        int(entry["together"]),
        str(entry.get("group", "")),
        [str(g) for g in entry.get("sees", [])],
        code_trees,
    )


def _fitted_from_json(
    header: dict[str, Any] | None,
    record: Record,
    base: Composite,
    decode: Callable[[Record], Density],
) -> FittedParts | None:
    if header is None:
        return None
    models: dict[ModelKey, Density] = {}
    rows: dict[ModelKey, float] = {}
    for at, entry in enumerate(header["models"]):
        key = _model_key(entry["key"])
        rows[key] = float(entry["rows"])
        if "part" in entry:
            models[key] = base.parts[entry["part"]]
            continue
        models[key] = decode(record.inner(f"beside.{at}.", entry))
    if header.get("calibration") is not None:
        warn(
            "the file has a calibration of the label beside the density; this fedcircuits answers "
            "from the density alone, so probabilities of the label differ from those of the "
            "version that saved it: train again"
        )
    schema, label = Schema.from_json(header["schema"]), header["label"]
    n_classes = n_states_of(schema[label]) if label in schema.names else 0
    return FittedParts(
        schema,
        label,
        models,
        rows,
        {name: record.arrays[f"table.{name}"] for name in header["tables"]},
        heads={
            str(entry["client"]): _head(entry, record, at, n_classes)
            for at, entry in enumerate(header.get("heads", []))
        },
        head_scores={
            str(entry["client"]): _head_scores(entry, record, at, n_classes)
            for at, entry in enumerate(header.get("head_scores", []))
        },
        tilts={
            str(entry["client"]): _tilt(entry, record, at)
            for at, entry in enumerate(header.get("tilts", []))
        },
        reports={
            str(client): {
                str(job): tuple(FitReport.from_json(report) for report in made)
                for job, made in jobs.items()
            }
            for client, jobs in header.get("reports", {}).items()
        },
    )
