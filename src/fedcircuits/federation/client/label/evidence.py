"""Log-likelihoods of rows under a client's models, in one byte a row and model.

Log-likelihoods are sent in steps of an eighth below the largest of their row, which is sent as it
is; what is 32 nats below it counts as that far. Models tilted for the classes of a label differ
from the untilted one by the scores of the tables for the row, and by a constant: where rows have no
missing cell, the untilted ones and the tables' scores are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcircuits.arrays import Bytes, FloatArray
from fedcircuits.errors import StorageError
from fedcircuits.federation.client.label.tilting import packed_scores, unpacked_scores
from fedcircuits.federation.wire.names import NONE, ModelName

STEPS_A_NAT, IMPOSSIBLE = 8, 255
_HEAD, _LOG, _LEVEL, _CODE = map(np.dtype, ("<u4", "<f8", "<f4", "u1"))


@dataclass(frozen=True)
class Evidence:
    """Log-likelihoods of n rows under some models.

    Attributes:
        bases: log-likelihoods (n, 1), or (n, Y) with every class, of each untilted model.
        scores: (n, Y) of the tables, with mean zero in each row; None where every model is sent as
            it is.
        constants: (M,) what each model has besides.
    """

    bases: list[FloatArray]
    scores: FloatArray | None
    constants: FloatArray

    def of_models(self, models: Sequence[ModelName]) -> list[FloatArray]:
        """(n, 1) or (n, Y) of each model."""
        untilted, base = parted(models, apart=self.scores is not None)
        if (len(untilted), len(models)) != (len(self.bases), self.constants.size):
            raise StorageError(f"evidence of {self.constants.size} models, expected {len(models)}")
        found = []
        for name, at, constant in zip(models, base, self.constants, strict=True):
            values = self.bases[at] + constant
            if self.scores is not None:
                values = values + self.scores[:, [name.tilted_class]]
            found.append(values)
        return found

    def packed(self) -> Bytes:
        """Return the evidence as bytes."""
        values = np.concatenate(self.bases, axis=1)
        top = values.max(axis=1)
        top = np.where(np.isfinite(top), top, 0.0).astype(_LEVEL)
        with np.errstate(invalid="ignore"):
            below = np.round((top[:, None] - values) * STEPS_A_NAT)
        codes = np.where(np.isfinite(values), np.clip(below, 0, IMPOSSIBLE - 1), IMPOSSIBLE)
        widths = [base.shape[1] for base in self.bases]
        n_classes = 0 if self.scores is None else self.scores.shape[1]
        head = np.array([len(widths), self.constants.size, n_classes, *widths], dtype=_HEAD)
        parts = [head, self.constants.astype(_LOG), top, codes.astype(np.uint8)]
        if self.scores is not None:
            parts.append(packed_scores(self.scores))
        return np.concatenate([np.ascontiguousarray(e).reshape(-1).view(np.uint8) for e in parts])

    @staticmethod
    def of_bytes(packed: Bytes, n: int) -> Evidence:
        """Inverse of `packed` for n rows; a `StorageError` where the bytes do not fit."""
        rest = np.asarray(packed)

        def take(dtype: np.dtype[Any], count: int) -> NDArray[Any]:
            nonlocal rest
            size = dtype.itemsize * count
            if rest.dtype != np.uint8 or rest.ndim != 1 or rest.size < size:
                raise StorageError(f"evidence of {packed.size} bytes for {n} rows")
            mine, rest = rest[:size].copy(), rest[size:]
            return mine.view(dtype)

        n_bases, n_models, n_classes = map(int, take(_HEAD, 3))
        widths = take(_HEAD, n_bases).astype(np.int64)
        constants = take(_LOG, n_models)
        top = take(_LEVEL, n).astype(float)
        codes = take(_CODE, n * int(widths.sum())).reshape(n, -1)
        values = np.where(codes < IMPOSSIBLE, top[:, None] - codes / STEPS_A_NAT, -np.inf)
        scores = None
        if n_classes:
            scores = unpacked_scores(take(_CODE, rest.size), (n, n_classes))
        if rest.size:
            raise StorageError(f"evidence of {packed.size} bytes for {n} rows")
        return Evidence(np.split(values, np.cumsum(widths)[:-1], axis=1), scores, constants)


def parted(models: Sequence[ModelName], *, apart: bool) -> tuple[list[ModelName], list[int]]:
    """The untilted models of some models, and which of them each one is.

    Args:
        models: names.
        apart: whether what a tilt adds is apart; else every model is one of its own.
    """
    plain = [replace(e, tilt="", tilted_class=NONE) if apart else e for e in models]
    untilted = list(dict.fromkeys(plain))
    return untilted, [untilted.index(each) for each in plain]
