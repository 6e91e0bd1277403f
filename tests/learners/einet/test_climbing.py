"""The most probable completion of an EiNet: never below the decoded one, often above."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

import fedcircuits as fc
from fedcircuits.arrays import FloatArray

torch = pytest.importorskip("torch")
from fedcircuits.learners.einet.density import climbing  # noqa: E402


def test_completions_are_at_least_as_probable_as_decoded_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    images, labels = load_digits().images.astype(np.uint8), load_digits().target
    options = {"head": False, "epochs": 5, "width": 4, "batch": 50}
    model = fc.learn(images[:600], label=labels[:600], learner="einet", **options)
    hidden = np.zeros((80, 8, 8), dtype=bool)
    hidden[:, 4:] = True
    gaps = np.ma.masked_array(images[600:680], hidden)

    def levels() -> FloatArray:
        found = model.mpe(gaps, as_images=False)
        assert np.array_equal(model.to_images(found)[:, :4], images[600:680, :4])
        return model.log_prob(found).to_numpy()

    climbed = levels()
    monkeypatch.setattr(climbing, "N_STEPS", 0)
    monkeypatch.setattr(climbing, "N_DRAWN", 0)
    decoded = levels()
    assert (climbed >= decoded - 1e-4).all()
    assert (climbed > decoded + 0.01).mean() > 0.05
