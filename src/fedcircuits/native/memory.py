"""Memory that was freed, returned to the system."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

# Numbers of a table below which it is not worth the call.
_LEAST_NUMBERS = 2**18


def return_freed(n_numbers: int) -> None:
    """Return what was freed to the system, before arrays for a table of so many numbers are made.

    glibc keeps what a thread has freed for that thread, and up to twice the largest freed array of
    the first one, so that large arrays came on top of memory that nobody used.
    """
    trim = _malloc_trim() if n_numbers >= _LEAST_NUMBERS else None
    if trim is not None:
        trim(ctypes.c_size_t(0))


@cache
def _malloc_trim() -> Any:
    """The function of glibc; None with another C library."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
