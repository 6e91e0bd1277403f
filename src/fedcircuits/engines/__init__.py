"""Engines: how messages travel between server and clients, as bytes."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedcircuits.engines.contracts import DeclaresOptions, HasRowsThere
from fedcircuits.engines.local import LocalEngine
from fedcircuits.engines.processes import ProcessEngine
from fedcircuits.errors import FederationError, MissingExtraError, unknown_name
from fedcircuits.federation.wire.transport import Transport

if TYPE_CHECKING:
    from fedcircuits.engines.nvflare.engine import NvflareEngine
    from fedcircuits.engines.ray.engine import RayEngine

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
    "NvflareEngine",
    "ProcessEngine",
    "RayEngine",
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


def __getattr__(name: str) -> Any:
    for engine, (_, kind) in LATER.items():
        if name == kind:
            return engine_named(engine)
    raise AttributeError(f"module 'fedcircuits.engines' has no attribute {name!r}")
