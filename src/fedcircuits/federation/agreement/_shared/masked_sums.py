"""Sums over clients of which the server reads no term, and what a lost client means for them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from fedcircuits.arrays import Arrays
from fedcircuits.errors import FederationError
from fedcircuits.federation.client.rounds import add_up
from fedcircuits.federation.server.fitted_parts import call_or_drop
from fedcircuits.federation.server.server import Server
from fedcircuits.federation.wire.message import Message
from fedcircuits.federation.wire.verbs import Verb

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


class BeginAgainError(FederationError):
    """A client was lost on the way: masks of the others do not cancel, and they begin again."""


def call_all(server: Server, verb: Verb[Q, R], requests: Mapping[str, Q]) -> dict[str, R]:
    """As `call_or_drop`; where a client is dropped, what all of them do must begin again."""
    answers = call_or_drop(server, verb, requests)
    lost = [client for client in requests if client not in answers]
    if lost:
        raise BeginAgainError(f"client {lost[0]!r} was lost: {server.dropped[lost[0]]}")
    return answers


def masked_sum(
    server: Server,
    verb: Verb[Q, R],
    clients: Sequence[str],
    ask: Callable[[list[str], str], Q],
    terms: Callable[[R], Arrays],
) -> Arrays:
    """Return sums over clients; with two clients or more no term of one can be read.

    Args:
        server: the run, keys shared.
        verb: of the request.
        clients: whose terms are added.
        ask: makes the request, given the clients to mask with (none for a single one) and a nonce.
        terms: of a reply.
    """
    masked = len(clients) > 1
    request = ask(list(clients) if masked else [], secrets.token_hex(16) if masked else "")
    answers = call_all(server, verb, dict.fromkeys(clients, request))
    return add_up({client: terms(reply) for client, reply in answers.items()}, masked=masked)
