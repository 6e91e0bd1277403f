"""Masked sums: the server learns the sum over clients and no client's term.

Every pair of clients draws the same stream of numbers from a secret that only the two can work out
(`sealing.SealingKey.pair`); one adds it to what it sends, the other takes it away. A number is sent
as two whole numbers modulo 2^64, multiples of 2^-24 and the rest as multiples of 2^-78, so a masked
term is as good as noise to whoever does not know the secret, and the sum over all is exact to the
last digits of a double. It needs every client: without one of them nothing cancels, and the round
is done again among the others under another name. (The paper's section 3.2: the server needs sums
alone.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np

from fedcircuits.arrays import Arrays, FloatArray
from fedcircuits.errors import FedcircuitsError, FederationError

CHECK = "check"  # zeros, which stay zeros where masks cancel
REST = "\x1frest"  # ends the name of what the first unit leaves over
UNIT, UNIT_OF_REST = 2.0**-24, 2.0**-78
LARGEST = 2.0**38  # of a sum over clients; 2^39 units of 2^-24 fill a word with its sign
MOST_CLIENTS = 2**8  # whose rests, up to 2^-25 each, fit a word


def masked(
    sums: Mapping[str, FloatArray], client: str, secrets: Mapping[str, bytes], place: str
) -> Arrays:
    """Return a client's terms with masks that cancel in the sum over all clients.

    Args:
        sums: its terms.
        client: its name.
        secrets: what it shares with each of the other clients, by their names.
        place: what the terms are for, never the same twice in a run.
    """
    if not secrets or client in secrets or len(secrets) >= MOST_CLIENTS:
        raise FedcircuitsError(
            f"a sum over {', '.join(map(repr, [client, *secrets]))} would show the terms of "
            f"{client!r}: masked sums need two clients or more, and at most {MOST_CLIENTS}"
        )
    found: Arrays = {}
    for name, terms in {**sums, CHECK: np.zeros(4)}.items():
        if not (np.abs(terms) < LARGEST / (len(secrets) + 1)).all():
            raise FedcircuitsError(f"{name!r} has numbers too large to be masked, or none at all")
        whole = np.round(np.asarray(terms) / UNIT)
        rest = np.round((terms - whole * UNIT) / UNIT_OF_REST)
        for part, numbers in ((name, whole), (name + REST, rest)):
            total = numbers.astype(np.int64).view(np.uint64)
            for other, secret in sorted(secrets.items()):
                stream = _stream(secret, place, part, numbers.shape)
                total = total + stream if client < other else total - stream
            found[part] = total.view(np.int64)
    return found


def add_masked(sent: Mapping[str, Arrays]) -> Arrays:
    """Return masked terms, by client, added modulo 2^64; an error where masks do not cancel."""
    first, *others = sent.values()
    total = {name: array.astype(np.int64).view(np.uint64) for name, array in first.items()}
    for terms in others:
        total = {name: total[name] + terms[name].view(np.uint64) for name in total}
    checks = [total.pop(name, np.ones(1)) for name in (CHECK, CHECK + REST)]
    if any(check.any() for check in checks):
        raise FederationError(
            f"masks do not cancel: one of the clients {', '.join(map(repr, sent))} did not mask "
            "what it sent, or masked it for other clients"
        )
    found = {
        name: array.view(np.int64).astype(float) * UNIT
        + total[name + REST].view(np.int64).astype(float) * UNIT_OF_REST
        for name, array in total.items()
        if not name.endswith(REST)
    }
    if any((np.abs(array) > LARGEST).any() for array in found.values()):
        raise FederationError(
            f"sums over {', '.join(map(repr, sent))} that are too large: one of them sent made-up "
            "numbers"
        )
    return found


def _stream(
    secret: bytes, place: str, name: str, shape: tuple[int, ...]
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """The numbers two clients share: the output of SHAKE-256 on what they both know."""
    parts = (secret, place.encode(), name.encode())
    seed = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    drawn = hashlib.shake_256(seed).digest(8 * int(np.prod(shape)))
    return np.frombuffer(drawn, dtype="<u8").astype(np.uint64).reshape(shape)
