"""What a client seals for others, opens from them, and masks with them: bound to run and step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedcircuits.arrays import Arrays, Bytes, FloatArray
from fedcircuits.errors import MALFORMED, FedcircuitsError
from fedcircuits.federation.client.memory import Memory
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.ids import fingerprint
from fedcircuits.federation.wire.masking import masked
from fedcircuits.federation.wire.sealing import Header, SealingKey, checked_peers


@dataclass(frozen=True)
class Expected:
    """A piece that came, and what it must be.

    Attributes:
        piece: as the server passed it on.
        purpose: that the recipient has for it.
        rows: name of the rows that it must be about.
        read: the values that were sealed to what they stand for; its error is the sender's.
    """

    piece: m.Piece
    purpose: str
    rows: str
    read: Callable[[Any], Any] = lambda values: values


class Mailbox:
    """Seals and opens pieces, each bound to its run, sender, recipient, purpose, step and rows.

    Attributes:
        key: of this client.
        run: digest of the names, keys and nonces of the clients of the run.

    Args:
        client: its name.
        key: that it seals and opens with.
        pins: fingerprints of the keys of the others, by name; None where any key is taken.
        memory: of the client: masks that were used; by default one of this process.
    """

    def __init__(
        self,
        client: str,
        key: SealingKey,
        pins: Mapping[str, str] | None,
        memory: Memory | None = None,
    ) -> None:
        self.key = key
        self._memory = Memory() if memory is None else memory
        self.run = ""
        self._client = client
        self._pins = pins
        self._peers: dict[str, str] = {}
        self._nonce = ""
        self._changes = self._asked = ""  # digests of requests: those before, and this one too
        self._used: dict[str, str] = {}  # digest of the values that were opened, by step

    def begin(self, *state: bytes | memoryview) -> None:
        """Begin a run: other agreed columns or other rows make another run of it."""
        self._nonce = fingerprint(self.key.own("run"), *state)[:32]

    def note(self, verb: str, payload: bytes, *, changes: bool) -> None:
        """Note what is asked now: what is sealed follows from it and from what changed the client.

        Args:
            verb: of the request.
            payload: its bytes.
            changes: whether it changes the client.
        """
        self._asked = fingerprint(self._changes.encode(), verb.encode(), payload)
        if changes:
            self._changes = self._asked

    def public_key(self) -> m.PublicKey:
        """Return this client's public key and the nonce of its run, for the other clients."""
        return m.PublicKey(self.key.public, self._nonce)

    def meet(self, request: m.Peers) -> None:
        """Take the keys of the others; one that is not the pinned one is refused."""
        if request.nonces.get(self._client) != self._nonce or set(request.nonces) != set(
            request.keys
        ):
            raise FedcircuitsError("the server passes on keys of another run")
        self._peers = checked_peers(request.keys, self._client, self.key.public, self._pins)
        sent = sorted((name, key, request.nonces[name]) for name, key in request.keys.items())
        run = fingerprint(repr(sent).encode())
        if run != self.run:
            self.run, self._used = run, {}

    @property
    def peers(self) -> dict[str, str]:
        """Public keys of the other clients, by name."""
        return dict(self._peers)

    def key_of(self, name: str) -> str:
        """Return the public key of another client."""
        if name not in self._peers:
            raise FedcircuitsError(f"client {self._client!r} has no key of a client {name!r}")
        return self._peers[name]

    def seal(
        self, values: FloatArray | Bytes, key: str, purpose: str, step: str, rows: str
    ) -> m.Sealed:
        """Return values sealed for a client of the run.

        Args:
            values: numbers or bytes.
            key: of the recipient.
            purpose: that they serve.
            step: of the run.
            rows: name of the rows that they are about.
        """
        names = {public: name for name, public in self._everybody().items()}
        if key not in names:
            raise FedcircuitsError(
                "values are sealed for clients of the run alone, found a strange key"
            )
        header = Header(self.run, self._client, names[key], purpose, step, rows)
        return m.Sealed(self.key.seal(values, key, header, self._asked or None))

    def open(self, step: str, pieces: Sequence[Expected]) -> list[Any]:
        """Return what the pieces of one step say, in their order.

        Piece i was sealed for step "step/i". A step is used once: the same values again are opened
        again, others are refused.

        Args:
            step: that the server names.
            pieces: what came.
        """
        everybody = self._everybody()
        found = []
        for at, each in enumerate(pieces):
            sender = each.piece.sender
            if sender not in everybody:
                raise FedcircuitsError(f"sealed values of {sender!r}, who is not of this run")
            header = Header(
                self.run, sender, self._client, each.purpose, m.piece_step(step, at), each.rows
            )
            found.append(self.key.open(each.piece.values, everybody[sender], header))
        # Of the values: whoever trains once more has the same ones sealed anew.
        digest = fingerprint(*(np.asarray(values).tobytes() for values in found))
        if self._used.setdefault(step, digest) != digest:
            raise FedcircuitsError(
                f"sealed values for the step {step!r}, which others were used for before: they "
                "are not taken twice"
            )
        return [_read(each, values) for each, values in zip(pieces, found, strict=True)]

    def mask(
        self,
        terms: Mapping[str, FloatArray],
        request: m.Message,
        clients: Sequence[str],
        after: str = "",
    ) -> Arrays:
        """Return terms of a sum over some clients, masked so that the sum alone can be read.

        Args:
            terms: of this client.
            request: all that is asked, the same at every client; its masks serve these terms alone.
            clients: whose terms are added, this one among them.
            after: digest of the requests before it that the terms follow from, the same everywhere.
        """
        place = fingerprint(self.run.encode(), request.to_bytes(), after.encode())
        digest = fingerprint(*(np.asarray(terms[name]).tobytes() for name in sorted(terms)))
        if not after:  # the terms follow from what this client was asked, too
            self._check_once(place, digest)
        others = [name for name in clients if name != self._client]
        shared = {name: self.key.pair(self.key_of(name), "masks") for name in others}
        return masked(terms, self._client, shared, place)

    def _check_once(self, place: str, digest: str) -> None:
        """The difference of two answers under the same masks would be in clear."""
        with self._memory.of(fingerprint(b"masks", self.run.encode())) as kept:
            found = np.frombuffer(bytes.fromhex(digest), dtype=np.uint8)
            if place not in kept:
                kept[place] = found
            elif not np.array_equal(kept[place], found):
                raise FedcircuitsError(
                    "sums that were masked for a request before, and are others now"
                )

    def _everybody(self) -> dict[str, str]:
        return {**self._peers, self._client: self.key.public}


def _read(expected: Expected, values: Any) -> Any:
    """What sealed values stand for; the sender is named where they are not what they should be."""
    try:
        return expected.read(values)
    except (FedcircuitsError, *MALFORMED) as error:
        raise FedcircuitsError(
            f"what client {expected.piece.sender!r} sealed as {expected.purpose!r} cannot be used: "
            f"{error}"
        ) from None
