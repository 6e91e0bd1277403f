"""What a client remembers of its runs: in its process, or in a folder that outlives it.

What protects rows by what came before (parts of rows, masks that were used) would be forgotten by a
process that begins anew, and a server has one begin whenever it likes. Other processes of the same
client see what this one notes, and wait while it does.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from fedcircuits import encoding
from fedcircuits.arrays import Arrays
from fedcircuits.errors import StorageError

RECORD = "client_memory"


class Memory:
    """Arrays by the name of what they are about.

    Args:
        folder: made where it is not there, for its owner only; None keeps them in this process.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._here: dict[str, Arrays] = {}

    @contextlib.contextmanager
    def of(self, name: str) -> Iterator[Arrays]:
        """Arrays that are kept under a name; what is put into them meanwhile is kept too.

        Args:
            name: a digest.
        """
        if self._folder is None:
            yield self._here.setdefault(name, {})
            return
        with self._held(self._folder):
            path = self._folder / name
            found = encoding.unpack(encoding.read(path), kind=RECORD).arrays if _is(path) else {}
            kept = dict(found)
            yield kept
            if kept.keys() != found.keys() or any(kept[key] is not found[key] for key in kept):
                encoding.write(path, encoding.pack(encoding.Record(RECORD, {}, kept)))

    @staticmethod
    @contextlib.contextmanager
    def _held(folder: Path) -> Iterator[None]:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = (folder / "lock").open("ab")
        except OSError as error:
            raise StorageError(f"cannot write {folder}: {error.strerror}") from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
            yield


def _is(path: Path) -> bool:
    """Whether there is anything of that name; what is no file is an error when it is read."""
    return path.exists() or path.is_symlink()
