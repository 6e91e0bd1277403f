"""`fedcircuits inspect`: show what a model file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fedcircuits.api.load import load
from fedcircuits.circuits import Circuit
from fedcircuits.cli.output import Output
from fedcircuits.density import Density
from fedcircuits.errors import QueryError
from fedcircuits.schema import Variable

# Images have thousands of variables that are all alike.
VARIABLES_SHOWN = 50


def run(out: Output, path: Path, picture: Path | None = None) -> None:
    """Describe variables, structure and fit; draw the region graph where asked to.

    Args:
        out: where words go.
        path: the model file.
        picture: where to draw the region graph of an EiNet, by the file's ending.
    """
    model = load(path)
    out.say(f"{model!r}")
    rows = [[v.name, v.kind, _values(v), _states(v), v.unit or ""] for v in model.schema]
    out.table("variables", ["name", "kind", "values", "states", "unit"], rows[:VARIABLES_SHOWN])
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
    structure = _region_graph(out, model, picture)
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


@runtime_checkable
class HasRegionGraph(Protocol):
    """A tensorised circuit; its class is not named here since it needs torch."""

    @property
    def region_graph(self) -> Any:
        """The region graph."""
        ...

    def draw(self, path: Path) -> None:
        """Draw the region graph."""
        ...


def _region_graph(out: Output, model: object, picture: Path | None) -> dict[str, Any]:
    """Show the levels of a tensorised circuit; draw them where a picture is asked for."""
    if not isinstance(model, HasRegionGraph):
        if picture is not None:
            raise QueryError(
                f"--picture draws the region graph of an EiNet; the file holds a "
                f"{type(model).__name__}, which has none"
            )
        return {}
    graph = model.region_graph
    out.say(graph.summary())
    found: dict[str, Any] = {"regions": len(graph.scopes), "partitions": len(graph.partitions)}
    if picture is not None:
        model.draw(picture)
        out.say(f"region graph drawn to {picture}")
        found["picture"] = str(picture)
    return found


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
        "reveals": list(model.rule.reveals),
        "federation_bytes": model.ledger.n_bytes,
    }


def _values(variable: Variable) -> str:
    if variable.is_coded:
        shown = ", ".join(map(str, variable.categories[:4]))
        return shown + (", ..." if len(variable.categories) > 4 else "")
    if variable.domain is None:
        return ""
    low, high = variable.domain
    return f"{low:g} to {high:g}" + (" (declared)" if variable.closed else "")


def _states(variable: Variable) -> str:
    if variable.is_coded:
        return str(variable.n_codes)
    return "" if variable.grid is None else str(variable.grid.n_states)
