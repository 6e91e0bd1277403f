"""Engines carry messages between server and clients; they do no maths."""

from importlib import import_module
from typing import Any

from fedcircuits.engines.local import LocalEngine
from fedcircuits.engines.processes import ProcessEngine
from fedcircuits.errors import FederationError, MissingExtraError
from fedcircuits.federation.wire.transport import Transport

# The names users write. An engine is started with client specs and the name of a function that
# makes a client of one; `LocalEngine` takes the clients themselves.
ENGINES: dict[str, Any] = {"local": LocalEngine, "processes": ProcessEngine}
# Those that need a package beyond ours are imported when they are asked for: module and class. The
# name is that of the package and of our extra.
LATER = {
    "ray": ("fedcircuits.engines.ray.engine", "RayEngine"),
    "nvflare": ("fedcircuits.engines.nvflare.engine", "NvflareEngine"),
}

__all__ = ["ENGINES", "LocalEngine", "ProcessEngine", "Transport", "engine_named"]


def engine_named(name: str) -> Any:
    """The engine of a name, or an error that says which there are or what to install."""
    if name in ENGINES:
        return ENGINES[name]
    if name not in LATER:
        raise FederationError(f"no engine {name!r}; there are {', '.join([*ENGINES, *LATER])}")
    module, engine = LATER[name]
    try:
        return getattr(import_module(module), engine)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != name:
            raise
        raise MissingExtraError(f"engine={name!r}", name) from None
