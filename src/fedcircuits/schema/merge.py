"""Merging the schemas that clients announce: unite what can be united, refuse real conflicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedcircuits.errors import SchemaConflictError, warn
from fedcircuits.schema.variable import Category, Kind, Variable, category_order


def merge_variables(by_client: Mapping[str, Sequence[Variable]]) -> list[Variable]:
    """One variable for each name, ordered by first appearance over clients in sorted order."""
    held: dict[str, dict[str, Variable]] = {}
    for client in sorted(by_client):
        for variable in by_client[client]:
            held.setdefault(variable.name, {})[client] = variable
    _point_out_cases(held)
    return [_merge_one(name, variables) for name, variables in held.items()]


def _point_out_cases(held: Mapping[str, Mapping[str, Variable]]) -> None:
    """Warn of names that differ only by case or spaces and that no client holds together."""
    alike: dict[str, list[str]] = {}
    for name in held:
        alike.setdefault(name.casefold().strip(), []).append(name)
    for names in alike.values():
        if len(names) > 1 and not set.intersection(*(set(held[name]) for name in names)):
            shown = ", ".join(f"{name!r} (client {next(iter(held[name]))!r})" for name in names)
            warn(
                f"columns {shown} differ only by case or spaces and are taken for different "
                "variables: rename one if they mean the same"
            )


def _merge_one(name: str, held: Mapping[str, Variable]) -> Variable:
    first_client = next(iter(held))
    merged = held[first_client]
    for client, variable in held.items():
        if client == first_client or variable == merged:
            continue
        if variable.unit is not None and merged.unit is not None and variable.unit != merged.unit:
            other = next(c for c, v in held.items() if v.unit == merged.unit)
            raise SchemaConflictError(
                f"variable {name!r}: client {other!r} measures it in {merged.unit!r}, client "
                f"{client!r} in {variable.unit!r}; convert one of them"
            )
        if variable.time != merged.time:
            raise SchemaConflictError(
                f"variable {name!r}: client {first_client!r} has {merged.time or 'no dates'}, "
                f"client {client!r} {variable.time or 'no dates'}; convert one of them"
            )
        if _common_kind(merged, variable) is None:
            raise _kind_conflict(name, held, client)
        merged = _merge_pair(name, first_client, merged, client, variable)
    return merged


def _kind_conflict(name: str, held: Mapping[str, Variable], client: str) -> SchemaConflictError:
    """The error for a client that does not fit those before it, naming one it does not fit."""
    earlier = list(held)[: list(held).index(client)]
    clashing = [c for c in earlier if _common_kind(held[c], held[client]) is None]
    other = (clashing or earlier)[0]
    return SchemaConflictError(
        f"variable {name!r}: client {other!r} says {_described(held[other])}, client {client!r} "
        f"says {_described(held[client])}; rename one of them, or declare one kind for both"
    )


def _merge_pair(name: str, client_a: str, a: Variable, client_b: str, b: Variable) -> Variable:
    kind = _common_kind(a, b)
    assert kind is not None  # the caller has refused conflicts
    if a.grid is not None and b.grid is not None and a.grid != b.grid:
        raise SchemaConflictError(
            f"variable {name!r}: clients {client_a!r} and {client_b!r} have different grids; "
            "agree on one before merging"
        )
    unit = a.unit if a.unit is not None else b.unit
    declared, closed = a.declared or b.declared, a.closed and b.closed
    missing_state = a.missing_state or b.missing_state
    if kind in ("categorical", "binary"):
        categories: set[Category] = set(a.categories) | set(b.categories)
        ordered = tuple(sorted(categories, key=category_order))
        if kind == "binary" and len(ordered) != 2:
            kind = "categorical"
        levels = a.ordered if a.ordered == b.ordered else None
        if levels is not None and set(a.categories) == categories:
            ordered = a.categories  # in the order of the first client's column
        return Variable(
            name, kind, ordered, None, closed, declared, unit, None, missing_state, ordered=levels
        )  # fmt: skip
    domain = _wider(_range(a), _range(b))
    grid = a.grid if a.grid is not None else b.grid
    if grid is not None and (grid.integer, grid.missing) != (kind == "count", missing_state):
        grid = None  # made for another kind of variable than the merged one
    both = a.decimals is not None and b.decimals is not None
    # Whole numbers have no decimals, which fits any number of them.
    decimals = (
        max(a.decimals or 0, b.decimals or 0) if both or "count" in (a.kind, b.kind) else None
    )
    return Variable(
        name, kind, (), domain, closed, declared, unit, grid, missing_state, time=a.time,
        decimals=decimals if kind == "continuous" and decimals else None,
    )  # fmt: skip


def _described(variable: Variable) -> str:
    example = f" ({variable.categories[0]!r}, ...)" if variable.categories else ""
    return variable.kind + example


def _common_kind(a: Variable, b: Variable) -> Kind | None:
    """The kind both can be read as, None if there is none.

    Two kinds that users *declared* must be equal. A guess gives way: numbers that look binary or
    whole at one client may be counts or continuous at another.
    """
    if a.kind == b.kind:
        return a.kind if not a.is_coded or _same_sort(a, b) else None
    if a.declared and b.declared:
        return None
    if a.is_coded and b.is_coded:
        return "categorical" if _same_sort(a, b) else None
    wide: dict[Kind, int] = {"binary": 0, "count": 1, "continuous": 2}
    for variable in (a, b):
        if variable.kind == "categorical" or (variable.is_coded and variable.numbers is None):
            return None
    kind = a.kind if wide[a.kind] > wide[b.kind] else b.kind
    narrow = b if kind == a.kind else a
    return None if narrow.declared else kind


def _same_sort(a: Variable, b: Variable) -> bool:
    """Whether categories are strings at both or numbers at both."""
    return (a.numbers is None) == (b.numbers is None)


def _range(variable: Variable) -> tuple[float, float] | None:
    if variable.numbers is not None:
        return float(variable.numbers.min()), float(variable.numbers.max())
    return variable.domain


def _wider(
    a: tuple[float, float] | None, b: tuple[float, float] | None
) -> tuple[float, float] | None:
    if a is None or b is None:
        return a or b
    return min(a[0], b[0]), max(a[1], b[1])
