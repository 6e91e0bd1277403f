"""Events as text (command line) and as JSON (HTTP).

    age=30..40    age=30..    age=1|2|3    workclass=Private|Local-gov
    hours>50      hours>=50   hours<50     hours<=50     sex!=Male     age!=30..40

    {"between": [30, 40]}   {"above": 50}    {"below": 30}   {"at_least": 50}   {"at_most": 30}
    {"one_of": ["a", "b"]}  {"not": "a"}     {"not": {"between": [30, 40]}}

Ends of a range belong to it. Conditions about one variable, and keys of one object, must all hold.
Dates in text may be written as in a CSV file; 2026, 2026-11 and, of a variable with a time of day,
2026-11-17 stand for all of the year, month or day.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedcircuits.errors import FedcircuitsWarning, QueryError
from fedcircuits.schema.events.event import (
    AllOf,
    Event,
    above,
    as_event,
    below,
    between,
    not_,
    one_of,
)
from fedcircuits.schema.numbers import plain_number
from fedcircuits.schema.reading.dates import iso_dates
from fedcircuits.schema.times import Span, is_date, span_of
from fedcircuits.schema.variable import Variable

if TYPE_CHECKING:
    from fedcircuits.schema.schema import Schema

_OPERATORS = ("<=", ">=", "!=", "=", "<", ">")  # longer ones first
_COMPARED: dict[str, Callable[[Any], Event]] = {
    "<": below,
    "<=": partial(below, inclusive=True),
    ">": above,
    ">=": partial(above, inclusive=True),
}
_TRUTH = {"False", "True"}
DEEPEST = 50  # events within events
_FORMS = "NAME=VALUE, NAME=LOW..HIGH, NAME=ONE|OTHER, NAME>VALUE (or >=, <, <=, !=)"
_KEYS: dict[str, Callable[[Any], Event]] = {
    "above": above,
    "at_least": partial(above, inclusive=True),
    "below": below,
    "at_most": partial(below, inclusive=True),
    "one_of": one_of,
}


def from_texts(schema: Schema, texts: Iterable[str], option: str) -> dict[str, Any]:
    """Values and events by name; several conditions on one variable must all hold.

    Args:
        schema: the variables.
        texts: conditions as above.
        option: where they come from, for errors.
    """
    answer: dict[str, Any] = {}
    for text in texts:
        name, value = from_text(schema, text, option)
        if name in answer:
            value = AllOf((as_event(answer[name]), as_event(value)))
        answer[name] = value
    return answer


def from_text(schema: Schema, text: str, option: str) -> tuple[str, Any]:
    """Name and value or event of one condition."""
    name, operator, rest = _split(schema, text)
    if not operator:
        raise QueryError(f"{option} takes {_FORMS}, found {text!r}")
    variable = schema[name]
    if operator in _COMPARED:
        found = _value(variable, rest, option)
        if isinstance(found, Span):  # whole: before it begins, or after it ends
            ends = {"<=": "<", ">": ">="}
            found = found.ends if operator in ends else found.begins
            operator = ends.get(operator, operator)
        return name, _COMPARED[operator](found)
    value = _listed(variable, rest, option)
    return name, not_(value) if operator == "!=" else value


def _split(schema: Schema, text: str) -> tuple[str, str, str]:
    """Name, operator and the rest; a name may hold an operator itself."""
    for name in sorted(schema.names, key=len, reverse=True):
        if text.startswith(name):
            rest = text[len(name) :].lstrip()
            for operator in _OPERATORS:
                if rest.startswith(operator):
                    return name, operator, rest[len(operator) :].strip()
    first = min((at for op in "<>!=" if (at := text.find(op)) > 0), default=-1)
    if first < 0:
        return text, "", ""
    operator = next((op for op in _OPERATORS if text[first:].startswith(op)), "")
    return text[:first].strip(), operator, text[first + len(operator) :].strip()


def _listed(variable: Variable, text: str, option: str) -> Any:
    """A value, a range or a list of values."""
    if variable.is_coded and text in {str(category) for category in variable.categories}:
        return _value(variable, text, option)
    ordered = not variable.is_coded or variable.numbers is not None
    if ordered and ".." in text:
        low, high = (
            _value(variable, end, option) if end.strip() else None for end in text.split("..", 1)
        )
        begins = low.begins if isinstance(low, Span) else low
        ends = high.ends if isinstance(high, Span) else high
        backwards = begins is not None and ends is not None and begins > ends
        if backwards and (not isinstance(begins, str) or is_date(variable.time)):
            raise QueryError(
                f"{option} {variable.name}: nothing lies in {text!r}, whose lower end comes first"
            )
        return between(begins, ends, closed="left" if isinstance(high, Span) else "both")
    if "|" not in text:
        found = _value(variable, text, option)
        return _within(found) if isinstance(found, Span) else found
    listed = [_value(variable, part.strip(), option) for part in text.split("|")]
    if any(isinstance(each, Span) for each in listed):
        outside = (not_(_within(each) if isinstance(each, Span) else each) for each in listed)
        return not_(AllOf(tuple(outside)))
    return one_of(listed)


def _within(span: Span) -> Event:
    return between(span.begins, span.ends, closed="left")


def _value(variable: Variable, text: str, option: str) -> Any:
    """Text as a value of the variable's kind."""
    if variable.is_coded:
        by_text = {str(category): category for category in variable.categories}
        if by_text.keys() == _TRUTH and text.capitalize() in by_text:
            return by_text[text.capitalize()]  # JSON and shells write true and false
        if text in by_text or variable.numbers is None:
            return by_text.get(text, text)
    bare = text.strip()
    if not variable.is_coded and is_date(variable.time):
        return _date(variable, bare, option)
    try:
        return float(bare)
    except ValueError:
        if not variable.is_coded and variable.time is not None:
            return bare
    found = [float(number[0]) for sign in ".," if (number := plain_number(bare, sign)) is not None]
    if not found and variable.is_coded:
        return text  # no category either: refused with those that there are
    if not found:
        more = f"; one condition for each {option}" if any(op in bare for op in _OPERATORS) else ""
        raise QueryError(f"{option} {variable.name}: expected a number, found {text!r}{more}")
    if len({*found}) > 1:
        raise QueryError(
            f"{option} {variable.name}: {text!r} may be {found[0]:.17g} or {found[1]:.17g}: "
            "write one of them"
        )
    return found[0]


def _date(variable: Variable, text: str, option: str) -> str | Span:
    """A date as ISO 8601 text, written as in a CSV file, or the span that it stands for."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FedcircuitsWarning)
        try:
            found = iso_dates(pd.Series([text]), variable.name)
        except FedcircuitsWarning:
            raise QueryError(
                f"{option} {variable.name}: day and month of {text!r} cannot be told apart: "
                "write 2026-11-17 or 17.11.2026"
            ) from None
    iso = text if found is None else str(found[0])
    return span_of(iso, str(variable.time)) or iso


def from_json(value: Any, depth: int = 0) -> Any:
    """A value as it is, an object as the event it describes.

    Args:
        value: as above.
        depth: events around it.
    """
    if not isinstance(value, Mapping):
        return value
    if depth > DEEPEST:
        raise QueryError(f'events are nested at most {DEEPEST} deep ("not" in "not")')
    events: list[Event] = []
    closed = value.get("closed", "both")
    for key, given in value.items():
        if key == "between":
            if not isinstance(given, (list, tuple)) or len(given) != 2:
                raise QueryError(f'"between" takes [low, high], found {given!r}')
            events.append(between(given[0], given[1], closed=closed))
        elif key == "not":
            events.append(not_(from_json(given, depth + 1)))
        elif key in _KEYS:
            events.append(_KEYS[key](given))
        elif key != "closed" or "between" not in value:
            known = ", ".join(["between", *_KEYS, "not"])
            raise QueryError(f"an event has the keys {known}, found {key!r}")
    if not events:
        raise QueryError("an event is an object with at least one key, found {}")
    return events[0] if len(events) == 1 else AllOf(tuple(events))
