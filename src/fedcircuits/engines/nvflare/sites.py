"""Processes of the server and of sites, which never outlive whoever started them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from fedcircuits.engines.nvflare import launch
from fedcircuits.engines.processes import ONE_THREAD

PATIENCE = 5.0  # seconds that a process has to end by itself
OUTPUT = "output.txt"  # in a kit: what its process prints


class Process:
    """The process of one kit.

    Args:
        kit: folder of the server or of a site.
        name: of the site, or "server".
        scratch: folder that it removes when it ends.
    """

    def __init__(self, kit: Path, name: str, scratch: Path | None = None) -> None:
        self.kit, self.name = kit, name
        arguments = [str(kit.resolve()), name, "" if scratch is None else str(scratch)]
        with (kit / OUTPUT).open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", launch.__file__, *arguments],
                stdin=subprocess.PIPE,  # its end ends the process too
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **dict.fromkeys(ONE_THREAD, "1")},
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def last_words(self) -> str:
        """Return the end of what it printed and logged as an error."""
        said = []
        for path in (self.kit / "error_log.txt", self.kit / OUTPUT):
            if path.exists():
                said += path.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        return "\n".join(said)

    def stop(self) -> None:
        """End it and the processes it started; a second call does nothing."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:  # it was stopped, say
            launch.end_children(self.pid)
            self._process.kill()
            self._process.wait()
