"""A process that answers questions to one model; the service starts several.

The first frame on standard input holds limits and the model's bytes; each later frame is one
question as JSON. A process of its own is what makes a deadline real: it can be ended at any time.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import warnings
from typing import Any, BinaryIO

from fedcircuits.api.load import from_file_bytes
from fedcircuits.engines.frames import frame, read_frame
from fedcircuits.errors import FedcircuitsError, FedcircuitsWarning
from fedcircuits.serving.explorer import Explorer
from fedcircuits.serving.giving_up import GIVE_UP, AtWork, GivenUpError
from fedcircuits.serving.questions import Limits, Questions, TooMuchError

START = "start"


def answer(questions: Questions, method: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to one question, with the library's warnings as notes, or the error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FedcircuitsWarning)
        try:
            found = getattr(questions, method)(**arguments)
        except FedcircuitsError as error:
            status = 413 if isinstance(error, TooMuchError) else 422
            return {"status": status, "error": str(error), "type": type(error).__name__}
        except MemoryError:
            text = "the answer needs more memory than the service has: ask for less at a time"
            return {"status": 413, "error": text, "type": "TooMuchError"}
        except Exception as error:  # the caller learns that it failed, the log learns why
            print(f"{method} failed: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
            text = "an error of the service; its log has more"
            return {"status": 500, "error": text, "type": "InternalError"}
    notes = [str(w.message) for w in caught if issubclass(w.category, FedcircuitsWarning)]
    found = {**found, "notes": list(dict.fromkeys(notes))} if notes else found
    return {"status": 200, "answer": found}


def _frames(source: BinaryIO) -> queue.SimpleQueue[tuple[int, str, bytes]]:
    """Reads frames in a thread of its own, so that the end of the pipe ends even a busy process."""
    found: queue.SimpleQueue[tuple[int, str, bytes]] = queue.SimpleQueue()

    def read() -> None:
        while (request := read_frame(source)) is not None:
            found.put(request)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return found


def main() -> None:
    """Answer frames until the pipe ends or the process is killed."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    frames = _frames(source)
    questions: Questions | None = None
    at_work = AtWork()
    signal.signal(GIVE_UP, at_work.give_up)
    while True:
        number, name, payload = frames.get()
        if questions is None:
            try:
                size = int.from_bytes(payload[:4], "little")
                limits = Limits(**json.loads(payload[4 : 4 + size]))
                questions = Explorer(from_file_bytes(payload[4 + size :], name), limits)
                reply: dict[str, Any] = {"status": 200, "answer": {}}
            except FedcircuitsError as error:
                reply = {"status": 422, "error": str(error), "type": type(error).__name__}
        else:
            try:
                at_work.now = True
                reply = answer(questions, name, json.loads(payload))
                at_work.now = False
            except GivenUpError:
                text = "given up, since others wait or its time was over: ask for less at a time"
                reply = {"status": 503, "error": text, "type": "BusyError"}
        sink.write(frame(number, "", json.dumps(reply).encode()))
        sink.flush()


if __name__ == "__main__":
    main()
