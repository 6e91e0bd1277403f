"""`fedcircuits init`: draft a federation file from the tables that are to be federated."""

from __future__ import annotations

from pathlib import Path

from fedcircuits import encoding
from fedcircuits.cli.federation_file.draft import draft
from fedcircuits.cli.output import Output
from fedcircuits.errors import FederationError
from fedcircuits.schema import read


def run(
    out: Output,
    files: list[Path],
    output: Path,
    label: str | None,
    id: str | None,
    missing_values: list[str],
    sep: str | None,
    force: bool,
) -> None:
    """Read the tables, write the federation file, and show what was found."""
    twice = [file for at, file in enumerate(files) if file in files[:at]]
    if twice:
        raise FederationError(
            f"{twice[0]} is named twice: a federation has a table for each client"
        )
    if len(files) < 2:
        raise FederationError(
            "a federation has two or more tables, found one; for one table: "
            f"fedcircuits learn {files[0]} --label COLUMN -o model.fc"
        )
    if output.exists() and not force:
        raise FederationError(f"{output} is there already: name another with -o, or pass --force")
    if not output.parent.is_dir():
        raise FederationError(f"cannot write {output}: no folder {output.parent}")
    tables = {path: read(path, sep=sep) for path in dict.fromkeys(files)}
    found = draft(tables, output.parent, label, id, missing_values)
    encoding.write(output, found.text.encode())
    rows = [
        [name, str(path), len(tables[path]), len(tables[path].columns)]
        for name, path in found.clients.items()
    ]
    out.table("clients", ["name", "file", "rows", "columns"], rows)
    out.say(found.why)
    out.say(f"id: {found.id or 'none'}; label: {found.label or 'none chosen'}")
    if found.candidates:
        out.say(f"columns that could be the label: {', '.join(found.candidates[:8])}")
    if found.missing_values:
        out.say(f"read as missing: {', '.join(map(repr, found.missing_values))}")
    for name, why in found.drop.items():
        out.say(f"not learned: {name} ({why})")
    for note in found.notes:
        out.note(note)
    out.say(f"written to {output}: look at it, then run `fedcircuits federate {output}`")
    out.result(
        {
            "file": str(output), "clients": {n: str(p) for n, p in found.clients.items()},
            "setting": found.setting, "id": found.id, "label": found.label,
            "label_candidates": list(found.candidates),
            "missing_values": list(found.missing_values), "drop": dict(found.drop),
            "notes": list(found.notes),
        }
    )  # fmt: skip
