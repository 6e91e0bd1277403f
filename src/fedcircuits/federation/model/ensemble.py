"""A federated circuit of classifiers: the clients' models below one node that averages or votes.

It predicts the label and is no density (section 3.2, bagging). With trees or forests at the clients
it is FC[DT] of the paper; any other model that gives p(y | x) may take part. Every client needs the
label.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from fedcircuits import encoding
from fedcircuits.arrays import FloatArray
from fedcircuits.density.batched import Question, ask
from fedcircuits.errors import ClientError, FederationError, QueryError
from fedcircuits.federation.client.classifiers import Classifier, part_of
from fedcircuits.federation.model.definition4 import OPERATIONS, Operation, Placed
from fedcircuits.federation.model.run import HoldsClients, Run
from fedcircuits.federation.plan.weights import shares
from fedcircuits.federation.server.circuit_builder import SERVER
from fedcircuits.federation.server.remote import (
    ClientsAwayError,
    RemoteDensity,
    asked_by_id,
    warn_of_away,
)
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.ledger import Ledger
from fedcircuits.federation.wire.names import CLASSIFIER
from fedcircuits.federation.wire.steps import Setting
from fedcircuits.schema import Data, Schema, Table, Variable, images, read
from fedcircuits.schema.shown import HEADS, html, some, variable_rows
from fedcircuits.schema.table import Unknown

Decode = Callable[[bytes, str], Classifier]
OPTIONS = ("weighting", "rebase")  # of `train_ensemble`, as `federate` takes them


@dataclass(frozen=True, eq=False, repr=False)
class FederatedEnsemble(HoldsClients):
    """Predicts the label by an average of, or a vote over, the clients' classifiers.

    Attributes:
        schema: agreed by all clients.
        label: the variable that is predicted.
        models: classifiers by client, or references to those that stay at their client.
        rows: (k,) rows of each class behind each model, by client.
        operation: average or vote.
        weighting: weights of the clients: "rows" or "equal".
        rebase: whether a client's posterior is corrected from its own shares of the classes to
            those of all clients, which matters where labels are skewed.
        setting: horizontal, vertical or hybrid.
        ledger: bytes of every message between server and clients.
        dropped: why a client is no longer in the federation, by client.
        id: column that aligns rows.
        secret: mixed into digests of ids.
        run: the run that made it; None where it was loaded from a file.
    """

    schema: Schema
    label: str
    models: dict[str, Classifier | RemoteDensity] = field(repr=False)
    rows: dict[str, FloatArray] = field(repr=False)
    operation: Operation
    weighting: Literal["rows", "equal"] = "rows"
    rebase: bool = True
    setting: Setting = "horizontal"
    ledger: Ledger = field(default_factory=Ledger, repr=False)
    dropped: dict[str, str] = field(default_factory=dict)
    id: str | None = None
    secret: str = field(default="", repr=False)
    run: Run | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return (
            f"FederatedEnsemble({self.operation.name} of the classifiers of {some(self.clients)} "
            f"for {self.label!r}; {len(self.schema)} variables)"
        )

    def _repr_html_(self) -> str:
        return html(repr(self), [("setting", self.setting)], HEADS, variable_rows(self.schema))

    @property
    def clients(self) -> tuple[str, ...]:
        """Sorted names of the clients."""
        return tuple(sorted(self.models))

    @property
    def is_remote(self) -> bool:
        """Whether some model stays at its client."""
        return any(isinstance(model, RemoteDensity) for model in self.models.values())

    @property
    def psi(self) -> tuple[Placed, ...]:
        """The machine of every node: a leaf at each client, the root at the server."""
        leaves = [Placed(at, client) for at, client in enumerate(self.clients)]
        return (*leaves, Placed(len(leaves), SERVER))

    @property
    def omega(self) -> tuple[Operation | None, ...]:
        """The operation of every node, None for a leaf."""
        return (*(None for _ in self.clients), self.operation)

    @property
    def n_parameters(self) -> int:
        """Parameters of all client models together, as far as they are known."""
        return sum(model.n_parameters for model in self.models.values())

    def predict_proba(
        self, data: Data, target: str | None = None, *, unknown: Unknown = "error"
    ) -> pd.DataFrame:
        """Returns p(label | features), one column for each category; of a vote the shares.

        `answer.attrs["answered"]` lists the clients that answered, `["away"]` why others did not.

        Args:
            data: rows; absent columns are missing.
            target: the label, if anything.
            unknown: whether an unseen category is an error or a missing value.
        """
        if target not in (None, self.label):
            raise QueryError(
                f"the ensemble predicts its label {self.label!r} alone, found target {target!r}"
            )
        table = self._rows(data, unknown)
        answers, away = self._posteriors(table)
        names = sorted(answers)
        if not names:
            raise FederationError("no client is left: " + "; ".join(away.values()))
        weights = shares([self._weight(name) for name in names])
        proba = self.operation.apply(np.stack([answers[name] for name in names]), weights)
        columns = pd.Index(self._variable.categories, name=self.label)
        answer = pd.DataFrame(proba, index=table.index, columns=columns)
        answer.attrs |= {"answered": tuple(names), "away": away}
        if away:
            warn_of_away(names, away)
        return answer

    def predict(
        self, data: Data, target: str | None = None, *, unknown: Unknown = "error"
    ) -> pd.Series[Any]:
        """Returns the most probable category of the label in each row."""
        proba = self.predict_proba(data, target, unknown=unknown)
        labels = pd.Series(list(proba.columns)).to_numpy()
        best = labels[proba.to_numpy().argmax(axis=1)]
        answer = pd.Series(best, index=proba.index, name=self.label)
        answer.attrs |= proba.attrs
        return answer

    def without(self, client: str) -> FederatedEnsemble:
        """Returns the ensemble without one client."""
        if client not in self.models or len(self.models) == 1:
            raise FederationError(
                f"cannot go on without {client!r}; the clients are {', '.join(self.clients)}"
            )
        return replace(
            self,
            models={c: model for c, model in self.models.items() if c != client},
            rows={c: rows for c, rows in self.rows.items() if c != client},
            dropped={**self.dropped, client: "left"},
        )

    def save(self, path: str | Path) -> None:
        """Writes the ensemble to a file that `fedcircuits.load` reads; no model may be remote."""
        from fedcircuits.federation.model.ensemble_storage import to_record

        encoding.write(Path(path), encoding.pack(to_record(self)))

    # --- helpers ----------------------------------------------------------------------------------

    @property
    def _variable(self) -> Variable:
        return self.schema[self.label]

    def _weight(self, client: str) -> float:
        return float(self.rows[client].sum()) if self.weighting == "rows" else 1.0

    def _rows(self, data: Data, unknown: Unknown) -> Table:
        if images.is_images(data):
            return self.schema.encode(data)
        frame = read(data)
        ids = frame[self.id] if self.id is not None and self.id in frame.columns else None
        shown = [n for n in frame.columns if n != self.label and (ids is None or n != self.id)]
        table = self.schema.encode(frame[shown], unknown=unknown)
        servers = [p.server for p in self.models.values() if isinstance(p, RemoteDensity)]
        if ids is None or not servers:
            return table
        return asked_by_id(table, ids, servers[0], self.secret, [self.label])

    def _posteriors(self, table: Table) -> tuple[dict[str, FloatArray], dict[str, str]]:
        """Returns posteriors (n, k) by client, and why other clients did not answer."""
        answers: dict[str, FloatArray] = {}
        away: dict[str, str] = {}
        remote: dict[str, RemoteDensity] = {}
        for name, model in self.models.items():
            if isinstance(model, RemoteDensity):
                remote[name] = model
            else:
                answers[name] = model.posterior(part_of(model.schema, table))
        while remote:
            try:
                found = ask([Question(model, "classify", table) for model in remote.values()])
                answers |= dict(zip(remote, found, strict=True))
                break
            except ClientsAwayError as error:
                away |= error.why
                remote = {name: model for name, model in remote.items() if name not in away}
        if self.rebase:
            every = np.sum([self.rows[name] for name in answers], axis=0)
            answers = {name: _rebased(p, self.rows[name], every) for name, p in answers.items()}
        return answers, away


def _rebased(posterior: FloatArray, mine: FloatArray, every: FloatArray) -> FloatArray:
    """Returns p_c(y | x) q(y) / q_c(y), normalised (n, k).

    Args:
        posterior: (n, k) p_c(y | x) of one client.
        mine: (k,) rows of each class at the client.
        every: (k,) rows of each class at all clients.
    """
    ratio = np.divide(every / every.sum(), mine / mine.sum(), where=mine > 0, out=0.0 * every)
    changed = posterior * ratio
    total = changed.sum(axis=1, keepdims=True)
    return np.where(total > 0, changed / np.where(total > 0, total, 1.0), posterior)


def train_ensemble(
    server: Server, operation: str, keep: bool, decode: Decode, **options: Any
) -> FederatedEnsemble:
    """Has every client fit a classifier of its columns; clients that fail are dropped.

    Args:
        server: schemas agreed, the label at every client.
        operation: "average" or "vote".
        keep: whether models stay at the clients; one without an encoding stays in any case.
        decode: makes a classifier of bytes and the label's name.
        **options: weighting and rebase.
    """
    if server.label is None:
        raise FederationError(f"operation={operation!r} needs a label: pass label=")
    lacking = [c for c in server.clients if c not in server.label_holders]
    if lacking:
        raise FederationError(
            f"operation={operation!r} needs the label at every client; "
            f"{', '.join(map(repr, lacking))} lack(s) it: pass label_use='sent' and id="
        )
    requests = {
        client: m.FitClassifier([n for n in server.schema.names if n in server.held[client]], keep)
        for client in server.clients
    }
    failures: dict[str, ClientError] = {}
    fitted = server.call(m.FIT_CLASSIFIER, requests, failures)
    for client, error in failures.items():
        server.drop(client, str(error))
    models: dict[str, Classifier | RemoteDensity] = {}
    for client, reply in fitted.items():
        if reply.stays:
            schema = server.schema.select([n for n in reply.columns if n != server.label])
            models[client] = RemoteDensity(server, client, CLASSIFIER, schema, reply.parameters)
        else:
            models[client] = decode(m.model_bytes(reply.model), server.label)
    return FederatedEnsemble(
        server.schema,
        server.label,
        models,
        {client: np.array(reply.rows, dtype=float) for client, reply in fitted.items()},
        OPERATIONS[operation],
        setting=server.setting,
        ledger=server.ledger,
        dropped=server.dropped,
        **options,
    )
