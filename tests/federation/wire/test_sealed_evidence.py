"""What one client needs of another passes the server as ciphertext."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest

from fedcircuits.errors import StorageError
from fedcircuits.federation.client.mailbox import Mailbox
from fedcircuits.federation.wire import requests as m
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


def test_values_sealed_for_the_same_request_are_the_same_bytes() -> None:
    """A run that is repeated sends the same; nobody sees whether values change with a request."""
    own, other = SealingKey(b"one" * 9), SealingKey(b"two" * 9)
    values = np.arange(50.0)
    first = own.seal(values, other.public, HEADER, "asked")
    again = SealingKey(b"one" * 9).seal(values, other.public, HEADER, "asked")
    assert again.tobytes() == first.tobytes()
    assert (other.open(first, own.public, HEADER) == values).all()
    seen = {first.tobytes()[:44]}  # keys and nonces
    for more, asked in ((values, "other"), (values + 1, "asked"), (values[:9], "asked")):
        seen.add(own.seal(more, other.public, HEADER, asked).tobytes()[:44])
    seen.add(own.seal(values, SealingKey().public, HEADER, "asked").tobytes()[:44])
    seen.add(own.seal(values, other.public, replace(HEADER, step="x"), "asked").tobytes()[:44])
    assert len(seen) == 6


def test_what_a_client_seals_after_other_requests_shows_no_equality() -> None:
    box, other = Mailbox("a", SealingKey(b"one" * 9), None), SealingKey(b"two" * 9)
    box.begin()
    keys = {"a": box.key.public, "b": other.public}
    box.meet(m.Peers(keys, {"a": box.public_key().nonce, "b": ""}))
    found, values = [], np.zeros(9)
    for changed in (b"one tilt", b"another"):
        box.note("take_tilt", changed, changes=True)
        box.note("score_tilt", b"the same", changes=False)
        one, two = (box.seal(values, other.public, "scores", "step", "rows") for _ in range(2))
        assert one.values.tobytes() == two.values.tobytes()
        found.append(one.values.tobytes())
    assert found[0] != found[1]
