"""The root latents of client circuits: groups of states, and circuits coupled through them.

p_c(x | y) of a latent tree is a sum over the states of its root. States of one client that look
alike form a group k, so that p_c(x | y) = sum_k r_c(k | y) p_c(x | k, y); a table over the groups
of all clients then says what occurs together (`agreement/coupled.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy.special import logsumexp

from fedcircuits.arrays import Arrays, FloatArray, IntArray
from fedcircuits.circuits import Assembler, Circuit
from fedcircuits.circuits.passes import chunked
from fedcircuits.circuits.queries.likelihood import node_log_probs
from fedcircuits.circuits.queries.restrict import embed
from fedcircuits.density import Density
from fedcircuits.federation.client.clustering import features
from fedcircuits.federation.wire import messages as m
from fedcircuits.schema import Schema, Table

ROWS_TO_GROUP = 4000


def root_edges(model: Density) -> tuple[IntArray, FloatArray] | None:
    """Children (H,) and log-weights (H,) of a circuit's root; None where it is no sum."""
    if not isinstance(model, Circuit):
        return None
    structure = model.structure
    if structure.n_inner == 0 or not structure.is_sum[-1]:
        return None
    edges = slice(structure.first_edge[-2], structure.first_edge[-1])
    return structure.child[edges], structure.log_weight[edges]


class RootGroups:
    """A client's groups, by model.

    Args:
        models: of the client, by key; a model for each group is added where asked for.
    """

    def __init__(self, models: dict[str, Density]) -> None:
        self._models = models
        self._groups: dict[str, IntArray] = {}

    def split(
        self, request: m.AskRoots, table: Table, rng_of: Callable[[str], np.random.Generator]
    ) -> m.Roots:
        """Group the root states of models by how the rows they stand for look."""
        groups: Arrays = {}
        shares: Arrays = {}
        for key in request.models:
            model = self._models[key]
            rows = replace(table.columns(list(model.schema.names)), schema=model.schema)
            groups[key], shares[key] = group_states(model, rows, request.n_groups, rng_of(key))
            self._groups[key] = groups[key]
            if request.keep and isinstance(model, Circuit) and groups[key].size:
                for k in range(shares[key].size):
                    self._models[component_key(key, k)] = component(model, groups[key], k)
        return m.Roots(groups, shares)

    def log_probs(self, key: str, table: Table) -> FloatArray:
        """(n, K) log p(x | k) of rows over the model's variables."""
        model = self._models[key]
        assert isinstance(model, Circuit)
        return group_log_probs(model, self._groups[key], table)


def component_key(key: str, k: int) -> str:
    """The name of the model of one group."""
    return f"{key}#{k}"


def group_states(
    model: Density, table: Table, n_groups: int, rng: np.random.Generator
) -> tuple[IntArray, FloatArray]:
    """Group of each root state (H,), and r(k) (K,); one group where there is nothing to split.

    Args:
        model: p(x | y).
        table: own rows over its variables, by which states are compared.
        n_groups: most groups.
        rng: source of the starts.
    """
    edges = root_edges(model)
    if edges is None or not isinstance(model, Circuit) or not len(table):
        return np.zeros(0, dtype=np.int64), np.ones(1)
    children, log_weights = edges
    groups = np.arange(children.size)
    if children.size > n_groups:
        from sklearn.cluster import KMeans  # here: it takes a second to import

        some = table.rows(rng.permutation(len(table))[:ROWS_TO_GROUP])
        joint = _state_log_probs(model, children, some) + log_weights  # (n, H)
        total = logsumexp(joint, axis=1, keepdims=True)
        share = np.exp(joint - np.where(np.isfinite(total), total, 0.0))
        looks = share.T @ features(some) / (share.sum(axis=0)[:, None] + 1e-9)  # (H, F)
        found = KMeans(n_groups, n_init=4, random_state=int(rng.integers(2**31)))
        groups = found.fit_predict(looks, sample_weight=np.exp(log_weights) + 1e-9)
        groups = np.unique(groups, return_inverse=True)[1]
    shares = np.bincount(groups, np.exp(log_weights))
    return groups.astype(np.int64), shares / shares.sum()


def group_log_probs(model: Circuit, groups: IntArray, table: Table) -> FloatArray:
    """(n, K) log p(x | k) of rows over the model's variables."""
    edges = root_edges(model)
    assert edges is not None
    children, log_weights = edges
    joint = _state_log_probs(model, children, table) + log_weights  # (n, H)
    columns = []
    for k in range(int(groups.max()) + 1):
        mine = groups == k
        columns.append(logsumexp(joint[:, mine], axis=1) - logsumexp(log_weights[mine]))
    return np.stack(columns, axis=1)


def _state_log_probs(model: Circuit, children: IntArray, table: Table) -> FloatArray:
    """(n, H) log-density of rows below each child of the root."""
    answer = np.empty((len(table), children.size))
    for rows, part in chunked(model, table):
        answer[rows] = node_log_probs(model, part)[children].T
    return answer


def component(model: Circuit, groups: IntArray, k: int) -> Circuit:
    """p(x | k) as a circuit."""
    assembler = Assembler(model.schema)
    nodes = group_nodes(assembler, model, groups)
    return Circuit.assemble(assembler, nodes[k])


def couple(
    schema: Schema,
    models: Sequence[Circuit],
    groups: Sequence[IntArray],
    tuples: IntArray,
    weights: FloatArray,
) -> Circuit:
    """sum over tuples of w(k_1..k_C) prod_c p_c(x_c | k_c), every circuit in it once.

    Args:
        schema: of all variables.
        models: C circuits over disjoint variables.
        groups: (H_c,) group of each root state.
        tuples: (t, C) groups.
        weights: (t,) their weights.
    """
    assembler = Assembler(schema)
    nodes = [group_nodes(assembler, *pair) for pair in zip(models, groups, strict=True)]
    products = [assembler.product([nodes[c][k] for c, k in enumerate(chosen)]) for chosen in tuples]
    return Circuit.assemble(assembler, assembler.sum(products, np.log(weights / weights.sum())))


def group_nodes(assembler: Assembler, model: Circuit, groups: IntArray) -> list[int]:
    """Add a circuit to an assembler without its root; the node of each group instead.

    A single state is the whole circuit, which has no root to split.
    """
    columns = [assembler.schema.position(name) for name in model.schema.names]
    if groups.size == 1:
        return [embed(assembler, model, columns)]
    structure = model.structure
    new = np.full(structure.n_nodes, -1, dtype=np.int64)
    for group in model.groups:
        new[group.nodes] = assembler.leaves(
            group.family, columns[group.column], group.params, group.grid
        )
    for node in range(structure.n_inner - 1):
        edges = slice(structure.first_edge[node], structure.first_edge[node + 1])
        children = new[structure.child[edges]]
        here = structure.n_leaves + node
        if structure.is_sum[node]:
            new[here] = assembler.sum(children, structure.log_weight[edges])
        else:
            new[here] = assembler.product(children)
    edge = root_edges(model)
    assert edge is not None
    states, log_weights = new[edge[0]], edge[1]
    nodes = []
    for k in range(int(groups.max()) + 1):
        mine = groups == k
        nodes.append(assembler.sum(states[mine], log_weights[mine] - logsumexp(log_weights[mine])))
    return nodes
