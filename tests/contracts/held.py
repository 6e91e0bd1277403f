"""A silo whose client stops at a message that a test names, until the test lets it go on.

A test that ends or suspends a silo "while it fits" cannot know when that is: here the client itself
waits, so whatever the test does then happens before the reply.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcircuits.cli import silo
from fedcircuits.engines.nvflare.site_file import SITE_FILE
from fedcircuits.engines.replay import Keeper
from fedcircuits.federation.wire.envelope import unwrap

KEEPER = "contracts.held:keeper"
HOLD, HELD = "hold", "held"  # files in the silo's folder: where to stop, and that it has


def hold(kit: Path, where: str) -> None:
    """Have the client of a running silo stop "at VERB", or at its first message "after VERB"."""
    file = kit / "local" / SITE_FILE
    settings = json.loads(file.read_text())
    file.write_text(json.dumps({**settings, "client": KEEPER}))
    (kit / "local" / HELD).unlink(missing_ok=True)
    (kit / "local" / HOLD).write_text(where)


def is_held(kit: Path) -> bool:
    """Whether it has stopped there."""
    return (kit / "local" / HELD).exists()


def let_go(kit: Path) -> None:
    """Have the client go on, where it was stopped."""
    (kit / "local" / HOLD).unlink(missing_ok=True)


class _Held:
    """Answers as the silo's own keeper does, but for the waiting."""

    def __init__(self, kept: Keeper, folder: Path) -> None:
        self._kept, self._folder = kept, folder
        self._answered: set[str] = set()

    def answer(self, parcel: bytes) -> bytes:
        verb = str(unwrap(parcel)[0]["verbs"][-1])
        while self._stops_at(verb):
            (self._folder / HELD).touch()
            time.sleep(0.02)
        answer = self._kept.answer(parcel)
        self._answered.add(verb)
        return answer

    def _stops_at(self, verb: str) -> bool:
        try:
            when, named = (self._folder / HOLD).read_text().split()
        except OSError:  # let go
            return False
        return verb == named if when == "at" else named in self._answered


def keeper(folder: Path, site: Mapping[str, Any], settings: Mapping[str, Any]) -> _Held:
    """The keeper that a silo's file names in place of its own; it runs in the silo's processes."""
    return _Held(silo.keeper(folder, site, settings), folder)
