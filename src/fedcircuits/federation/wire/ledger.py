"""Counts bytes and clear bits a row of every message, and the paper's formulas beside them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

import pandas as pd

from fedcircuits.federation.wire.verbs import Level
from fedcircuits.schema.shown import html

Direction = Literal["to client", "to server"]


@dataclass(frozen=True)
class Entry:
    """One message as it is counted: client, direction, phase, verb and bytes.

    Attributes:
        client: the client that sent or received it.
        direction: to the client or to the server.
        phase: as declared with the verb (`wire/verbs.py`).
        verb: the message.
        n_bytes: its length.
        messages: how many of this kind are counted here together.
        level: what it reveals to the server about single rows (`wire/verbs.py`).
        bits: clear bits a row that the server learns from it.
        at: seconds of a clock at which it passed; None for entries of a file, which is the same
            bit for bit whenever it is trained.
    """

    client: str
    direction: Direction
    phase: str
    verb: str
    n_bytes: int
    messages: int = 1
    level: Level = Level.NOTHING
    bits: float = 0.0
    at: float | None = field(default=None, compare=False)


@dataclass(repr=False)
class Ledger:
    """The messages of one federation; grows as they are sent."""

    entries: list[Entry] = field(default_factory=list)

    def add(
        self,
        client: str,
        direction: Direction,
        phase: str,
        verb: str,
        data: bytes,
        *,
        level: Level = Level.NOTHING,
        bits: float = 0.0,
    ) -> None:
        """Add a message; `Entry` says what each part is."""
        now = time.monotonic()
        entry = Entry(client, direction, phase, verb, len(data), level=level, bits=bits, at=now)
        self.entries.append(entry)

    def steps(self) -> list[tuple[str, str, float, float]]:
        """Return phase, verb, begin and end of every run of messages of one verb, in their order.

        Seconds count from the first message. A loaded ledger has no times, and no steps.
        """
        timed = [(entry, entry.at) for entry in self.entries if entry.at is not None]
        found: list[tuple[str, str, float, float]] = []
        for (phase, verb), run in groupby(timed, key=lambda one: (one[0].phase, one[0].verb)):
            times = [at - timed[0][1] for _, at in run]
            found.append((phase, verb, times[0], times[-1]))
        return found

    def bits(self, client: str) -> float:
        """Return the clear bits a row that the server learned of a client's rows."""
        return sum(entry.bits for entry in self.entries if entry.client == client)

    @property
    def n_bytes(self) -> int:
        """Total bytes of all messages."""
        return sum(entry.n_bytes for entry in self.entries)

    def of_phase(self, phase: str) -> int:
        """Return the bytes of one phase."""
        return sum(entry.n_bytes for entry in self.entries if entry.phase == phase)

    @property
    def n_messages(self) -> int:
        """Number of messages."""
        return sum(entry.messages for entry in self.entries)

    def __repr__(self) -> str:
        clients = len({entry.client for entry in self.entries})
        return f"Ledger({self.n_messages} messages, {self.n_bytes:,} bytes, {clients} clients)"

    def _repr_html_(self) -> str:
        table = self.table(["client", "phase"])
        rows = [[str(cell) for cell in row] for row in table.itertuples(index=False)]
        return html(repr(self), (), [str(name) for name in table.columns], rows)

    def table(self, by: Sequence[str] = ("client", "phase", "direction")) -> pd.DataFrame:
        """Messages, bytes, level and bits a row, by client, phase and direction or other fields.

        The level is the most that one of the messages reveals to the server.
        """
        keys = list(by)
        counted = [
            each for each in ("messages", "bytes", "level", "bits a row") if each not in keys
        ]
        if not self.entries:
            return pd.DataFrame(columns=[*keys, *counted])
        frame = pd.DataFrame([{**vars(entry), "rank": entry.level.rank} for entry in self.entries])
        grouped = frame.groupby(keys, sort=True)
        found = grouped.agg(
            messages=("messages", "sum"), bytes=("n_bytes", "sum"), level=("rank", "max")
        )
        found["level"] = [list(Level)[rank].value for rank in found["level"]]
        found["bits a row"] = grouped["bits"].sum()
        return found[counted].reset_index()

    def totals(self) -> list[list[Any]]:
        """Plain values for a file: entries of one kind added up."""
        sums: dict[tuple[str, str, str, str, str], tuple[int, int, float]] = {}
        for e in self.entries:
            key = (e.client, e.direction, e.phase, e.verb, e.level.value)
            n_bytes, messages, bits = sums.get(key, (0, 0, 0.0))
            sums[key] = (n_bytes + e.n_bytes, messages + e.messages, bits + e.bits)
        return [[*key[:4], *total[:2], key[4], total[2]] for key, total in sorted(sums.items())]

    @staticmethod
    def from_totals(rows: list[list[Any]]) -> Ledger:
        """Inverse of `totals`; files of earlier versions have no levels."""
        return Ledger(
            [
                Entry(
                    str(client),
                    direction,
                    str(phase),
                    str(verb),
                    int(n_bytes),
                    int(messages),
                    *((Level(extra[0]), float(extra[1])) if extra else ()),
                )
                for client, direction, phase, verb, n_bytes, messages, *extra in rows
            ]
        )


# --- the paper's formulas (section 3.4), in numbers sent ------------------------------------------


def fed_pc_horizontal(n_parameters: float, n_clients: int) -> float:
    """|C| (M + 1): every client sends its M parameters and its row count, once."""
    return n_clients * (n_parameters + 1)


def fed_pc_vertical(
    n_parameters: float, n_clients: int, n_clusters: float, n_products: int
) -> float:
    """K M |C| + P: one model for each of K clusters, and the weights of P products."""
    return n_clusters * n_parameters * n_clients + n_products


def fed_pc_hybrid(shared: Sequence[float], private: Sequence[float]) -> float:
    """Horizontal costs of the shared subspaces and vertical costs of the private ones."""
    return float(sum(shared) + sum(private))


def fed_avg(n_parameters: float, n_clients: int, rounds: int) -> float:
    """M |C| K: every client sends its parameters in every round (the way down not counted)."""
    return n_parameters * n_clients * rounds


def split_nn(n_rows: int, activation: int, n_clients: int, epochs: int) -> float:
    """E |C| F S: a vector of F activations per row, client and epoch (gradients not counted)."""
    return float(n_rows) * activation * n_clients * epochs
