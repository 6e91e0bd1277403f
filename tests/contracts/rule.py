"""The contract of an agreement rule: subclass `RuleContract` and say which rule on which clients.

```python
class TestLatent(RuleContract):
    rule = Latent(n_classes=6, n_clusters=4)
    clients = staticmethod(columns_split)   # a function that gives name -> DataFrame
    label = "y"
```

Tables must be small and discrete: mass one is shown by adding up every world.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from contracts.events import check_events
from fedcircuits.circuits import Circuit, Composite, build
from fedcircuits.federation.agreement import Latent, Rule
from fedcircuits.federation.agreement.auto import TRIAL
from fedcircuits.federation.model.federated_circuit import FederatedCircuit
from fedcircuits.federation.wire.steps import EVERY_CASE, Facts, level_of
from fedcircuits.federation.wire.verbs import Level
from fedcircuits.schema import Table
from tolerances import MASS

SAME = 1e-9  # gathered, merged and remote answers


@dataclass(frozen=True)
class NaiveBayes:
    """A learner that is quick, knows about labels and weights, and is a circuit."""

    label: str | None = None

    def fit(self, table: Table, rng: np.random.Generator) -> Circuit:
        """One product of leaves for each class."""
        del rng
        if self.label is None:
            return self._product(table, 1.0)[1]
        at = table.schema.position(self.label)
        parts = []
        for code in np.unique(table.values[:, at]):
            parts.append(self._product(table.rows(table.values[:, at] == code), 0.1))
        weights = np.array([weight for weight, _ in parts])
        nodes = [node for _, node in parts]
        return build.circuit(table.schema, build.sum(nodes, list(weights / weights.sum())))

    def _product(self, table: Table, smoothing: float) -> tuple[float, Any]:
        leaves = [
            build.fit_leaf(
                variable,
                table.values[:, at],
                table.weights,
                smoothing=1e-3 if variable.name == self.label else smoothing,
            )
            for at, variable in enumerate(table.schema)
        ]
        weight = float(len(table) if table.weights is None else table.weights.sum())
        node = leaves[0] if len(leaves) == 1 else build.product(leaves)
        return weight, node if self.label else build.circuit(table.schema, node)


LEARNER = NaiveBayes()


def small_table(n: int = 400, seed: int = 0) -> pd.DataFrame:
    """Five binary columns and a label that leans on two of them; an id of strings."""
    rng = np.random.default_rng(seed)
    z = rng.integers(0, 2, n)
    frame = pd.DataFrame(
        {f"x{j}": np.where(rng.random(n) < 0.8, z, 1 - z).astype(str) for j in range(5)}
    )
    odds = np.where((frame["x0"] == "1") & (frame["x3"] == "1"), 0.9, 0.2)
    frame["y"] = np.where(rng.random(n) < odds, "yes", "no")
    frame["id"] = [f"i{i}" for i in range(n)]
    return frame


def columns_split() -> dict[str, pd.DataFrame]:
    """Columns split, the label on one client."""
    table = small_table()
    return {"a": table[["id", "x0", "x1", "x2", "y"]], "b": table[["id", "x3", "x4"]]}


def columns_split_label_shared() -> dict[str, pd.DataFrame]:
    """Columns split, the label on both clients."""
    table = small_table()
    return {"a": table[["id", "x0", "x1", "x2", "y"]], "b": table[["id", "x3", "x4", "y"]]}


def rows_split() -> dict[str, pd.DataFrame]:
    """Rows split unevenly over three clients."""
    table = small_table().drop(columns="id")
    parts = {"a": table[:200], "b": table[200:340], "c": table[340:]}
    return {name: part.reset_index(drop=True) for name, part in parts.items()}


def both_split() -> dict[str, pd.DataFrame]:
    """One column shared, half of the rows aligned, the label on one client."""
    table = small_table()
    return {"a": table[:300][["id", "x0", "x1", "x2", "y"]], "b": table[100:][["id", "x2", "x3"]]}


def branches_and_register() -> dict[str, pd.DataFrame]:
    """Two clients with the same columns and different rows, a third with others of all rows."""
    table = small_table()
    mine = table[["id", "x0", "x1", "y"]]
    return {"a": mine[:200], "b": mine[200:], "c": table[["id", "x2", "x3", "x4"]]}


class RuleContract:
    """Laws of every rule."""

    rule: ClassVar[Any]
    clients: ClassVar[Callable[[], dict[str, pd.DataFrame]]]
    label: ClassVar[str | None] = "y"
    align: ClassVar[bool] = True

    @classmethod
    def federate(cls, **options: Any) -> FederatedCircuit:
        """The federation; a reversed one holds the same clients in another order."""
        frames = cls.clients()
        if options.pop("backwards", False):
            frames = dict(reversed(frames.items()))
        id_ = "id" if cls.align else None
        options = {"learner": LEARNER, "agreement": cls.rule, "trust": "one owner", **options}
        return fc.federate(frames, id=id_, label=cls.label, **options)

    @pytest.fixture(scope="class")
    @classmethod
    def fed(cls) -> FederatedCircuit:
        """Trained once."""
        return cls.federate()

    @pytest.fixture(scope="class")
    @classmethod
    def worlds(cls, fed: FederatedCircuit) -> pd.DataFrame:
        """Every combination of categories."""
        points = [variable.categories for variable in fed.schema]
        return pd.DataFrame(list(itertools.product(*points)), columns=list(fed.schema.names))

    def test_all_columns_of_all_clients_are_variables(self, fed: FederatedCircuit) -> None:
        held = {name for frame in type(self).clients() for name in type(self).clients()[frame]}
        assert set(fed.schema.names) == held - {"id"}

    def test_mass_is_one(self, fed: FederatedCircuit, worlds: pd.DataFrame) -> None:
        assert np.exp(fed.log_prob(worlds)).sum() == pytest.approx(1.0, abs=MASS)

    def test_a_missing_cell_is_summed_out(self, fed: FederatedCircuit, worlds: Any) -> None:
        name = fed.schema.names[0]
        rest = [n for n in fed.schema.names if n != name]
        joint = np.exp(fed.log_prob(worlds)).groupby([worlds[n] for n in rest]).sum()
        part = worlds.drop_duplicates(rest)[rest].sort_values(rest)
        np.testing.assert_allclose(np.exp(fed.log_prob(part)), joint, rtol=0, atol=MASS)

    def test_events_are_sums_over_their_worlds(self, fed: FederatedCircuit, worlds: Any) -> None:
        mass = np.exp(fed.log_prob(worlds)).to_numpy()
        check_events(fed, worlds, mass, MASS, MASS)
        check_events(self.federate(placement="remote"), worlds, mass, MASS, MASS)

    def test_composite_and_merged_circuit_agree(
        self, fed: FederatedCircuit, worlds: pd.DataFrame
    ) -> None:
        table = fed.schema.encode(worlds)
        composite = Composite.log_prob_table(fed, table)
        merged = fed.merged().log_prob_table(table)
        gathered = fed.log_prob_table(table)
        np.testing.assert_allclose(gathered, composite, rtol=0, atol=SAME)
        np.testing.assert_allclose(gathered, merged, rtol=0, atol=SAME)

    def test_models_that_stay_give_the_same_answers(
        self, fed: FederatedCircuit, worlds: pd.DataFrame
    ) -> None:
        away = self.federate(placement="remote")
        np.testing.assert_allclose(away.log_prob(worlds), fed.log_prob(worlds), rtol=0, atol=SAME)
        if self.label is not None:
            rows = worlds.drop(columns=self.label)[:40]
            here, there = (m.predict_proba(rows, self.label) for m in (fed, away))
            np.testing.assert_allclose(here, there, rtol=0, atol=SAME)

    def test_order_of_clients_changes_nothing(
        self, fed: FederatedCircuit, worlds: pd.DataFrame
    ) -> None:
        """Which also says that the seed alone decides."""
        again = self.federate(backwards=True)
        assert again.log_prob(worlds).tolist() == fed.log_prob(worlds).tolist()

    def test_it_says_what_leaves_a_client(self, fed: FederatedCircuit) -> None:
        rule: Rule | None = fed.rule
        assert rule is not None
        assert rule.reveals
        assert all(isinstance(words, str) and words for words in rule.reveals)
        assert rule.name

    def test_it_sends_what_it_declares(self, fed: FederatedCircuit) -> None:
        """Verbs of its steps and of the handshake, and the levels that these have."""
        assert fed.rule is not None
        steps = [s for facts in EVERY_CASE if facts.setting == fed.setting
                 for s in fed.rule.steps(facts)]  # fmt: skip
        if isinstance(self.rule, str):  # "auto": its candidates and their trial
            steps += [*TRIAL, *Latent().steps(Facts(fed.setting, "some"))]
        declared = {s.verb for s in steps}
        asked = fed.ledger.table(["verb", "phase", "direction"])
        later = asked[~asked["phase"].isin(["schema", "alignment"])]
        assert set(later["verb"]) <= declared
        told = [Level(level) for level in later["level"]]
        assert max(level.rank for level in told) <= level_of(steps, "server").rank
