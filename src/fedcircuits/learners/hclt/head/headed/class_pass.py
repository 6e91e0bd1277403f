"""Passes over all classes of a class tree at once, for rows with missing cells.

Upward gives log p(observed cells, y); downward draws completions of the missing cells from the
conditional given the observed ones. Copies of a row share its upward pass, and a completed row is
scored by going again only through the latents above its missing cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.learners.hclt.tree.class_tree import ClassTree

_GOLDEN, _MIX_1, _MIX_2 = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)
Seeds = npt.NDArray[np.uint64]
# So many probabilities are multiplied before their product is scaled.
_FACTORS_PER_SCALE = 12


@dataclass(frozen=True)
class UpPass:
    """An upward pass over n rows.

    Attributes:
        codes: (n, D) the rows, -1 where missing.
        evidence: by latent, (Y, n, H) scaled evidence below it given its state.
        messages: by latent but the root, (Y, n, H) the same given the parent's state.
        scales: by latent, (Y, n) log of the factors taken out below and at it.
        log_joint: (n, Y) log p(observed cells, y).
    """

    codes: IntArray
    evidence: dict[int, FloatArray]
    messages: dict[int, FloatArray]
    scales: dict[int, FloatArray]
    log_joint: FloatArray


class ClassPass:
    """Tables of a class tree, prepared for passes."""

    def __init__(self, tree: ClassTree) -> None:
        """Transpose the tables and add a row of ones for missing cells."""
        self.tree = tree
        self._columns_of = tree.tree_of(0).columns_of()
        self._children_of = tree.tree_of(0).children_of()
        self._order = [int(latent) for latent in tree.order]
        Y, L, H, W = tree.transitions.shape
        self._width = W
        by_block = tree.transitions.reshape(Y, L, H // W, W, W).transpose(1, 0, 2, 4, 3)
        self._backward = np.ascontiguousarray(by_block)  # (L, Y, B, W, W)
        self._tables = []  # D tables (Y, card + 1, H); row -1 is all ones
        self._cumulative = []  # D flat tables: row y * H + h rises from y * H + h to that plus one
        for table in tree.emissions:
            Y, H, card = table.shape
            extended = np.ones((Y, card + 1, H))
            extended[:, :-1] = table.transpose(0, 2, 1)
            self._tables.append(extended)
            rising = np.cumsum(table.reshape(Y * H, card), axis=1)
            rising /= rising[:, -1:]
            self._cumulative.append((rising + np.arange(Y * H)[:, None]).reshape(-1))

    @property
    def n_classes(self) -> int:
        """Number of classes Y."""
        return self.tree.n_classes

    @property
    def n_slots(self) -> int:
        """How many numbers a draw takes from its seed."""
        return len(self.tree.parent) + len(self.tree.emissions)

    @property
    def bytes_per_row(self) -> int:
        """What an upward pass keeps of one row."""
        Y, L, H, _ = self.tree.transitions.shape
        return int(16 * Y * L * H)

    def upward(self, codes: IntArray) -> UpPass:
        """Upward pass over coded rows (n, D), -1 where missing."""
        shape = (self.tree.n_classes, len(codes), self.tree.root.shape[1])
        evidence: dict[int, FloatArray] = {}
        messages: dict[int, FloatArray] = {}
        scales: dict[int, FloatArray] = {}
        n_factors: dict[int, int] = {}
        for latent in reversed(self._order):
            product = _Product(shape)
            for column in self._columns_of[latent]:
                product.times(self._emitted(column, codes))
            for child in self._children_of[latent]:
                product.times(messages[child].copy(), scales[child], n_factors[child])
            evidence[latent], scales[latent] = product.scaled()
            n_factors[latent] = product.n_factors + 1
            if self.tree.parent[latent] >= 0:
                messages[latent] = self._message(latent, evidence[latent])
        root = self._order[0]
        return UpPass(codes, evidence, messages, scales, self._joint(evidence[root], scales[root]))

    def again(self, up: UpPass, rows: IntArray, codes: IntArray) -> FloatArray:
        """(N, Y) log p(x, y) of completed rows.

        Args:
            up: the pass over the rows with missing cells.
            rows: (N,) the row of `up` that each of them completes.
            codes: (N, D) completed rows.
        """
        open_below = self._open(up.codes < 0)[rows]  # (N, L)
        messages: dict[int, FloatArray] = {}
        scales: dict[int, FloatArray] = {}
        n_factors: dict[int, int] = {}
        for latent in reversed(self._order):
            here = np.flatnonzero(open_below[:, latent])
            product = _Product((self.tree.n_classes, here.size, self.tree.root.shape[1]))
            for column in self._columns_of[latent]:
                product.times(self._emitted(column, codes[here]))
            for child in self._children_of[latent]:
                # What is open below the child is open here, and in the same order.
                message, scale = messages.pop(child), scales.pop(child)
                if message.shape[1] < here.size:
                    new = open_below[here, child]
                    message = _merged(up.messages[child], rows[here], new, message)
                    scale = _merged(up.scales[child], rows[here], new, scale)
                product.times(message, scale, n_factors[child])
            evidence, scales[latent] = product.scaled()
            n_factors[latent] = product.n_factors + 1
            if self.tree.parent[latent] >= 0:
                messages[latent] = self._message(latent, evidence)
        # The last latent is the root, which is open wherever a cell is missing.
        answer = up.log_joint[rows]
        answer[here] = self._joint(evidence, scales[latent])
        return answer

    def draw(self, up: UpPass, rows: IntArray, seeds: Seeds, classes: IntArray) -> IntArray:
        """(N, D) completions of rows of a pass, one for each seed, given the class.

        Args:
            up: the pass over the rows.
            rows: (N,) which row of it to complete.
            seeds: (N,) seeds of the draws.
            classes: (N,) class each completion is drawn from.
        """
        tree = self.tree
        missing = up.codes < 0
        open_below = self._open(missing)[rows]
        answer = up.codes[rows]
        H, W = tree.root.shape[1], self._width
        state = np.zeros((len(rows), len(tree.parent)), dtype=np.int64)
        u = uniform(seeds[:, None], np.arange(self.n_slots))
        for latent in self._order:
            here = np.flatnonzero(open_below[:, latent])
            if here.size == 0:
                continue
            y, above = classes[here], int(tree.parent[latent])
            weight = up.evidence[latent][y, rows[here]]  # (m, H)
            first = np.zeros(here.size, dtype=np.int64)  # first state of the block
            if above < 0:
                weight *= tree.root[y]
            else:
                first = state[here, above] // W * W
                weight = np.take_along_axis(weight, first[:, None] + np.arange(W), axis=1)
                weight *= tree.transitions[y, latent, state[here, above]]
            weight = np.cumsum(weight, axis=1)
            cut = u[here, latent] * weight[:, -1]
            drawn = (weight <= cut[:, None]).sum(axis=1)
            state[here, latent] = first + np.minimum(drawn, weight.shape[1] - 1)
            for column in self._columns_of[latent]:
                gaps = here[missing[rows[here], column]]
                if gaps.size == 0:
                    continue
                card = tree.emissions[column].shape[2]
                start = classes[gaps] * H + state[gaps, latent]
                target = start + u[gaps, len(tree.parent) + column]
                found = np.searchsorted(self._cumulative[column], target, side="right")
                answer[gaps, column] = np.clip(found - start * card, 0, card - 1)
        return answer

    def _message(self, latent: int, evidence: FloatArray) -> FloatArray:
        """(Y, n, H) evidence (Y, n, H) below a latent summed over its state given its parent's."""
        Y, n, H = evidence.shape
        by_block = evidence.reshape(Y, n, H // self._width, self._width).swapaxes(
            1, 2
        )  # (Y, B, n, W)
        found = by_block @ self._backward[latent]
        return np.asarray(found.swapaxes(1, 2).reshape(Y, n, H))

    def _emitted(self, column: int, codes: IntArray) -> FloatArray:
        """(Y, n, H) probability of each row's cell of a column, one where it is missing."""
        return self._tables[column].take(codes[:, column], axis=1, mode="wrap")

    def _joint(self, evidence: FloatArray, scale: FloatArray) -> FloatArray:
        """(n, Y) log p(x, y) from the root's evidence."""
        with np.errstate(divide="ignore"):
            total = np.log(np.einsum("ynh,yh->yn", evidence, self.tree.root))
        return np.asarray((total + scale).T + self.tree.log_prior)

    def _open(self, missing: BoolArray) -> BoolArray:
        """(n, L) whether a cell below a latent is missing."""
        answer = np.zeros((len(missing), len(self.tree.parent)), dtype=bool)
        for latent in reversed(self._order):
            for column in self._columns_of[latent]:
                answer[:, latent] |= missing[:, column]
            for child in self._children_of[latent]:
                answer[:, latent] |= answer[:, child]
        return answer


class _Product:
    """A product of factors (Y, n, H) that is scaled now and then, so that it does not underflow."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self._shape = shape
        self._product: FloatArray | None = None
        self._scale = np.zeros(shape[:2])
        self.n_factors = 0  # probabilities multiplied since it was scaled

    def times(
        self, factor: FloatArray, scale: FloatArray | None = None, n_factors: int = 1
    ) -> None:
        """Multiply by a factor, which may be overwritten, and by exp(scale).

        Args:
            factor: (Y, n, H).
            scale: (Y, n).
            n_factors: how many probabilities were multiplied in it since it was scaled.
        """
        if scale is not None:
            self._scale += scale
        if self._product is None:
            self._product = factor
        else:
            self._product *= factor
        self.n_factors += n_factors
        if self.n_factors >= _FACTORS_PER_SCALE:
            self._rescale()

    def scaled(self) -> tuple[FloatArray, FloatArray]:
        """The product, and the log of what was taken out of it."""
        if self._product is None:
            self._product = np.ones(self._shape)
        return self._product, self._scale

    def _rescale(self) -> None:
        assert self._product is not None
        total = self._product @ np.ones(self._shape[2])  # a sum over few numbers takes longer
        with np.errstate(divide="ignore"):
            self._scale += np.log(total)
        self._product /= np.where(total > 0, total, 1.0)[:, :, None]
        self.n_factors = 0


def _merged(up: FloatArray, rows: IntArray, new: BoolArray, found: FloatArray) -> FloatArray:
    """(Y, m, ...) what a pass says of some rows, but `found` where they are `new` (m,)."""
    answer = np.empty((len(up), rows.size, *up.shape[2:]))
    answer[:, new] = found
    answer[:, ~new] = up.take(rows[~new], axis=1)
    return answer


def row_seeds(codes: IntArray) -> Seeds:
    """(n,) a number for every coded row that depends on its cells and on nothing else."""
    salt = _mixed(np.arange(1, codes.shape[1] + 1, dtype=np.uint64))  # (D,)
    with np.errstate(over="ignore"):
        return _mixed(_mixed((codes + 2).astype(np.uint64) * _GOLDEN + salt).sum(axis=1))


def copies_of(seeds: Seeds, n: int) -> Seeds:
    """(len(seeds) * n,) seeds of n draws for each, draws of one next to each other."""
    with np.errstate(over="ignore"):
        steps = np.arange(1, n + 1, dtype=np.uint64) * _GOLDEN
        return _mixed((seeds[:, None] + steps).reshape(-1))


def uniform(seeds: Seeds, slots: int | IntArray) -> FloatArray:
    """Numbers in [0, 1) that depend on the seed and the slot alone; the two are broadcast."""
    with np.errstate(over="ignore"):
        salt = _mixed(np.atleast_1d(slots + 2).astype(np.uint64) * _MIX_2)
        mixed = _mixed(seeds ^ salt)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(x: Seeds) -> Seeds:
    """The finaliser of the splitmix64 generator."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * _MIX_1
        x = (x ^ (x >> np.uint64(27))) * _MIX_2
        return x ^ (x >> np.uint64(31))
