"""What a client agrees to: columns, label, requests, smallest group, largest message.

The owner of the data writes a policy, in a TOML file beside the data. `Policy.apply` takes what is
not offered out of the table before a client is made of it; `Guarded` (see `guard`) stands between
the engine and the client and refuses whatever the policy does not allow.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

import pandas as pd

from fedcircuits.errors import FederationError
from fedcircuits.federation.wire.requests import BITS, VERBS
from fedcircuits.federation.wire.verbs import Terms
from fedcircuits.schema import Kind, Schema
from fedcircuits.schema.numbers import is_number

LabelUse = Literal["sent", "used", "no"]
ModelPlace = Literal["gathered", "remote"]
RareCategories = Literal["hidden", "offered"]
RowEvidence = Literal["nobody", "clients", "server"]
ErrorText = Literal["kind", "sent"]
QUERIES = (
    "log_prob", "posterior", "classify", "moment", "variance", "covariance", "sample", "mpe",
)  # fmt: skip


class PolicyError(FederationError):
    """A policy that cannot be read, or a request that one does not allow."""


@dataclass(frozen=True)
class Policy(Terms):
    """What one client answers. Every field is a key of the TOML file; all have defaults.

    Attributes:
        columns: offered to the federation, None for all.
        id: column that aligns rows. Without one, the column that the plan of a run names, if every
            column is offered and its cells differ in all rows.
        label_column: the label, where the table has it; a run with another one is refused. Without
            one, the label of the plan.
        kinds: kinds of columns, where a guess would be wrong.
        missing_values: spellings of a missing value besides those pandas knows.
        label: "sent": the label of single rows may leave; "used": it may be learned from, counted
            and modelled, and no message reveals it of single rows; "no": no column of this client
            serves as a label.
        requests: that are answered, by name (the table in docs/policy.md), None for all.
        queries: kinds of questions to models that stay, of `QUERIES`.
        rows_by_id: whether rows of this client's table are looked up by id for a query. Whoever may
            ask that can infer cells of rows whose id it knows, one question after the other.
        row_evidence: who may be sent what rows can be reconstructed from: "nobody"; "clients": a
            client such as the label's owner, sealed so that the server cannot read it; "server".
        bits: most clear bits a row that the server learns in one run (codes, labels).
        runs: most runs over this table, counted in the audit file; a repeat is no new run.
        epsilon: most differential privacy spent over all runs, None for no limit.
        placement: "gathered": models may leave; "remote": they stay, and only answers leave.
        min_rows: smallest group that anything is revealed about: sketches, clusters, classes,
            cells of tables of counts, models.
        max_message_bytes: of a request or of a reply.
        rare_categories: "hidden": a category of fewer than min_rows rows is a missing value;
            "offered": it stays as it is.
        errors: "kind": the server gets only the kind of an error in the client; "sent": its text
            too, which may quote a cell.
    """

    columns: tuple[str, ...] | None = None
    id: str | None = None
    label_column: str | None = None
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    missing_values: tuple[object, ...] = ()
    label: LabelUse = "used"
    requests: tuple[str, ...] | None = None
    queries: tuple[str, ...] = QUERIES
    rows_by_id: bool = False
    row_evidence: RowEvidence = "clients"
    bits: float = BITS
    runs: int = 10
    epsilon: float | None = None
    placement: ModelPlace = "gathered"
    min_rows: int = 5
    max_message_bytes: int = 2**30
    rare_categories: RareCategories = "hidden"
    errors: ErrorText = "kind"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            found = getattr(self, name)
            if found not in choices:
                raise PolicyError(f"{name} is one of {_listed(choices)}, found {found!r}")
        for name in ("min_rows", "max_message_bytes", "runs"):
            found = getattr(self, name)
            if type(found) is not int or found < 1:
                raise PolicyError(f"{name} is a whole number from 1 on, found {found!r}")
        if type(self.rows_by_id) is not bool:
            raise PolicyError(f"rows_by_id is true or false, found {self.rows_by_id!r}")
        for name in ("bits", "epsilon"):
            found = getattr(self, name)
            if found is not None and (type(found) not in (int, float) or not 0 <= found < math.inf):
                raise PolicyError(f"{name} is a number from 0 on, found {found!r}")
        for name in ("id", "label_column"):
            found = getattr(self, name)
            if found is not None and not isinstance(found, str):
                raise PolicyError(f"{name} is the name of a column, found {found!r}")
        kinds = get_args(Kind)
        if not isinstance(self.kinds, Mapping) or any(k not in kinds for k in self.kinds.values()):
            raise PolicyError(
                f"kinds maps columns to one of {_listed(kinds)}, found {self.kinds!r}"
            )
        if not isinstance(self.missing_values, (list, tuple)):
            raise PolicyError(f"missing_values is a list, found {self.missing_values!r}")
        object.__setattr__(self, "missing_values", tuple(self.missing_values))
        for name, known in (("columns", None), ("requests", tuple(VERBS)), ("queries", QUERIES)):
            self._check_names(name, known)

    def _check_names(self, name: str, known: tuple[str, ...] | None) -> None:
        """A list of distinct strings; of the known ones where there are such."""
        found = getattr(self, name)
        if found is None:
            return
        if not isinstance(found, (list, tuple)) or not all(isinstance(x, str) for x in found):
            raise PolicyError(f"{name} is a list of strings, found {found!r}")
        object.__setattr__(self, name, tuple(found))
        strangers = [] if known is None else [x for x in found if x not in known]
        if strangers:
            raise PolicyError(f"{name} are of {_listed(known or ())}, found {strangers[0]!r}")
        if len(set(found)) < len(found):
            raise PolicyError(f"{name} names something twice: {_listed(found)}")

    @staticmethod
    def from_toml(path: str | Path) -> Policy:
        """The policy in a file; an unknown key is an error."""
        try:
            found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise PolicyError(f"cannot read the policy {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise PolicyError(f"the policy {path} is not TOML: {error}") from None
        keys = [field.name for field in fields(Policy)]
        strangers = [key for key in found if key not in keys]
        if strangers:
            raise PolicyError(
                f"the policy {path} has no key {strangers[0]!r}; it has {_listed(keys)}"
            )
        try:
            return Policy(**found)
        except PolicyError as error:
            raise PolicyError(f"the policy {path}: {error}") from None

    def id_of(self, frame: pd.DataFrame, wanted: str | None) -> str | None:
        """Return the column that aligns rows: the policy's, or the plan's where that is safe."""
        if self.id is not None or wanted not in frame.columns or self.columns is not None:
            return self.id
        cells = frame[wanted]
        return wanted if cells.notna().all() and not cells.duplicated().any() else None

    def kinds_of(self, label: str | None, frame: pd.DataFrame) -> dict[str, Kind]:
        """Return the kinds of columns; the label's is that of its cells unless it is given."""
        label = self.label_column or label
        known: dict[str, Kind] = {}
        if label is not None:
            number = label in frame.columns and is_number(frame[label], self.missing_values)
            known[label] = "continuous" if number else "categorical"
        return {**known, **self.kinds}

    def apply(
        self,
        frame: pd.DataFrame,
        *,
        id: str | None = None,
        client: str = "",
        label: str | None = None,
    ) -> pd.DataFrame:
        """The table as it is offered: other columns dropped, rare categories hidden.

        Args:
            frame: the client's rows.
            id: column that the plan aligns rows by (`id_of`); only digests of it are sent.
            client: its name, for errors.
            label: the plan's.
        """
        who = f"client {client!r}" if client else "the table"
        id = self.id_of(frame, id)
        for name in (self.id, self.label_column, *self.kinds):
            if name is not None and name not in frame.columns:
                raise PolicyError(
                    f"the policy names the column {name!r}, which {who} does not have; it has "
                    f"{_listed(frame.columns)}"
                )
        offered = list(frame.columns) if self.columns is None else list(self.columns)
        absent = [name for name in offered if name not in frame.columns]
        if absent:
            raise PolicyError(
                f"the policy offers the column {absent[0]!r}, which {who} does not have; it has "
                f"{_listed(frame.columns)}"
            )
        kept = frame[[name for name in frame.columns if name in offered or name == id]]
        if len(kept) < self.min_rows:
            raise PolicyError(
                f"{who} has {len(kept)} row(s), fewer than min_rows = {self.min_rows} of its policy"
            )
        if self.rare_categories == "offered":
            return kept
        variables = kept.drop(columns=[id] if id in kept.columns else [])
        kinds = self.kinds_of(label, variables)
        named = {name: kind for name, kind in kinds.items() if name in variables.columns}
        for variable in Schema.infer(variables, named, missing_values=self.missing_values):
            if variable.is_coded:
                cells = kept[variable.name]
                rows = cells.map(cells.value_counts())
                kept = kept.assign(**{variable.name: cells.mask(rows < self.min_rows)})
        return kept


_CHOICES = {
    "label": get_args(LabelUse),
    "row_evidence": get_args(RowEvidence),
    "placement": get_args(ModelPlace),
    "rare_categories": get_args(RareCategories),
    "errors": get_args(ErrorText),
}


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))
