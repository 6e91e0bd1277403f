"""`coupled`: per-class client circuits, coupled through the states of their roots.

    p(x, y) = q(y) sum_{k_1..k_C} W(k_1, ..., k_C | y) prod_c p_c(x_c | k_c, y)

As `product`, which is the case W = prod_c r_c(k_c | y); here the server fits W by EM to likelihood
vectors of aligned rows, so that the clients' columns depend on each other within a class. The table
is mixed with the product's own by a share chosen on validation rows that no fit has seen, and not
kept where it gains nothing there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from scipy.special import logsumexp

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits import Circuit
from fedcircuits.density import Density
from fedcircuits.errors import FederationError
from fedcircuits.federation.agreement._shared.aligned import PHASE, common_rows
from fedcircuits.federation.agreement._shared.validation import (
    ask_by_number,
    key_of_model,
    only_rows,
)
from fedcircuits.federation.agreement.em import fit_joint_weights
from fedcircuits.federation.agreement.product import ProductOfClasses
from fedcircuits.federation.client.roots import component_key, couple
from fedcircuits.federation.model.placement import SERVER
from fedcircuits.federation.server.circuit_builder import Network
from fedcircuits.federation.server.fitted_parts import Ingredients, indicator_leaf
from fedcircuits.federation.server.remote import RemoteDensity
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire import messages as m
from fedcircuits.federation.wire.seeds import named_rng

Key = tuple[str, str, int]
MOST_COMBINATIONS = 1024
VALIDATION_SHARE, MOST_VALIDATION_ROWS = 0.1, 2000
# Shares of the product's own table that are tried; 1 is the plain product.
MIXED = (0.02, 0.1, 0.3, 1.0)


@dataclass(frozen=True)
class Coupled:
    """A table over the root states of all clients, for each class of the label.

    Attributes:
        n_groups: groups of root states at each client.
        n_rows: most aligned rows whose likelihood vectors are sent.
        n_steps: most EM steps.
    """

    n_groups: int = 16
    n_rows: int = 8000
    n_steps: int = 100

    @property
    def name(self) -> str:
        """As the user writes it."""
        return "coupled"

    @property
    def glues_again(self) -> bool:
        """Whether a leaver is taken out by gluing: circuits of all clients are in one part."""
        return True

    @property
    def leaves_client(self) -> tuple[str, ...]:
        """What leaves a client."""
        return (
            "rows per label class",
            "the label's code of the aligned rows, from one of its holders to the server",
            "log-likelihood of some aligned rows under each group of root states of their class",
            "which root states of a circuit form a group, and their weights",
        )

    def train(self, server: Server, take: Mapping[str, Any]) -> Ingredients:
        """`product`, then groups of root states, likelihood vectors and W."""
        if server.setting != "vertical" or not server.label_is_shared:
            raise FederationError(
                "the rule 'coupled' is for columns split and a label that every client holds; "
                f"found {server.setting} and the label at {len(server.label_holders)} of "
                f"{len(server.clients)} clients: use 'latent', or share_label=True"
            )
        common = common_rows(server)
        order = named_rng(server.seed, "coupled").permutation(common)
        n_held = min(MOST_VALIDATION_ROWS, int(VALIDATION_SHARE * common.size))
        held, seen = np.sort(order[:n_held]), np.sort(order[n_held:][: self.n_rows])
        every = np.unique(np.concatenate(list(server.aligned.values())))
        with only_rows(server, np.setdiff1d(every, held), 1.0):
            found = replace(ProductOfClasses(), calibration_rows=0).train(server, take)
        groups = self._groups(server, found, bool(take["keep"]))
        if any(group.size < 2 for group, _ in groups.values()):
            return found  # something without a root to split: nothing to couple
        _, numbers, codes = server.ask_label(PHASE)
        tables, scores = {}, [np.zeros((0, len(MIXED)))]
        for y in sorted({code for _, _, code in found.models}):
            keys = _keys_of_class(found, y)
            mine = numbers[codes == y]
            fitted, checked = np.intersect1d(seen, mine), np.intersect1d(held, mine)
            if not fitted.size:
                continue
            shares = [groups[key][1] for key in keys]
            tuples, weights = self._weights(server, keys, fitted, shares)
            plain = np.prod([s[tuples[:, c]] for c, s in enumerate(shares)], axis=0)
            tables[f"tuples {y}"] = tuples.astype(float)
            tables[f"weights {y}"] = np.stack(
                [(1 - share) * weights + share * plain / plain.sum() for share in MIXED]
            )
            if checked.size:
                vectors = self._vectors(server, keys, checked)
                scores.append(_log_likelihoods(vectors, tuples, tables[f"weights {y}"]))
        best = _best(np.concatenate(scores))
        if best is None:
            return found
        for name in [n for n in tables if n.startswith("weights")]:
            tables[name] = tables[name][best]
        tables |= {_name(key): group.astype(float) for key, (group, _) in groups.items()}
        return replace(found, tables=found.tables | tables)

    def _groups(
        self, server: Server, found: Ingredients, keep: bool
    ) -> dict[Key, tuple[IntArray, FloatArray]]:
        """Group of each root state and weight of each group, by model."""
        by_client: dict[str, list[Key]] = {}
        for key in sorted(found.models):
            by_client.setdefault(key[0], []).append(key)
        requests = {
            client: m.AskRoots([key_of_model(key) for key in keys], self.n_groups, keep)
            for client, keys in by_client.items()
        }
        told = server.call(PHASE, "roots", requests, m.Roots)
        return {
            key: (told[c].groups[key_of_model(key)], told[c].shares[key_of_model(key)])
            for c, keys in by_client.items()
            for key in keys
        }

    def _vectors(self, server: Server, keys: list[Key], numbers: IntArray) -> list[FloatArray]:
        """C arrays (n, K_c) log p_c(x_c | k, y) of aligned rows."""
        return [ask_by_number(server, key, numbers, "roots", PHASE) for key in keys]

    def _weights(
        self, server: Server, keys: list[Key], numbers: IntArray, shares: list[FloatArray]
    ) -> tuple[IntArray, FloatArray]:
        """Combinations (t, C) of groups, and W of each: all combinations where they are few."""
        tuples, weights = fit_joint_weights(self._vectors(server, keys, numbers), self.n_steps)
        sizes = [share.size for share in shares]
        if prod(sizes) > MOST_COMBINATIONS:
            return tuples, weights / weights.sum()
        table = np.zeros(sizes)
        table[tuple(tuples.T)] = weights / weights.sum()
        every = np.stack(np.unravel_index(np.arange(table.size), sizes), axis=1)
        return every, table.ravel()

    def glue(self, ingredients: Ingredients) -> tuple[Network, int]:
        """q(y) times coupled circuits; where they stay at clients, their groups one by one."""
        codes = sorted({code for _, _, code in ingredients.models})
        if not any(f"weights {y}" in ingredients.tables for y in codes):
            return ProductOfClasses().glue(ingredients)
        label, network = ingredients.label, Network()
        assert label is not None
        leaves = {y: indicator_leaf(ingredients.schema, label, y) for y in codes}
        made = {y: _class_part(ingredients, y) for y in codes}
        network.register([(leaf, SERVER) for leaf in leaves.values()])
        for found in made.values():
            network.register(found.parts)
        classes, rows = [], []
        for y in codes:
            products = [
                network.product([network.part(part) for part in parts])
                for parts in made[y].combinations
            ]
            inner = network.mixture(products, made[y].weights)
            classes.append(network.product([network.part(leaves[y]), inner]))
            rows.append(float(ingredients.tables["label"][y]))
        return network, network.mixture(classes, rows)


@dataclass(frozen=True)
class _ClassPart:
    """p(x | y) as combinations of parts.

    Attributes:
        parts: with their owners.
        combinations: parts that are multiplied.
        weights: of the combinations.
    """

    parts: list[tuple[Density, str]]
    combinations: list[list[Density]]
    weights: FloatArray


def _class_part(ingredients: Ingredients, y: int) -> _ClassPart:
    """One circuit where all are here, else the clients' models of single groups."""
    keys = _keys_of_class(ingredients, y)
    models = [ingredients.models[key] for key in keys]
    told = ingredients.tables.get(f"tuples {y}")
    if told is None:  # too few rows of this class to couple
        return _ClassPart([(x, k[0]) for x, k in zip(models, keys, strict=True)], [models], _ONE)
    told_weights = ingredients.tables[f"weights {y}"]
    # Clients that have left are summed out of the table.
    order = sorted({name.split("\x1f")[1] for name in ingredients.tables if "\x1f" in name})
    chosen = told[:, [order.index(key[0]) for key in keys]].astype(np.int64)
    tuples, place = np.unique(chosen, axis=0, return_inverse=True)
    weights = np.bincount(place.ravel(), told_weights).astype(float)
    tuples, weights = tuples[weights > 0].astype(np.int64), weights[weights > 0]
    groups = [ingredients.tables[_name(key)].astype(np.int64) for key in keys]
    circuits = [model for model in models if isinstance(model, Circuit)]
    if len(circuits) == len(models):
        names = {name for model in models for name in model.schema.names}
        schema = ingredients.schema.select([n for n in ingredients.schema.names if n in names])
        whole = couple(schema, circuits, groups, tuples, weights)
        return _ClassPart([(whole, SERVER)], [[whole]], _ONE)
    parts = [_components(model, g) for model, g in zip(models, groups, strict=True)]
    owned = [(p, key[0]) for own, key in zip(parts, keys, strict=True) for p in own]
    return _ClassPart(owned, [[parts[c][k] for c, k in enumerate(t)] for t in tuples], weights)


_ONE = np.ones(1)


def _components(model: Density, groups: IntArray) -> list[Density]:
    """The models of the groups, which their client holds."""
    assert isinstance(model, RemoteDensity)
    size = int(groups.max()) + 1
    return [replace(model, key=component_key(model.key, k)) for k in range(size)]


def _keys_of_class(ingredients: Ingredients, y: int) -> list[Key]:
    """Models of one class, by client."""
    return [key for key in sorted(ingredients.models) if key[2] == y]


def _name(key: Key) -> str:
    """The table that says which group each root state is in."""
    return f"groups\x1f{key[0]}\x1f{key_of_model(key)}"


def _log_likelihoods(
    vectors: list[FloatArray], tuples: IntArray, weights: FloatArray
) -> FloatArray:
    """(n, w) log-likelihood of rows under each of several tables (w, t)."""
    joint = sum(v[:, tuples[:, c]] for c, v in enumerate(vectors))  # (n, t)
    with np.errstate(divide="ignore"):
        return np.stack([logsumexp(joint + np.log(w), axis=1) for w in weights], axis=1)


def _best(scores: FloatArray) -> int | None:
    """The best table by (n, w) scores of validation rows; None where the product does as well.

    A table has to be better than the product, which comes last, by two paired standard errors.
    """
    if not len(scores):
        return None
    best = int(scores.mean(axis=0).argmax())
    gain = scores[:, best] - scores[:, -1]
    return best if gain.mean() > 2.0 * gain.std() / np.sqrt(len(gain)) else None
