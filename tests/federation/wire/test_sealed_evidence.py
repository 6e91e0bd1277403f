"""What one client needs of another passes the server as ciphertext."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from fedcircuits.errors import StorageError
from fedcircuits.federation.wire.sealing import Header, SealingKey
from row_recovery import by_rule, table

HEADER = Header("run", "a", "b", "tilt", "s-1/0", "rows")


def test_sealed_values_are_opened_by_their_recipient_alone() -> None:
    sender, own, other = SealingKey(), SealingKey(), SealingKey()
    values = np.array([[0.5, -np.inf], [np.nan, 1e300]])
    sealed = sender.seal(values, own.public, HEADER)
    np.testing.assert_array_equal(own.open(sealed, sender.public, HEADER), values)
    changed = sealed.copy()
    changed[-1] ^= 1
    for key, data in ((other, sealed), (own, changed), (own, sealed[:20])):
        with pytest.raises(StorageError, match="cannot be opened as 'tilt' from 'a'"):
            key.open(data, sender.public, HEADER)
    with pytest.raises(StorageError, match="public key of 32 bytes"):
        sender.seal(values, "00ff", HEADER)


@pytest.mark.parametrize("part", [field.name for field in fields(Header)])
def test_sealed_values_are_what_they_were_sealed_as(part: str) -> None:
    """Nothing that a header says can be another at the recipient."""
    sender, own = SealingKey(), SealingKey()
    sealed = sender.seal(np.arange(3.0), own.public, HEADER)
    with pytest.raises(StorageError, match="cannot be opened"):
        own.open(sealed, sender.public, replace(HEADER, **{part: "another"}))


def test_whoever_has_public_keys_alone_cannot_forge_sealed_values() -> None:
    """The server knows all public keys and makes fresh ones: that is not enough."""
    sender, own, server = SealingKey(), SealingKey(), SealingKey()
    forged = server.seal(np.zeros(4), own.public, HEADER)
    with pytest.raises(StorageError, match="from somebody else"):
        own.open(forged, sender.public, HEADER)


def test_the_same_values_look_different_each_time() -> None:
    own = SealingKey()
    one, two = (own.seal(np.zeros(50), own.public, HEADER) for _ in range(2))
    assert one.tobytes() != two.tobytes()


@pytest.mark.slow
def test_a_passive_server_finds_no_row_in_sealed_scores() -> None:
    """The attack works where evidence is sent in clear (`em`), and finds nothing where sealed."""
    rows = table(2500)
    *_, found = by_rule("product", rows)
    assert found == 0
    _, n_rows, _, found = by_rule("em", rows)
    assert found > 0.9 * n_rows
