"""Ids as keyed digests: rows are matched without an id being sent.

The key is a secret that the clients share and the server does not know: one of them draws it and
wraps it for the others (`sealing.wrapped`). A secret that people typed (`id_secret`) is mixed in,
stretched so that each guess costs a twentieth of a second.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedcircuits.arrays import IntArray
from fedcircuits.errors import FederationError
from fedcircuits.schema.variable import plain

WIDTH = 12  # bytes of a digest: two of 100 million ids agree by chance with probability 1e-13
LEAST_SECRET = 12  # characters
Digests = NDArray[np.uint8]


def digests(
    ids: pd.Series[Any], salt: str, secret: str = "", where: str = "", group: bytes = b""
) -> Digests:
    """(n, 12) digests of ids; 17, 17.0 and "17" are one id, a missing id is like no other.

    Args:
        ids: strings or numbers.
        salt: of this run.
        secret: that people typed.
        where: name of whoever has the rows, which keeps missing ids apart.
        group: secret of the clients.
    """
    key = b"\x1f".join([salt.encode(), stretched(secret), group])
    known = ids.notna().to_numpy()
    found = bytearray()
    for row, value in enumerate(ids):
        # What kind of text it is comes first: no id reads like the place of a row without one.
        text = f"={_canonical(value)}" if known[row] else f"?{row} {where}"
        found += hmac.digest(key, text.encode(), "sha256")[:WIDTH]
    return np.frombuffer(bytes(found), dtype=np.uint8).reshape(-1, WIDTH)


def _canonical(value: Any) -> str:
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        return str(int(value))
    return str(value)


@cache
def stretched(secret: str) -> bytes:
    """Return a typed secret as a key that is slow to guess; nothing for none."""
    if not secret:
        return b""
    return hashlib.scrypt(secret.encode(), salt=b"fedcircuits id_secret", n=2**14, r=8, p=1)


def check_distinct(ids: pd.Series[Any], client: str) -> None:
    """Refuse ids that appear twice; the error names rows, not ids."""
    known = ids[ids.notna()].map(_canonical)
    twice = known[known.duplicated()]
    if len(twice):
        raise FederationError(
            f"client {client!r}: {len(twice)} id(s) appear more than once, first in row "
            f"{plain(twice.index[0])!r}; keep one row for each id"
        )


def check_secret(secret: str) -> None:
    """Refuse a secret that is short enough to be found by trying; none at all is allowed."""
    if 0 < len(secret) < LEAST_SECRET:
        raise FederationError(
            f"id_secret has {len(secret)} characters, and a short one is found by trying: use "
            f"{LEAST_SECRET} random characters or more, or none"
        )


class Lookup:
    """Finds rows of a client by the digests of their ids."""

    def __init__(self, ids: pd.Series[Any], salt: str, secret: str, where: str) -> None:
        own = digests(ids, salt, secret, where)
        self._rows = {digest.tobytes(): row for row, digest in enumerate(own)}

    def find(self, asked: Digests) -> NDArray[np.int64]:
        """(m,) the row of each digest, -1 for those not here."""
        return np.array([self._rows.get(d.tobytes(), -1) for d in asked], dtype=np.int64)


def fingerprint(*parts: bytes | memoryview) -> str:
    """Return a hexadecimal SHA-256 digest of some bytes, to name them."""
    digest = hashlib.sha256()
    for at, part in enumerate(parts):
        if at:
            digest.update(b"\x1f")
        digest.update(part)
    return digest.hexdigest()


def without_few(
    aligned: Mapping[str, tuple[IntArray, IntArray]], least: int
) -> dict[str, tuple[IntArray, IntArray]]:
    """Return the aligned rows of clients that have so many, and that others of these hold too.

    Args:
        aligned: as `numbered` returns them.
        least: rows; no policy admits smaller groups.
    """
    few = {client for client, (rows, _) in aligned.items() if 0 < rows.size < least}
    if not few:
        return dict(aligned)
    kept = {c: numbers[: 0 if c in few else None] for c, (_, numbers) in aligned.items()}
    every, holders = np.unique(np.concatenate(list(kept.values())), return_counts=True)
    left = {c: np.isin(kept[c], every[holders > 1]) for c in kept}
    return without_few(
        {c: (aligned[c][0][: kept[c].size][left[c]], kept[c][left[c]]) for c in kept}, least
    )


def numbered(
    digests: Mapping[str, Digests], rng: np.random.Generator
) -> dict[str, tuple[IntArray, IntArray]]:
    """Number the rows that two or more clients hold, in an order drawn by `rng`.

    Args:
        digests: (n_c, 12) of the ids of every client, in the order of its rows.
        rng: decides the numbers: a client's own order may be the order of its label.

    Returns:
        By client: (a_c,) its rows that others hold too, and (a_c,) their numbers, ascending.
    """
    every, first, inverse, counts = np.unique(
        np.concatenate(list(digests.values())).view(f"S{WIDTH}").reshape(-1),
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    twice = np.flatnonzero(counts > 1)
    if twice.size == 0:
        raise FederationError(
            f"no id is held by two clients of {', '.join(map(repr, digests))}: check that "
            "the id column means the same everywhere"
        )
    number = np.full(every.size, -1, dtype=np.int64)
    number[twice[np.argsort(first[twice])]] = rng.permutation(twice.size)
    answer, start = {}, 0
    for client, own in digests.items():
        mine = number[inverse[start : start + len(own)]]
        start += len(own)
        rows = np.flatnonzero(mine >= 0)
        rows = rows[np.argsort(mine[rows])]
        answer[client] = (rows, mine[rows])
    return answer
