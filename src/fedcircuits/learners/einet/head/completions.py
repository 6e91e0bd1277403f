"""Completions of images with missing pixels: all of them where there are few, else draws.

What is asked of an image with gaps is a mean over its completions x, each with the weight that the
evidence gives it. Without a label these are draws from m(x | known pixels). Given a label, half are
drawn from m and half from the EiNet given that label, t(x | y, known pixels), and weighted by

    q(y | x) / (1/2 + 1/2 t(y | x) / t(y | known pixels)),

which is at most 2 q(y | x): no single draw can outweigh the rest by chance. The draws depend on the
rows of the question alone, so that an answer repeats.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
from scipy import special

from fedcircuits.arrays import BoolArray, FloatArray, IntArray
from fedcircuits.learners.einet.density.einet_density import EiNetDensity
from fedcircuits.learners.einet.head.conv_net import ConvNet
from fedcircuits.schema import Table

DRAWN, LISTED = 32, 256
Parts = tuple[IntArray, FloatArray, FloatArray]  # row, values (N, D), weight
_AT_ONCE = 4096
_NORMAL = 1.959963984540054
# Draws that the variance of a coin with the same mean counts for, beside the draws' own variance.
_PRIOR_DRAWS = 2.0


@dataclass(frozen=True)
class Completed:
    """Completions of some rows.

    Attributes:
        row: (N,) the row each completes, in order.
        weight: (N,) its share; they sum to one for each row.
        values: (N, D) of the schema; the label's column is not looked at.
        log_head: (N, Y) log q(y | x).
        listed: (n,) whether all completions of a row are there.
    """

    row: IntArray
    weight: FloatArray
    values: FloatArray
    log_head: FloatArray
    listed: BoolArray

    def mean(self, of: FloatArray) -> FloatArray:
        """(n, k) weighted means of numbers (N, k) over the completions of each row."""
        answer = np.zeros((self.listed.size, of.shape[1]))
        np.add.at(answer, self.row, self.weight[:, None] * of)
        return answer

    def error(self, of: FloatArray, mean: FloatArray, spread: FloatArray | float) -> FloatArray:
        """(n, k) standard errors of `mean`, widened so that 1.96 of them cover 95 %.

        Args:
            of: (N, k) the numbers.
            mean: (n, k) their means.
            spread: (n, k) a variance the numbers could have; it counts for a few draws.
        """
        squares = np.zeros(mean.shape)
        np.add.at(squares, self.row, (self.weight[:, None] * (of - mean[self.row])) ** 2)
        drawn = np.maximum(np.bincount(self.row, minlength=self.listed.size), 2)
        # Draws of unequal weight count for fewer.
        effective = 1 / np.maximum(np.bincount(self.row, self.weight**2, self.listed.size), 1e-300)
        prior = _PRIOR_DRAWS * np.broadcast_to(spread, mean.shape) / effective[:, None] ** 2
        few = special.stdtrit(np.maximum(np.minimum(effective, drawn) - 1, 1), 0.975) / _NORMAL
        error = few[:, None] * np.sqrt(squares + prior)
        return np.where(self.listed[:, None], 0.0, error)


@dataclass(frozen=True)
class Completer:
    """Makes completions by an EiNet with a label, and asks a network about them.

    Attributes:
        base: the EiNet; m(x) is its marginal without the label, t its posterior.
        net: log q(y | x) of complete images.
        at: column of the label.
        pixels: (D - 1,) the other columns.
    """

    base: EiNetDensity
    net: ConvNet
    at: int
    pixels: IntArray

    def log_head(self, values: FloatArray) -> FloatArray:
        """(n, Y) log q(y | x) of complete rows (n, D)."""
        return self.net.log_posterior(values[:, self.pixels], self.base.params.device)

    def completed(
        self, table: Table, allowed: BoolArray, n_drawn: int = DRAWN
    ) -> Iterator[tuple[slice, Completed]]:
        """Completions of rows with gaps, chunk by chunk.

        Args:
            table: the rows, with nothing known of the label.
            allowed: (n, Y) the classes that each row may have.
            n_drawn: how many completions are drawn for a row.
        """
        for part, rows in table.chunks(max(1, _AT_ONCE // n_drawn)):
            yield part, self._completions(rows, allowed[part], n_drawn)

    def _completions(self, rows: Table, allowed: BoolArray, n_drawn: int) -> Completed:
        gaps = ~rows.observed[:, self.pixels]
        with np.errstate(divide="ignore"):
            log_count = np.where(gaps, np.log(self._n_values), 0.0).sum(axis=1)
        listed = np.exp(np.minimum(log_count, 700.0)) <= LISTED * (1 + 1e-9)
        row, values, weight = _joined(
            self._all(rows, np.flatnonzero(listed)),
            self._drawn(rows, np.flatnonzero(~listed), allowed, n_drawn),
        )
        log_head = self.log_head(values)
        limits = np.asarray(~allowed.all(axis=1))[row]
        fits = (np.exp(log_head) * allowed[row]).sum(axis=1)  # (N,) q(allowed classes | x)
        weight = shares(row, weight * np.where(limits, fits, 1.0), len(rows))
        return Completed(row, weight, values, log_head, listed)

    @cached_property
    def _n_values(self) -> FloatArray:
        """(D - 1,) how many values a pixel has; infinite where they cannot be listed."""
        return np.array(
            [c.n_values if c.kind in ("level", "code") else np.inf for c in self.base.columns]
        )

    def _all(self, rows: Table, which: IntArray) -> Parts:
        """Every completion of some rows, weighted by m(x | known pixels)."""
        row, values = [np.zeros(0, dtype=np.int64)], [np.zeros((0, rows.values.shape[1]))]
        for at in which:
            gaps = np.flatnonzero(~rows.observed[at, self.pixels])
            choices = [np.arange(self._n_values[j]) for j in gaps]
            for j, column in enumerate(self.pixels[gaps]):
                for region, of in rows.regions_at(int(column)):
                    if at in of:
                        choices[j] = choices[j][region.contains(choices[j])]
            cells = np.array(list(product(*choices))).reshape(-1, gaps.size)  # (completions, gaps)
            found = np.repeat(rows.values[[at]], len(cells), axis=0)
            found[:, self.pixels[gaps]] = cells
            values.append(found)
            row.append(np.full(len(cells), at))
        owner, whole = np.concatenate(row), np.concatenate(values)
        log_m = self.base.log_prob_table(rows.rows(owner).completed(whole).hide(self.at))
        top = np.full(len(rows), -np.inf)
        np.maximum.at(top, owner, log_m)
        with np.errstate(invalid="ignore"):
            weight = np.nan_to_num(np.exp(log_m - top[owner]))
        return owner, whole, weight

    def _drawn(self, rows: Table, which: IntArray, allowed: BoolArray, n_drawn: int) -> Parts:
        """Draw completions of some rows, with their importance weights."""
        owner = np.repeat(which, n_drawn)
        asked = rows.rows(owner)
        one = allowed.sum(axis=1) == 1
        by_label = one[owner] & (np.arange(owner.size) % 2 == 1)
        values, observed = asked.values.copy(), asked.observed.copy()
        values[by_label, self.at] = allowed.argmax(axis=1)[owner][by_label]
        observed[by_label, self.at] = True
        proposals = replace(asked, values=values, observed=observed)
        drawn = self.base.sample_table(proposals, np.random.default_rng(_seed(rows)))
        weight = np.ones(owner.size)
        mixed = np.flatnonzero(one[owner])
        if mixed.size:
            label = allowed.argmax(axis=1)
            of_image = self.base.posterior_table(
                asked.rows(mixed).completed(drawn[mixed]).hide(self.at), self.at
            )
            of_row = self.base.posterior_table(rows, self.at)[np.arange(len(rows)), label]
            found = of_image[np.arange(mixed.size), label[owner[mixed]]]
            weight[mixed] = 1 / (0.5 + 0.5 * found / np.maximum(of_row, 1e-300)[owner[mixed]])
        return owner, drawn, weight


def _joined(first: Parts, second: Parts) -> Parts:
    """Completions of two sets of rows, ordered by row."""
    row, values, weight = (np.concatenate(pair) for pair in zip(first, second, strict=True))
    order = np.argsort(row, kind="stable")
    return row[order], values[order], weight[order]


def shares(row: IntArray, weight: FloatArray, n: int) -> FloatArray:
    """(N,) weights over their sum in each of n rows; equal where a row's are all zero."""
    total = np.bincount(row, weight, minlength=n)[row]
    even = 1.0 / np.bincount(row, minlength=n)[row]
    return np.where(total > 0, weight / np.where(total > 0, total, 1.0), even)


def _seed(rows: Table) -> int:
    """A number that depends on what is known of the rows alone."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(np.where(rows.observed, rows.values, 0.0).tobytes())
    digest.update(rows.observed.tobytes())
    return int.from_bytes(digest.digest(), "little")
