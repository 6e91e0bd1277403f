"""A server's side of the wire without its scruples, against a silo on the default policy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from fedcircuits import encoding
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.federation.agreement import Latent
from fedcircuits.federation.agreement.base import described
from fedcircuits.federation.client.rows.describe import SKETCH_PARTS
from fedcircuits.federation.policy.guard import Guarded
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import CLUSTERS
from fedcircuits.federation.wire.steps import MANY, Facts, Step, step
from fedcircuits.schema import Schema, Sketch
from fedcircuits.schema.schema import variable_grid

N = 300
R = TypeVar("R", bound=m.Message)
NONE = np.zeros(0, dtype=np.uint8)
GREEDY = tuple(  # everything, as often as can be written down
    Step(verb, MANY, {"send_rows": False} if verb == "cluster" else {})
    for verb in m.VERBS
    if verb not in ("ask", "branch", "round", "send_label", "digests")
)


def people() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "pid": rng.permutation(10**6)[:N],
            "salary": np.round(rng.lognormal(10, 1, N), 2),
            "age": rng.integers(18, 90, N),
            "diag": rng.choice(["ill", "well"], N, p=[0.3, 0.7]),
            "ssn": rng.permutation(10**6)[:N].astype(float) / 7,
        }
    )


class Schemer:
    """A server's side of the wire, without its scruples."""

    def __init__(self, member: Guarded) -> None:
        self.member = member
        self.refused = 0

    def ask(self, verb: str, request: m.Message, reply: type[R]) -> R | str:
        answer = self.member.handle(verb, request.to_bytes())
        if encoding.unpack(answer).kind == "Failed":
            self.refused += 1
            return m.Failed.from_bytes(answer).error
        return reply.from_bytes(answer)

    def described(self, min_rows: int = 5) -> m.Description:
        found = self.ask("describe", m.Describe(min_rows), m.Description)
        assert isinstance(found, m.Description)
        return found

    def propose(self, **changes: Any) -> m.Consent | str:
        names = [variable["name"] for variable in self.described().schema]
        return self.ask("propose", plan(names, **changes), m.Consent)

    def agree(self, **changes: dict[str, Any]) -> m.Ready | str:
        """The schema as it was described, with grids, some variables changed."""
        schema = [{**v, **changes.get(v["name"], {})} for v in self.schema()]
        return self.ask("agree", m.Agree(schema, 0, self.label), m.Ready)

    def schema(self) -> list[dict[str, Any]]:
        """What was described, with the grids that follow from the sketches."""
        told = self.described()
        found = []
        for variable in Schema.from_json(told.schema):
            if not variable.is_coded:
                parts = {p: told.sketches[f"{variable.name}\x1f{p}"] for p in SKETCH_PARTS}
                sketch = Sketch(**parts, exact=told.exact[variable.name])
                variable = variable.with_grid(variable_grid(variable, sketch))
            found.append(variable.to_json())
        return found

    label: str | None = None


def plan(columns: list[str], **changes: Any) -> m.Plan:
    latent = Latent(label_private=True)
    honest = latent.steps(Facts("vertical", "some"))
    candidates = (m.PlannedRule("greedy", GREEDY), m.PlannedRule(described(latent), honest))
    common = (step(m.DESCRIBE), step(m.PROPOSE), step(m.AGREE), step(m.ALIGN), step(m.DIGESTS))
    made = m.Plan(
        clients=["a", "b", "bank", "c", "other"],
        learner="factorised",
        columns=columns,
        id=None,
        label=None,
        seed=0,
        placement="gathered",
        questions=[],
        trust="one owner",  # a claim of the server, which a policy does not heed
        tries=MANY,
        common=common,
        optional=(),
        candidates=candidates,
    )
    return replace(made, **changes)


def silo(
    policy: Policy | None = None, audit: Path | None = None, rows: pd.DataFrame | None = None,
    **spec: Any,
) -> Schemer:  # fmt: skip
    rows = people() if rows is None else rows
    policy = policy or Policy(columns=("salary", "age", "diag"), id="pid")
    made = ClientSpec("bank", rows, "factorised", policy=policy, **spec).guarded(audit)
    assert isinstance(made, Guarded)
    return Schemer(made)


def clusters(schemer: Schemer, columns: list[str], k: int, **more: Any) -> m.Clustered | str:
    request = m.Cluster(CLUSTERS, columns, k, False, True)
    return schemer.ask("cluster", replace(request, **more), m.Clustered)
