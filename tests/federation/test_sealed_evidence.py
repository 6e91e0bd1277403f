"""What one client needs of another passes the server as ciphertext."""

from __future__ import annotations

import numpy as np
import pytest

from fedcircuits.errors import StorageError
from fedcircuits.federation.wire.sealing import SealingKey, seal
from row_recovery import by_rule, table


def test_sealed_values_are_opened_by_their_recipient_alone() -> None:
    own, other = SealingKey(), SealingKey()
    values = np.array([[0.5, -np.inf], [np.nan, 1e300]])
    sealed = seal(values, own.public, "a/model")
    np.testing.assert_array_equal(own.open(sealed, "a/model"), values)
    changed = sealed.copy()
    changed[-1] ^= 1
    for key, data, context in (
        (other, sealed, "a/model"),
        (own, changed, "a/model"),
        (own, sealed, "b/model"),
        (own, sealed[:20], "a/model"),
    ):
        with pytest.raises(StorageError, match="cannot be opened"):
            key.open(data, context)
    with pytest.raises(StorageError, match="public key of 32 bytes"):
        seal(values, "00ff", "a/model")


def test_the_same_values_look_different_each_time() -> None:
    own = SealingKey()
    one, two = (seal(np.zeros(50), own.public, "x") for _ in range(2))
    assert one.tobytes() != two.tobytes()


@pytest.mark.slow
def test_a_passive_server_finds_no_row_in_sealed_scores() -> None:
    """The attack works where evidence is sent in clear (`em`), and finds nothing where sealed."""
    rows = table(2500)
    *_, found = by_rule("product", rows)
    assert found == 0
    _, n_rows, _, found = by_rule("em", rows)
    assert found > 0.9 * n_rows
