"""`product`: the label is known everywhere, and ties the clients together.

    p(x, y) = q(y) [y] prod_S sum_{c in holders(S)} w(c | y, S) p_c(x_S | y)

With one subspace this is the horizontal mixture with weights per class, w(c | y) = n_cy / n_y: size
weights for the density, class weights for classification. With private subspaces only it is the
product of per-class client models. No byte is exchanged per row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcircuits.errors import FederationError
from fedcircuits.federation.glue import Network
from fedcircuits.federation.server import Server
from fedcircuits.federation.training import Ingredients, Job, fit, indicator_leaf


@dataclass(frozen=True)
class ProductOfClasses:
    """Per-class client models, multiplied over subspaces and mixed over holders."""

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "product"

    @property
    def leaves_client(self) -> tuple[str, ...]:
        """What leaves a client."""
        return ("rows per label class",)

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
        return fit(server, jobs, take, ingredients)

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


def _by_key(item: tuple[tuple[str, str, int], Any]) -> tuple[str, str, int]:
    return item[0]
