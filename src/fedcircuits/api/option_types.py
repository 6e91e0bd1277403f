"""What an option of a learner or of a rule takes, by the type that its field declares."""

from __future__ import annotations

import math
from dataclasses import Field
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np


def expected_of(value: object, kind: Any, least: int) -> str | None:
    """Return what an option takes where a value is none of it, by its type and least number."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    words = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}
    words[NoneType] = "None"
    choices = [each for k in kinds if get_origin(k) is Literal for each in get_args(k)]
    plain = [k for k in kinds if k in words]
    if len(plain) + (len(choices) > 0) < len(kinds):  # of a type that is not checked here
        return None
    if value in choices or (value is None and NoneType in plain):
        return None
    if isinstance(value, bool | np.bool_):
        right = bool in plain
    elif isinstance(value, int | np.integer | float | np.floating):
        whole = isinstance(value, int | np.integer)
        fits = float in plain or (whole and int in plain)
        right = bool(fits and math.isfinite(value) and value >= least)
    else:
        right = isinstance(value, str) and str in plain
    if right:
        return None
    texts = [words[k] + f" >= {least}" * (k in (int, float)) for k in plain if k is not NoneType]
    texts += [repr(each) for each in choices] + ["None"] * (NoneType in plain)
    return " or ".join(texts)


def least_of(option: Field[Any]) -> int:
    """Return the least number that an option takes, if it takes numbers."""
    return int(option.metadata.get("least", 1 if option.name.startswith("n_") else 0))
