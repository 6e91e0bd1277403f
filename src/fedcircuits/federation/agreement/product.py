"""`product`: the label is known everywhere, and ties the clients together.

    p(x, y) = q(y) [y] prod_S sum_{c in holders(S)} w(c | y, S) p_c(x_S | y)

With one subspace this is the horizontal mixture with weights per class, w(c | y) = n_cy / n_y: size
weights for the density, class weights for classification. With private subspaces only it is the
product of per-class client models. No byte is exchanged per row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedcircuits.errors import FederationError
from fedcircuits.federation import messages as m
from fedcircuits.federation.calibration import fit_calibration
from fedcircuits.federation.glue import Network
from fedcircuits.federation.seeds import named_rng
from fedcircuits.federation.server import Server
from fedcircuits.federation.training import (
    Ingredients,
    Job,
    class_log_probs,
    fit,
    indicator_leaf,
)
from fedcircuits.federation.weights import log_shares
from fedcircuits.schema import Table
from fedcircuits.schema.grid import FloatArray, IntArray


@dataclass(frozen=True)
class ProductOfClasses:
    """Per-class client models, multiplied over subspaces and mixed over holders.

    Attributes:
        calibration_rows: aligned rows on which the clients' evidence is weighed; 0 for none.
    """

    calibration_rows: int = 4000

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "product"

    @property
    def leaves_client(self) -> tuple[str, ...]:
        """What leaves a client."""
        return (
            "rows per label class",
            "for calibration: label and log-likelihoods of some aligned rows",
        )

    def train(self, server: Server, take: Mapping[str, Any]) -> Ingredients:
        """One job for each subspace and holder."""
        if server.label is None or not server.label_is_shared:
            raise FederationError(
                "the rule 'product' needs the label at every client; share it (share_label=True) "
                "or use 'latent'"
            )
        jobs = []
        for s, space in enumerate(server.subspaces):
            names = [server.features[j] for j in space.features]
            columns = tuple(n for n in server.schema.names if n in names or n == server.label)
            jobs += [
                Job(server.clients[c], f"S{s}", columns, per_label=True) for c in space.holders
            ]
        counts = np.sum([server.label_counts[c] for c in server.clients], axis=0)
        if len(server.subspaces) > 1:  # an aligned row is counted once, by whoever has most
            counts = np.max([server.label_counts[c] for c in server.clients], axis=0)
        ingredients = Ingredients(server.schema, server.label, tables={"label": counts})
        found = fit(server, jobs, take, ingredients)
        return self._calibrated(server, found) if server.aligned else found

    def _calibrated(self, server: Server, found: Ingredients) -> Ingredients:
        """Weigh the subspaces' evidence on aligned rows: only log-likelihoods and labels travel."""
        common = common_rows(server)
        some = named_rng(server.seed, "calibration").permutation(common)[: self.calibration_rows]
        if some.size == 0 or server.label is None:
            return found
        told = server.call("calibration", "tell_label", {server.clients[0]: m.AskLabel()}, m.Label)
        label = told[server.clients[0]]
        at = np.searchsorted(np.sort(label.numbers), some)
        known = np.isin(some, label.numbers)
        some, at = some[known], at[known]
        labels = label.codes[np.argsort(label.numbers)][at].astype(np.int64)

        def asked(key: tuple[str, str, int], _: Table) -> FloatArray:
            nothing = np.zeros((0, 0))
            request = m.Ask(f"{key[1]}|{key[2]}", "log_prob", 0, nothing, nothing, some, 0)
            answers = server.call("calibration", "ask", {key[0]: request}, m.Answer)
            return answers[key[0]].values

        log_probs = class_log_probs(found, Table.empty(server.schema, some.size), asked)
        if log_probs is None:
            return found
        log_prior = log_shares(found.tables["label"])
        return replace(found, calibration=fit_calibration(log_probs, labels, log_prior))

    def glue(self, ingredients: Ingredients) -> tuple[Network, int]:
        """q(y) times products over subspaces of sums over holders."""
        label, network = ingredients.label, Network()
        assert label is not None
        codes = sorted({code for _, _, code in ingredients.models})
        spaces = sorted({job for _, job, _ in ingredients.models})
        leaves = {y: indicator_leaf(ingredients.schema, label, y) for y in codes}
        network.register([(leaf, "server") for leaf in leaves.values()])
        network.register(
            [(model, key[0]) for key, model in sorted(ingredients.models.items(), key=_by_key)]
        )
        classes, rows = [], []
        for y in codes:
            factors = [network.part(leaves[y])]
            for space in spaces:
                held = [k for k in sorted(ingredients.models) if k[1] == space and k[2] == y]
                if not held:
                    break  # nobody who holds this subspace has seen the class
                children = [network.part(ingredients.models[k]) for k in held]
                factors.append(network.mixture(children, [ingredients.rows[k] for k in held]))
            else:
                classes.append(network.product(factors))
                rows.append(self._class_rows(ingredients, y, spaces))
        return network, network.mixture(classes, rows)

    def _class_rows(self, ingredients: Ingredients, y: int, spaces: list[str]) -> float:
        """Rows of a class: added up where rows are split, one count where columns are."""
        if len(spaces) == 1:
            return sum(n for (_, _, code), n in ingredients.rows.items() if code == y)
        return float(ingredients.tables["label"][y])


def common_rows(server: Server) -> IntArray:
    """Numbers of the rows that every client holds, sorted."""
    common = server.aligned[server.clients[0]]
    for client in server.clients[1:]:
        common = np.intersect1d(common, server.aligned[client])
    return np.sort(common)


def _by_key(item: tuple[tuple[str, str, int], Any]) -> tuple[str, str, int]:
    return item[0]
