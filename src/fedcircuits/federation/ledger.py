"""Every byte that crossed the network, from the real encoding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

Direction = Literal["to client", "to server"]


@dataclass(frozen=True)
class Entry:
    """One message.

    Attributes:
        client: the client that sent or received it.
        direction: to the client or to the server.
        phase: what it was for (schema, alignment, agreement, training, query).
        verb: the message.
        n_bytes: its length.
    """

    client: str
    direction: Direction
    phase: str
    verb: str
    n_bytes: int


@dataclass
class Ledger:
    """The account of one federation; grows as messages are sent."""

    entries: list[Entry] = field(default_factory=list)

    def add(self, client: str, direction: Direction, phase: str, verb: str, data: bytes) -> None:
        """Count a message."""
        self.entries.append(Entry(client, direction, phase, verb, len(data)))

    @property
    def n_bytes(self) -> int:
        """All bytes."""
        return sum(entry.n_bytes for entry in self.entries)

    def of_phase(self, phase: str) -> int:
        """Bytes of one phase."""
        return sum(entry.n_bytes for entry in self.entries if entry.phase == phase)

    def table(self) -> pd.DataFrame:
        """Messages and bytes per client, direction and phase."""
        if not self.entries:
            return pd.DataFrame(columns=["client", "phase", "direction", "messages", "bytes"])
        frame = pd.DataFrame([vars(entry) for entry in self.entries])
        grouped = frame.groupby(["client", "phase", "direction"], sort=True)["n_bytes"]
        counted = grouped.agg(messages="count", bytes="sum")
        return counted.reset_index()


def fed_pc_parameters(n_parameters: int, n_clients: int) -> dict[str, int]:
    """The paper's formulas for FedPC (section 3.4): parameters sent once.

    Horizontally every client sends its model once; vertically and in hybrid settings too, one model
    for each of its clusters, all counted in `n_parameters`.
    """
    return {"parameters": n_parameters, "bytes (float64)": 8 * n_parameters, "clients": n_clients}


def fed_avg_bytes(n_parameters: int, n_clients: int, rounds: int, width: int = 4) -> int:
    """FedAvg: the model down and up, for every client in every round."""
    return 2 * n_parameters * width * n_clients * rounds


def split_nn_bytes(
    n_rows: int, activation: int, n_clients: int, epochs: int, width: int = 4
) -> int:
    """SplitNN: a vector of activations up and of gradients down, per row, client and epoch."""
    return 2 * n_rows * activation * width * n_clients * epochs
