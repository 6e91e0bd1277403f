"""Clients that end and come back: requests are repeated to them, and their replies are kept.

The server's side (`Replay`) writes down, for every client, the requests that changed it. Every
request names the state that the client should be in. The client's side (`Keeper`) knows the state
it is in; one that was started anew says so, gets the requests again in their order, and goes on as
if nothing had happened. Fits are repeated only when somebody asks the models: replies that came
back already are not computed a second time. With a folder (`Answers`) the replies outlive the
server as well, so a killed server that is started again asks only for what is new.

A state is a chain of digests: of the client's identity (its data and settings, as it says) and of
every request that changed it. Engines carry the parcels made here as they would carry payloads.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from fedcircuits import encoding
from fedcircuits.errors import ClientError, StorageError
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.envelope import unwrap, wrap
from fedcircuits.federation.wire.names import Job
from fedcircuits.federation.wire.verbs import Verb

LOG = logging.getLogger(__name__)
Request = tuple[str, bytes]  # verb and payload
UNKNOWN = Verb("", m.Message, m.Message, "query", (), keeps_reply=False)
Send = Callable[[Mapping[str, bytes], float | None], Mapping[str, bytes | Exception]]


class Handler(Protocol):
    """A client, or what guards one."""

    def handle(self, verb: str, payload: bytes) -> bytes:
        """Answer one message."""
        ...


def _verb(name: str) -> Verb[Any, Any]:
    """The declaration of a request; one that nobody declared changes nothing and is not kept."""
    return m.VERBS.get(name, UNKNOWN)


def _changes(name: str) -> bool:
    return _verb(name).changes_state


def _needs_models(name: str) -> bool:
    """Whether a request can only be repeated by a client that has its models."""
    return _verb(name).makes_models or _verb(name).reads_models


def after(state: str, request: Request) -> str:
    """The state that follows a request that changed a client."""
    verb, payload = request
    return hashlib.sha256(b"\x1f".join([state.encode(), verb.encode(), payload])).hexdigest()


# --- at the client --------------------------------------------------------------------------------


class Keeper:
    """Holds one client and brings a new one to the state that the server expects.

    Args:
        make: makes the client in its first state.
        identity: a name for its data and settings; another one means another client.
    """

    def __init__(self, make: Callable[[], Handler], identity: str) -> None:
        self._make = make
        self._identity = identity
        self._client = make()
        self._state = _root(identity)
        self._unfitted: list[Request] = []  # requests that give a client all its models

    def answer(self, parcel: bytes) -> bytes:
        """Answer one parcel with another; whatever goes wrong is an answer too."""
        try:
            header, bodies = unwrap(parcel)
            verbs = [str(verb) for verb in _list(header, "verbs")]
            *history, request = zip(verbs, bodies, strict=True)
            if header.get("state") != self._state:
                if not header.get("complete"):
                    LOG.warning("%r is for another state and was not carried out", request[0])
                    return wrap({"behind": True, "identity": self._identity})
                self._begin_again(history)
            reply = self._handle(request)
        except Exception as error:  # whatever a learner raises belongs to the caller
            return wrap({"error": f"{type(error).__name__}: {error}"})
        changed = _changes(request[0]) and not failed(reply)
        if changed:
            self._state = after(self._state, request)
            if self._unfitted:
                self._unfitted.append(request)
        return wrap({"changed": changed}, reply)

    def _handle(self, request: Request) -> bytes:
        verb, payload = request
        if _verb(verb).reads_models and self._unfitted:
            self._client = self._make()  # fits depend on the requests before them, in order
            for each in _needed(self._unfitted):
                self._repeat(each)
            self._unfitted = []
        return self._client.handle(verb, payload)

    def _begin_again(self, history: list[Request]) -> None:
        self._client, self._state = self._make(), _root(self._identity)
        for request in history:
            if not _needs_models(request[0]):
                self._repeat(request)
            self._state = after(self._state, request)
        self._unfitted = history if any(_needs_models(verb) for verb, _ in history) else []

    def _repeat(self, request: Request) -> None:
        reply = self._client.handle(*request)
        if failed(reply):
            raise StorageError(
                f"cannot be brought back to where it was: {request[0]!r} worked before and now "
                f"fails ({m.Failed.from_bytes(reply).error})"
            )


def _root(identity: str) -> str:
    return hashlib.sha256(identity.encode()).hexdigest()


def _list(header: dict[str, object], name: str) -> list[object]:
    found = header.get(name)
    if not isinstance(found, list) or not found:
        raise StorageError(f"a parcel of an engine lacks {name!r}")
    return found


def _needed(history: list[Request]) -> list[Request]:
    """History without fits whose every model a later fit makes again."""
    kept: list[Request] = []
    later: set[Job] = set()
    for verb, payload in reversed(history):
        if verb == m.FIT.name:
            jobs = set(m.Fit.from_bytes(payload).jobs)
            if jobs <= later:
                continue
            later |= jobs
        kept.append((verb, payload))
    return kept[::-1]


def _fault(client: str, request: Request, reply: bytes) -> str | None:
    """Return why some bytes are no reply of a client to a request, None where they are one."""
    verb, payload = request
    if verb not in m.VERBS or failed(reply):
        return None
    try:
        _verb(verb).read_reply(client, _verb(verb).request.from_bytes(payload), payload, reply)
    except StorageError as error:
        return str(error)
    return None


def failed(reply: bytes) -> bool:
    """Whether a reply says that the request was not done."""
    if b"Failed" not in reply[:4096]:  # spares reading large replies
        return False
    with contextlib.suppress(StorageError):
        m.Failed.from_bytes(reply)
        return True
    return False


# --- at the server --------------------------------------------------------------------------------


class Answers:
    """Replies on disk, by what was asked of whom in which state.

    Args:
        folder: made where it is not there, for its owner only: models and cluster indices of
            clients lie in it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def get(self, key: str) -> bytes | None:
        """A reply, or None; a damaged file is no reply."""
        path = self._folder / key
        if not path.is_file():
            return None
        data = encoding.read(path)
        return data[32:] if hashlib.sha256(data[32:]).digest() == data[:32] else None

    def put(self, key: str, reply: bytes) -> None:
        """Keep a reply on disk under its request."""
        encoding.write(self._folder / key, hashlib.sha256(reply).digest() + reply)


@dataclass
class _Known:
    """What the server knows of one client."""

    identity: str
    state: str
    requests: list[Request]

    def note(self, request: Request) -> None:
        self.requests.append(request)
        self.state = after(self.state, request)


class Replay:
    """Sends requests through an engine and remembers those that changed clients.

    Args:
        answers: where replies are kept, None to keep none.

    Attributes:
        asked: requests that went to a client, by verb: one that was answered from `answers` or
            repeated to a new process does not count.
        brought_back: how often a client was brought back to its state, by name.
    """

    def __init__(self, answers: Answers | None = None) -> None:
        self._answers = answers
        self._known: dict[str, _Known] = {}
        self._under_way: dict[str, Request] = {}
        self.asked: dict[str, int] = {}
        self.brought_back: dict[str, int] = {}

    def call(
        self, send: Send, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, bytes | Exception]:
        """Each client's reply, or what went wrong with it.

        Args:
            send: hands parcels to `Keeper.answer` of each client and brings back what it says, in
                the time given; its errors are passed on.
            verb: the request.
            payloads: by client.
            timeout: seconds for all of it.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        answers: dict[str, bytes | Exception] = {}
        parcels = {}
        for name in sorted(payloads):
            kept = self._kept(name, (verb, payloads[name]))
            if kept is not None:
                answers[name] = kept
            else:
                parcels[name] = self._parcel(name, (verb, payloads[name]), complete=False)
                self.asked[verb] = self.asked.get(verb, 0) + 1
        self._under_way = {name: (verb, payloads[name]) for name in parcels}
        again: dict[str, bytes] = {}
        for name, reply in (send(parcels, timeout) if parcels else {}).items():
            request = (verb, payloads[name])
            answer = self._opened(name, request, reply)
            if answer is None:
                again[name] = self._parcel(name, request, complete=True)
            else:
                answers[name] = answer
        if again:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            for name, reply in send(again, left).items():
                answer = self._opened(name, (verb, payloads[name]), reply)
                gone = ClientError(name, "it was started anew again while it was brought back")
                answers[name] = gone if answer is None else answer
        return {name: answers[name] for name in sorted(answers)}

    def _parcel(self, name: str, request: Request, complete: bool) -> bytes:
        known = self._known.get(name)
        history = known.requests if known is not None and complete else []
        verbs = [verb for verb, _ in (*history, request)]
        state = "" if known is None else known.state
        bodies = [payload for _, payload in (*history, request)]
        return wrap({"state": state, "complete": complete, "verbs": verbs}, *bodies)

    def _opened(
        self, name: str, request: Request, reply: bytes | Exception
    ) -> bytes | Exception | None:
        """The answer in a parcel; None where the client must be brought back first."""
        if isinstance(reply, Exception):
            return reply
        try:
            header, bodies = unwrap(reply)
        except StorageError as error:
            return ClientError(name, f"a reply that cannot be read: {error}")
        if "error" in header:
            return ClientError(name, str(header["error"]))
        if header.get("behind"):
            return self._found_behind(name, str(header.get("identity")))
        if len(bodies) != 1:
            return ClientError(name, "a reply that cannot be read: a parcel without an answer")
        known = self._known[name]
        fault = _fault(name, request, bodies[0])
        if fault is not None:  # neither kept nor counted: the next request brings the client back
            return ClientError(name, f"a reply that cannot be read: {fault}")
        self._keep(name, request, bodies[0])
        if header.get("changed"):
            known.note(request)
        return bodies[0]

    def received(self, name: str, reply: bytes | Exception) -> None:
        """An engine may call this with each reply as it comes.

        Then those of fast clients are on disk, should the server end while it waits for a slow one.
        """
        request = self._under_way.get(name)
        if request is None or isinstance(reply, Exception) or name not in self._known:
            return
        with contextlib.suppress(StorageError):  # reported when the call is over
            header, bodies = unwrap(reply)
            whole = len(bodies) == 1 and _fault(name, request, bodies[0]) is None
            if "changed" in header and whole:
                self._keep(name, request, bodies[0])

    def catch_up(self, name: str, reply: bytes) -> bytes | None:
        """What a client gets at once that says it is behind; None for every other reply.

        An engine that asks this of each reply as it comes brings a client back without waiting for
        the slow ones, which may take all the time there is.
        """
        request = self._under_way.get(name)
        with contextlib.suppress(StorageError):  # reported when the call is over
            header, _ = unwrap(reply)
            if request is None or not header.get("behind"):
                return None
            if self._found_behind(name, str(header.get("identity"))) is None:
                return self._parcel(name, request, complete=True)
        return None

    def _keep(self, name: str, request: Request, answer: bytes) -> None:
        if self._answers is not None and _verb(request[0]).keeps_reply and not failed(answer):
            self._answers.put(_key(name, self._known[name].state, request), answer)

    def _found_behind(self, name: str, identity: str) -> ClientError | None:
        known = self._known.get(name)
        if known is None:
            self._known[name] = _Known(identity, _root(identity), [])
        elif known.identity != identity:
            return ClientError(
                name, "it came back with other data or settings than it left with: train again"
            )
        else:
            self.brought_back[name] = self.brought_back.get(name, 0) + 1
        return None

    def _kept(self, name: str, request: Request) -> bytes | None:
        known = self._known.get(name)
        if known is None or self._answers is None or not _verb(request[0]).keeps_reply:
            return None
        reply = self._answers.get(_key(name, known.state, request))
        if reply is not None and _changes(request[0]):
            known.note(request)
        return reply


def _key(name: str, state: str, request: Request) -> str:
    return after(hashlib.sha256(f"{_wire()}\x1f{name}\x1f{state}".encode()).hexdigest(), request)


def _wire() -> str:
    """A name for what messages look like: replies kept by a version that differs are not read."""
    kinds = {kind for verb in m.VERBS.values() for kind in (verb.request, verb.reply)}
    shapes = [(k.__name__, [(field.name, str(field.type)) for field in fields(k)]) for k in kinds]
    return repr((encoding.VERSION, sorted(shapes)))
