"""`fc.load`: read a saved model of any kind, a federation with an engine to go on with."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from fedcircuits import encoding
from fedcircuits.api.load import from_file_bytes
from fedcircuits.density import Density
from fedcircuits.errors import FederationError, StorageError

if TYPE_CHECKING:
    from fedcircuits.api.settings import Engine
    from fedcircuits.federation.model.ensemble import FederatedEnsemble

Model = TypeVar("Model")  # its class may be abstract, which `type[Model]` would not take


@overload
def load(
    path: str | Path, *, engine: Engine | None = ..., **settings: Any
) -> Density | FederatedEnsemble: ...


@overload
def load(
    path: str | Path, kind: Callable[..., Model], *, engine: Engine | None = ..., **settings: Any
) -> Model: ...


def load(
    path: str | Path, kind: Any = None, *, engine: Engine | None = None, **settings: Any
) -> Any:
    """Return the model that `save` wrote: a density, or a federation that averages or votes.

    Args:
        path: of the file.
        kind: class of the model that is expected, such as `fc.Density` or `fc.FederatedCircuit`; an
            error where the file holds another. A type checker then knows the class.
        engine: of a federation that clients are to join (`with_client`), as for `federate`.
        **settings: of `federate`, which a file does not keep: learner, kinds, missing_values, ...
    """
    if not isinstance(path, str | os.PathLike):
        raise StorageError(f"load takes the path of a model file, found {type(path).__name__}")
    made = from_file_bytes(encoding.read(Path(path)), str(path))
    if kind is not None and not isinstance(made, kind):
        raise StorageError(
            f"{path} holds a {type(made).__name__}, expected a {kind.__name__}: load it without "
            "kind=, or name another file"
        )
    if engine is None and not settings:
        return made
    return _with_run(made, "local" if engine is None else engine, settings, str(path))


def _with_run(made: Any, engine: Engine, settings: dict[str, Any], path: str) -> Any:
    """A federation with the settings of a run, so that clients can join."""
    from fedcircuits.api.federate import FederationRun  # a second of imports, for federations alone
    from fedcircuits.api.settings import RunSettings
    from fedcircuits.federation.model.federated_circuit import FederatedCircuit

    if not isinstance(made, FederatedCircuit) or made.fitted is None:
        raise FederationError(
            f"engine= and other settings are for a federation of densities; {path} holds a "
            f"{type(made).__name__}"
        )
    own = {"label": made.fitted.label, "id": made.id}
    run = FederationRun(RunSettings.from_keywords(engine=engine, **own, **settings))
    return replace(made, run=run)
