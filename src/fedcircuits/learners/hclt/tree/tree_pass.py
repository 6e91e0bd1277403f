"""Upward pass and expected counts (flows) of a latent tree over compressed rows.

Passes run over distinct subtree patterns (see :mod:`.patterns`), in linear space with a scale per
pattern, and in the caller's float type: float32 is harmless for expected counts because every
product is rescaled, float64 is there for laws and evaluation. The patterns of all latents lie one
after another in flat arrays (T, H), so that a whole pass is one call of a compiled loop; the NumPy
twin does the same latent by latent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from fedcircuits.arrays import FloatArray, IntegerArray
from fedcircuits.learners.hclt.tree.cell_tables import AnyFloat, Tables
from fedcircuits.learners.hclt.tree.latent_tree import Counts, LatentTree
from fedcircuits.learners.hclt.tree.patterns import Patterns, block_patterns, row_blocks
from fedcircuits.learners.hclt.tree.shape import TreeShape
from fedcircuits.native import Kernels, kernels

# Factors multiplied before a product is rescaled: keeps a hub with many children above underflow.
_RESCALE_EVERY = 5
_TINY = 1e-30


@dataclass
class Upward:
    """Result of an upward pass over T subtree patterns.

    Attributes:
        evidence: (T, H) scaled evidence below every latent given its state.
        messages: (T, H) the same summed over the latent's state given its parent's; `flows`
            replaces them by the flows from outside the subtree.
        root: (U, H) the root's evidence.
        log_scale: (U,) log of the factor taken out at the root; -inf for an impossible pattern.
    """

    evidence: AnyFloat
    messages: AnyFloat
    root: AnyFloat
    log_scale: FloatArray


@dataclass
class Flows:
    """Result of a downward pass.

    Attributes:
        states: (T, H) flow of every latent's states.
        pairs: (L, H, W) flow of (parent state, child state); None where not asked for. The root's
            entry has no meaning.
        cells: (R, H) flow of (cell, state), rows as in the tables; None where not asked for.
    """

    states: AnyFloat
    pairs: AnyFloat | None
    cells: AnyFloat | None


class TreePass:
    """Upward and downward passes of one tree in one float type.

    Casts the parameters once: a block of rows only gathers and multiplies.
    """

    def __init__(self, tree: LatentTree, dtype: npt.DTypeLike = np.float64) -> None:
        """Prepare the transitions of `tree` in `dtype`."""
        self.tree = tree
        self.shape: TreeShape = tree.shape
        self.dtype: np.dtype[Any] = np.dtype(dtype)
        self._root = tree.root.astype(self.dtype)
        self._forward = np.ascontiguousarray(tree.transitions, dtype=self.dtype)

    @cached_property
    def tables(self) -> Tables:
        """The tree's own emissions."""
        return Tables.of(self.tree, self.dtype)

    def upward(self, patterns: Patterns, tables: Tables | None = None) -> Upward:
        """One upward pass.

        Args:
            patterns: The compressed rows.
            tables: Factors of the cells; the tree's emissions if not given.
        """
        tables = self.tables if tables is None else tables
        total, H = patterns.n_patterns, self.tree.n_states
        evidence = np.empty((total, H), dtype=self.dtype)
        messages = np.empty((total, H), dtype=self.dtype)
        scales = np.empty(total)
        native = kernels()
        if native is None:
            self._upward(patterns, tables, evidence, messages, scales)
        else:
            native.call_with_gemm(
                "tree_up",
                self.dtype,
                *self._structure(patterns, tables),
                tables.values,
                self._forward,
                _RESCALE_EVERY,
                evidence,
                messages,
                scales,
            )
        root = patterns.rows_of(self.shape.root)
        return Upward(evidence, messages, evidence[root], scales[root])

    def _structure(self, patterns: Patterns, tables: Tables) -> tuple[object, ...]:
        """Return the arguments for tree and patterns that both compiled passes take."""
        shape = self.shape
        return (
            *(shape.n_latents, self.tree.n_states, self.tree.block_size, *shape.pointers),
            *(tables.cards, tables.starts, *patterns.pointers),
        )

    def _upward(
        self,
        patterns: Patterns,
        tables: Tables,
        evidence: AnyFloat,
        messages: AnyFloat,
        scales: FloatArray,
    ) -> None:
        """The NumPy twin of `tree_up`."""
        for latent in map(int, self.shape.order[::-1]):
            rows = patterns.rows_of(latent)
            product, log_scale = evidence[rows], scales[rows]
            log_scale[:] = 0.0
            n_factors = 0
            for column in self.shape.columns_of[latent]:
                factor = tables.rows_of(column, patterns.codes[column])
                if n_factors == 0:
                    product[:] = factor
                else:
                    product *= factor
                n_factors += 1
                if n_factors % _RESCALE_EVERY == 0:
                    self._rescale(product, log_scale)
            if n_factors == 0:
                product[:] = 1
            for child in self.shape.children_of[latent]:
                below = patterns.rows_of(child)
                index = patterns.index_of(child)
                product *= messages[below].take(index, axis=0)
                log_scale += scales[below].take(index)
                n_factors += 1
                if n_factors % _RESCALE_EVERY == 0:
                    self._rescale(product, log_scale)
            self._rescale(product, log_scale)
            if self.shape.parent[latent] >= 0:
                upwards = self._in_blocks(latent).swapaxes(1, 2)
                np.matmul(self._by_block(product), upwards, out=self._by_block(messages[rows]))

    def _by_block(self, values: AnyFloat) -> AnyFloat:
        """(B, n, W) the states (n, H) block by block, a view."""
        shape = len(values), self.tree.n_blocks, self.tree.block_size
        return np.asarray(values.reshape(shape).swapaxes(0, 1))

    def _in_blocks(self, latent: int) -> AnyFloat:
        """(B, W, W) transitions of a latent, a view."""
        W = self.tree.block_size
        return np.asarray(self._forward[latent].reshape(-1, W, W))

    def _rescale(self, product: AnyFloat, log_scale: FloatArray) -> None:
        """Give every row mean one, in place, and book the factor in `log_scale`."""
        mean = product @ np.ones(self.tree.n_states, dtype=self.dtype)
        mean /= self.tree.n_states
        impossible = ~(mean > 0)
        if impossible.any():
            log_scale[impossible] = -np.inf
            mean[impossible] = 1
        log_scale += np.log(mean)
        product *= (1 / mean)[:, None]

    def flows(
        self,
        patterns: Patterns,
        up: Upward,
        root_state: AnyFloat,
        tables: Tables | None = None,
        *,
        with_pairs: bool = True,
        with_cells: bool = True,
    ) -> Flows:
        """Flows of all latents from the root's.

        Args:
            patterns: The compressed rows.
            up: The upward pass; its messages become flows from outside.
            root_state: (U, H) flow of the root's states: its posterior times any weight.
            tables: Those of the upward pass.
            with_pairs: Whether flows of edges are wanted.
            with_cells: Whether flows of cells are wanted.
        """
        tables = self.tables if tables is None else tables
        H = self.tree.n_states
        states = np.empty((patterns.n_patterns, H), dtype=self.dtype)
        states[patterns.rows_of(self.shape.root)] = root_state
        pairs = np.zeros_like(self._forward) if with_pairs else None
        cells = np.zeros_like(tables.values) if with_cells else None
        flows = Flows(states, pairs, cells)
        native = kernels()
        if native is None:
            self._flows(patterns, up, flows, tables)
        else:
            native.call_with_gemm(
                "tree_down",
                self.dtype,
                *self._structure(patterns, tables),
                self._forward,
                up.evidence,
                up.messages,
                states,
                pairs,
                cells,
            )
        return flows

    def _flows(self, patterns: Patterns, up: Upward, flows: Flows, tables: Tables) -> None:
        """The NumPy twin of `tree_down`."""
        for latent in map(int, self.shape.order):
            rows = patterns.rows_of(latent)
            state = flows.states[rows]
            if flows.pairs is not None and self.shape.parent[latent] >= 0:
                outside, inside = (
                    self._by_block(part[rows]) for part in (up.messages, up.evidence)
                )
                pairs = np.matmul(outside.swapaxes(1, 2), inside)  # (B, W, W)
                flows.pairs[latent] = pairs.reshape(flows.pairs[latent].shape)
                flows.pairs[latent] *= self._forward[latent]
            for child in self.shape.children_of[latent]:
                below = patterns.rows_of(child)
                outside = add_by_index(patterns.index_of(child), state, patterns.sizes[child])
                # A state with a zero message has no flow either: any divisor gives that zero.
                outside /= np.maximum(up.messages[below], np.asarray(_TINY, dtype=self.dtype))
                up.messages[below] = outside
                inside = self._by_block(flows.states[below])
                np.matmul(self._by_block(outside), self._in_blocks(child), out=inside)
                flows.states[below] *= up.evidence[below]
            if flows.cells is None:
                continue
            for column in self.shape.columns_of[latent]:
                start, card = int(tables.starts[column]), int(tables.cards[column])
                codes = patterns.codes[column]
                codes = np.where(codes < 0, card, codes)
                flows.cells[start : start + card + 1] += add_by_index(codes, state, card + 1)

    def log_likelihood(self, codes: IntegerArray) -> FloatArray:
        """(n,) log-likelihood of coded rows (n, D); missing cells are marginalised exactly."""
        result = np.empty(len(codes))
        for rows in row_blocks(len(codes), self.tree):
            result[rows] = self.pattern_log_likelihood(block_patterns(self.tree, codes[rows]))
        return result

    def pattern_log_likelihood(self, patterns: Patterns) -> FloatArray:
        """(n,) log-likelihood of compressed rows."""
        up = self.upward(patterns)
        return _log_with_scale(up.root @ self._root, up.log_scale)[patterns.row_index]

    def root_evidence(self, codes: IntegerArray) -> tuple[AnyFloat, FloatArray]:
        """Scaled evidence of the root's states (n, H) and its log scale (n,)."""
        evidence = np.empty((len(codes), self.tree.n_states), dtype=self.dtype)
        log_scale = np.empty(len(codes))
        for rows in row_blocks(len(codes), self.tree):
            patterns = block_patterns(self.tree, codes[rows])
            self.add_root_evidence(patterns, evidence[rows], log_scale[rows])
        return evidence, log_scale

    def add_root_evidence(
        self, patterns: Patterns, evidence: AnyFloat, log_scale: FloatArray
    ) -> None:
        """Fill in the scaled evidence of the root's states (n, H) and its log scale (n,)."""
        up = self.upward(patterns)
        np.take(up.root, patterns.row_index, axis=0, out=evidence, mode="clip")
        np.take(up.log_scale, patterns.row_index, out=log_scale, mode="clip")

    def counts_of(self, block: tuple[Patterns, FloatArray]) -> Counts:
        """The expected counts of compressed rows with weights (n,)."""
        counts = Counts.zeros(self.tree)
        self.add_counts(*block, counts)
        return counts

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
        flows = self.flows(patterns, up, root_state)
        assert flows.pairs is not None
        assert flows.cells is not None
        counts.pairs += flows.pairs
        tables = self.tables
        for start, card, table in zip(tables.starts, tables.cards, counts.emissions, strict=True):
            table += flows.cells[start : start + card].T  # those of missing cells are dropped


def add_by_index(index: IntegerArray, values: AnyFloat, size: int) -> AnyFloat:
    """(size, H) sums of the rows of `values` (U, H) with the same index."""
    n_rows = len(index)
    native = kernels()
    if native is not None and values.dtype in _COMPILED and values.flags.c_contiguous:
        return _added(native, np.ascontiguousarray(index, dtype=np.int32), values, size)
    ones = np.ones(n_rows, dtype=values.dtype)
    pointers = np.arange(n_rows + 1, dtype=np.int32)
    indicator = sparse.csc_matrix(
        (ones, index.astype(np.int32, copy=False), pointers), shape=(size, n_rows)
    )
    return np.asarray(indicator @ values)


_COMPILED = (np.dtype(np.float32), np.dtype(np.float64))


def _added(native: Kernels, index: npt.NDArray[np.int32], values: AnyFloat, size: int) -> AnyFloat:
    answer = np.zeros((size, values.shape[1]), dtype=values.dtype)
    native.call_typed("add_rows", values.dtype, *values.shape, index, values, answer)
    return answer


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
    for rows in row_blocks(len(codes), tree):
        tree_pass.add_counts(block_patterns(tree, codes[rows]), row_weights[rows], counts)
    return counts
