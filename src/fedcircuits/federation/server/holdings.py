"""Who holds which columns and the label: what Algorithm 1, rules and plans start from."""

from __future__ import annotations

from fedcircuits.federation.plan.indicator import BoolMatrix, feature_indicator
from fedcircuits.federation.plan.subspaces import Subspace, subspaces
from fedcircuits.federation.wire.steps import Facts, LabelAt, Setting
from fedcircuits.schema import Schema


class Holdings:
    """The part of a server that knows which client holds what (attributes as in `Server`)."""

    clients: list[str]
    schema: Schema
    held: dict[str, tuple[str, ...]]
    label: str | None
    _sent_label: list[str]

    @property
    def features(self) -> list[str]:
        """All variables but the label, in the schema's order."""
        return [name for name in self.schema.names if name != self.label]

    @property
    def indicator(self) -> BoolMatrix:
        """M over clients and features, the label set aside."""
        held = {c: [n for n in self.held[c] if n != self.label] for c in self.clients}
        return feature_indicator(held, self.clients, self.features)

    @property
    def subspaces(self) -> tuple[Subspace, ...]:
        """The disjoint subspaces: sets of columns that the same clients hold."""
        return subspaces(self.indicator)

    @property
    def setting(self) -> Setting:
        """How the table is split, found from who holds which columns."""
        M = self.indicator
        if (M[0] == M).all():
            return "horizontal"
        return "vertical" if (M.sum(axis=0) == 1).all() else "hybrid"

    @property
    def label_holders(self) -> list[str]:
        """Clients that hold the label, also those that were sent it."""
        return [c for c in self.clients if self.label is not None and self.label in self.held[c]]

    @property
    def label_owners(self) -> list[str]:
        """Clients whose own column the label is; where all are lost, those that were sent it."""
        own = [c for c in self._sent_label if c in self.clients]
        return own or self.label_holders

    @property
    def label_is_everywhere(self) -> bool:
        """Whether every client has the label in its own table, so that none was sent it."""
        return len(self.label_owners) == len(self.clients)

    @property
    def label_is_shared(self) -> bool:
        """Whether every client holds the label, as a column of its own or because it was sent."""
        return self.label is not None and len(self.label_holders) == len(self.clients)

    @property
    def facts(self) -> Facts:
        """What a plan depends on."""
        at_all: LabelAt = "everybody" if self.label_is_shared else "some"
        shared = sum(space.is_shared for space in self.subspaces)
        label = at_all if self.label_holders else "nobody"
        return Facts(self.setting, label, max(1, shared), len(self.clients))
