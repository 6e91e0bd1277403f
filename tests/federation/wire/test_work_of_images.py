"""How often images and models of images are encoded, hashed and copied in a federation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fedcircuits as fc
from fedcircuits import encoding
from fedcircuits.arrays import Array
from fedcircuits.federation.wire import message
from fedcircuits.schema.variable import Variable

pytest.importorskip("torch")
from fedcircuits.learners.einet import EiNet

CLIENTS = 3


@pytest.fixture
def images() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        f"client-{at}": rng.integers(0, 256, (12, 12, 12, 3)).astype(np.uint8)
        for at in range(CLIENTS)
    }


def size_of(model: Any) -> int:
    return sum(array.nbytes for array in model.to_record().arrays.values())


def test_a_large_model_is_hashed_and_read_once_on_either_side(
    images: dict[str, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A digest when it is sent and one when it comes, no third; one copy into memory of its own."""
    monkeypatch.setattr(message, "PACKED_UP_TO", 100_000)
    hashed, copied = [], []
    digest, copy = encoding._digest, encoding._copied

    def counted_digest(text: str, arrays: dict[str, Array], **how: Any) -> str:
        hashed.append(sum(array.nbytes for array in arrays.values()))
        return digest(text, arrays, **how)

    def counted_copy(array: Array) -> Array:
        copied.append(array.nbytes)
        return copy(array)

    monkeypatch.setattr(encoding, "_digest", counted_digest)
    monkeypatch.setattr(encoding, "_copied", counted_copy)
    fed = fc.federate(images, learner=EiNet(width=8, epochs=1, device="cpu"))
    assert fed.fitted is not None
    models = sum(map(size_of, fed.fitted.models.values()))
    assert models > CLIENTS * message.PACKED_UP_TO
    assert 2 * models <= sum(hashed) < 2.1 * models
    assert models <= sum(copied) < 1.1 * models


def test_pixels_are_made_variables_once_and_not_for_every_client(
    images: dict[str, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    check = Variable.__post_init__

    def counted(self: Variable) -> None:
        made.append(self.name)
        check(self)

    def run(n_clients: int) -> int:
        made.clear()
        some = dict(list(images.items())[:n_clients])
        fc.federate(some, learner=EiNet(width=2, epochs=1, device="cpu"))
        return len(made)

    run(1)  # whatever is remembered of pixels is remembered
    monkeypatch.setattr(Variable, "__post_init__", counted)
    one, three = run(1), run(3)
    n_pixels = images["client-0"][0].size
    assert three - one < n_pixels


def test_a_large_array_has_one_digest_however_many_threads_make_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(encoding, "PART_BYTES", 1000)
    record = encoding.Record("x", {}, {"a": np.arange(5000.0), "b": np.arange(3)})
    data = encoding.pack(record)
    assert b'"sha256-parts"' in data
    assert b'"sha256"' not in data
    monkeypatch.setattr(encoding, "MOST_THREADS", 1)
    assert encoding.pack(record) == data
    back = encoding.unpack(data)
    assert all(np.array_equal(back.arrays[name], record.arrays[name]) for name in record.arrays)
    spoiled = bytearray(data)
    spoiled[-20_000] ^= 1
    with pytest.raises(encoding.StorageError, match="SHA-256"):
        encoding.unpack(bytes(spoiled))


def test_large_arrays_of_files_saved_before_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their digest is of all bytes one after the other."""
    record = encoding.Record("x", {}, {"a": np.arange(5000.0)})
    before = encoding.pack(record)
    monkeypatch.setattr(encoding, "PART_BYTES", 1000)
    assert b'"sha256"' in before
    assert np.array_equal(encoding.unpack(before).arrays["a"], record.arrays["a"])
