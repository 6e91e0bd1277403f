"""Results of cells: one tidy row each, in one Parquet file."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pandas as pd

from fedcircuits.experiments.experiment import Cell

KEY = ("experiment", "data", "setting", "model", "seed", "quick")
PACKAGES = ("fedcircuits", "numpy", "scipy", "scikit-learn", "torch", "lightgbm", "xgboost")


class Records:
    """The file that a run adds to; a cell that is in it is not run again.

    Args:
        path: of the Parquet file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        self.read()

    def read(self) -> None:
        """Read the file again: another run may have added cells."""
        if self.path.exists():
            self.rows = pd.read_parquet(self.path).to_dict("records")  # type: ignore[assignment]

    def __contains__(self, cell: Cell) -> bool:
        return self.find(cell) is not None

    def find(self, cell: Cell) -> dict[str, Any] | None:
        """Return what is recorded of a cell, None where it was not run."""
        found = (row for row in self.rows if tuple(row[name] for name in KEY) == cell.key)
        return next(found, None)

    def add(self, cell: Cell, found: dict[str, Any]) -> None:
        """Add a cell's result and write the file; a file is replaced whole or not at all.

        Runs that add to one file at the same time wait for each other and keep all rows.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self.path.parent):
            self.read()
            if cell in self:
                return
            facts = dict(zip(KEY, cell.key, strict=True))
            self.rows.append({**facts, **about_this_run(), **found})
            draft = self.path.with_suffix(".part")
            pd.DataFrame(self.rows).to_parquet(draft, index=False)
            draft.replace(self.path)

    def frame(self) -> pd.DataFrame:
        """Return all rows."""
        return pd.DataFrame(self.rows, columns=None if self.rows else list(KEY))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait until no other run writes into a folder; where files have no locks, do not wait."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def about_this_run() -> dict[str, str]:
    """Return date, machine and versions."""
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return {
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "versions": ", ".join(found),
    }


def machine(device: str = "cpu") -> str:
    """Return the device of networks, if it is no CPU, processor, cores and Python, in words."""
    model = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    before = ""
    if device != "cpu":
        import torch

        before = f"one {torch.cuda.get_device_name(device)}, "
    return f"{before}{model}, {os.cpu_count()} cores, Python {platform.python_version()}"
