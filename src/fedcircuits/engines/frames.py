"""Frames on a pipe: number, verb and payload out, number and payload back. Bytes only."""

from __future__ import annotations

import struct
from typing import IO

HEAD = struct.Struct("<QIQ")  # number of the call, length of the verb, length of the payload


def frame(number: int, verb: str, payload: bytes) -> bytes:
    """Return number, verb and payload as the bytes of one frame."""
    name = verb.encode()
    return HEAD.pack(number, len(name), len(payload)) + name + payload


def read_frame(pipe: IO[bytes]) -> tuple[int, str, bytes] | None:
    """Return the next frame of a blocking pipe; None where the pipe has ended."""
    head = _exactly(pipe, HEAD.size)
    if head is None:
        return None
    number, n_verb, n_payload = HEAD.unpack(head)
    verb, payload = _exactly(pipe, n_verb), _exactly(pipe, n_payload)
    if verb is None or payload is None:
        return None
    return number, verb.decode(), payload


def _exactly(pipe: IO[bytes], n: int) -> bytes | None:
    parts = []
    while n:
        part = pipe.read(min(n, 2**24))
        if not part:
            return None
        parts.append(part)
        n -= len(part)
    return b"".join(parts)


class Unframer:
    """Collects bytes as they come and gives whole frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, str, bytes]]:
        """Frames that are complete with these bytes."""
        self._buffer += data
        found = []
        while len(self._buffer) >= HEAD.size:
            number, n_verb, n_payload = HEAD.unpack_from(self._buffer)
            end = HEAD.size + n_verb + n_payload
            if len(self._buffer) < end:
                break
            verb = bytes(self._buffer[HEAD.size : HEAD.size + n_verb]).decode()
            found.append((number, verb, bytes(self._buffer[HEAD.size + n_verb : end])))
            del self._buffer[:end]
        return found
