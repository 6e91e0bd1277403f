"""Names for NumPy array types, used in annotations throughout."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = dict[str, Array]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
IntegerArray = NDArray[np.integer[Any]]  # of any width
BoolArray = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
