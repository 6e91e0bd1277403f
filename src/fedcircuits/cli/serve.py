"""`fedcircuits serve`: a gathered model answers over HTTP."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from fedcircuits import encoding
from fedcircuits.cli.output import Output
from fedcircuits.errors import FedcircuitsError, MissingExtraError
from fedcircuits.serving.questions import Limits

VARIABLE = "FEDCIRCUITS_TOKEN"
SHORTEST = 16
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def run(
    out: Output,
    path: Path,
    host: str,
    port: int,
    token_file: Path | None,
    limits: Limits,
    certificate: Path | None,
    key: Path | None,
    explore: bool = False,
) -> None:
    """Start worker processes with the model, listen, print where, and answer until stopped.

    Args:
        out: where the address is printed.
        path: of the model file.
        host: address to listen at.
        port: 0 takes one that is free.
        token_file: holds the token; else the environment has it, or one is made.
        limits: of a request.
        certificate: for HTTPS.
        key: of the certificate.
        explore: whether the explorer's address is printed with the token in it.
    """
    try:
        from fedcircuits.serving import process
        from fedcircuits.serving.app import make_app
        from fedcircuits.serving.workers import Workers
    except ImportError:
        raise MissingExtraError("fedcircuits serve", "serve") from None
    for name in ("body_bytes", "rows", "samples", "seconds", "workers"):
        if not getattr(limits, name) > 0:
            raise FedcircuitsError(f"a limit is above 0, found {name} {getattr(limits, name)}")
    if (certificate is None) != (key is None):
        raise FedcircuitsError("--certificate and --key go together")
    for file in (certificate, key):
        if file is not None and not file.is_file():
            raise FedcircuitsError(f"cannot read {file}: no such file")
    token, made = _token(out, token_file)
    bound = process.listen(host, port)
    workers = Workers(encoding.read(path), str(path), limits)
    app = make_app(workers, limits, token, path.name)
    url = f"{'http' if certificate is None else 'https'}://{_shown(host)}:{bound.getsockname()[1]}"
    if certificate is None and host not in LOOPBACK:
        _note(out, "reached from other machines without TLS: pass --certificate and --key")

    def started() -> None:
        out.say(
            f"{path.name} at {url} (page {url}/, explorer {url}/explore, health {url}/health); "
            "stop with Ctrl-C"
        )
        # After '#', a browser keeps the token to itself: it is sent to nobody.
        explorer = f"{url}/explore#token={token}"
        if explore:
            out.say(f"open {explorer}")
        elif made:
            out.say(f"token, shown once: {token}\nask on the page: {url}/#token={token}")
        shown = {"token": token, "page": f"{url}/#token={token}", "explore": explorer}
        shown = shown if made else {}
        out.result({"url": url, "process": os.getpid(), **shown})
        out.flush()

    try:
        process.run(app, bound, started, workers.close, certificate, key)
    finally:
        workers.close()
    out.say("stopped")


def _token(out: Output, file: Path | None) -> tuple[str, bool]:
    """The token, and whether it was made here and now."""
    if file is not None:
        try:
            token = file.read_text(encoding="utf-8").strip()
            open_to_others = file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise FedcircuitsError(f"cannot read the token in {file}: {why}") from None
        if open_to_others:
            _note(out, f"{file} can be read by others on this machine: chmod 600 {file}")
        return _long_enough(token, str(file)), False
    if VARIABLE in os.environ:
        return _long_enough(os.environ[VARIABLE].strip(), VARIABLE), False
    return secrets.token_urlsafe(32), True


def _long_enough(token: str, where: str) -> str:
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise FedcircuitsError(
            f"the token in {where} is {SHORTEST} or more plain characters without spaces, found "
            f"{len(token)}; leave it out to have one made"
        )
    return token


def _note(out: Output, text: str) -> None:
    out.notes.print(f"note: {text}", markup=False, style="yellow")


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host
