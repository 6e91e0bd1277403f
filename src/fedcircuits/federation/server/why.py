"""`Why`: which agreement rules a run considered, what each scored and reveals, which it took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from fedcircuits.schema.shown import html

TAKEN = "taken"


@dataclass(frozen=True)
class Candidate:
    """One agreement rule that was considered.

    Attributes:
        rule: its name.
        reveals: what leaves a client under it, besides schema, row counts and models.
        outcome: "taken", or why it was not.
        log_loss: mean -log p(y | x) of held-out rows in nats; None without a label or a comparison.
        nats: mean log p(x, y) of the same rows; None where nothing was compared.
    """

    rule: str
    reveals: tuple[str, ...]
    outcome: str
    log_loss: float | None = None
    nats: float | None = None


@dataclass(frozen=True)
class Why:
    """Why a federation has the agreement rule it has.

    Attributes:
        rule: name of the rule that was taken.
        reason: why this one, in a sentence.
        candidates: every rule that was considered, in the order of preference.
        n_rows: held-out rows behind the scores; 0 where nothing was compared.
    """

    rule: str
    reason: str
    candidates: tuple[Candidate, ...]
    n_rows: int = 0

    @classmethod
    def asked_for(cls, rule: str, reveals: Iterable[str], reason: str) -> Why:
        """Returns the record of a rule that was taken without a comparison."""
        return cls(rule, reason, (Candidate(rule, tuple(reveals), TAKEN),))

    @property
    def scores(self) -> dict[str, float]:
        """What candidates were compared by: log-loss, without a label -log p(x); by rule."""
        found = {}
        for each in self.candidates:
            if each.nats is not None:
                found[each.rule] = -each.nats if each.log_loss is None else each.log_loss
        return found

    def with_refused(self, refused: Iterable[Candidate]) -> Why:
        """Returns the record with candidates that clients' policies do not allow."""
        known = {each.rule for each in self.candidates}
        added = [each for each in refused if each.rule not in known]
        return replace(self, candidates=(*self.candidates, *added))

    def table(self) -> pd.DataFrame:
        """Returns one row a candidate: rule, log-loss, nats, outcome, what it reveals."""
        return pd.DataFrame(
            {
                "rule": [c.rule for c in self.candidates],
                "log-loss": [np.nan if c.log_loss is None else c.log_loss for c in self.candidates],
                "nats": [np.nan if c.nats is None else c.nats for c in self.candidates],
                "outcome": [c.outcome for c in self.candidates],
                "reveals": ["; ".join(c.reveals) for c in self.candidates],
            }
        )

    def __repr__(self) -> str:
        """Returns the reason, then a line a candidate with scores, outcome and what it reveals."""
        lines = [f"rule {self.rule!r}: {self.reason}"]
        if self.n_rows:
            lines.append(f"scores are means over {self.n_rows} held-out rows, in nats")
        for each in self.candidates:
            scores = [
                f"{name} {value:.4f}"
                for name, value in (("log-loss", each.log_loss), ("log p(x, y)", each.nats))
                if value is not None
            ]
            lines.append(f"- {each.rule}: {', '.join([*scores, each.outcome])}")
            lines += [f"    reveals {what}" for what in each.reveals]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Returns the reason and the scores as a notebook shows them; `table()` has the rest."""
        table = self.table().drop(columns="reveals").round(4).astype(object).fillna("")
        rows = [[str(cell) for cell in row] for row in table.itertuples(index=False)]
        return html(f"rule {self.rule!r}: {self.reason}", (), list(table.columns), rows)

    def to_json(self) -> dict[str, Any]:
        """Returns the record as JSON."""
        return {
            "rule": self.rule,
            "reason": self.reason,
            "n_rows": self.n_rows,
            "candidates": [
                {
                    "rule": c.rule,
                    "reveals": list(c.reveals),
                    "outcome": c.outcome,
                    "log_loss": _plain(c.log_loss),
                    "nats": _plain(c.nats),
                }
                for c in self.candidates
            ],
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Why:
        """Returns the record that `to_json` wrote."""
        candidates = tuple(
            Candidate(
                str(c["rule"]),
                tuple(str(each) for each in c["reveals"]),
                str(c["outcome"]),
                None if c["log_loss"] is None else float(c["log_loss"]),
                None if c["nats"] is None else float(c["nats"]),
            )
            for c in found["candidates"]
        )
        return cls(str(found["rule"]), str(found["reason"]), candidates, int(found["n_rows"]))


def _plain(value: float | None) -> float | str | None:
    """Returns a number as JSON can hold it: infinities as text, which `float` reads."""
    return value if value is None or np.isfinite(value) else str(value)
