"""One client's branch of a latent tree that several clients share (columns split, `joint`).

The root of the tree is the agreed class l of a row, which no column of one client determines alone.
A client holds the branches over its own columns: given how much of each row belongs to each class
it fits p_c(x_c | l), and in turn says how likely its part of a row is under each class. All of it
together is EM for one tree over the columns of all clients:

    p(x) = sum_l q(l) prod_c p_c(x_c | l)

Columns hang on the root or on each other, whichever is more informative (a Chow-Liu tree of the
columns and the class); a label hangs on the root itself, so that classes within its strata stay
there.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedcircuits.arrays import FloatArray, IntegerArray
from fedcircuits.learners.hclt.tree.chow_liu import (
    RootedTree,
    mutual_information,
    root_tree,
    structure_rows,
)
from fedcircuits.learners.hclt.tree.latent_tree import Counts, LatentTree
from fedcircuits.learners.hclt.tree.patterns import Patterns, block_patterns, row_blocks
from fedcircuits.learners.hclt.tree.sizes import automatic_sizes
from fedcircuits.learners.hclt.tree.tree_em import Smoothing, column_marginals, maximise
from fedcircuits.learners.hclt.tree.tree_pass import TreePass, add_by_index
from fedcircuits.learners.spanning_tree import maximum_spanning_tree

# The steps of one client: log p(x | l) of its rows out, shares of the rows in (None for the end).
Branch = Generator[FloatArray, sparse.csr_matrix | None, LatentTree]

# Local steps: the start is far from anything, later shares change little.
FIRST_STEPS, STEPS = 15, 5
# Pseudo-rows of transitions, in those of a tree that sees all columns: classes are agreed on few
# rows each, and what they have in common is to come from all of them.
TRANSITION_TIMES = 8.0
LABEL_PSEUDO_ROWS = 0.1
# In the start, how much a latent's state goes with its parent's.
STAY = 0.2


def fit_branch(
    codes: IntegerArray,
    cards: tuple[int, ...],
    shares: sparse.csr_matrix,
    *,
    label: int | None = None,
    label_in_evidence: bool = True,
    is_tree: bool = True,
    smoothing: Smoothing | None = None,
    rng: np.random.Generator,
) -> Branch:
    """Yield log p(x | l) of a client's rows, be sent shares of the rows, return the tree.

    Args:
        codes: (n, D) states of its columns, -1 where missing.
        cards: number of states of each column.
        shares: (n, R) how much of each row belongs to each class; a row may have no part in it.
        label: the column that hangs on the root.
        label_in_evidence: whether the evidence is of the label too; if not, classes know nothing
            of it.
        is_tree: hidden tree, or all columns on the root (factorised given the class).
        smoothing: pseudo-counts; automatic by default.
        rng: which rows the structure is learned from, where they are very many.

    Yields:
        (n, R) log p(x | l) of all rows; is sent the next shares, None after the last step.

    Returns:
        The tree; state l of its root is class l, and its root distribution the shares of classes.
    """
    used = np.flatnonzero(shares.getnnz(axis=1) > 0)
    weight = np.asarray(shares.sum(axis=1), dtype=float).ravel()
    smoothing = smoothing or _smoothing(used.size, cards)
    marginals = column_marginals(codes[used], cards, weight[used])
    tree = _start(codes, cards, shares, label, is_tree, marginals, rng)
    blocks = [(rows, block_patterns(tree, codes[rows])) for rows in row_blocks(len(codes), tree)]
    seen = codes
    if label is not None and not label_in_evidence:
        seen = codes.copy()
        seen[:, label] = -1
    given: sparse.csr_matrix | None = shares
    n_steps = FIRST_STEPS
    while given is not None:
        for _step in range(n_steps):
            tree = _maximised(_counts(tree, blocks, given), tree, smoothing, marginals, label)
        n_steps = STEPS
        given = yield _log_evidence(tree, seen)
    return tree


def _smoothing(n_rows: int, cards: tuple[int, ...]) -> Smoothing:
    usual = automatic_sizes(max(n_rows, 1), cards).smoothing
    return replace(usual, transition=TRANSITION_TIMES * usual.transition)


def _structure(
    codes: IntegerArray,
    cards: tuple[int, ...],
    shares: sparse.csr_matrix,
    label: int | None,
    is_tree: bool,
    rng: np.random.Generator,
) -> tuple[RootedTree, npt.NDArray[np.int64]]:
    """The tree of latents, the last of which is the class, and the latent of every column."""
    D, R = len(cards), shares.shape[1]
    columns = np.array([j for j in range(D) if j != label], dtype=np.int64)
    latent_of = np.full(D, columns.size if is_tree else 0, dtype=np.int64)
    if not is_tree or not columns.size:
        return RootedTree(np.array([-1]), np.array([0])), np.zeros(D, dtype=np.int64)
    latent_of[columns] = np.arange(columns.size)
    used = np.flatnonzero(shares.getnnz(axis=1) > 0)
    used = used[structure_rows(used.size, columns.size + 1, rng)]
    classes = np.asarray(shares[used].argmax(axis=1)).ravel()
    coded = np.column_stack([codes[used][:, columns], classes]).astype(np.int32)
    information = mutual_information(coded, (*(cards[j] for j in columns), R))
    tree = root_tree(columns.size + 1, maximum_spanning_tree(information), root=columns.size)
    return tree, latent_of


def _start(
    codes: IntegerArray,
    cards: tuple[int, ...],
    shares: sparse.csr_matrix,
    label: int | None,
    is_tree: bool,
    marginals: list[FloatArray],
    rng: np.random.Generator,
) -> LatentTree:
    """State h of every latent looks like class h, and leans towards it."""
    shape, latent_of = _structure(codes, cards, shares, label, is_tree, rng)
    H = shares.shape[1]
    emissions = []
    for column, marginal in enumerate(marginals):
        seen = np.flatnonzero(codes[:, column] >= 0)
        cells = sparse.csr_matrix(
            (np.ones(seen.size), (seen, codes[seen, column])), shape=(len(codes), len(marginal))
        )
        own = np.asarray((shares.T @ cells).todense()) + marginal  # (H, card)
        emissions.append(own / own.sum(axis=1, keepdims=True))
    stay = np.full((H, H), (1.0 - STAY) / H) + STAY * np.eye(H)
    return LatentTree(
        parent=shape.parent,
        order=shape.order,
        latent_of=latent_of,
        root=_class_shares(np.asarray(shares.sum(axis=0), dtype=float).ravel()),
        transitions=np.tile(stay, (len(shape.parent), 1, 1)),
        emissions=tuple(emissions),
    )


def _class_shares(rows: FloatArray) -> FloatArray:
    """(R,) shares of the classes, none of them zero: a class is known by its place."""
    padded = rows + 1.0 / len(rows)
    return np.asarray(padded / padded.sum())


def _counts(
    tree: LatentTree, blocks: list[tuple[slice, Patterns]], shares: sparse.csr_matrix
) -> Counts:
    """Expected counts where the class of every row is given by its shares."""
    counts, root = Counts.zeros(tree), int(tree.order[0])
    tree_pass = TreePass(tree, np.float32)
    for rows, patterns in blocks:
        up = tree_pass.upward(patterns)
        mine = shares[rows].astype(np.float32).toarray()  # (n, R)
        flow = add_by_index(patterns.row_index, mine, patterns.sizes[root])
        # A class under which a row cannot be has no flow to pass on.
        flow = np.where(up.root > 0, flow, 0.0).astype(np.float32)
        tree_pass.add_flows(patterns, up, flow, counts)
    return counts


def _maximised(
    counts: Counts,
    tree: LatentTree,
    smoothing: Smoothing,
    marginals: list[FloatArray],
    label: int | None,
) -> LatentTree:
    """The M-step; the label's table is hardly smoothed, or every class would mix labels."""
    made = maximise(counts, tree, smoothing, marginals)
    emissions = list(made.emissions)
    if label is not None:
        table = counts.emissions[label] + LABEL_PSEUDO_ROWS * marginals[label]
        emissions[label] = table / table.sum(axis=1, keepdims=True)
    return replace(made, root=_class_shares(counts.root), emissions=tuple(emissions))


def _log_evidence(tree: LatentTree, codes: IntegerArray) -> FloatArray:
    """(n, R) log p(x | l) of rows."""
    evidence, log_scale = TreePass(tree).root_evidence(codes)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(evidence) + log_scale[:, None])
