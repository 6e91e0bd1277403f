"""`fedcircuits federate`: train as a federation file says, and write the model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedcircuits.cli import held_out
from fedcircuits.cli.federation_file import FederationFile, read_federation
from fedcircuits.cli.output import Output
from fedcircuits.errors import FederationError
from fedcircuits.report.about_federation import items_learned
from fedcircuits.schema import read
from fedcircuits.schema.reading.known import read_known

if TYPE_CHECKING:
    from fedcircuits.federation.model.federated_circuit import FederatedCircuit


def run(
    out: Output,
    file: Path,
    output: Path | None,
    engine: str | None,
    report: Path | None = None,
    test: Path | None = None,
) -> None:
    """Train as the federation file says, save the model, and show what was sent."""
    from fedcircuits.api.federate import federate

    asked = read_federation(file)
    to = check_output(asked, output)
    settings = dict(asked.settings)
    if engine is not None:
        settings["engine"] = engine
    start = time.perf_counter()
    with out.progress() as progress, asked.source.naming_lines():
        fed = federate(asked.clients, progress=progress, **settings)
    fed.save(to)
    seconds = time.perf_counter() - start
    show(out, fed)
    out.say(f"trained in {seconds:.1f} s; saved to {to} ({to.stat().st_size} bytes)")
    rows, found = None, None
    if test is not None:
        rows = read(test).replace(list(settings.get("missing_values", [])), None)
        rows = read_known(rows, fed.schema)
        found = held_out.scores(fed, rows, settings.get("label"))
        held_out.show(out, found, len(rows), "--test")
    if report is not None:
        made = fed.report(report, rows)
        out.say(f"report written to {made}; open it in a browser")
    assert fed.rule is not None
    out.result(
        {
            **summary(fed, to, seconds),
            "held_out": found,
            "rule": fed.rule.name,
            "ledger": fed.ledger.table().to_dict("records"),
            "communication": fed.communication().to_dict("records"),
            "reveals": list(fed.rule.reveals),
        }
    )


def check_output(read: FederationFile, output: Path | None) -> Path:
    """Return where the model goes; an error where that or the kind of model cannot be written."""
    to = output or read.output
    if to is None:
        raise FederationError(f"{read.file}: say where the model goes: output = 'model.fc', or -o")
    if to.is_dir() or not to.parent.exists():
        raise FederationError(f"cannot write {to}: not a file in an existing folder")
    placement = read.settings.get("placement", "gathered")
    if placement != "gathered" or read.settings.get("operation", "mixture") != "mixture":
        raise FederationError(
            f"{read.file}: a model file holds gathered densities; remote placement, average and "
            "vote are for fedcircuits.federate in Python"
        )
    return to


def summary(fed: FederatedCircuit, to: Path, seconds: float) -> dict[str, Any]:
    """Return what every training reports in JSON."""
    return {
        "model": str(to),
        "setting": fed.setting,
        "clients": {c: fed.n_rows.get(c) for c in fed.clients},
        "dropped": fed.dropped,
        "n_parameters": fed.n_parameters,
        "why": None if fed.why is None else fed.why.to_json(),
        "seconds": seconds,
        "bytes": fed.ledger.n_bytes,
    }


def show(out: Output, fed: FederatedCircuit) -> None:
    """Show setting, rule, what left each client, and bytes."""
    assert fed.rule is not None
    out.say(f"{fed!r}")
    out.say(f"setting: {fed.setting}; agreement rule: {fed.rule.name}")
    if fed.why is not None:
        out.say(f"why {fed.rule.name}: {fed.why.reason}")
        scored = f"log-loss and nats of {fed.why.n_rows} held-out rows" if fed.why.n_rows else ""
        out.table(
            f"rules considered{'; ' if scored else ''}{scored}",
            ["rule", "log-loss", "log p(x, y)", "outcome"],
            [[c.rule, c.log_loss, c.nats, c.outcome] for c in fed.why.candidates],
        )
    out.say("who learns what under this rule (levels: docs/policy.md):")
    for who, by_case in items_learned(fed.reveals):
        for case, what in by_case:
            out.say(f"  {who}{f', where {case}' if case else ''}:")
            for each in what:
                out.say(f"    - {each}")
    for client, why in fed.dropped.items():
        out.say(f"left out: {client}: {why}")
    ledger = fed.ledger.table(["client", "phase"])
    wide = ledger.pivot(index="client", columns="phase", values="bytes").fillna(0).astype(int)
    rows = [[c, fed.n_rows.get(c), *values, sum(values)] for c, values in _rows(wide)]
    out.table("bytes that crossed the network", ["client", "rows", *wide.columns, "all"], rows)
    revealed = fed.ledger.table(["client"])
    out.table(
        "what the server learned about single rows, at most, trials of other rules among it",
        ["client", "level", "bits a row"],
        revealed[["client", "level", "bits a row"]].to_numpy().tolist(),
    )
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
