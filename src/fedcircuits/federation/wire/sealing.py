"""Values that one client sends another past the server, which relays ciphertext.

X25519 agrees on two secrets with the recipient's key: one with a key of this message alone, one
with the sender's own, which shows who it was. HKDF-SHA256 derives the key of AES-256-GCM from both,
and what the values are (`Header`) is authenticated with them: changed, swapped, replayed or forged
ones cannot be opened. A client's own key is made where the client runs and never leaves it: from
the operating system's generator, or from a secret of the client's that outlives it. A server that
passes off its own key as a client's is not detected here, but by pins (`checked_peers`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import string
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedcircuits.arrays import Bytes, FloatArray
from fedcircuits.errors import MALFORMED, FedcircuitsError, StorageError

KEY_BYTES, NONCE_BYTES = 32, 12
KINDS, AXES = ("<f8", "u1"), 256  # types of sealed values; kind and number of axes share a word
PURPOSE = b"fedcircuits sealed values 2"
OWN_KEY = b"fedcircuits sealing key 1"


def wrapped(secret: bytes, pair: bytes, context: str) -> str:
    """Return 32 secret bytes for the other holder of a pair's secret; wrapping twice unwraps.

    Args:
        secret: 32 bytes.
        pair: from `SealingKey.pair`.
        context: what it is for, never the same for another secret.
    """
    stream = HKDF(hashes.SHA256(), 32, salt=None, info=f"wrap {context}".encode()).derive(pair)
    return bytes(a ^ b for a, b in zip(secret, stream, strict=True)).hex()


class SealingKey:
    """The key pair of one client.

    Args:
        secret: that the key follows from; by default the operating system's generator makes one.
    """

    def __init__(self, secret: bytes | None = None) -> None:
        if secret is None:
            self._private = X25519PrivateKey.generate()
        else:
            seed = HKDF(hashes.SHA256(), 32, salt=None, info=OWN_KEY).derive(secret)
            self._private = X25519PrivateKey.from_private_bytes(seed)

    def pair(self, public: str, purpose: str) -> bytes:
        """Return a secret that only the holder of another key and this one can work out.

        Args:
            public: key of the other, as hexadecimal digits.
            purpose: what it is for; other purposes have other secrets.
        """
        shared = self._private.exchange(_public(public))
        both = "".join(sorted((self.public, public)))
        info = f"{purpose} {both}".encode()
        return HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(shared)

    def own(self, purpose: str) -> bytes:
        """Return a secret of this client alone, the same for as long as it has this key."""
        info = f"own {purpose}".encode()
        return HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(
            self._private.private_bytes_raw()
        )

    @property
    def public(self) -> str:
        """What others seal values with, as hexadecimal digits."""
        return self._private.public_key().public_bytes_raw().hex()

    def seal(
        self, values: FloatArray | Bytes, public: str, header: Header, asked: str | None = None
    ) -> Bytes:
        """Return values as bytes that only the holder of a key can read, and only as mine.

        Args:
            values: any shape; bytes travel as they are, anything else as numbers of 8 bytes.
            public: key of the recipient, as hexadecimal digits.
            header: what the values are; the recipient must expect the same.
            asked: digest of all that the values follow from besides the sender's own rows. The same
                values are the same bytes then, so that a run that is repeated sends the same
                requests, which are known and cost nothing. Without it they look different each
                time: else whoever changes what they follow from would see whether they changed.
        """
        recipient = _public(public)
        kind = int(values.dtype == np.uint8)
        shape = np.array([values.ndim + AXES * kind, *values.shape], dtype="<i8").tobytes()
        plain = shape + np.ascontiguousarray(values, dtype=KINDS[kind]).tobytes()
        what = header.encoded()
        drawn = os.urandom(64) if asked is None else self._drawn(asked, public, what, plain)
        fresh, nonce = X25519PrivateKey.from_private_bytes(drawn[:KEY_BYTES]), drawn[-NONCE_BYTES:]
        sender = fresh.public_key().public_bytes_raw()
        secrets = fresh.exchange(recipient), self._private.exchange(recipient)
        key = _derived(secrets, sender, self.public, public)
        sealed = sender + nonce + AESGCM(key).encrypt(nonce, plain, what)
        return np.frombuffer(sealed, dtype=np.uint8)

    def _drawn(self, asked: str, public: str, what: bytes, plain: bytes) -> bytes:
        """Bytes for one message that nobody else can draw."""
        found = hmac.new(self.own("fresh keys"), digestmod="sha512")
        for part in (asked.encode(), public.encode(), what, plain):
            found.update(len(part).to_bytes(8, "little") + part)
        return found.digest()

    def open(self, sealed: Bytes, public: str, header: Header) -> Any:
        """Return the values that `seal` was given; anything else is a `StorageError`.

        Args:
            sealed: bytes as they came.
            public: key of the client that they are to be from.
            header: what they are to be.
        """
        data = sealed.tobytes()
        sender, nonce = data[:KEY_BYTES], data[KEY_BYTES : KEY_BYTES + NONCE_BYTES]
        try:
            fresh = X25519PublicKey.from_public_bytes(sender)
            secrets = self._private.exchange(fresh), self._private.exchange(_public(public))
            key = _derived(secrets, sender, public, self.public)
            cipher = data[KEY_BYTES + NONCE_BYTES :]
            plain = AESGCM(key).decrypt(nonce, cipher, header.encoded())
        except (InvalidTag, ValueError):
            raise StorageError(
                f"sealed values that cannot be opened as {header.purpose!r} from "
                f"{header.sender!r}: they are from somebody else, for another client, run, step or "
                "purpose, or were changed on the way"
            ) from None
        try:
            kind, n_axes = divmod(int.from_bytes(plain[:8], "little"), AXES)
            shape = np.frombuffer(plain[8 : 8 + 8 * n_axes], dtype="<i8")
            values = np.frombuffer(plain[8 + 8 * n_axes :], dtype=KINDS[kind])
            return values.reshape(tuple(shape)).copy()
        except MALFORMED:
            raise StorageError(f"sealed values of {header.sender!r} that are no numbers") from None


@dataclass(frozen=True)
class Header:
    """What sealed values are; whoever opens them must expect the same.

    Attributes:
        run: digest of the keys and tables of the clients of the run.
        sender: name of the client that sealed them.
        recipient: name of the client that they are for.
        purpose: what they serve.
        step: of the run, never the same for two pieces.
        rows: name of the rows that they are about.
    """

    run: str
    sender: str
    recipient: str
    purpose: str
    step: str
    rows: str

    def encoded(self) -> bytes:
        """Return the header as bytes, no two headers as the same."""
        return json.dumps(astuple(self)).encode()


def key_fingerprint(public: str) -> str:
    """Return the digits by which people compare a public key, in groups of four."""
    digits = hashlib.sha256(bytes.fromhex(public)).hexdigest()[:32]
    return "-".join(digits[at : at + 4] for at in range(0, 32, 4))


def checked_peers(
    keys: Mapping[str, str], client: str, own: str, pins: Mapping[str, str] | None
) -> dict[str, str]:
    """Return the keys of the other clients, or refuse them: a substituted key reads what is sealed.

    Args:
        keys: of all clients by name, as the server passes them on.
        client: its name.
        own: its public key, which must be among them.
        pins: fingerprints that the keys of the others must have; None where any key is taken.
    """
    if keys.get(client) != own:
        raise FedcircuitsError(f"the server passes on another key as that of {client!r}")
    others = {name: key for name, key in keys.items() if name != client}
    if len(set(keys.values())) < len(keys):
        raise FedcircuitsError("the server passes on one key for two clients")
    for name, key in others.items():
        _public(key)
        if pins is not None and pins.get(name) != key_fingerprint(key):
            raise FedcircuitsError(
                f"the key of {name!r} has the fingerprint {key_fingerprint(key)}, and "
                f"{pins.get(name) or 'none'} is pinned: the server may have put its own in place"
            )
    return others


def are_digits(text: str, n_bytes: int) -> bool:
    """Return whether a text is that many bytes in hexadecimal digits."""
    return len(text) == 2 * n_bytes and set(text) <= set(string.hexdigits)


def _public(key: str) -> X25519PublicKey:
    try:
        return X25519PublicKey.from_public_bytes(bytes.fromhex(key))
    except ValueError:
        raise StorageError(f"expected a public key of {KEY_BYTES} bytes, found another") from None


def _derived(secrets: tuple[bytes, bytes], fresh: bytes, sender: str, recipient: str) -> bytes:
    """The key of one message, bound to all three public keys and to the purpose."""
    info = PURPOSE + fresh + bytes.fromhex(sender) + bytes.fromhex(recipient)
    return HKDF(hashes.SHA256(), 32, salt=None, info=info).derive(b"".join(secrets))
