"""A client behind its policy: what is not allowed is refused, logged, and never reaches it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from fedcircuits.errors import StorageError
from fedcircuits.federation.policy.audit import SERVER, AuditLog, Handler
from fedcircuits.federation.policy.policy import Policy, PolicyError
from fedcircuits.federation.wire import requests as m

_log = logging.getLogger(__name__)


class Guarded:
    """Answers as the client does, where the policy allows it; anything else is a `Failed` message.

    Args:
        client: made of a table that went through `Policy.apply`.
        policy: of the owner of the data.
        audit: file that every message is noted in; an unwritable one stops all answers.
        coordinator: the only sender that is answered.
    """

    def __init__(
        self,
        client: Handler,
        policy: Policy,
        *,
        audit: Path | None = None,
        coordinator: str = SERVER,
    ) -> None:
        self.name = client.name
        self._client = client
        self._policy = policy
        self._audit = AuditLog(audit, client.name)
        self._coordinator = coordinator
        self._label: str | None = None
        self._is_own = False  # whether the label is a column of this client
        self._described: bytes | None = None  # the one request for sketches that is answered
        # Engines may call from several threads; numbers, log and client are one thing at a time.
        self._lock = threading.Lock()
        self._audit.write("start", 0, client.name, None)

    def handle(self, verb: str, payload: bytes, sender: str = SERVER) -> bytes:
        """Answer one message, or say why not."""
        with self._lock:
            try:
                return self._handle(verb, payload, sender)
            except PolicyError as error:
                return self._audit.refuse(verb, len(payload), sender, str(error))

    def _handle(self, verb: str, data: bytes, sender: str) -> bytes:
        largest = self._policy.max_message_bytes
        if len(data) > largest:  # before a byte is decoded
            raise PolicyError(
                f"a message of {len(data)} bytes; the largest is {largest} "
                "(max_message_bytes in its policy)"
            )
        if sender != self._coordinator:
            raise PolicyError(f"{sender!r} asks; only {self._coordinator!r} is answered")
        request = self._checked_request(verb, data)
        if isinstance(request, m.Describe) and self._described not in (None, data):
            raise PolicyError(
                "it asks for sketches once more with another min_rows, and the difference would "
                "reveal single values: ask as before, or have the client started anew"
            )
        answer = self._client.handle(verb, data)
        failed = _failure(answer)
        if failed is not None:
            answer = answer if self._policy.errors == "sent" else self._hushed(verb, failed)
        else:
            self._check_reply(verb, answer)
            if isinstance(request, m.Describe):
                self._described = data
            if isinstance(request, m.Agree):
                self._label = request.label
                self._is_own = request.label in [variable["name"] for variable in request.schema]
        self._audit.write(verb, len(data), sender, None)
        return answer

    def _checked_request(self, verb: str, payload: bytes) -> m.Message:
        answered = m.VERBS if self._policy.requests is None else self._policy.requests
        if verb not in m.VERBS or verb not in answered:
            raise PolicyError(
                f"there is no such request; answered are {', '.join(sorted(answered))} "
                "(requests in its policy)"
            )
        try:
            declared = m.VERBS[verb]
            request: m.Message = declared.request.from_bytes(payload)
            own_label = self._label if self._is_own else None
            asked = declared.asks(request, self._policy, own_label)
            if not all(isinstance(name, str) for name in asked.columns):
                raise StorageError("a column's name is a string")
        except (StorageError, KeyError, TypeError, ValueError, IndexError) as error:
            raise PolicyError(f"a message that cannot be read: {error}") from None
        offered = self._policy.columns
        if offered is not None:
            # A label that another client owns may be sent to this one and named from then on.
            known = {*offered, None if self._is_own else self._label}
            strangers = [name for name in asked.columns if name not in known]
            if strangers:
                raise PolicyError(
                    f"the column {strangers[0]!r} is not offered; offered are "
                    f"{', '.join(map(repr, offered))} (columns in its policy)"
                )
        if asked.fault is not None:
            raise PolicyError(f"it asks for {asked.fault}")
        return request

    def _check_reply(self, verb: str, answer: bytes) -> None:
        """Refuse a reply that reveals a small group or is too large."""
        declared = m.VERBS[verb]
        try:
            reply = declared.reply.from_bytes(answer)
            groups = {what: counts(reply) for what, counts in declared.groups.items()}
        except StorageError as error:
            raise PolicyError(f"the reply is not what its policy expects: {error}") from None
        for what, counts in groups.items():
            if smallest(counts) < self._policy.min_rows:
                raise PolicyError(
                    f"the reply would reveal {what} below the smallest group of "
                    f"{self._policy.min_rows} (min_rows in its policy); ask for fewer and larger "
                    "groups"
                )
        if len(answer) > self._policy.max_message_bytes:
            raise PolicyError(
                f"the reply has {len(answer)} bytes; the largest is "
                f"{self._policy.max_message_bytes} (max_message_bytes in its policy)"
            )

    def _hushed(self, verb: str, error: str) -> bytes:
        """What sort of error it was; its text may quote a cell and stays in the client's log."""
        _log.warning("client %r failed at %r: %s", self.name, verb, error)
        kind = error.partition(":")[0]
        return m.Failed(
            f"{kind}: client {self.name!r} failed at {verb!r}; what happened is in its own log "
            "(errors = 'kind' in its policy)"
        ).to_bytes()


def smallest(counts: Iterable[float]) -> float:
    """Return the smallest group that has rows at all; an empty one reveals nothing of anybody."""
    found = np.asarray(list(counts), dtype=float)
    found = found[found > 0]
    return float(found.min()) if found.size else np.inf


def _failure(answer: bytes) -> str | None:
    """The text of a `Failed` message, None for any other reply."""
    try:
        return m.Failed.from_bytes(answer).error
    except StorageError:
        return None
