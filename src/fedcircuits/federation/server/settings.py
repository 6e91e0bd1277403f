"""What the server of a run must know: the settings that messages depend on."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Literal, get_args

from fedcircuits.errors import FederationError
from fedcircuits.schema import Schema

LabelUse = Literal["sent", "used", "no"]


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings of a run that its server reads; `fedcircuits.RunSettings` adds the others.

    Attributes:
        label: column to be predicted well; held by all clients or by some.
        label_use: where only some clients hold the label: "sent": its owners send the classes of
            aligned rows to the others, sealed, so that the server cannot read them; "used": the
            others send its owner codes of at most 8 bits a row, sealed, and the label of no row
            leaves; "no": the column takes no part and is not in the model.
        seed: the same seed gives the same model.
        min_rows: least rows behind every number in a sketch of a column.
        timeout: seconds a client has for each message; no limit by default.
        schema: agreed in an earlier run; by default the clients agree on one now.
        allow_missing: continue without the variables of a client that fails and alone holds them.
    """

    label: str | None = None
    label_use: LabelUse = "sent"
    seed: int = 0
    min_rows: int = 5
    timeout: float | None = None
    schema: Schema | None = None
    allow_missing: bool = False

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("min_rows", 1)):
            value = getattr(self, name)
            try:
                whole = operator.index(value)
            except TypeError:
                whole = least - 1
            if whole < least or isinstance(value, bool):
                raise FederationError(f"{name} is a whole number >= {least}, found {value!r}")
        if self.label_use not in get_args(LabelUse):
            raise FederationError(
                f"label_use is {', '.join(map(repr, get_args(LabelUse)))}, found {self.label_use!r}"
            )
        if self.timeout is not None and not 0 < self.timeout <= math.inf:
            raise FederationError(
                f"timeout is a number of seconds > 0, or None for no limit; found {self.timeout!r}"
            )
