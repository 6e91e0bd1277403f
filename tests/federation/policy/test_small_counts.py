"""Every count of rows in a reply is looked at by the guard, by the field that it is in."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from contracts.messages import example
from fedcircuits.federation.policy.guard import smallest
from fedcircuits.federation.wire import requests as m

MANY = 1000
COUNTS = ("n_rows", "label_counts", "rows", "class_rows", "counts")
# What is counted there was counted before (`agree`), and refused there where it is few.
REPEATED = {"align", "name_rows", "use_rows", "peers", "take_tilt"}


def filled(kind: Any) -> Any:
    """A reply whose counts are all large."""
    made = example(kind)
    changes = {f.name: _like(getattr(made, f.name), MANY) for f in fields(made) if f.name in COUNTS}
    if hasattr(made, "models"):
        changes["models"] = tuple(replace(each, rows=float(MANY)) for each in made.models)
    if hasattr(made, "once"):
        changes |= {"rows": np.full(3, 2 * MANY), "once": np.full(3, MANY)}
    return replace(made, **changes)


def _like(value: Any, n: int) -> Any:
    if isinstance(value, np.ndarray):
        return np.full(3, n)
    if isinstance(value, dict):  # in clear: masked counts are whole numbers of 64 bits
        return {"counts": np.full(3, float(n))}
    return [float(n)] * 3 if isinstance(value, list) else n


def _with_one_row(reply: Any, name: str) -> Any:
    found = getattr(reply, name)
    if name == "models":
        return replace(reply, models=(replace(found[0], rows=1.0),))
    if isinstance(found, dict):
        return replace(reply, **{name: {"counts": np.array([1.0, MANY, MANY])}})
    if isinstance(found, (np.ndarray, list)):
        changed = np.array(found, dtype=float)
        changed[0] = 1.0
        return replace(reply, **{name: changed if isinstance(found, np.ndarray) else list(changed)})
    return replace(reply, **{name: 1})


CASES = [
    (verb, entry.name)
    for verb, declared in m.VERBS.items()
    for entry in fields(declared.reply)
    if entry.name in (*COUNTS, "models") and verb not in REPEATED
]


@pytest.mark.parametrize(("verb", "field"), CASES)
def test_one_row_in_any_count_is_the_smallest_group(verb: str, field: str) -> None:
    groups, reply = m.VERBS[verb].groups, filled(m.VERBS[verb].reply)
    assert min(smallest(counts(reply)) for counts in groups.values()) >= MANY
    few = _with_one_row(reply, field)
    assert min(smallest(counts(few)) for counts in groups.values()) == 1


def test_rows_counted_here_and_elsewhere_are_groups_of_their_own() -> None:
    groups = m.VERBS["anchor_rows"].groups
    reply = filled(m.VERBS["anchor_rows"].reply)
    for once in (1, 2 * MANY - 1):  # one row counted here, or one elsewhere
        few = replace(reply, once=np.array([once, MANY, MANY]))
        assert min(smallest(counts(few)) for counts in groups.values()) == 1


def test_rows_around_a_centre_are_groups_where_they_are_in_clear() -> None:
    (counts,) = m.VERBS["centres"].groups.values()
    reply = example(m.VERBS["centres"].reply)
    assert smallest(counts(replace(reply, sums={"rows": np.array([3.0, 900.0])}))) == 3
    masked = np.array([3, 900])  # whole numbers of 64 bits: nothing can be read off them
    assert counts(replace(reply, sums={"rows": masked})).size == 0
