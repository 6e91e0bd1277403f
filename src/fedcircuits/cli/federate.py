"""`fedcircuits federate`: a file that names clients in, one model out."""

from __future__ import annotations

import inspect
import time
import tomllib
from pathlib import Path
from typing import Any

from fedcircuits.cli.output import Output
from fedcircuits.errors import FedcircuitsError, FederationError

# What a federation file may say, besides [clients], [kinds] and [options].
PLAIN: dict[str, type | tuple[type, ...]] = {
    "id": str,
    "label": str,
    "share_label": bool,
    "agreement": str,
    "learner": str,
    "engine": str,
    "placement": str,
    "operation": str,
    "missing_values": list,
    "seed": int,
    "min_rows": int,
    "timeout": (int, float),
    "allow_missing": bool,
    "id_secret": str,
}
TABLES = ("clients", "kinds", "options", "engine_options", "coordinator")
# Options of engines that are files or folders: relative to the federation file, as clients are.
PATHS = ("token", "tls", "folder")


def run(out: Output, file: Path, output: Path | None, engine: str | None) -> None:
    """Read the file, train, save, and say what crossed the network."""
    from fedcircuits.api.federate import federate
    from fedcircuits.engines import engine_named
    from fedcircuits.federation.model.circuit import FederatedCircuit

    told = read_federation(file)
    to = output or told.pop("output")
    told.pop("output", None)
    if to is None:
        raise FederationError(f"{file}: say where the model goes: output = 'model.fc', or -o")
    if to.is_dir() or not to.parent.exists():
        raise FedcircuitsError(f"cannot write {to}: not a file in an existing folder")
    if engine is not None:
        told["engine"] = engine
    if (
        told.get("placement", "gathered") != "gathered"
        or told.get("operation", "mixture") != "mixture"
    ):
        raise FederationError(
            f"{file}: a model file holds gathered densities; remote placement, average and vote "
            "are for fedcircuits.federate in Python"
        )
    start = time.perf_counter()
    with out.progress() as progress:
        progress(0.1, f"training with {len(told['clients'])} clients")
        how = dict(told.pop("engine_options", {}))
        if "progress" in inspect.signature(engine_named(told.get("engine", "local"))).parameters:
            how["progress"] = progress
        told["engine_options"] = how
        fed = federate(told.pop("clients"), **told.pop("options"), **told)
    assert isinstance(fed, FederatedCircuit)
    fed.save(to)
    seconds = time.perf_counter() - start
    show(out, fed)
    out.say(f"trained in {seconds:.1f} s; saved to {to} ({to.stat().st_size} bytes)")
    assert fed.rule is not None
    out.result(
        {
            "model": str(to),
            "setting": fed.setting,
            "rule": fed.rule.name,
            "clients": {c: fed.n_rows.get(c) for c in fed.clients},
            "dropped": fed.dropped,
            "n_parameters": fed.n_parameters,
            "seconds": seconds,
            "bytes": fed.ledger.n_bytes,
            "ledger": fed.ledger.table().to_dict("records"),
            "communication": fed.communication().to_dict("records"),
            "leaves_client": list(fed.rule.leaves_client),
        }
    )


def show(out: Output, fed: Any) -> None:
    """Setting, rule, what left each client, and bytes."""
    out.say(f"{fed!r}")
    out.say(f"setting: {fed.setting}; agreement rule: {fed.rule.name}")
    for name, loss in sorted(fed.fitted.scores.items(), key=lambda item: item[1]):
        out.say(f"  validation loss of {name}: {loss:.4f} nats per row")
    out.say("what leaves a client besides schema, sketches and models:")
    for line in fed.rule.leaves_client:
        out.say(f"  - {line}")
    for client, why in fed.dropped.items():
        out.say(f"left out: {client}: {why}")
    ledger = fed.ledger.table(["client", "phase"])
    wide = ledger.pivot(index="client", columns="phase", values="bytes").fillna(0).astype(int)
    rows = [[c, fed.n_rows.get(c), *values, sum(values)] for c, values in _rows(wide)]
    out.table("bytes that crossed the network", ["client", "rows", *wide.columns, "all"], rows)
    formulas = fed.communication()
    out.table(
        "beside the paper's formulas",
        ["", "bytes", "times measured"],
        [[r.what, int(r.bytes), float(r.ratio)] for r in _named(formulas)],
    )


def _rows(wide: Any) -> list[tuple[str, list[int]]]:
    return [
        (str(c), [int(v) for v in row]) for c, row in zip(wide.index, wide.to_numpy(), strict=True)
    ]


def _named(formulas: Any) -> Any:
    return formulas.rename(columns={"times measured": "ratio"}).itertuples()


def read_federation(file: Path, needs_data: bool = True) -> dict[str, Any]:
    """Keyword arguments of `federate` from a file, paths made relative to its folder.

    Args:
        file: in TOML.
        needs_data: whether every client must have a data file; the parties of a federation over
            several machines have theirs, and None stands for it.
    """
    try:
        told = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise FederationError(f"cannot read {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FederationError(f"{file} is not a TOML file: {error}") from None
    known = {*PLAIN, *TABLES, "output"}
    strange = sorted(set(told) - known)
    if strange:
        raise FederationError(
            f"{file}: no setting {strange[0]!r}; there are {', '.join(sorted(known))}"
        )
    clients = told.get("clients")
    if not isinstance(clients, dict) or not clients:
        raise FederationError(f"{file}: name the clients: [clients] with NAME = 'file.csv'")
    answer: dict[str, Any] = {}
    for name, kind in PLAIN.items():
        if name in told:
            if not isinstance(told[name], kind) or (kind is int and isinstance(told[name], bool)):
                raise FederationError(
                    f"{file}: {name} has a value of the wrong type: {told[name]!r}"
                )
            answer[name] = told[name]
    answer["kinds"] = dict(told.get("kinds", {}))
    answer["options"] = dict(told.get("options", {}))
    if "engine_options" in told:
        answer["engine_options"] = {
            name: str(file.parent / value) if name in PATHS else value
            for name, value in dict(told["engine_options"]).items()
        }
    output = told.get("output")
    answer["output"] = None if output is None else file.parent / str(output)
    answer["clients"], learners = {}, {}
    for name, entry in clients.items():
        entry = {"data": entry} if isinstance(entry, str) else entry
        if not isinstance(entry, dict) or not isinstance(
            entry.get("data", None if needs_data else ""), str
        ):
            raise FederationError(f"{file}: client {name!r} needs data = 'file.csv'")
        odd = sorted(set(entry) - {"data", "learner"})
        if odd:
            raise FederationError(f"{file}: client {name!r} has no setting {odd[0]!r}")
        answer["clients"][name] = file.parent / entry["data"] if "data" in entry else None
        if "learner" in entry:
            learners[name] = str(entry["learner"])
    if learners:
        default = answer.get("learner", "hclt")
        answer["learner"] = {name: learners.get(name, default) for name in answer["clients"]}
    return answer
