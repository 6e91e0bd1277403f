"""Work done in a thread of its own while the caller goes on: the same answer, sooner."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from fedcircuits.errors import LearningError

Answer = TypeVar("Answer")


def all_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def n_threads(asked: int | None, otherwise: int) -> int:
    """Return the setting `n_jobs` if it is given; an error where it is no number of threads."""
    if asked is None:
        return otherwise
    if type(asked) is not int or asked < 1:
        raise LearningError(f"n_jobs is a whole number from 1 on, found {asked!r}")
    return asked


def beside(work: Callable[[], Answer], n_jobs: int) -> Callable[[], Answer]:
    """Start work and return what waits for its answer; with one job it is done when asked for.

    The work must not share a source of random numbers with what goes on meanwhile: its answer is
    then the same either way, bit for bit. Compiled loops leave Python's lock, so two threads keep
    two cores busy.
    """
    if n_jobs < 2:
        return work
    pool = ThreadPoolExecutor(max_workers=1)
    waiting = pool.submit(copy_context().run, work)
    pool.shutdown(wait=False)  # what was given to it is done all the same
    return waiting.result
