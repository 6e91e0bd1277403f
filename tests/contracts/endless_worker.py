"""The service's worker process, where drawing samples never ends: no memory, no work, no hurry."""

from __future__ import annotations

import time
from typing import Any

from fedcircuits.serving import worker
from fedcircuits.serving.questions import Questions


def endless(self: Questions, **arguments: Any) -> dict[str, Any]:
    """Never returns; the signal that gives a question up ends it, as it ends any other."""
    del self, arguments
    while True:
        time.sleep(0.05)


if __name__ == "__main__":
    Questions.sample = endless  # type: ignore[method-assign]
    worker.main()
