"""The tilted circuit: p(x, y) = (1/Z) e^{c_y + sum_j g_yj(x_j)} sum_z root_y(z_r) prod A_y prod B.

The tilt (c, g) puts the class effect on the leaves of a circuit m(x) that the classes share. Root
weights and, optionally, transitions may depend on the class too. The normaliser is one upward pass
per class with whole-column sums in place of gathered emissions, and its flows are the model's
marginals p(y, x_j = v): with the data's flows they give every gradient, no autograd needed.

Tables over all columns are kept flat: W = sum(cards) numbers per class, columns one after another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import FloatArray
from fedcircuits.learners.hclt.tilt.compiled_trees import CompiledTrees
from fedcircuits.learners.hclt.tree.cell_tables import Tables
from fedcircuits.learners.hclt.tree.latent_tree import LatentTree
from fedcircuits.learners.hclt.tree.patterns import Patterns, identity_patterns
from fedcircuits.learners.hclt.tree.tree_pass import TreePass, Upward
from fedcircuits.native import kernels


@dataclass(frozen=True)
class TiltedTree:
    """A latent tree with a class tilt, for Y classes.

    Attributes:
        trees: One tree shared by the classes, or Y trees with the same structure and emissions
            where transitions depend on the class.
        c: (Y,) class constants.
        g: (Y, W) leaf tilts, flat over columns.
        root_logits: (Y, H) added to the log of the root distribution.
    """

    trees: tuple[LatentTree, ...]
    c: FloatArray
    g: FloatArray
    root_logits: FloatArray

    @property
    def n_classes(self) -> int:
        """Number of classes Y."""
        return len(self.c)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """(D + 1,) first flat index of every column."""
        return np.concatenate(([0], np.cumsum(self.trees[0].cards))).astype(np.int64)

    def tree_of(self, label: int) -> LatentTree:
        """The tree of one class."""
        return self.trees[label if len(self.trees) > 1 else 0]

    def root_weights(self) -> FloatArray:
        """(Y, H) unnormalised root weights."""
        logs = np.stack([_safe_log(self.tree_of(y).root) for y in range(self.n_classes)])
        return np.exp(logs + self.root_logits)

    def with_tilt(self, c: FloatArray, g: FloatArray, root_logits: FloatArray) -> TiltedTree:
        """The same trees under another tilt."""
        return replace(self, c=c, g=g, root_logits=root_logits)

    def sharpened(self, factor: float) -> TiltedTree:
        """The same trees under the tilt times a factor: more or less confident."""
        return self.with_tilt(factor * self.c, factor * self.g, factor * self.root_logits)


def untilted(tree: LatentTree, n_classes: int) -> TiltedTree:
    """A tilt of zero: y independent of x and uniform."""
    width = sum(tree.cards)
    return TiltedTree(
        trees=(tree,),
        c=np.zeros(n_classes),
        g=np.zeros((n_classes, width)),
        root_logits=np.zeros((n_classes, tree.n_states)),
    )


@dataclass(frozen=True)
class ModelFlows:
    """The normaliser and the model's own marginals.

    Attributes:
        log_z: log Z.
        log_class: (Y,) log(e^{c_y} Z_y); minus log_z it is the model's log p(y).
        cells: (Y, W) p(y, x_j = v).
        root: (Y, H) p(y, z_root = h).
        pairs: (Y, L, H, W) p(y, z_parent, z_child) where asked for, else none.
        emissions: D arrays (H, card_j), p(z of the column's latent, x_j = v), with the pairs only.
    """

    log_z: float
    log_class: FloatArray
    cells: FloatArray
    root: FloatArray
    pairs: FloatArray | None
    emissions: list[FloatArray]


def normaliser(model: TiltedTree, passes: list[TreePass], with_pairs: bool = False) -> ModelFlows:
    """Normaliser pass with its flows.

    Args:
        model: The tilted tree.
        passes: Prepared float64 passes, one per entry of `model.trees`.
        with_pairs: Whether pair flows are wanted (for gradients of transitions).
    """
    native = kernels()
    if native is not None and not with_pairs:
        trees = CompiledTrees(model.trees, model.n_classes)
        found = trees.normaliser(native, model.c, model.g, model.root_weights())
        return ModelFlows(*found, None, [])
    Y, starts = model.n_classes, model.starts
    tree = model.trees[0]
    L, H, W = len(tree.parent), tree.n_states, tree.block_size
    # exp(g) relative to the largest value of the class and column, which is booked in `log_shift`.
    tops = np.maximum.reduceat(model.g, starts[:-1], axis=1)  # (Y, D)
    lifted = np.exp(model.g - np.repeat(tops, np.diff(starts), axis=1))
    log_shift = tops.sum(axis=1)
    # One factor a class and column in place of gathered cells: rows (j, y).
    sums = np.empty((tree.n_columns, Y, H))
    for j, table in enumerate(tree.emissions):
        np.matmul(lifted[:, starts[j] : starts[j + 1]], table.T, out=sums[j])
    weights = model.root_weights()
    shared = len(model.trees) == 1
    groups = [np.arange(Y)] if shared else [np.array([y]) for y in range(Y)]
    ups: list[tuple[Patterns, Tables, Upward]] = []
    log_class = np.empty(Y)
    for group, tree_pass in zip(groups, passes, strict=True):
        patterns = _identity(len(group), tree)
        mine = np.ascontiguousarray(sums[:, group]).reshape(-1, H)
        first = np.arange(tree.n_columns) * len(group)
        tables = Tables(mine, first, np.full(tree.n_columns, len(group)))
        up = tree_pass.upward(patterns, tables)
        likelihood = (up.root * weights[group]).sum(axis=1)
        log_class[group] = model.c[group] + log_shift[group] + up.log_scale + np.log(likelihood)
        ups.append((patterns, tables, up))
    log_z = float(np.logaddexp.reduce(log_class))
    p_class = np.exp(log_class - log_z)

    cells = np.empty_like(model.g)
    root = np.empty((Y, H))
    pairs = np.zeros((Y, L, H, W)) if with_pairs else None
    states = np.empty((tree.n_columns, Y, H))
    emissions: list[FloatArray] = []
    for group, tree_pass, (patterns, tables, up) in zip(groups, passes, ups, strict=True):
        root_state = up.root * weights[group]
        root_state *= (p_class[group] / root_state.sum(axis=1))[:, None]
        root[group] = root_state
        # Pairs of a shared tree would be summed over the classes: they are taken apart below.
        flows = tree_pass.flows(
            patterns, up, root_state, tables, with_pairs=with_pairs and not shared, with_cells=False
        )
        states[:, group] = flows.states.reshape(L, len(group), H)[tree.latent_of]
        if pairs is None:
            continue
        if flows.pairs is not None:
            pairs[group] = flows.pairs
        else:
            outside, inside = (part.reshape(L, Y, -1, W) for part in (up.messages, up.evidence))
            by_block = np.einsum("lybh,lybk->ylbhk", outside, inside)
            pairs[:] = by_block.reshape(Y, L, H, W) * tree.transitions
        pairs[group, tree.order[0]] = 0.0
    states /= sums
    for j, table in enumerate(tree.emissions):
        block = slice(starts[j], starts[j + 1])
        np.matmul(states[j], table, out=cells[:, block])
        if with_pairs:
            emissions.append((states[j].T @ lifted[:, block]) * table)
    cells *= lifted
    return ModelFlows(log_z, log_class, cells, root, pairs, emissions)


@lru_cache(maxsize=64)
def _identity_of(n_rows: int, n_columns: int, parent: bytes) -> Patterns:
    return identity_patterns(n_rows, n_columns, np.frombuffer(parent, dtype=np.int64))


def _identity(n_rows: int, tree: LatentTree) -> Patterns:
    """Patterns of rows that share nothing; equal ones are made once."""
    return _identity_of(n_rows, tree.n_columns, np.asarray(tree.parent, dtype=np.int64).tobytes())


def _safe_log(values: FloatArray) -> FloatArray:
    """Log with -inf, and no warning, at zero."""
    return np.where(values > 0, np.log(np.where(values > 0, values, 1.0)), -np.inf)
