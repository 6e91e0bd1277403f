"""Values as JSON has them."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd


def plain_json(value: Any) -> Any:
    """Return a value as JSON has it: NaN and pd.NA as null, infinities and other things as text.

    Dates and times are ISO 8601 text, a date without a time of day as such; durations are seconds.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain_json(entry) for entry in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None if np.isnan(value) else str(value)
    if value is None or value is pd.NA or value is pd.NaT:
        return None
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, datetime.date | datetime.time):
        text = value.isoformat()
        return text.removesuffix("T00:00:00") if isinstance(value, datetime.datetime) else text
    return value if isinstance(value, bool | int | str) else str(value)
