"""The service as a process: a socket, uvicorn, and an orderly end."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import uvicorn

from fedcircuits.errors import FedcircuitsError
from fedcircuits.serving.notes import installed

PATIENCE = 5  # seconds that requests have to finish once the service is told to stop
CONNECTIONS = 256


class _Server(uvicorn.Server):
    """uvicorn that says when it listens, and ends of its own accord on a signal."""

    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._tell = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        self._tell()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """A signal ends the service and is then done with: the process exits with code 0."""
        stops = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in stops}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to an address; port 0 takes any that is free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FedcircuitsError(f"cannot listen at {host} port {port}: {reason}") from None
    return bound


def run(
    app: Any,
    bound: socket.socket,
    started: Callable[[], None],
    certificate: Path | None = None,
    key: Path | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        app: an ASGI application.
        bound: from `listen`.
        started: called once requests are answered.
        certificate: of the host in PEM, for HTTPS.
        key: of the certificate.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=PATIENCE,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )
    try:
        with installed():
            _Server(config, started).run(sockets=[bound])
    except OSError as error:
        raise FedcircuitsError(f"cannot serve: {error}") from None
    finally:
        bound.close()
