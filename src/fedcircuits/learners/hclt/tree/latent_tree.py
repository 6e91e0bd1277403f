"""Latent trees over coded columns: parameters, upward pass and expected counts (flows).

One structure serves both table learners. In a hidden Chow-Liu tree every column hangs on a latent
of its own and the latents form a tree; in a mixture of factorised components all columns hang on
a single latent. Passes run over distinct subtree patterns (see :mod:`.patterns`), in linear space
with a scale per pattern, and in the caller's float type: float32 is harmless for expected counts
because every product is rescaled, float64 is there for laws and evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedcircuits.arrays import FloatArray, IntegerArray
from fedcircuits.learners.hclt.tree.patterns import Patterns, find_patterns

AnyFloat = npt.NDArray[np.floating]
FactorOf = Callable[[int], AnyFloat]

# Rows compressed together.
BLOCK_ROWS = 16_384
# Factors multiplied before a product is rescaled: keeps a hub with many children above underflow.
_RESCALE_EVERY = 5


@dataclass(frozen=True)
class LatentTree:
    """Parameters of a latent tree with L latents of H states and D coded columns.

    Attributes:
        parent: (L,) parent of every latent, -1 at the root.
        order: (L,) topological order, parents first.
        latent_of: (D,) the latent every column hangs on.
        root: (H,) distribution of the root latent.
        transitions: (L, H, H) rows p(child state | parent state); the root's entry is unused.
        emissions: D tables (H, card_j) with rows summing to one.
    """

    parent: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    latent_of: npt.NDArray[np.int64]
    root: FloatArray
    transitions: FloatArray
    emissions: tuple[FloatArray, ...]

    @property
    def n_states(self) -> int:
        """Number of states H of every latent."""
        return len(self.root)

    @property
    def n_columns(self) -> int:
        """Number of coded columns D."""
        return len(self.emissions)

    @property
    def cards(self) -> tuple[int, ...]:
        """Number of states of every column."""
        return tuple(table.shape[1] for table in self.emissions)

    @property
    def n_parameters(self) -> int:
        """Numbers stored."""
        inner = (len(self.parent) - 1) * self.n_states**2
        return self.n_states + inner + sum(table.size for table in self.emissions)

    def columns_of(self) -> list[list[int]]:
        """Columns on every latent, L lists."""
        columns: list[list[int]] = [[] for _ in self.parent]
        for column, latent in enumerate(self.latent_of):
            columns[latent].append(column)
        return columns

    def children_of(self) -> list[list[int]]:
        """Children of every latent, L lists."""
        children: list[list[int]] = [[] for _ in self.parent]
        for latent, above in enumerate(self.parent):
            if above >= 0:
                children[above].append(latent)
        return children


@dataclass
class Counts:
    """Expected counts of one or more passes; the sufficient statistics of EM.

    Attributes:
        root: (H,) expected root states.
        pairs: (L, H, H) expected (parent state, child state); the root's entry stays zero.
        emissions: D arrays (H, card_j).
        log_likelihood: Weighted sum of the row log-likelihoods.
        weight: Total row weight.
    """

    root: FloatArray
    pairs: FloatArray
    emissions: list[FloatArray]
    log_likelihood: float
    weight: float

    @staticmethod
    def zeros(tree: LatentTree) -> Counts:
        """Empty counts of the shapes of `tree`."""
        return Counts(
            root=np.zeros_like(tree.root),
            pairs=np.zeros_like(tree.transitions),
            emissions=[np.zeros_like(table) for table in tree.emissions],
            log_likelihood=0.0,
            weight=0.0,
        )

    def blend(self, other: Counts, share: float, scale: float) -> None:
        """Replace the counts by (1 - share) * self + share * scale * other."""
        keep, take = 1.0 - share, share * scale
        self.root = keep * self.root + take * other.root
        self.pairs *= keep
        self.pairs += take * other.pairs
        for mine, theirs in zip(self.emissions, other.emissions, strict=True):
            mine *= keep
            mine += take * theirs


@dataclass
class Upward:
    """Result of an upward pass over subtree patterns (U of them below a latent).

    Attributes:
        evidence: Scaled evidence below every latent given its state, {latent: (U, H)}.
        messages: The same summed over the latent's state given its parent's, {latent: (U, H)};
            the downward pass replaces them by the flows from outside the subtree.
        root: (U, H) the root's evidence.
        log_scale: (U,) log of the factor taken out at the root; -inf for an impossible pattern.
    """

    evidence: dict[int, AnyFloat]
    messages: dict[int, AnyFloat]
    root: AnyFloat
    log_scale: FloatArray


class TreePass:
    """Upward and downward passes of one tree in one float type.

    Casts and transposes the parameters once: a block of rows only gathers and multiplies.
    """

    def __init__(self, tree: LatentTree, dtype: npt.DTypeLike = np.float64) -> None:
        """Prepare the tables of `tree` in `dtype`."""
        self.tree = tree
        self.dtype = np.dtype(dtype)
        self.columns_of = tree.columns_of()
        self._children = tree.children_of()
        self._root = tree.root.astype(self.dtype)
        self._forward = tree.transitions.astype(self.dtype)
        self._backward = np.ascontiguousarray(self._forward.transpose(0, 2, 1))
        # Row -1 is all ones: indexing with the missing code -1 marginalises the column exactly.
        self._tables = []
        for table in tree.emissions:
            extended = np.ones((table.shape[1] + 1, tree.n_states), dtype=self.dtype)
            extended[:-1] = table.T
            self._tables.append(extended)
        self._ones = np.ones(tree.n_states, dtype=self.dtype)
        self._tiny = np.asarray(1e-30, dtype=self.dtype)

    def patterns(self, codes: IntegerArray) -> Patterns:
        """Compress one block of rows for this tree's structure."""
        return block_patterns(self.tree, codes)

    def gather(self, patterns: Patterns) -> FactorOf:
        """Emission factors (U, H) of every column's patterns."""
        return lambda column: self._tables[column].take(patterns.codes[column], axis=0, mode="wrap")

    def upward(self, patterns: Patterns, factor_of: FactorOf | None = None) -> Upward:
        """One upward pass.

        Args:
            patterns: The compressed rows.
            factor_of: Gives the factors (U, H) of a column; they are overwritten. Gathered
                emissions by default; a normaliser passes whole-column sums.
        """
        tree = self.tree
        factor_of = self.gather(patterns) if factor_of is None else factor_of
        evidence: dict[int, AnyFloat] = {}
        messages: dict[int, AnyFloat] = {}
        scales: dict[int, FloatArray] = {}
        for latent in map(int, tree.order[::-1]):
            product: AnyFloat | None = None
            log_scale = np.zeros(patterns.sizes[latent])
            n_factors = 0
            for column in self.columns_of[latent]:
                factor = factor_of(column)
                product = factor if product is None else np.multiply(product, factor, out=product)
                n_factors += 1
                if n_factors % _RESCALE_EVERY == 0:
                    self._rescale(product, log_scale)
            if product is None:
                product = np.ones((patterns.sizes[latent], tree.n_states), dtype=self.dtype)
            for child in self._children[latent]:
                if patterns.all_differ:
                    product *= messages[child]
                    log_scale += scales.pop(child)
                else:
                    index = patterns.child_index[child]
                    product *= messages[child].take(index, axis=0)
                    log_scale += scales.pop(child).take(index)
                n_factors += 1
                if n_factors % _RESCALE_EVERY == 0:
                    self._rescale(product, log_scale)
            self._rescale(product, log_scale)
            evidence[latent], scales[latent] = product, log_scale
            if tree.parent[latent] >= 0:
                messages[latent] = product @ self._backward[latent]
        root = int(tree.order[0])
        return Upward(evidence, messages, evidence[root], scales[root])

    def _rescale(self, product: AnyFloat, log_scale: FloatArray) -> None:
        """Give every row mean one, in place, and book the factor in `log_scale`."""
        mean = product @ self._ones
        mean /= self.tree.n_states
        impossible = mean <= 0
        if impossible.any():
            log_scale[impossible] = -np.inf
            mean[impossible] = 1
        log_scale += np.log(mean)
        product *= (1 / mean)[:, None]

    def downward(
        self, patterns: Patterns, up: Upward, root_state: AnyFloat
    ) -> Iterator[tuple[int, AnyFloat]]:
        """State flows (U, H) of every latent from the root's, parents first.

        Args:
            patterns: The compressed rows.
            up: The upward pass; its messages become flows from outside.
            root_state: (U, H) flow of the root's states: its posterior times any weight.

        Yields:
            (latent, flow of its states); :meth:`pair_flow` gives the edge above it.
        """
        states: dict[int, AnyFloat] = {}
        for latent in map(int, self.tree.order):
            state = states.pop(latent) if latent in states else root_state
            for child in self._children[latent]:
                outside = (
                    state.copy()
                    if patterns.all_differ
                    else add_by_index(patterns.child_index[child], state, patterns.sizes[child])
                )
                # A state with a zero message has no flow either: any divisor gives that zero.
                outside /= np.maximum(up.messages[child], self._tiny)
                up.messages[child] = outside
                below = outside @ self._forward[child]
                below *= up.evidence[child]
                states[child] = below
            yield latent, state

    def pair_flow(self, up: Upward, latent: int) -> AnyFloat:
        """(H, H) flow of the edge above `latent`, still without the factor A, after `downward`."""
        return np.asarray(up.messages[latent].T @ up.evidence[latent])

    def log_likelihood(self, codes: IntegerArray) -> FloatArray:
        """(n,) log-likelihood of coded rows (n, D); missing cells are marginalised exactly."""
        result = np.empty(len(codes))
        for rows in row_blocks(len(codes)):
            result[rows] = self.pattern_log_likelihood(self.patterns(codes[rows]))
        return result

    def pattern_log_likelihood(self, patterns: Patterns) -> FloatArray:
        """(n,) log-likelihood of compressed rows."""
        up = self.upward(patterns)
        return _log_with_scale(up.root @ self._root, up.log_scale)[patterns.row_index]

    def root_evidence(self, codes: IntegerArray) -> tuple[AnyFloat, FloatArray]:
        """Scaled evidence of the root's states (n, H) and its log scale (n,)."""
        evidence = np.empty((len(codes), self.tree.n_states), dtype=self.dtype)
        log_scale = np.empty(len(codes))
        for rows in row_blocks(len(codes)):
            patterns = self.patterns(codes[rows])
            up = self.upward(patterns)
            evidence[rows] = up.root[patterns.row_index]
            log_scale[rows] = up.log_scale[patterns.row_index]
        return evidence, log_scale

    def add_counts(self, patterns: Patterns, weights: FloatArray, counts: Counts) -> None:
        """Add the expected counts of compressed rows with weights (n,) to `counts`, in place."""
        up = self.upward(patterns)
        likelihood = up.root @ self._root
        pattern_weights = np.bincount(patterns.row_index, weights, minlength=len(likelihood))
        logs = _log_with_scale(likelihood, up.log_scale)
        counts.log_likelihood += float(pattern_weights @ logs)
        counts.weight += float(weights.sum())
        possible = np.isfinite(logs)
        share = np.where(possible, pattern_weights / np.where(possible, likelihood, 1), 0)
        root_state = up.root * self._root
        root_state *= share.astype(self.dtype)[:, None]
        self.add_flows(patterns, up, root_state, counts)

    def add_flows(
        self, patterns: Patterns, up: Upward, root_state: AnyFloat, counts: Counts
    ) -> None:
        """Add the expected counts that follow from flows (U, H) of the root's states, in place."""
        counts.root += root_state.sum(axis=0)
        for latent, state in self.downward(patterns, up, root_state):
            if self.tree.parent[latent] >= 0:
                counts.pairs[latent] += self.pair_flow(up, latent) * self.tree.transitions[latent]
            for column in self.columns_of[latent]:
                card = self.tree.emissions[column].shape[1]
                cells = patterns.codes[column]
                # Missing cells fall into one more row, which is dropped.
                cells = np.where(cells < 0, card, cells)
                counts.emissions[column] += add_by_index(cells, state, card + 1)[:card].T


def block_patterns(tree: LatentTree, codes: IntegerArray) -> Patterns:
    """Compress one block of coded rows (n, D) for the structure of `tree`."""
    return find_patterns(codes, tree.cards, tree.columns_of(), tree.children_of(), tree.order)


def row_blocks(n_rows: int, size: int = BLOCK_ROWS) -> Iterator[slice]:
    """Row slices: large enough to share patterns, small enough to bound memory."""
    for start in range(0, n_rows, size):
        yield slice(start, min(start + size, n_rows))


def add_by_index(index: IntegerArray, values: AnyFloat, size: int) -> AnyFloat:
    """(size, H) sums of the rows of `values` (U, H) with the same index."""
    n_rows = len(index)
    ones = np.ones(n_rows, dtype=values.dtype)
    pointers = np.arange(n_rows + 1, dtype=np.int32)
    indicator = sparse.csc_matrix(
        (ones, index.astype(np.int32, copy=False), pointers), shape=(size, n_rows)
    )
    return np.asarray(indicator @ values)


def _log_with_scale(likelihood: AnyFloat, log_scale: FloatArray) -> FloatArray:
    """log(likelihood) + log_scale with -inf, and no warning, for impossible rows."""
    positive = likelihood > 0
    logs = np.log(np.where(positive, likelihood, 1).astype(np.float64))
    return np.where(positive, logs + log_scale, -np.inf)


def log_likelihood(
    tree: LatentTree, codes: IntegerArray, dtype: npt.DTypeLike = np.float64
) -> FloatArray:
    """(n,) log-likelihood of coded rows; missing cells (-1) are marginalised exactly."""
    return TreePass(tree, dtype).log_likelihood(codes)


def expected_counts(
    tree: LatentTree,
    codes: IntegerArray,
    weights: FloatArray | None = None,
    dtype: npt.DTypeLike = np.float64,
) -> Counts:
    """Expected counts of (weighted) coded rows under `tree`."""
    row_weights = np.ones(len(codes)) if weights is None else weights
    counts = Counts.zeros(tree)
    tree_pass = TreePass(tree, dtype)
    for rows in row_blocks(len(codes)):
        tree_pass.add_counts(tree_pass.patterns(codes[rows]), row_weights[rows], counts)
    return counts
