"""Partitioners: shares cover the table and nothing else."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedcircuits as fc
from fedcircuits.api import partition
from fedcircuits.errors import SchemaError
from fedcircuits.schema.images import image_frame

ID = partition.ID


def table(n: int = 97, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            **{f"x{j}": rng.normal(size=n) for j in range(7)},
            "y": rng.choice(["a", "b", "c"], n, p=[0.6, 0.3, 0.1]),
        }
    )


def same_rows(shares: dict[str, pd.DataFrame], whole: pd.DataFrame) -> bool:
    """Whether the shares together are the rows of the table, each once."""
    together = pd.concat(shares.values())
    order = list(whole.columns)
    one = together[order].sort_values(order).reset_index(drop=True)
    return one.equals(whole.sort_values(order).reset_index(drop=True))


@given(n=st.integers(1, 200), k=st.integers(1, 9), seed=st.integers(0, 99))
def test_iid_covers_evenly(n: int, k: int, seed: int) -> None:
    shares = partition.iid(table(n), k, seed)
    sizes = [len(rows) for rows in shares.values()]
    assert len(shares) == k
    assert max(sizes) - min(sizes) <= 1
    assert same_rows(shares, table(n))


@given(n=st.integers(1, 200), sizes=st.lists(st.floats(0, 9), min_size=1, max_size=6))
def test_unequal_covers_in_proportion(n: int, sizes: list[float]) -> None:
    total = sum(sizes)
    if total <= 0:
        return
    shares = partition.unequal(table(n), sizes)
    assert same_rows(shares, table(n))
    for rows, size in zip(shares.values(), sizes, strict=True):
        assert abs(len(rows) - n * size / total) <= 1


@given(k=st.integers(1, 9), per=st.integers(1, 3), seed=st.integers(0, 99))
def test_class_subsets_cover(k: int, per: int, seed: int) -> None:
    whole = table(200)
    if k * per < 3:
        with pytest.raises(SchemaError, match="cannot cover"):
            partition.by_class(whole, "y", k, per, seed)
        return
    shares = partition.by_class(whole, "y", k, per, seed)
    assert same_rows(shares, whole)
    assert all(rows["y"].nunique() <= per for rows in shares.values())


@given(k=st.integers(1, 9), alpha=st.floats(0.05, 50), seed=st.integers(0, 99))
def test_dirichlet_covers(k: int, alpha: float, seed: int) -> None:
    whole = table(200)
    shares = partition.dirichlet(whole, "y", k, alpha, seed)
    assert len(shares) == k
    assert same_rows(shares, whole)


def test_dirichlet_is_skewed_at_low_and_even_at_high_concentration() -> None:
    whole = table(3000)

    def spread(alpha: float) -> float:
        shares = partition.dirichlet(whole, "y", 5, alpha, 1)
        return float(np.std([(rows["y"] == "a").sum() for rows in shares.values()]))

    assert spread(0.1) > 5 * spread(1000.0)


@given(k=st.integers(1, 7), seed=st.integers(0, 99), share=st.booleans())
def test_random_columns_cover(k: int, seed: int, share: bool) -> None:
    whole = table(20)
    shares = partition.random_columns(whole, k, label="y", share_label=share, seed=seed)
    held = [n for rows in shares.values() for n in rows.columns if n not in (ID, "y")]
    assert sorted(held) == [f"x{j}" for j in range(7)]
    assert sum("y" in rows.columns for rows in shares.values()) == (k if share else 1)
    joined = pd.DataFrame({ID: np.arange(20)})
    for rows in shares.values():
        joined = joined.merge(rows[[c for c in rows.columns if c not in joined or c == ID]], on=ID)
    pd.testing.assert_frame_equal(joined[list(whole.columns)], whole)


@given(
    k=st.integers(1, 3),
    columns=st.floats(0, 0.5),
    rows=st.floats(0, 1),
    seed=st.integers(0, 99),
    share=st.booleans(),
)
def test_hybrid_covers_and_overlaps_as_asked(
    k: int, columns: float, rows: float, seed: int, share: bool
) -> None:
    whole = table(60)
    shares = partition.hybrid(
        whole, k, shared_columns=columns, aligned_rows=rows, label="y", share_label=share, seed=seed
    )
    held = [set(s.columns) - {ID, "y"} for s in shares.values()]
    assert set().union(*held) == {f"x{j}" for j in range(7)}
    counted = [sum(name in h for h in held) for name in set().union(*held)]
    assert sorted(set(counted)) in ([1], [k], [1, k])
    assert sum(c == k for c in counted) >= round(columns * 7)
    ids = [set(s[ID]) for s in shares.values()]
    assert set().union(*ids) == set(range(60))
    assert len(set.intersection(*ids)) == (60 if k == 1 else round(rows * 60))
    for share_ in shares.values():  # every cell is the table's own
        names = [n for n in share_.columns if n != ID]
        pd.testing.assert_frame_equal(
            share_[names], whole.iloc[share_[ID]][names].reset_index(drop=True)
        )


@pytest.mark.parametrize(
    ("rows", "columns", "overlap"), [(2, 2, 0), (1, 3, 0), (2, 2, 1), (5, 4, 2)]
)
def test_image_patches_cover(rows: int, columns: int, overlap: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 5, 7))
    frame = image_frame(images)
    patches = partition.image_patches(5, 7, rows, columns, overlap=overlap)
    assert len(patches) == rows * columns
    held = [name for names in patches.values() for name in names]
    assert set(held) == set(frame.columns)
    if overlap == 0:
        assert len(held) == len(set(held))
        shares = partition.columns(frame, patches)
        assert all(len(s) == 6 for s in shares.values())
    else:
        shares = partition.hybrid_patches(frame, patches, aligned_rows=0.5)
        assert set().union(*(set(s[ID]) for s in shares.values())) == set(range(6))


def test_colour_patches_name_channels() -> None:
    frame = image_frame(np.zeros((2, 2, 2, 3), dtype=np.uint8))
    patches = partition.image_patches(2, 2, 1, 2, channels=3)
    assert {n for names in patches.values() for n in names} == set(frame.columns)


def test_same_seed_same_shares() -> None:
    one, two = (partition.iid(table(), 3, 5) for _ in range(2))
    assert all(one[name].equals(two[name]) for name in one)
    other = partition.iid(table(), 3, 6)
    assert not all(one[name].equals(other[name]) for name in one)


@pytest.mark.parametrize(
    ("split", "told"),
    [
        (lambda t: partition.iid(t, 0), "at least one client"),
        (lambda t: partition.unequal(t, []), "sizes must be"),
        (lambda t: partition.unequal(t, [1, -1]), "sizes must be"),
        (lambda t: partition.by_class(t, "z", 3), "no column 'z'"),
        (lambda t: partition.by_class(t, "y", 3, 4), "3 classes"),
        (lambda t: partition.dirichlet(t, "y", 3, 0.0), "concentration"),
        (lambda t: partition.random_columns(t, 9, label="y"), "cannot be split"),
        (lambda t: partition.columns(t, {"a": ["x0"], "b": ["x0"]}, label="y"), "x0"),
        (lambda t: partition.columns(t.assign(row_id=1), {}), "every column once"),
        (lambda t: partition.hybrid(t, 2, aligned_rows=1.5), "0..1"),
        (lambda _: partition.image_patches(2, 2, 3, 1), "do not fit"),
    ],
)
def test_a_split_that_cannot_be_is_refused(split: object, told: str) -> None:
    assert callable(split)
    with pytest.raises(SchemaError, match=told):
        split(table())


def test_shares_federate_and_the_setting_is_found() -> None:
    whole = table(150)
    found = [
        fc.federate(shares, id=id, label="y", learner="factorised").setting
        for id, shares in (
            (None, partition.iid(whole, 3)),
            (ID, partition.random_columns(whole, 2, label="y", share_label=True)),
            (ID, partition.hybrid(whole, 2, label="y")),
        )
    ]
    assert found == ["horizontal", "vertical", "hybrid"]


def test_images_federate_by_rows() -> None:
    images = np.random.default_rng(0).integers(0, 4, (40, 2, 3)).astype(np.uint8)
    fed = fc.federate({"a": images[:20], "b": images[20:]}, learner="factorised")
    assert fed.setting == "horizontal"
    assert fed.schema.names[:2] == ("pixel_000_000", "pixel_000_001")
