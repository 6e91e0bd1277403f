"""A network of one's own for tests of engines that listen: nothing on it but this machine.

Linux keeps networks apart for each thread, so the thread that runs the tests moves into a new one
and what it starts lives there. Where that is not allowed the tests run on the ordinary loopback.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
OWN = "/proc/thread-self/ns/net"
_made: list[int] = []  # one for the whole process: a library's threads stay where they began


@contextmanager
def own_network() -> Iterator[bool]:
    """Whether the caller is in a network of its own until the end."""
    if not sys.platform.startswith("linux"):
        yield False
        return
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open(OWN, os.O_RDONLY)
    try:
        if _made:
            moved = libc.setns(_made[0], CLONE_NEWNET) == 0
        else:
            moved = libc.unshare(CLONE_NEWNET) == 0
            if moved:
                _made.append(os.open(OWN, os.O_RDONLY))
                _loopback_up()
        try:
            yield moved
        finally:
            if moved:
                libc.setns(before, CLONE_NEWNET)
    finally:
        os.close(before)


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        request = struct.pack("16sh14x", b"lo", 0)
        (_, flags) = struct.unpack("16sh14x", fcntl.ioctl(one, SIOCGIFFLAGS, request))
        fcntl.ioctl(one, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))
