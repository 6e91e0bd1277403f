"""Masked sums: the server learns the sum over clients and no client's term.

Every pair of clients draws the same stream of numbers from the secret they share (`id_secret`); one
adds it to what it sends, the other takes it away. Numbers are whole multiples of 2^-24 modulo 2^64,
so a masked term is as good as noise to whoever does not know the secret, and the sum over all is
exact. It needs every client: without one of them nothing cancels, and the round is done again among
the others under another name. (FUSION rule `joint` over rows, and the paper's section 3.2: the
server needs sums alone.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from fedcircuits.arrays import Arrays, FloatArray
from fedcircuits.errors import FedcircuitsError, FederationError

CHECK = "check"  # zeros, which stay zeros where masks cancel
UNIT = 2.0**-24
LARGEST = 2.0**38  # of a sum over clients; 2^39 units of 2^-24 fill a word with its sign


def masked(
    sums: Mapping[str, FloatArray], client: str, everyone: Sequence[str], secret: str, place: str
) -> Arrays:
    """Return a client's terms with masks that cancel in the sum over all clients.

    Args:
        sums: its terms.
        client: its name.
        everyone: names of all clients whose terms are added, its own among them.
        secret: shared by the clients; the server does not know it.
        place: what the terms are for, never the same twice in a run.
    """
    if not secret:
        raise FedcircuitsError(
            "masked sums need a secret that the clients share and the server does not know: pass "
            "id_secret="
        )
    if client not in everyone or len(set(everyone)) < 2:
        raise FedcircuitsError(
            f"a sum over {', '.join(map(repr, everyone)) or 'nobody'} would show the terms of "
            f"{client!r}: masked sums need two clients or more"
        )
    found: Arrays = {}
    for name, terms in {**sums, CHECK: np.zeros(4)}.items():
        if not (np.abs(terms) < LARGEST / len(everyone)).all():
            raise FedcircuitsError(f"{name!r} has numbers too large to be masked, or none at all")
        total = np.round(np.asarray(terms) / UNIT).astype(np.int64).view(np.uint64)
        for other in sorted(set(everyone) - {client}):
            pair = (min(client, other), max(client, other))
            stream = _stream((secret, *pair, place, name), terms.shape)
            total = total + stream if client < other else total - stream
        found[name] = total.view(np.int64)
    return found


def add_masked(sent: Sequence[Arrays]) -> Arrays:
    """Masked terms added modulo 2^64: the masks cancel, or an error says that they do not."""
    total = {name: array.astype(np.int64).view(np.uint64) for name, array in sent[0].items()}
    for terms in sent[1:]:
        total = {name: total[name] + terms[name].view(np.uint64) for name in total}
    if total.pop(CHECK, np.ones(1)).any():
        raise FederationError(
            "masks do not cancel: the clients do not have the same id_secret, or one of them did "
            "not mask what it sent"
        )
    return {name: array.view(np.int64).astype(float) * UNIT for name, array in total.items()}


def _stream(
    parts: tuple[str, ...], shape: tuple[int, ...]
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    """The numbers two clients share: the output of SHAKE-256 on what they both know."""
    seed = b"".join(len(part.encode()).to_bytes(8, "little") + part.encode() for part in parts)
    drawn = hashlib.shake_256(seed).digest(8 * int(np.prod(shape)))
    return np.frombuffer(drawn, dtype="<u8").astype(np.uint64).reshape(shape)
