"""Engines carry messages between server and clients; they do no maths."""

from typing import Any

from fedcircuits.engines.local import LocalEngine
from fedcircuits.engines.processes import ProcessEngine
from fedcircuits.engines.recorder import Recorder
from fedcircuits.federation.transport import Transport

# The names users write. An engine is started with birth records and the name of a function that
# makes a client of one; `LocalEngine` takes the clients themselves.
ENGINES: dict[str, Any] = {"local": LocalEngine, "processes": ProcessEngine}

__all__ = ["ENGINES", "LocalEngine", "ProcessEngine", "Recorder", "Transport"]
