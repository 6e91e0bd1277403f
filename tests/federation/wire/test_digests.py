"""Digests of ids: the secret and the salt are in them, and who has a row without an id."""

from __future__ import annotations

import pandas as pd

from fedcircuits.federation.wire.ids import digests

IDS = pd.Series(["17", "x9", None])


def test_another_secret_or_another_salt_gives_other_digests() -> None:
    first = digests(IDS, "salt", "our own secret")
    assert (digests(IDS, "salt", "our own secret") == first).all()
    for salt, secret in (
        ("salt", ""),
        ("salt", "another secret"),
        ("other", "our own secret"),
    ):
        assert not (digests(IDS, salt, secret) == first).all(axis=1).any()


def test_the_border_between_salt_and_secret_counts() -> None:
    assert (digests(IDS, "ab", "c") != digests(IDS, "a", "bc")).any(axis=1).all()


def test_one_id_has_one_digest_however_it_is_typed() -> None:
    found = [digests(pd.Series([each]), "s")[0].tobytes() for each in (17, 17.0, "17")]
    assert len(set(found)) == 1


def test_rows_without_an_id_meet_nobody() -> None:
    gaps = pd.Series([None, None])
    a, b = (digests(gaps, "s", where=name) for name in "ab")
    assert len({row.tobytes() for row in (*a, *b)}) == 4


def test_no_id_is_like_a_row_without_one() -> None:
    gap = digests(pd.Series([None, None]), "s", where="b")
    posing = [f"\x1fb\x1f{row}" for row in range(2)] + [f"\x00b\x00{row}" for row in range(2)]
    found = digests(pd.Series(posing), "s", where="a")
    assert not {row.tobytes() for row in gap} & {row.tobytes() for row in found}


def test_names_of_clients_and_rows_do_not_run_together() -> None:
    gaps = [digests(pd.Series([None] * 12), "s", where=where) for where in ("b", "b\x1f1", "b1")]
    assert len({row.tobytes() for each in gaps for row in each}) == 36
