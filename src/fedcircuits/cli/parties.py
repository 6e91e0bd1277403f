"""What `provision`, `silo` and `coordinate` have in common: who takes part, and where kits are."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedcircuits.cli.federate import read_federation
from fedcircuits.errors import FederationError

PORT = 8002
KEYS = {"host": str, "port": int, "kits": str}


@dataclass(frozen=True)
class Federation:
    """A federation file as the coordinator of real parties reads it.

    Attributes:
        file: where it is.
        told: keyword arguments of `federate`, with the parties' names for clients.
        host: name or address under which parties reach the coordinator.
        port: the one that is open there.
        kits: folder of start-up kits.
        output: where the model goes, None where the file does not say.
    """

    file: Path
    told: dict[str, Any]
    host: str
    port: int
    kits: Path
    output: Path | None

    @property
    def parties(self) -> list[str]:
        """Names, sorted."""
        return sorted(self.told["clients"])

    def settings(self) -> dict[str, dict[str, Any]]:
        """What each party is told about the run before the first message."""
        kinds = dict(self.told.get("kinds", {}))
        if self.told.get("label") is not None:
            kinds.setdefault(self.told["label"], "categorical")
        learner = self.told.get("learner", "hclt")
        return {
            party: {
                "learner": learner[party] if isinstance(learner, dict) else learner,
                "id": self.told.get("id"),
                "kinds": kinds,
                "missing_values": list(self.told.get("missing_values", [])),
            }
            for party in self.parties
        }


def read_parties(file: Path, kits: Path | None = None) -> Federation:
    """The federation in a file; parties read their own data, so it names no files of theirs."""
    told = read_federation(file, needs_data=False)
    told.pop("engine", None)
    if "id_secret" in told:
        raise FederationError(
            f"{file}: id_secret is for the parties alone, who give it to `fedcircuits silo` in a "
            "file (--id-secret-file): take it out of the coordinator's file"
        )
    place = tomllib.loads(file.read_text(encoding="utf-8")).get("coordinator", {})
    if not isinstance(place, dict):
        raise FederationError(f"{file}: write [coordinator] with host = 'name.example.org'")
    for key, value in place.items():
        if key not in KEYS:
            raise FederationError(
                f"{file}: [coordinator] has no setting {key!r}; it has {', '.join(KEYS)}"
            )
        if type(value) is not KEYS[key]:
            raise FederationError(f"{file}: {key} of [coordinator] has a value of the wrong type")
    output = told.pop("output")
    folder = kits or file.parent / str(place.get("kits", "kits"))
    return Federation(
        file, told, place.get("host", "localhost"), place.get("port", PORT), folder, output
    )
