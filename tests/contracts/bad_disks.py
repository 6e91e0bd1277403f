"""Disks on which one operation fails, or that are full after some bytes: no part is replaced."""

from __future__ import annotations

import errno
import os
import random
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHANGES = {"os.rename", "os.mkdir", "os.chmod"}  # what Python tells an audit hook of, beside "open"
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND


class _Watch:
    """Counts operations that change a folder and lets one of them fail."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.count, self.fails = 0, -1

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None or event not in {*CHANGES, "open"}:
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & WRITES):
            return
        try:
            inside = os.fspath(arguments[0]).startswith(self.folder)
        except TypeError:  # a file that is open already
            return
        if inside:
            self.count += 1
            if self.count - 1 == self.fails:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), arguments[0])


_WATCH = _Watch()
_INSTALLED: list[bool] = []


@contextmanager
def failing_operation(folder: Path, at: int) -> Iterator[_Watch]:
    """Let the operation of that number fail that opens, renames or makes something in a folder."""
    if not _INSTALLED:  # a hook cannot be taken away: it is put in once
        sys.addaudithook(_WATCH)
        _INSTALLED.append(True)
    _WATCH.folder, _WATCH.count, _WATCH.fails = str(folder), 0, at
    try:
        yield _WATCH
    finally:
        _WATCH.folder = None


@contextmanager
def full_disk(n_bytes: int) -> Iterator[None]:
    """Let every file end after that many bytes: writing more is an error of the system."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def bad_disks(folder: Path, write: Callable[[], object], most: int = 8) -> Iterator[Any]:
    """Give contexts in which the disk fails while something is written, one way in each.

    Args:
        folder: that is written to.
        write: does it once, to count what can fail.
        most: operations that fail in turn, drawn once; FEDCIRCUITS_FULL=1 tries every one.
    """
    with failing_operation(folder, -1) as watch:
        write()
    n_operations = watch.count
    assert n_operations > 0, "nothing was written to the folder"
    if os.environ.get("FEDCIRCUITS_FULL") == "1":
        most = n_operations
    for at in random.Random(0).sample(range(n_operations), min(most, n_operations)):
        yield failing_operation(folder, at)
    for n_bytes in (0, 1, 100):
        yield full_disk(n_bytes)
