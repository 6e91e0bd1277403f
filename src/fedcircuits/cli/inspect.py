"""`fedcircuits inspect`: show what a model file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedcircuits.api.saved import load
from fedcircuits.circuits import Circuit
from fedcircuits.cli.output import Output
from fedcircuits.density import Density
from fedcircuits.errors import QueryError
from fedcircuits.schema import Variable
from fedcircuits.schema.shown import kind_of, values_of

# Images have thousands of variables that are all alike.
VARIABLES_SHOWN = 50


def run(out: Output, path: Path, picture: Path | None = None) -> None:
    """Describe variables, structure and fit; draw the model where asked to.

    Args:
        out: where words go.
        path: the model file.
        picture: where to draw the model, by the file's ending.
    """
    model = load(path)
    out.say(f"{model!r}")
    rows = [[v.name, kind_of(v), values_of(v), _states(v)] for v in model.schema]
    out.table("variables", ["name", "kind", "values", "states"], rows[:VARIABLES_SHOWN])
    if len(rows) > VARIABLES_SHOWN:
        out.say(f"... and {len(rows) - VARIABLES_SHOWN} more variables")
    facts: dict[str, Any] = {
        "parameters": model.n_parameters,
        "bytes": path.stat().st_size,
    }
    if isinstance(model, Density):
        exact = "exact" if model.mpe_is_exact else "decodings"
        facts["most probable completions are"] = exact
    else:  # client classifiers under one node
        facts |= {"setting": model.setting, "operation": model.operation.name}
        facts |= {"predicts": model.label, "clients": ", ".join(model.clients)}
    if isinstance(model, Circuit):
        facts |= {
            "nodes": model.n_nodes,
            "sums": int(model.structure.is_sum.sum()),
            "products": int((~model.structure.is_sum).sum()),
            "leaves": model.structure.n_leaves,
            "edges": model.n_edges,
            "depth": model.depth,
        }
    report = model.fit_report if isinstance(model, Density) else None
    if report is not None:
        facts |= {"learner": report.learner, "learned in, s": round(report.seconds, 3)}
        facts |= {str(k): v for k, v in report.sizes.items()}
        facts |= {str(k): v for k, v in report.kept.items()}
    out.table("model", ["fact", "value"], [[k, v] for k, v in facts.items()])
    structure = _picture(out, model, picture)
    federation = _federation(out, model)
    out.result(
        {
            **facts,
            **structure,
            **federation,
            "variables": [{"name": v.name, "kind": v.kind} for v in model.schema],
            "fit_report": None if report is None else report.to_json(),
        }
    )


def _picture(out: Output, model: object, picture: Path | None) -> dict[str, Any]:
    """Show the levels of a tensorised circuit; draw the model where a picture is asked for."""
    found: dict[str, Any] = {}
    graph: Any = getattr(model, "region_graph", None)  # of an EiNet, whose class needs torch
    if graph is not None:
        out.say(graph.summary())
        found = {"regions": len(graph.scopes), "partitions": len(graph.partitions)}
    if picture is None:
        return found
    if not isinstance(model, Density):
        raise QueryError(
            f"--picture draws densities; the file holds a {type(model).__name__}, whose clients' "
            "classifiers have nothing to be drawn"
        )
    model.draw(picture)
    out.say(f"drawn to {picture}")
    return {**found, "picture": str(picture)}


def _federation(out: Output, model: object) -> dict[str, Any]:
    """Show and return the clients of a federated model, what left each of them, and bytes."""
    from fedcircuits.cli.federate import show
    from fedcircuits.federation.model.federated_circuit import FederatedCircuit

    if not isinstance(model, FederatedCircuit) or model.rule is None:
        return {}
    show(out, model)
    return {
        "setting": model.setting,
        "rule": model.rule.name,
        "clients": list(model.clients),
        "parts": {client: model.owners.count(client) for client in model.clients},
        "reveals": list(model.reveals),
        "federation_bytes": model.ledger.n_bytes,
    }


def _states(variable: Variable) -> str:
    if variable.is_coded:
        return str(variable.n_codes)
    return "" if variable.grid is None else str(variable.grid.n_states)
