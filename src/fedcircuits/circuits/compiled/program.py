"""A circuit as a list of blocks for the compiled passes.

A block is a set of nodes whose values share one scale in every row: the leaves of a group, products
whose children lie in the same blocks, sums over the same children. Children of a block are then a
few runs of neighbouring numbers, and most of the work is products of small matrices. A sum over
leaves of one table is a table itself: it is looked up, not added up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.circuits.evaluation_plan import DenseSums, Products

if TYPE_CHECKING:
    from fedcircuits.circuits.circuit import Circuit

# Kinds of blocks, and fields of one, as in circuit_values.inc.
LEAF, PRODUCT, DENSE, SUM = range(4)
KIND, OUT, SIZE, ARITY, ARGS, FOLDED = 0, 1, 2, 3, 4, 8
PAD = 8  # numbers in a vector of the compiled loops
# Below this a weight times a kept number may underflow.
FRAGILE = 2.0**-50
KIND, OUT, SIZE, ARITY, ARGS, FOLDED = (
    0,
    1,
    2,
    3,
    4,
    8,
)  # fields of a block, as in circuit_values.inc
# Sums over several blocks take an exponential an edge: a circuit mostly of those stays in NumPy.
MOST_MIXED = 0.25


class Fold(NamedTuple):
    """A dense sum over leaves of one group that is looked up in a table of its own."""

    group: int
    leaves: IntArray  # (r,) which of the group's
    weights: FloatArray  # (r, k)


@dataclass(frozen=True, eq=False)
class Program:
    """Blocks of a circuit, children first.

    Attributes:
        ops: (n_ops, FIELDS) the blocks; `circuit_values.inc` names the fields.
        args: child blocks and positions.
        weights: of all sums, rows of dense ones padded.
        scopes: (n_ops, words) columns below each block, as bits.
        op_of: (n_nodes,) block of the node at a position.
        position: (n_nodes,) where each node of the circuit lies.
        folds: of the slots after those of the leaf groups, in order.
        widest: most nodes or children of a block.
        share_mixed: share of the edges that are those of sums over several blocks.
    """

    ops: IntArray
    args: IntArray
    weights: FloatArray
    scopes: NDArray[np.uint64]
    op_of: NDArray[np.int32]
    position: IntArray
    folds: tuple[Fold, ...]
    widest: int
    share_mixed: float

    @property
    def n_ops(self) -> int:
        """Number of blocks."""
        return len(self.ops)

    @property
    def pays(self) -> bool:
        """Whether the compiled passes are the faster ones for this circuit."""
        return self.share_mixed <= MOST_MIXED

    @staticmethod
    def of(circuit: Circuit) -> Program:
        """Return the program of a circuit: its nodes as blocks in the order of evaluation."""
        layout = _Layout(circuit)
        for draft in _one_branch_after_another(_drafts(circuit), len(circuit.groups)):
            layout.add(draft)
        return layout.program()


class _Draft(NamedTuple):
    """A block of nodes whose position in the order of evaluation is not fixed yet.

    Attributes:
        kind: PRODUCT, DENSE or SUM.
        nodes: (k,) of the circuit.
        children: (k, r) of products and mixed sums, (r,) of dense sums.
        weights: (k, r) of sums.
        below: numbers of the blocks that the children lie in; those of the leaf groups come first.
    """

    kind: int
    nodes: IntArray
    children: IntArray
    weights: FloatArray
    below: list[int]


def _drafts(circuit: Circuit) -> list[_Draft]:
    """Blocks in the order of the evaluation plan; their numbers follow those of the leaf groups."""
    n_leaf_blocks = len(circuit.groups)
    block_of = np.full(circuit.structure.n_nodes, -1, dtype=np.int64)
    for at, group in enumerate(circuit.groups):
        block_of[group.nodes] = at
    drafts: list[_Draft] = []

    def draft(kind: int, nodes: IntArray, children: IntArray, weights: FloatArray) -> None:
        if kind == DENSE:
            below = [int(block_of[children[0]])]
        else:
            row = children[:1] if kind == PRODUCT else children
            below = list(dict.fromkeys(block_of[row].ravel().tolist()))
        block_of[nodes] = n_leaf_blocks + len(drafts)
        drafts.append(_Draft(kind, nodes, children, weights, below))

    none = np.zeros(0)
    for step in circuit.plan.steps:
        if isinstance(step, DenseSums):
            if (block_of[step.children] == block_of[step.children[0]]).all():
                draft(DENSE, step.nodes, step.children, step.weights)
                continue
            for at in range(step.nodes.size):
                one = slice(at, at + 1)
                weights = np.exp(step.log_weights[one])
                draft(SUM, step.nodes[one], step.children[None], weights)
            continue
        blocks = block_of[step.children]  # (k, r)
        order = np.argsort(blocks, axis=1, kind="stable")
        sorted_blocks = np.take_along_axis(blocks, order, axis=1)
        for mine in _equal_rows(sorted_blocks):
            if isinstance(step, Products):
                children = np.take_along_axis(step.children[mine], order[mine], axis=1)
                draft(PRODUCT, step.nodes[mine], children, none)
            elif sorted_blocks[mine[0], 0] == sorted_blocks[mine[0], -1]:
                weights = np.exp(step.log_weights[mine])
                for node, children, weight in zip(
                    step.nodes[mine], step.children[mine], weights, strict=True
                ):
                    draft(DENSE, np.array([node]), children, weight[None])
            else:
                draft(SUM, step.nodes[mine], step.children[mine], np.exp(step.log_weights[mine]))
    return drafts


def _one_branch_after_another(drafts: list[_Draft], n_leaf_blocks: int) -> list[_Draft]:
    """The blocks, each right after those below it; the last one is the root.

    Numbers of a block are then read while they are still in the cache, however many branches there
    are: the clients of a federation, say.
    """
    ordered: list[_Draft] = []
    is_placed = [False] * len(drafts)
    waiting = [len(drafts) - 1] if drafts else []
    while waiting:
        at = waiting[-1]
        open_below = [b - n_leaf_blocks for b in drafts[at].below if b >= n_leaf_blocks]
        open_below = [below for below in open_below if not is_placed[below]]
        if open_below:
            waiting += open_below[::-1]
            continue
        waiting.pop()
        if not is_placed[at]:
            is_placed[at] = True
            ordered.append(drafts[at])
    return ordered


class _Layout:
    """Blocks as they are found, from the leaves up."""

    def __init__(self, circuit: Circuit) -> None:
        self.circuit = circuit
        structure = circuit.structure
        self.block_of = np.full(structure.n_nodes, -1, dtype=np.int64)
        self.position = np.full(structure.n_nodes, -1, dtype=np.int64)
        self.position[: structure.n_leaves] = np.arange(structure.n_leaves)
        self.end = structure.n_leaves
        self.ops: list[list[int]] = []
        self.args: list[IntArray] = []
        self.n_args = 0
        self.weights: list[FloatArray] = []
        self.n_weights = 0
        self.folds: list[Fold] = []
        self.first_node: list[int] = []  # a node of each block, for its scope
        self.widest = 1
        self.n_mixed = 0
        for at, group in enumerate(circuit.groups):
            self.block_of[group.nodes] = at
            self._block(LEAF, group.first, group.size, 0, at, group.first)

    def _block(
        self,
        kind: int,
        out: int,
        size: int,
        arity: int,
        args: int,
        node: int,
        weights: tuple[int, int] = (0, 0),
        fragile: bool = False,
        folded: int = -1,
    ) -> None:
        self.ops.append(
            [kind, out, size, arity, args, weights[0], weights[1], int(fragile), folded, 0]
        )
        self.first_node.append(node)
        self.widest = max(self.widest, size, arity)

    def _place(self, nodes: IntArray) -> int:
        """Give the nodes of the next block their positions; returns the first."""
        first = self.end
        self.position[nodes] = np.arange(first, first + nodes.size)
        self.block_of[nodes] = len(self.ops)
        self.end += nodes.size
        return first

    def _keep(self, args: IntArray) -> int:
        at = self.n_args
        self.args.append(args)
        self.n_args += args.size
        return at

    def _keep_weights(self, weights: FloatArray) -> int:
        at = self.n_weights
        self.weights.append(weights.reshape(-1))
        self.n_weights += weights.size
        return at

    def _slot(self, children: IntArray) -> list[int]:
        """Block, first position or -1, and else where the positions are kept."""
        at = self.position[children]
        block = int(self.block_of[children[0]])
        if (np.diff(at) == 1).all():
            return [block, int(at[0]), 0]
        return [block, -1, self._keep(at)]

    def add(self, draft: _Draft) -> None:
        """Take the nodes of a block, after those of its children."""
        if draft.kind == PRODUCT:
            self._products(draft.nodes, draft.children)
        elif draft.kind == DENSE:
            self._dense(draft.nodes, draft.children, draft.weights)
        else:
            self._mixed(draft.nodes, draft.children, draft.weights)

    def _products(self, nodes: IntArray, children: IntArray) -> None:
        slots = [self._slot(below) for below in children.T]
        args = self._keep(np.array(slots, dtype=np.int64).reshape(-1))
        node = int(nodes[0])
        out = self._place(nodes)
        self._block(PRODUCT, out, nodes.size, len(slots), args, node)

    def _dense(self, nodes: IntArray, children: IntArray, weights: FloatArray) -> None:
        """k sums over r children of one block; weights (k, r)."""
        slot = self._slot(children)
        args = self._keep(np.array(slot, dtype=np.int64))
        kept = self._keep_weights(_padded(weights.T)), self._keep_weights(_padded(weights))
        node, fragile = int(nodes[0]), _is_fragile(weights)
        folded = -1
        block = slot[0]
        if block < len(self.circuit.groups) and not fragile:
            group = self.circuit.groups[block]
            if group.family.table_of(group.params) is not None:
                folded = len(self.circuit.groups) + len(self.folds)
                self.folds.append(Fold(block, children - group.first, weights.T))
        out = self._place(nodes)
        self._block(DENSE, out, nodes.size, children.size, args, node, kept, fragile, folded)

    def _mixed(self, nodes: IntArray, children: IntArray, weights: FloatArray) -> None:
        """k sums over children (k, r) of several blocks."""
        k, r = children.shape
        edges = np.empty((k, 1 + 2 * r), dtype=np.int64)
        edges[:, 0] = r
        edges[:, 1::2] = self.block_of[children]
        edges[:, 2::2] = self.position[children]
        args = self._keep(edges.reshape(-1))
        kept = self._keep_weights(weights), 0
        node = int(nodes[0])
        out = self._place(nodes)
        self._block(SUM, out, k, r, args, node, kept, _is_fragile(weights))
        self.n_mixed += k * r

    def program(self) -> Program:
        scopes = self.circuit.node_scopes[np.array(self.first_node)]
        op_of = np.empty(self.position.size, dtype=np.int32)
        op_of[self.position] = self.block_of
        none = [np.zeros(0, dtype=np.int64)]
        return Program(
            ops=np.array(self.ops, dtype=np.int64),
            args=np.concatenate(self.args or none),
            weights=np.concatenate(self.weights or [np.zeros(0)]),
            scopes=np.ascontiguousarray(scopes),
            op_of=op_of,
            position=self.position,
            folds=tuple(self.folds),
            widest=self.widest,
            share_mixed=self.n_mixed / max(self.circuit.n_edges, 1),
        )


def _equal_rows(rows: IntArray) -> list[IntArray]:
    """Numbers of equal rows of (k, r), group by group, in order of first occurrence."""
    if (rows == rows[0]).all():
        return [np.arange(len(rows))]
    _, which = np.unique(rows, axis=0, return_inverse=True)
    which = which.reshape(-1)
    order = np.argsort(which, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(which[order])) + 1)


def _padded(weights: FloatArray) -> FloatArray:
    """(r, k) with rows of a length the compiled loops take."""
    r, k = weights.shape
    answer = np.zeros((r, -(-k // PAD) * PAD))
    answer[:, :k] = weights
    return answer


def _is_fragile(weights: FloatArray) -> bool:
    return bool(((weights > 0) & (weights < FRAGILE)).any())
