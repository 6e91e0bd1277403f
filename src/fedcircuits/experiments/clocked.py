"""Engines that run clients one after the other and clock each."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from fedcircuits.engines.local import LocalEngine


class ClockedEngine(LocalEngine):
    """Clients of this process, clocked: the slowest one says how long a real run would take.

    Args:
        specs: of the clients, as bytes.
        make: "module:function" that makes a client of its spec.

    Attributes:
        seconds: of each client of the engine that was made last.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ()
    seconds: ClassVar[dict[str, float]] = {}

    @staticmethod
    def clock() -> float:
        """Return seconds of the processor so far, so that other processes do not count."""
        return time.process_time()

    def __init__(self, specs: Mapping[str, bytes], make: str) -> None:
        module, function = make.split(":")
        maker: Any = getattr(importlib.import_module(module), function)
        ClockedEngine.seconds = dict.fromkeys(specs, 0.0)
        clients = {}
        for name, spec in specs.items():
            start = self.clock()
            clients[name] = maker(spec)
            ClockedEngine.seconds[name] += self.clock() - start
        super().__init__(clients)

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        """Return each client's reply, or the exception it raised."""
        answers: dict[str, bytes | Exception] = {}
        for name, payload in sorted(payloads.items()):
            start = self.clock()
            answers |= super().call(verb, {name: payload}, timeout)
            ClockedEngine.seconds[name] += self.clock() - start
        return answers


class WallClockedEngine(ClockedEngine):
    """The same by the clock on the wall: on a GPU the processor mostly waits."""

    @staticmethod
    def clock() -> float:
        """Return seconds of the wall so far."""
        return time.perf_counter()
