"""Clients that a run goes on without are named to whoever started it."""

from __future__ import annotations

import warnings

from fedcircuits.errors import FedcircuitsWarning
from fedcircuits.federation.server.server import Server


def reason(client: str, why: str) -> str:
    """Return why a client left the run, with the client named once."""
    return f"client {client!r}: {why.removeprefix(f'client {client!r}: ')}"


def warn_of_lost(server: Server) -> None:
    """Warn of every client that the model was made without: why, and what left with it."""
    for client, why in server.dropped.items():
        lost = server.lost.get(client)
        if lost is None:
            left = "variables that it alone holds are not in the model"
        elif lost:
            left = f"variables that left the model with it: {', '.join(map(repr, lost))}"
        else:
            left = "no variable left the model, since others hold its columns"
        warnings.warn(
            f"the model was made without the {reason(client, why)}; {left}",
            FedcircuitsWarning,
            stacklevel=4,
        )
