"""The program of a client's own process: read a frame, let the client reply, write a frame.

The client is made from the encoded spec in the first frame. The process ends when its pipe
does, so it never outlives whoever started it.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, BinaryIO

from fedcircuits.engines.frames import frame, read_frame

OK, ERROR = "ok", "error"


def serve(source: BinaryIO, sink: BinaryIO, make: str) -> None:
    """Reply to frames until the pipe ends; an exception is sent back as an error."""
    client: Any = None
    while (request := read_frame(source)) is not None:
        number, verb, payload = request
        try:
            if client is None:
                module, _, function = make.partition(":")
                client = getattr(importlib.import_module(module), function)(payload)
                status, answer = OK, b""
            else:
                status, answer = OK, client.handle(verb, payload)
        except Exception as error:  # whatever a learner raises belongs to the caller
            status, answer = ERROR, f"{type(error).__name__}: {error}".encode()
        sink.write(frame(number, status, answer))
        sink.flush()


def main() -> None:
    """Serve on standard input and output; what the client prints goes to standard error."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        serve(source, sink, sys.argv[1])
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(1)  # whoever asked is gone, and so is the pipe that an exit would flush
