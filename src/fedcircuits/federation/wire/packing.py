"""Small whole numbers, one for each row, in close to as few bits as they need.

After alignment both sides know a client's aligned rows and their order, so nothing but the numbers
themselves has to travel: clusters and label codes in mixed radix (as many as fit into a word of
64 bits), numbers some of which are far more frequent than others in a Huffman code (latent classes
given the cluster, codes of rows), choices of rows as one bit a row.
"""

from __future__ import annotations

import zlib

import numpy as np

from fedcircuits.arrays import BoolArray, Bytes, IntArray
from fedcircuits.errors import StorageError

WORD = np.dtype("<u8")


def codes_per_word(n_codes: int) -> int:
    """How many numbers below n_codes fit into 64 bits."""
    count, room = 0, 2**64
    while n_codes > 1 and room >= n_codes:
        count, room = count + 1, room // n_codes
    return count


def packed_size(n: int, n_codes: int) -> int:
    """Bytes of n packed numbers below n_codes; none where there is only one possible number."""
    per = codes_per_word(n_codes)
    return 0 if per == 0 else WORD.itemsize * -(-n // per)


def pack_codes(codes: IntArray, n_codes: int) -> Bytes:
    """Numbers (n,) in 0..n_codes-1 as bytes."""
    per = codes_per_word(n_codes)
    if per == 0:
        return np.zeros(0, dtype=np.uint8)
    digits = np.zeros(-(-codes.size // per) * per, dtype=WORD)
    digits[: codes.size] = codes
    place = np.array([n_codes**at for at in range(per)], dtype=WORD)
    words = digits.reshape(-1, per) @ place  # (words,)
    return np.ascontiguousarray(words, dtype=WORD).view(np.uint8)


def unpack_codes(packed: Bytes, n: int, n_codes: int) -> IntArray:
    """Inverse of `pack_codes`; a `StorageError` where the bytes are not n such numbers."""
    if packed.dtype != np.uint8 or packed.shape != (packed_size(n, n_codes),):
        raise StorageError(
            f"{packed.size} bytes of packed numbers, expected {packed_size(n, n_codes)} for {n} "
            f"row(s) of {n_codes} values"
        )
    per = codes_per_word(n_codes)
    if per == 0:
        return np.zeros(n, dtype=np.int64)
    rest = packed.view(WORD).copy()
    digits = np.empty((rest.size, per), dtype=np.int64)
    for at in range(per):
        rest, digit = np.divmod(rest, WORD.type(n_codes))
        digits[:, at] = digit
    if rest.any():
        raise StorageError(f"packed numbers beyond {n_codes - 1}")
    return digits.reshape(-1)[:n]


def squeeze(symbols: Bytes, *, step: int = 1) -> Bytes:
    """Numbers (n,) below 256 as bytes, frequent ones in fewer bits (DEFLATE's Huffman code).

    Zeros are appended up to a multiple of `step` bytes.
    """
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    packed = packer.compress(symbols.tobytes()) + packer.flush()
    return np.frombuffer(packed + bytes(-len(packed) % step), dtype=np.uint8)


def expand(packed: Bytes, n: int) -> Bytes:
    """Inverse of `squeeze`; a `StorageError` where the bytes are not n such numbers.

    Zeros behind them are passed over.
    """
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        found = unpacker.decompress(packed.tobytes(), n + 1) if packed.dtype == np.uint8 else b""
    except zlib.error as error:
        raise StorageError(f"packed numbers that cannot be read: {error}") from None
    if len(found) != n or not unpacker.eof or unpacker.unused_data.strip(b"\0"):
        raise StorageError(f"{packed.size} bytes of packed numbers, expected those of {n} row(s)")
    return np.frombuffer(found, dtype=np.uint8)


def pack_choice(chosen: BoolArray) -> Bytes:
    """One bit a row; no byte at all where every row is chosen."""
    return np.zeros(0, dtype=np.uint8) if chosen.all() else np.packbits(chosen)


def unpack_choice(packed: Bytes, n: int) -> BoolArray:
    """Inverse of `pack_choice` for n rows."""
    if packed.size == 0:
        return np.ones(n, dtype=bool)
    if packed.dtype != np.uint8 or packed.shape != (-(-n // 8),):
        raise StorageError(f"a choice of {packed.size} bytes, expected {-(-n // 8)} for {n} row(s)")
    return np.unpackbits(packed, count=n).astype(bool)
