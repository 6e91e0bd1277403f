"""Engines carry messages between server and clients; they do no maths."""

from importlib import import_module
from typing import Any

from fedcircuits.engines.contracts import DeclaresOptions, HasRowsThere
from fedcircuits.engines.local import LocalEngine
from fedcircuits.engines.processes import ProcessEngine
from fedcircuits.errors import FederationError, MissingExtraError, unknown_name
from fedcircuits.federation.wire.transport import Transport

# The names users write. An engine is started with encoded client specs and the name of a function
# that makes a client of one; `LocalEngine` takes the clients themselves.
ENGINES: dict[str, Any] = {"local": LocalEngine, "processes": ProcessEngine}
# Those that need a package beyond ours are imported when they are asked for: module and class. The
# name is that of the package and of our extra.
LATER = {
    "ray": ("fedcircuits.engines.ray.engine", "RayEngine"),
    "nvflare": ("fedcircuits.engines.nvflare.engine", "NvflareEngine"),
}

__all__ = [
    "ENGINES",
    "DeclaresOptions",
    "HasRowsThere",
    "LocalEngine",
    "ProcessEngine",
    "Transport",
    "engine_named",
]


def engine_named(name: str) -> Any:
    """Return the engine class of a name; an error says which names there are or what to install."""
    if name in ENGINES:
        return ENGINES[name]
    if name not in LATER:
        raise FederationError(unknown_name("engine", name, [*ENGINES, *LATER]))
    module, engine = LATER[name]
    try:
        return getattr(import_module(module), engine)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name:
            raise
        raise MissingExtraError(f"engine={name!r}", name) from None
