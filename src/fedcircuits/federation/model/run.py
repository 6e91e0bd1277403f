"""The run behind a federated model, as far as the model may still use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, Self

from fedcircuits.density import Learner, LearnsClassifier
from fedcircuits.schema import Data

if TYPE_CHECKING:
    from fedcircuits.federation.model.federated_circuit import FederatedCircuit

AnyLearner = str | Learner | LearnsClassifier  # a name, or the learner itself


class Run(Protocol):
    """A run of a federation whose settings, and maybe clients, are still known."""

    def join(
        self, fed: FederatedCircuit, name: str, data: Data, learner: AnyLearner | None
    ) -> FederatedCircuit:
        """Returns the federation with one client more."""
        ...

    def retrain(self, clients: list[str]) -> FederatedCircuit:
        """Trains again with some of the clients."""
        ...

    def close(self) -> None:
        """Releases the clients."""
        ...


class HoldsClients:
    """A model that may hold clients open, because its parts stay there; usable in `with`."""

    run: Run | None

    def close(self) -> None:
        """Releases clients that are still held (remote placement)."""
        if self.run is not None:
            self.run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
