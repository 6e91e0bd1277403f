"""A federated circuit whose models stay at the clients.

Its queries are those of any circuit over whole densities (`circuits.over_parts`); each step of one
is a message to every client. Rows may be named by id, and a client that does not answer is left
out: its private variables are marginalised, its share of mixtures goes to the others, and the
answer names who answered (`answer.attrs["answered"]`, `["away"]`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pandas as pd

from fedcircuits.circuits.structure_builder import StructureBuilder
from fedcircuits.density import Density, Given
from fedcircuits.density.queries.explanation import Explanation
from fedcircuits.errors import FedcircuitsError, FedcircuitsWarning, QueryError
from fedcircuits.federation.model.federated_circuit import FederatedCircuit
from fedcircuits.federation.server.remote import (
    ClientsAwayError,
    RemoteDensity,
    asked_by_id,
    warn_of_away,
)
from fedcircuits.schema import Data, Table, images, read
from fedcircuits.schema.table import Unknown

Answer = TypeVar("Answer")


@dataclass(frozen=True, eq=False, repr=False)
class RemoteCircuit(FederatedCircuit):
    """A `FederatedCircuit` with references for parts.

    Attributes:
        secret: mixed into digests of ids in queries, as at the clients.
        gone: variables of clients that are away; evidence on them is ignored.
    """

    secret: str = field(default="", repr=False)
    gone: frozenset[str] = frozenset()

    def _facts(self) -> dict[str, Any]:
        return super()._facts() | {"secret": self.secret, "gone": self.gone}

    @property
    def _one(self) -> Density | None:
        return None

    def _query(self, ask: Callable[[Any], Answer]) -> Answer:
        """Answers a query, if need be without the clients that are away, and warns of that."""
        present = self
        away: dict[str, str] = {}
        while True:
            try:
                with warnings.catch_warnings():
                    if away:  # cells of variables that are away are ignored; the warning is below
                        warnings.filterwarnings("ignore", "ignored", FedcircuitsWarning)
                    answer = ask(present)
                break
            except ClientsAwayError as error:
                away |= error.why
                present = present.without_parts(error.why)
            except QueryError as error:
                if not away:
                    raise
                raise QueryError(f"{error}; {'; '.join(away.values())}") from None
        if away:
            warn_of_away(present.clients, away)
        # An answer may be several tables: probabilities and their errors.
        for each in answer if isinstance(answer, tuple) else (answer,):
            if isinstance(each, (pd.Series, pd.DataFrame)) and "answered" not in each.attrs:
                each.attrs |= {"answered": present.clients, "away": dict(away)}
        return answer

    def _restricted(
        self,
        keep: tuple[str, ...],
        parts: list[Density],
        which: list[int],
        graph: StructureBuilder,
        root: int,
    ) -> Density:
        if self.fitted is None:
            raise FedcircuitsError(
                "this federation keeps no record of its fitted parts: federate again"
            )
        rest = replace(self.fitted, schema=self.schema.select(keep))
        owners = [self.owners[at] for at in which]
        return type(self)._of_graph(graph, parts, owners, root, rest, **self._facts())

    def without_parts(self, away: Mapping[str, str]) -> RemoteCircuit:
        rest = super().without_parts(away)
        gone = self.gone | (set(self.schema.names) - set(rest.schema.names))
        return replace(rest, gone=frozenset(gone))

    # --- rows -------------------------------------------------------------------------------------

    def _rows(
        self,
        data: Data,
        unknown: Unknown = "error",
        without: str | None = None,
        asked: str | None = None,
    ) -> Table:
        if images.is_images(data):
            return super()._rows(data, unknown, without)
        frame = read(data)
        table = super()._rows(frame, unknown, without)
        if self.id is None or self.id not in frame.columns or self.id in self.schema:
            return table
        server = next(p.server for p in self.parts if isinstance(p, RemoteDensity))
        hidden = {name for name in (without, asked) if name is not None}
        return asked_by_id(table, frame[self.id], server, self.secret, hidden)

    def explain(
        self, rows: Data, target: str, value: object | None = None, *, unknown: Unknown = "error"
    ) -> Explanation:
        """As `FederatedCircuit.explain`; rows are given by their cells, not by id."""
        if not images.is_images(rows) and self.id is not None and self.id in read(rows).columns:
            raise QueryError(
                f"explain needs the cells of the rows, one column at a time, and {self.id!r} has "
                "the clients look them up: leave that column out and give the cells"
            )
        return super().explain(rows, target, value, unknown=unknown)

    def _evidence(
        self, given: Given | None, unknown: Unknown = "error", asked: str | None = None
    ) -> Table:
        if isinstance(given, Mapping):
            given = {name: value for name, value in given.items() if name not in self.gone}
        return super()._evidence(given, unknown, asked)
