"""Batches through page-locked buffers are the rows they should be; needs a GPU."""

# ruff: noqa: E402  (torch is an extra: what needs it is imported after the check for it)

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from fedcircuits.learners.einet.training.rows import Rows
from fedcircuits.learners.einet.training.staging import Staging


def test_staged_batches_equal_the_rows() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(256, size=(100, 500)).astype(np.uint8)
    rows = Rows(x, rng.random(x.shape) < 0.5, rng.integers(3, size=100))
    staging = Staging()
    for epoch in range(2):
        order = list(rows.batches(7, (epoch,)))
        found = []
        for part in staging.batches(rows, order):
            parts = (part.x, part.observed, part.labels)
            found.append([tensor.to("cuda", non_blocking=True) for tensor in parts])
        assert len(found) == len(order) == 14
        for chosen, mine in zip(order, found, strict=True):
            whole = (rows.x, rows.observed, rows.labels)
            for array, tensor in zip(whole, mine, strict=True):
                np.testing.assert_array_equal(tensor.cpu().numpy(), array[chosen])
