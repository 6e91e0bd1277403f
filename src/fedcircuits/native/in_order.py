"""Work on many items shared by threads: the same answers in the same order, sooner."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from fedcircuits.native import n_threads

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def in_order(work: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[Answer]:
    """Answers of work on every item, in the order of the items.

    As many at a time as there are threads (`native.using_threads`); a caller that adds answers up
    as they come adds them in the same order whatever their number. Work must leave alone what
    other items' work reads.
    """
    n = min(n_threads(), len(items))
    if n < 2:
        yield from map(work, items)
        return
    waiting: deque[Future[Answer]] = deque()
    with ThreadPoolExecutor(max_workers=n) as pool:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > n:  # no more answers at once than threads: they may be large
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
