"""Fuzzing: many cases for a target, each made from its number; a find is saved and can be replayed.

    python tests/fuzzing/cases.py --minutes 10             # all targets, as `make fuzz`
    python tests/fuzzing/cases.py --target csv --cases 5000 --first 100000
    python tests/fuzzing/cases.py --replay runs/fuzz/csv-17.bin

A case is a find where it ends with an exception that is not ours, takes more than some seconds of
CPU time, needs memory out of proportion, or has a wrong outcome.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "benchmarks")]

import numpy as np

from fuzzing.targets import REFUSALS, TARGETS

SECONDS = 10.0  # CPU time of one case
MEMORY = 150 * 1024  # KiB by which a case may raise the highest memory of the process
FOLDER = Path("runs/fuzz")


class HangError(BaseException):
    """A case took too long."""


@dataclass
class Tally:
    """What came of some cases.

    Attributes:
        cases: how many.
        refused: with an error of ours.
        finds: number of the case to what happened.
    """

    cases: int = 0
    refused: int = 0
    finds: dict[int, str] = field(default_factory=dict)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `HangError` after some CPU seconds."""

    def stop(*_: Any) -> None:
        raise HangError

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def tried(target: Any, data: bytes) -> str | None:
    """What is wrong with the outcome of a case; "" where it was refused, None where all is well."""
    high = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found: str | None = None
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"), limited(SECONDS):
            warnings.simplefilter("ignore")
            target.check(data)
    except REFUSALS as error:
        found = "" if 5 < len(str(error)) < 20_000 else f"an error of {len(str(error))} characters"
    except HangError:
        found = f"no end after {SECONDS} s of CPU time"
    except Exception:
        found = traceback.format_exc(limit=-6)
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - high
    return found or (f"{more} KiB for {len(data)} bytes" if more > MEMORY else found)


def fuzz(name: str, first: int, cases: int, until: float = float("inf")) -> Tally:
    """Try cases of one target, until a time of `time.monotonic` at most."""
    logging.disable(logging.CRITICAL)
    target, tally = TARGETS[name](), Tally()
    tried(target, target.make(np.random.default_rng(0)))  # what is made once is not a case's memory
    try:
        for number in range(first, first + cases):
            if time.monotonic() > until:
                break
            data = target.make(np.random.default_rng([number, *name.encode()]))
            found = tried(target, data)
            tally.cases += 1
            tally.refused += found == ""
            if found:
                FOLDER.mkdir(parents=True, exist_ok=True)
                (FOLDER / f"{name}-{number}.bin").write_bytes(data)
                tally.finds[number] = found
    finally:
        logging.disable(logging.NOTSET)
    return tally


def main() -> int:
    """Fuzz, or replay a find."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", choices=sorted(TARGETS), action="append")
    parser.add_argument("--cases", type=int, default=10**9, help="of each target")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all targets together")
    parser.add_argument("--replay", type=Path, help="a saved find")
    chosen = parser.parse_args()
    if chosen.replay is not None:
        target = TARGETS[chosen.replay.name.partition("-")[0]]()
        found = tried(target, chosen.replay.read_bytes())
        sys.stdout.write(f"{chosen.replay}: {found or 'nothing wrong'}\n")
        return bool(found)
    names = chosen.target or sorted(TARGETS)
    total = finds = 0
    end = time.monotonic() + 60 * chosen.minutes
    for at, name in enumerate(names):
        now = time.monotonic()
        tally = fuzz(name, chosen.first, chosen.cases, now + (end - now) / (len(names) - at))
        total, finds = total + tally.cases, finds + len(tally.finds)
        seconds = time.monotonic() - now
        sys.stdout.write(
            f"{name}: {tally.cases} cases, {tally.refused} refused, {len(tally.finds)} finds, "
            f"{seconds:.0f} s\n"
        )
        for number, found in list(tally.finds.items())[:20]:
            sys.stdout.write(f"--- {FOLDER / f'{name}-{number}.bin'}\n{found}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{total} cases, {finds} finds\n")
    return bool(finds)


if __name__ == "__main__":
    sys.exit(main())
