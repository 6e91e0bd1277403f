"""Warnings of the library as notes in the answer they belong to, whichever thread works on it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedcircuits.errors import FedcircuitsWarning

_thread = threading.local()


@contextmanager
def installed() -> Iterator[None]:
    """Send our warnings to `collected`, for as long as the service runs.

    Python's own way of catching warnings is one for the whole process: threads would take each
    other's, or keep them all for ever.
    """
    before = warnings.showwarning

    def show(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
        notes = getattr(_thread, "notes", None)
        if notes is None or not issubclass(category, FedcircuitsWarning):
            before(message, category, *rest, **more)
        elif str(message) not in notes:
            notes.append(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", FedcircuitsWarning)
        warnings.showwarning = show
        yield


@contextmanager
def collected() -> Iterator[list[str]]:
    """The notes of what is done inside, in this thread."""
    notes: list[str] = []
    _thread.notes = notes
    try:
        yield notes
    finally:
        _thread.notes = None
