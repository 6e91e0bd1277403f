"""Indicator matrices of states: counts and likelihoods of many tables as matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from fedcircuits.arrays import FloatArray
from fedcircuits.learners.learnspn.coded import Coded

# Below this share of ones a sparse product beats the dense one.
SPARSE_SHARE = 0.05
SMALL = 200_000  # cells; a product this small is dense in any case


@dataclass(frozen=True, eq=False)
class Indicators:
    """1 where a row is in a state.

    Attributes:
        matrix: (W, n) one line a state; (d, n) of the second state only if `halved`, for columns
            of two states without a missing cell. Dense float32, or sparse by rows of the table.
        halved: whether only the second state of each column is kept.
        weights: (n,) of the rows.
        equal: whether all weights are one.
    """

    matrix: Any
    halved: bool
    weights: FloatArray
    equal: bool

    @staticmethod
    def of(data: Coded) -> Indicators:
        """The indicators of a slice."""
        equal = bool((data.weights == 1).all())
        if data.is_binary and data.complete:
            few = np.count_nonzero(data.states) < SPARSE_SHARE * data.states.size
            matrix: Any = data.states.astype(np.float32)
            if few and data.states.size > SMALL:
                matrix = sparse.csc_matrix(matrix)
            return Indicators(matrix, True, data.weights, equal)
        states = data.states.T  # (n, d)
        seen = states >= 0
        indices = (states + data.offsets[None, :-1])[seen]
        indptr = np.concatenate([[0], np.cumsum(seen.sum(axis=1))])
        shape = (int(data.offsets[-1]), data.n_rows)
        matrix = sparse.csc_matrix((np.ones(indices.size), indices, indptr), shape=shape)
        return Indicators(matrix, False, data.weights, equal)

    def pair_counts(self) -> FloatArray:
        """(W, W) weighted number of rows in both states, or (d, d) if halved.

        float32 counts are exact below 2**24 rows, which a slice of one table does not exceed
        (weighted rows are counted in float64).
        """
        matrix: Any = self.matrix
        is_sparse = sparse.issparse(matrix)
        if self.equal:
            product = matrix @ matrix.T
        elif is_sparse:
            product = matrix @ sparse.diags(self.weights) @ matrix.T
        else:
            wide = matrix.astype(float)
            product = (wide * self.weights) @ wide.T
        return np.asarray(product.toarray() if is_sparse else product, dtype=float)

    def state_counts(self, shares: FloatArray) -> FloatArray:
        """(K, W) weight of every state in K groups to which rows belong by shares (K, n)."""
        weighted = shares if self.equal else shares * self.weights
        counts = np.asarray((self.matrix @ weighted.T.astype(self.matrix.dtype)).T, dtype=float)
        if not self.halved:
            return counts
        answer = np.empty((shares.shape[0], 2 * counts.shape[1]))
        # Rounding of float32 must not leave a count below zero.
        np.maximum(weighted.sum(axis=1)[:, None] - counts, 0.0, out=answer[:, 0::2])
        answer[:, 1::2] = counts
        return answer

    def log_likelihood(self, log_tables: FloatArray) -> FloatArray:
        """(K, n) log-probability of every row's observed cells under K factorised tables (K, W)."""
        if not self.halved:
            return np.ascontiguousarray((self.matrix.T @ log_tables.T).T)
        zero, one = log_tables[:, 0::2], log_tables[:, 1::2]
        step = (one - zero).astype(np.float32)
        matrix: Any = self.matrix
        if sparse.issparse(matrix):
            product = np.ascontiguousarray((self.matrix.T @ step.T).T)
        else:
            product = step @ self.matrix
        return np.asarray(product + zero.sum(axis=1)[:, None])
