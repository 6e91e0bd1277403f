"""Events: sets of values of one variable, as evidence or as the event whose probability is asked.

    fc.between(30, 40)              30 <= x <= 40; `closed` leaves out one end or both
    fc.below(30), fc.above(50)      x < 30, x > 50; with inclusive=True x <= 30, x >= 50
    fc.one_of(["a", "b"])           one of these values
    fc.not_("a"), fc.not_(event)    any other value

An event is about a value: "observed to be missing" belongs to it only where `fc.MISSING` is listed
in `one_of`. A number that is listed has a probability where the model gives single numbers one
(whole numbers, values that repeat); elsewhere the probability of a single number is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, isfinite, isnan
from typing import Any, Literal, get_args

import numpy as np

from fedcircuits.errors import QueryError
from fedcircuits.schema.events.region import CodeSet, Interval, NumberSet, Region
from fedcircuits.schema.numbers import as_float
from fedcircuits.schema.variable import MISSING, Variable

Closed = Literal["both", "left", "right", "neither"]
# The encoded form of original values of a variable, NaN for one that it does not have.
Encode = Callable[[Variable, Sequence[Any]], list[float]]


class Event:
    """A set of values of one variable."""

    def region(self, variable: Variable, encode: Encode) -> Region:
        """The set among the encoded values of a variable."""
        raise NotImplementedError


@dataclass(frozen=True)
class Between(Event):
    """All values between two ends."""

    low: Any
    high: Any
    closed_low: bool
    closed_high: bool

    def __repr__(self) -> str:
        if self.low is None or self.high is None:
            end, closed = (self.high, self.closed_high), (self.low, self.closed_low)
            side, (value, inclusive) = ("below", end) if self.low is None else ("above", closed)
            return f"{side}({value!r}{', inclusive=True' if inclusive else ''})"
        ends = {(True, True): "both", (True, False): "left", (False, True): "right"}
        closed_at = ends.get((self.closed_low, self.closed_high), "neither")
        more = "" if closed_at == "both" else f", closed={closed_at!r}"
        return f"between({self.low!r}, {self.high!r}{more})"

    def region(self, variable: Variable, encode: Encode) -> Region:
        low, high = (_bound(variable, end, encode) for end in (self.low, self.high))
        interval = Interval(
            low, high, self.closed_low and isfinite(low), self.closed_high and isfinite(high)
        )
        if not variable.is_coded:
            return NumberSet.of([interval], integer=variable.kind == "count")
        numbers = variable.numbers
        if numbers is None:
            raise QueryError(
                f"variable {variable.name!r} has categories without an order "
                f"({_shown(variable.categories)}); list them: one_of([...])"
            )
        return _codes(variable, interval.contains(numbers))


@dataclass(frozen=True)
class OneOf(Event):
    """The event that a value is one of several."""

    values: tuple[Any, ...]

    def __repr__(self) -> str:
        return repr(self.values[0]) if len(self.values) == 1 else f"one_of({list(self.values)!r})"

    def region(self, variable: Variable, encode: Encode) -> Region:
        gone = any(value is MISSING for value in self.values)
        if gone and not variable.missing_state:
            raise QueryError(f"variable {variable.name!r} has no state for MISSING in this model")
        encoded = encode(variable, [value for value in self.values if value is not MISSING])
        if not variable.is_coded:
            points = [Interval(x, x) for x in encoded if not isnan(x)]
            return NumberSet.of(points, gone, variable.kind == "count")
        members = np.zeros(len(variable.categories), dtype=bool)
        members[[int(code) for code in encoded if not isnan(code)]] = True
        return _codes(variable, members, gone)


@dataclass(frozen=True)
class Not(Event):
    """All values that do not belong to an event."""

    event: Event

    def __repr__(self) -> str:
        return f"not_({self.event!r})"

    def region(self, variable: Variable, encode: Encode) -> Region:
        inside = self.event.region(variable, encode)
        if isinstance(inside, NumberSet):
            return inside.complement()
        return _codes(variable, ~inside.mask[: len(variable.categories)])


@dataclass(frozen=True)
class AllOf(Event):
    """All of some events at once."""

    events: tuple[Event, ...]

    def region(self, variable: Variable, encode: Encode) -> Region:
        first, *rest = (event.region(variable, encode) for event in self.events)
        for region in rest:
            first = first.meet(region)
        return first


def between(low: Any, high: Any, *, closed: Closed = "both") -> Event:
    """The event that a value lies between two ends.

    Args:
        low: lower end, None for none.
        high: upper end, None for none. Below `low` the event is empty: it has probability zero.
        closed: which ends belong to it: "both", "left", "right" or "neither".
    """
    if closed not in get_args(Closed):
        raise QueryError(
            f"closed is one of {', '.join(map(repr, get_args(Closed)))}, found {closed!r}"
        )
    low, high = (_end(end, other) for end, other in ((low, -inf), (high, inf)))
    return Between(low, high, closed in ("both", "left"), closed in ("both", "right"))


def below(x: Any, *, inclusive: bool = False) -> Event:
    """The event that a value is smaller than x, or with `inclusive` at most x."""
    return Between(-inf, _end(x, None), False, inclusive)


def above(x: Any, *, inclusive: bool = False) -> Event:
    """The event that a value is larger than x, or with `inclusive` at least x."""
    return Between(_end(x, None), inf, inclusive, False)


def one_of(values: Iterable[Any]) -> Event:
    """The event that a value is one of those listed; an empty list has probability zero."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise QueryError(f"one_of takes a list of values, found {values!r}; put it into brackets")
    listed = tuple(values)
    if any(isinstance(value, Event) for value in listed):
        raise QueryError("one_of lists values, not events")
    if any(_is_gap(value) for value in listed):
        raise QueryError("one_of lists values, found None or NaN; leave it out, or list fc.MISSING")
    return OneOf(listed)


def not_(event: Any) -> Event:
    """The event that a value does not belong to another event, or is not this value (or these)."""
    return Not(as_event(event))


def as_event(value: Any) -> Event:
    """An event as it is; a value, or a list or set of values, as the event of being one of them."""
    if isinstance(value, Event):
        return value
    listed = isinstance(value, (list, tuple, set, frozenset, np.ndarray))
    return one_of(value if listed else [value])


def _end(value: Any, unbounded: float | None) -> Any:
    if value is None and unbounded is not None:
        return unbounded
    if _is_gap(value):
        raise QueryError(f"an end of an interval is a value, found {value!r}")
    if isinstance(value, Event):
        raise QueryError("an end of an interval is a value, found an event")
    return value


def _is_gap(value: Any) -> bool:
    return value is None or (isinstance(value, (float, np.floating)) and bool(np.isnan(value)))


def _bound(variable: Variable, value: Any, encode: Encode) -> float:
    """An end of an interval as a number."""
    if isinstance(value, (bool, int, float, np.number, np.bool_)):
        return as_float(value)
    if variable.is_coded:  # no number, and no order either
        raise QueryError(
            f"variable {variable.name!r} has categories, which have no order: ask for one or "
            f"several of them, not for a range; found an end {value!r}"
        )
    return encode(variable, [value])[0]


def _codes(variable: Variable, members: Any, missing: bool = False) -> CodeSet:
    return CodeSet((*members.tolist(), *([missing] if variable.missing_state else [])))


def _shown(values: Sequence[Any]) -> str:
    return ", ".join(map(repr, values[:5])) + (", ..." if len(values) > 5 else "")
