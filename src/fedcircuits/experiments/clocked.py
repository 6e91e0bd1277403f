"""An engine that runs clients one after the other and clocks the CPU time of each."""

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
        seconds: CPU seconds of each client of the engine that was made last.
    """

    OPTIONS: ClassVar[tuple[str, ...]] = ()
    seconds: ClassVar[dict[str, float]] = {}

    def __init__(self, specs: Mapping[str, bytes], make: str) -> None:
        module, function = make.split(":")
        maker: Any = getattr(importlib.import_module(module), function)
        ClockedEngine.seconds = dict.fromkeys(specs, 0.0)
        clients = {}
        for name, spec in specs.items():
            start = time.process_time()
            clients[name] = maker(spec)
            ClockedEngine.seconds[name] += time.process_time() - start
        super().__init__(clients)

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        """Return each client's reply, or the exception it raised."""
        answers: dict[str, bytes | Exception] = {}
        for name, payload in sorted(payloads.items()):
            start = time.process_time()
            answers |= super().call(verb, {name: payload}, timeout)
            ClockedEngine.seconds[name] += time.process_time() - start
        return answers
