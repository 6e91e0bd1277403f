"""Run the service with uvicorn on a socket until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedcircuits.errors import FedcircuitsError

PATIENCE = 3  # seconds that requests have to finish once the service is to stop
STOPPING = 1.5  # seconds after which questions under way are given up with a reply
CONNECTIONS = 2000
# Seconds after which a connection is closed that has sent no whole request: half-open connections
# would otherwise take every place there is.
WAITING = 5.0
SLOWEST = 1000  # bytes a second that a reader of a reply takes at least


class _Protocol(H11Protocol):
    """uvicorn's protocol that closes connections which neither ask nor read on."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the clock of a new connection."""
        super().connection_made(transport)
        self._clock = self.loop.call_later(WAITING, self._look, None, 0)

    def _look(self, before: object, unread_before: int) -> None:
        """Closes the connection if nothing went on since the look before.

        Args:
            before: the request at that look, None where one was being answered.
            unread_before: bytes of replies that waited to be read then.
        """
        waits = self.cycle is None or self.cycle.response_complete
        unread = self.transport.get_write_buffer_size()
        if 0 < unread_before < unread + WAITING * SLOWEST:
            self.transport.abort()  # closing would wait until the rest is read
            return
        if waits and (self.cycle is None or self.cycle is before):
            self.transport.close()
            self._clock = self.loop.call_later(WAITING, self.transport.abort)
            return
        seen = self.cycle if waits else None
        self._clock = self.loop.call_later(WAITING, self._look, seen, unread)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock of a connection that was lost."""
        self._clock.cancel()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
    """uvicorn that calls back when it listens and exits with code 0 on a signal."""

    def __init__(
        self, config: uvicorn.Config, started: Callable[[], None], stopping: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._started = started
        self._stopping = stopping

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests finish; what is left after some seconds is given up."""
        timer = threading.Timer(STOPPING, self._stopping)
        timer.daemon = True
        timer.start()
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then call back."""
        await super().startup(sockets)
        self._started()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Let a signal end the service, so that the process exits with code 0."""
        stops = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in stops}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address; port 0 takes any free port."""
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
    stopping: Callable[[], None],
    certificate: Path | None = None,
    key: Path | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        app: an ASGI application.
        bound: from `listen`.
        started: called once requests are answered.
        stopping: called when the service is to stop and requests had time to finish.
        certificate: of the host in PEM, for HTTPS.
        key: of the certificate.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # as many files as connections, where allowed
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4 * CONNECTIONS), most))
    config = uvicorn.Config(
        app,
        http=_Protocol,
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
        _Server(config, started, stopping).run(sockets=[bound])
    except OSError as error:
        raise FedcircuitsError(f"cannot serve: {error}") from None
    finally:
        bound.close()
