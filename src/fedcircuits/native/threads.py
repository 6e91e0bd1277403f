"""One thread for linear algebra, without looking for its libraries again every time."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

from threadpoolctl import ThreadpoolController


def one_thread() -> AbstractContextManager[Any]:
    """Within the context, products of small matrices do not wait for a second thread.

    The libraries of the process are found by reading the list of all that is mapped into memory,
    which takes milliseconds: as long as no module is loaded, they are those found before.
    """
    limited: AbstractContextManager[Any] = _controller(len(sys.modules)).limit(limits=1)
    return limited


@lru_cache(maxsize=1)
def _controller(_n_modules: int) -> ThreadpoolController:
    return ThreadpoolController()
