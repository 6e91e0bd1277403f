"""Small numbers and choices of rows as bytes: sizes, both ways, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from fedcircuits.errors import StorageError
from fedcircuits.federation.wire.packing import (
    codes_per_word,
    expand,
    pack_choice,
    pack_codes,
    packed_size,
    squeeze,
    unpack_choice,
    unpack_codes,
)

N_CODES = [1, 2, 3, 9, 138, 2**16, 2**32]


@pytest.mark.parametrize("n_codes", [2, 3, 5, 9, 138, 255, 2**16, 2**32, 2**32 + 1])
def test_a_word_takes_as_many_numbers_as_64_bits_tell_apart(n_codes: int) -> None:
    count = codes_per_word(n_codes)
    assert n_codes**count <= 2**64 < n_codes ** (count + 1)


def test_one_possible_number_takes_no_byte() -> None:
    assert codes_per_word(1) == codes_per_word(0) == 0
    assert packed_size(7, 1) == 0
    packed = pack_codes(np.zeros(7, dtype=np.int64), 1)
    assert packed.shape == (0,)
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(unpack_codes(packed, 7, 1), np.zeros(7, dtype=np.int64))


@pytest.mark.parametrize("n_codes", N_CODES)
@pytest.mark.parametrize("n", [0, 1, 8, 9, 63, 64, 65, 200])
def test_numbers_come_out_as_they_went_in(n: int, n_codes: int) -> None:
    codes = np.random.default_rng(n).integers(n_codes, size=n)
    codes[-1:] = n_codes - 1
    packed = pack_codes(codes, n_codes)
    assert packed.dtype == np.uint8
    per = codes_per_word(n_codes)
    assert packed.size == packed_size(n, n_codes) == (8 * int(np.ceil(n / per)) if per else 0)
    np.testing.assert_array_equal(unpack_codes(packed, n, n_codes), codes)


def test_the_first_number_is_the_lowest_digit() -> None:
    assert pack_codes(np.array([2, 1]), 3).tolist() == [5, 0, 0, 0, 0, 0, 0, 0]


def test_bytes_of_another_size_or_type_are_no_numbers() -> None:
    packed = pack_codes(np.arange(3), 9)
    for wrong, n in ((packed[:-1], 3), (packed, 60), (packed.view(np.int8), 3)):
        with pytest.raises(StorageError, match=r"expected \d+ for \d+ row\(s\) of 9 values"):
            unpack_codes(wrong, n, 9)


def test_a_word_beyond_the_largest_number_is_refused() -> None:
    word = np.array([9 ** codes_per_word(9)], dtype="<u8").view(np.uint8)
    with pytest.raises(StorageError, match=r"packed numbers beyond 8$"):
        unpack_codes(word, 3, 9)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 64, 65])
def test_a_choice_is_one_bit_a_row(n: int) -> None:
    chosen = np.arange(n) % 3 == 1
    packed = pack_choice(chosen)
    assert packed.size == int(np.ceil(n / 8))
    found = unpack_choice(packed, n)
    assert found.dtype == bool
    np.testing.assert_array_equal(found, chosen)


def test_a_choice_of_all_rows_takes_no_byte() -> None:
    packed = pack_choice(np.ones(5, dtype=bool))
    assert packed.shape == (0,)
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(unpack_choice(packed, 5), np.ones(5, dtype=bool))


def test_a_choice_for_other_rows_is_refused() -> None:
    packed = pack_choice(np.arange(64) == 1)
    for wrong, n in ((packed, 65), (packed, 56), (packed.view(np.int8), 64)):
        with pytest.raises(StorageError, match=rf"expected {int(np.ceil(n / 8))} for {n} row"):
            unpack_choice(wrong, n)


@pytest.mark.parametrize("n", [0, 1, 1000])
def test_frequent_numbers_take_fewer_bits(n: int, rng: np.random.Generator) -> None:
    symbols = rng.choice(256, n, p=np.r_[0.9, np.full(255, 0.1 / 255)]).astype(np.uint8)
    packed = squeeze(symbols)
    assert packed.size <= n // 2 + 3
    np.testing.assert_array_equal(expand(packed, n), symbols)


def test_lengths_are_multiples_of_a_step(rng: np.random.Generator) -> None:
    symbols = rng.integers(0, 9, 300).astype(np.uint8)
    padded = squeeze(symbols, step=64)
    assert padded.size % 64 == 0
    np.testing.assert_array_equal(expand(padded, 300), symbols)
    with pytest.raises(StorageError, match="packed numbers"):
        expand(np.concatenate([padded[:-1], np.ones(1, dtype=np.uint8)]), 300)


def test_squeezed_numbers_of_other_rows_are_refused(rng: np.random.Generator) -> None:
    symbols = rng.integers(0, 9, 300).astype(np.uint8)
    packed = squeeze(symbols)
    for wrong, n in ((packed, 299), (packed, 301), (packed[:-1], 300), (packed.view(np.int8), 300)):
        with pytest.raises(StorageError):
            expand(wrong, n)
    with pytest.raises(StorageError):
        expand(np.concatenate([packed, packed]), 300)
    with pytest.raises(StorageError, match="packed numbers"):
        expand(squeeze(np.zeros(10_000_000, dtype=np.uint8)), 300)  # not unpacked whole
