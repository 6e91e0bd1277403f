"""Every error the package raises on purpose: what was expected, what was found, what to do."""

from __future__ import annotations

import difflib
import sys
import warnings
from collections.abc import Iterable
from types import FrameType


class FedcircuitsError(Exception):
    """Base class of all errors that a user can correct."""


class SchemaError(FedcircuitsError, ValueError):
    """A table does not fit the schema, or no schema can be made of it."""


class SchemaConflictError(SchemaError):
    """Two clients use one column name for different things."""


class UnknownCategoryError(SchemaError):
    """A category that is not in the schema."""


class DomainError(SchemaError):
    """A number outside the domain the user declared, or an infinite one."""


class StructureError(FedcircuitsError, ValueError):
    """A circuit that is not smooth, decomposable or normalised.

    Attributes:
        violations: one sentence for each fault found, not only the first.
    """

    def __init__(self, violations: list[str]) -> None:
        self.violations = tuple(violations)
        shown = "\n  - ".join(violations[:20])
        more = f"\n  ... and {len(violations) - 20} more" if len(violations) > 20 else ""
        super().__init__(f"not a valid circuit, {len(violations)} fault(s):\n  - {shown}{more}")


class ImpossibleEvidenceError(FedcircuitsError, ValueError):
    """The evidence has probability zero, so nothing can be conditioned on it.

    Attributes:
        rows: labels of the rows concerned.
    """

    def __init__(self, rows: list[object]) -> None:
        self.rows = tuple(rows)
        shown = ", ".join(repr(row) for row in rows[:5]) + (", ..." if len(rows) > 5 else "")
        super().__init__(
            f"the evidence of {len(rows)} row(s) has probability zero under the model "
            f"(row label: {shown}); change it, or ask with impossible='nan'"
        )


class QueryError(FedcircuitsError, ValueError):
    """A query that the model cannot answer as it was asked."""


class StorageError(FedcircuitsError, ValueError):
    """A file or message that is damaged, or not of the expected kind or version."""


# What reading plain values of a stranger's file or message can end with; a reader makes an error of
# ours of it.
MALFORMED = (
    KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip


class LearningError(FedcircuitsError, ValueError):
    """A learner cannot work with the table or the settings it was given."""


class FederationError(FedcircuitsError, ValueError):
    """Clients that cannot be federated as asked; the message names the clients.

    Attributes:
        rest: the model of the other clients, where one could be made without the failing one.
    """

    def __init__(self, message: str, rest: object = None) -> None:
        self.rest = rest
        super().__init__(message)


class ClientError(FederationError):
    """One client failed, cannot be reached, or sent an invalid reply.

    Attributes:
        client: its name.
    """

    def __init__(self, client: str, why: str) -> None:
        self.client = client
        super().__init__(f"client {client!r}: {why}")


class MissingExtraError(FedcircuitsError, ImportError):
    """An optional dependency is not installed; the message says how to install it."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs an extra: pip install 'fedcircuits[{extra}]'")


class FedcircuitsWarning(UserWarning):
    """The library made a choice that the user may want to know of."""


def warn(message: str) -> None:
    """Give a `FedcircuitsWarning` that names the line outside of the package that led to it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and _is_ours(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, FedcircuitsWarning, stacklevel=level)


def _is_ours(frame: FrameType) -> bool:
    """Whether a frame runs code of this package, or of pandas and other libraries within it."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.split(".")[0] in ("fedcircuits", "pandas", "contextlib")


def unknown_name(what: str, name: object, known: Iterable[str], owner: str = "") -> str:
    """Return an error text for a name that is not known: the known ones, and one that is close.

    Args:
        what: kind of thing that was named, "learner" say.
        name: as the user wrote it.
        known: the names there are.
        owner: what the names belong to, "the engine 'ray'" say.
    """
    names = list(known)
    by_case = [known for known in names if known.casefold() == str(name).casefold()]
    close = by_case or difflib.get_close_matches(str(name), names, n=3)
    close.sort(key=lambda known: sorted(known) != sorted(str(name)))  # letters that changed places
    found = f"{owner} has no {what} {name!r}; it has" if owner else f"no {what} {name!r}; there are"
    meant = f"; did you mean {close[0]!r}?" if close else ""
    return f"{found} {', '.join(names) or 'none'}{meant}"
