"""Sets of encoded values of one variable: what an event is, once the variable is known.

A `CodeSet` is a set of codes of a categorical or binary variable, a `NumberSet` a union of
intervals of a numeric one. Whether an end belongs to an interval matters where a value has a
probability of its own: at the atoms of a grid and on whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, inf, isfinite
from typing import Any

import numpy as np

from fedcircuits.arrays import BoolArray, FloatArray


@dataclass(frozen=True, order=True)
class Interval:
    """All numbers between two ends; an infinite end is never closed."""

    low: float
    high: float
    closed_low: bool = True
    closed_high: bool = True

    @property
    def is_empty(self) -> bool:
        """Whether no number is inside."""
        if self.low == self.high:
            return not (self.closed_low and self.closed_high)
        return not self.low < self.high

    @property
    def is_point(self) -> bool:
        """Whether it is one number."""
        return self.low == self.high

    def contains(self, x: FloatArray) -> BoolArray:
        """(n,) which values are inside."""
        above = x >= self.low if self.closed_low else x > self.low
        below = x <= self.high if self.closed_high else x < self.high
        return np.asarray(above & below & np.isfinite(x))

    def whole(self) -> Interval:
        """The whole numbers inside, with ends that belong to it."""
        low, high = self.low, self.high
        if isfinite(low):
            low = floor(low) + 1.0 if not self.closed_low else float(ceil(low))
        if isfinite(high):
            high = ceil(high) - 1.0 if not self.closed_high else float(floor(high))
        return Interval(low, high, isfinite(low), isfinite(high))

    def meet(self, other: Interval) -> Interval:
        """What both hold; possibly empty."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        return Interval(
            low,
            high,
            all(i.closed_low for i in (self, other) if i.low == low),
            all(i.closed_high for i in (self, other) if i.high == high),
        )


@dataclass(frozen=True)
class NumberSet:
    """A union of intervals of one numeric variable.

    Attributes:
        intervals: disjoint, in ascending order, none empty.
        missing: whether "observed to be missing" belongs to the set.
        integer: whether the variable lives on the whole numbers; ends are whole and closed then.
    """

    intervals: tuple[Interval, ...]
    missing: bool = False
    integer: bool = False

    @staticmethod
    def of(intervals: list[Interval], missing: bool = False, integer: bool = False) -> NumberSet:
        """The union of intervals that may overlap, be empty or be out of order."""
        if integer:
            intervals = [i.whole() for i in intervals]
        joined: list[Interval] = []
        for each in sorted((i for i in intervals if not i.is_empty), key=_start):
            if joined and _touch(joined[-1], each, integer):
                joined[-1] = _hull(joined[-1], each)
            else:
                joined.append(each)
        return NumberSet(tuple(joined), missing, integer)

    @property
    def is_empty(self) -> bool:
        """Whether nothing belongs to the set."""
        return not self.intervals and not self.missing

    def contains(self, x: FloatArray) -> BoolArray:
        """(n,) which encoded values belong to the set."""
        inside = np.isposinf(x) if self.missing else np.zeros(x.shape, dtype=bool)
        for interval in self.intervals:
            inside = inside | interval.contains(x)
        if self.integer:
            inside = inside & ((x == np.floor(x)) | np.isinf(x))
        return np.asarray(inside)

    def meet(self, other: Region) -> NumberSet:
        """What belongs to both sets."""
        assert isinstance(other, NumberSet)
        pairs = [a.meet(b) for a in self.intervals for b in other.intervals]
        return NumberSet.of(pairs, self.missing and other.missing, self.integer)

    def nothing(self) -> NumberSet:
        """The empty set of the same variable."""
        return NumberSet((), False, self.integer)

    def complement(self) -> NumberSet:
        """All other values; "observed to be missing" is no value, so it is not among them."""
        left: list[Interval] = []
        low, closed = -inf, False
        for each in self.intervals:
            left.append(Interval(low, each.low, closed, not each.closed_low))
            low, closed = each.high, not each.closed_high
        left.append(Interval(low, inf, closed, False))
        real = [i for i in left if not (i.low == i.high and not isfinite(i.low))]
        return NumberSet.of(real, False, self.integer)

    def to_json(self) -> dict[str, Any]:
        """Plain values for messages and files; None is an infinite end."""
        ends = [[_end(i.low), _end(i.high), i.closed_low, i.closed_high] for i in self.intervals]
        return {"intervals": ends, "missing": self.missing, "integer": self.integer}


def _start(interval: Interval) -> tuple[float, bool]:
    return interval.low, not interval.closed_low


def _touch(one: Interval, two: Interval, integer: bool) -> bool:
    """Whether two intervals, the first starting no later, are one."""
    if integer and two.low <= one.high + 1:
        return True
    if two.low == one.high:
        return one.closed_high or two.closed_low
    return two.low < one.high


def _hull(one: Interval, two: Interval) -> Interval:
    high = max(one.high, two.high)
    closed = any(i.closed_high for i in (one, two) if i.high == high)
    return Interval(one.low, high, one.closed_low, closed)


@dataclass(frozen=True)
class CodeSet:
    """A set of codes of a categorical or binary variable.

    Attributes:
        members: of every code, that of "observed to be missing" included, whether it belongs.
    """

    members: tuple[bool, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing belongs to the set."""
        return not any(self.members)

    @property
    def mask(self) -> BoolArray:
        """(k,) truth value of every code."""
        return np.array(self.members, dtype=bool)

    def contains(self, x: FloatArray) -> BoolArray:
        """(n,) which encoded values belong to the set."""
        codes = np.clip(x, 0, len(self.members) - 1).astype(np.int64)
        return np.asarray(self.mask[codes] & (codes == x))

    def meet(self, other: Region) -> CodeSet:
        """What belongs to both sets."""
        assert isinstance(other, CodeSet)
        return CodeSet(tuple((self.mask & other.mask).tolist()))

    def nothing(self) -> CodeSet:
        """The empty set of the same variable."""
        return CodeSet((False,) * len(self.members))

    def to_json(self) -> dict[str, Any]:
        """Plain values for messages and files."""
        return {"members": list(self.members)}


Region = NumberSet | CodeSet


def region_from_json(record: dict[str, Any]) -> Region:
    """Inverse of `to_json` of either set."""
    if "members" in record:
        return CodeSet(tuple(bool(member) for member in record["members"]))
    intervals = [
        Interval(
            -inf if low is None else float(low),
            inf if high is None else float(high),
            bool(closed_low),
            bool(closed_high),
        )
        for low, high, closed_low, closed_high in record["intervals"]
    ]
    return NumberSet.of(intervals, bool(record["missing"]), bool(record["integer"]))


def _end(value: float) -> float | None:
    return float(value) if isfinite(value) else None
