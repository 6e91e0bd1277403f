"""What cannot be learned is refused through the public surface, in words that help."""

# ruff: noqa: E402  (torch is an extra: what needs it is imported after the check for it)

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fedcircuits as fc
from fedcircuits.errors import LearningError, SchemaError
from fedcircuits.learners.einet import learner
from fedcircuits.learners.einet.learner import EiNet
from fedcircuits.learners.einet.training import train

IMAGES = np.random.default_rng(0).integers(256, size=(24, 5, 5)).astype(np.uint8)
OPTIONS: dict[str, Any] = {"device": "cpu", "epochs": 2, "batch": 10, "width": 3}


def learn(images: Any = IMAGES, **options: Any) -> Any:
    return fc.learn(images, learner="einet", **(OPTIONS | options))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (IMAGES[:, 0], "needs names"),
        (np.zeros((2, 2, 2, 2, 3)), r"found shape \(2, 2, 2, 2, 3\)"),
        (np.zeros((5, 4, 4, 2)), r"\(n, h, w\) or \(n, h, w, 3\), found shape \(5, 4, 4, 2\)"),
        (np.zeros((5, 0, 4)), "no pixels"),
        (np.full((5, 2, 2), 300), r"levels 0\.\.255, found 300 at \(0, 0, 0\) and 19 more"),
        (np.full((5, 2, 2), -1), "found -1"),
        (np.full((5, 2, 2), 0.5), "scale floats by 255"),
        (np.full((5, 2, 2), np.nan), "found nan"),
    ],
)
def test_wrong_shapes_and_levels(images: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        learn(images)


def test_no_image_at_all() -> None:
    with pytest.raises(LearningError, match="without rows"):
        learn(IMAGES[:0])
    model = learn()
    assert len(model.log_prob(IMAGES[:0])) == 0


@pytest.mark.parametrize("structure", ["hclt", "poon-domingos", "random-trees"])
@pytest.mark.parametrize("leaf", ["categorical", "discretised-gaussian", "binomial"])
def test_one_node_a_region_is_a_product_of_its_leaves(structure: str, leaf: str) -> None:
    model = learn(width=1, structure=structure, leaf=leaf, pieces=2, repetitions=1)
    total = model.log_prob(IMAGES)
    assert np.isfinite(total).all()
    # With one state everywhere pixels are independent.
    whole = sum(model.marginal([name]).log_prob(IMAGES) for name in model.schema.names)
    np.testing.assert_allclose(total, whole, rtol=1e-4)


@pytest.mark.parametrize("pieces", [3, (2, 4), 5, 9])
def test_a_grid_need_not_divide_the_image(pieces: Any) -> None:
    model = learn(structure="poon-domingos", pieces=pieces)
    tall, wide = (pieces, pieces) if isinstance(pieces, int) else pieces
    cells = min(tall, 5) * min(wide, 5)  # never smaller than a pixel
    assert len(model.region_graph.leaf_regions) == cells
    assert np.isfinite(model.log_prob(IMAGES)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width is 0; expected a whole number of at least 1"),
        ({"pieces": 0, "structure": "poon-domingos"}, "pieces .* is 0"),
        ({"pieces": (2, -1)}, r"pieces \(2 of 2\) is -1"),
        ({"pieces": (2, 3, 4)}, r"expected \(rows, columns\)"),
        ({"repetitions": 0}, "repetitions is 0"),
        ({"batch": 0}, "batch 0"),
        ({"epochs": 0}, "epochs 0"),
        ({"layer": "tucker"}, "use layer='cp'"),
        ({"min_variance": 1.0, "max_variance": 0.1}, "variances from 1.0 to 0.1"),
        ({"device": "nonsense"}, "device 'nonsense' cannot be used here"),
        ({"colours": 3}, "has no option 'colours'"),
        ({"label": np.zeros(3)}, None),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, Any], message: str | None) -> None:
    expected = SchemaError if message is None else LearningError
    with pytest.raises(expected, match=message or "3 labels for 24 images"):
        learn(**options)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("width", 2.5, "a whole number >= 0 or None, found 2.5"),
        ("depth", -1, "a whole number >= 0, found -1"),
        ("structure", "grid", "'hclt' or 'poon-domingos' or 'random-trees', found 'grid'"),
        ("layer", "dense", "'cp' or 'tucker', found 'dense'"),
        (
            "leaf",
            "poisson",
            "'categorical' or 'discretised-gaussian' or 'binomial' or 'gaussian', found 'poisson'",
        ),
        ("precision", "fp8", "'float32' or 'tf32' or 'bf16' or 'float64', found 'fp8'"),
        ("leaf_count", -1.0, "a number >= 0, found -1.0"),
        ("pseudo_count", float("nan"), "a number >= 0, found nan"),
    ],
)
def test_options_of_the_wrong_type_or_sign(name: str, value: Any, message: str) -> None:
    with pytest.raises(LearningError) as caught:
        learn(**{name: value})
    assert str(caught.value) == f"option {name!r} of learner 'einet' is {message}"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 2.5}, "width is 2.5"),
        ({"depth": -1}, "depth is -1; expected a whole number of at least 0"),
        ({"structure": "grid"}, "structure 'grid'; expected one of 'hclt', 'poon-domingos'"),
        ({"layer": "dense"}, "layer 'dense'; expected one of 'cp', 'tucker'"),
        ({"leaf": "poisson"}, "leaf 'poisson'"),
        ({"precision": "fp8"}, "precision 'fp8'"),
        ({"leaf_count": -1.0}, "leaf_count -1.0; expected at least 0"),
        ({"pseudo_count": float("nan")}, "pseudo_count nan"),
    ],
)
def test_the_class_checks_its_own_fields(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LearningError, match=message):
        EiNet(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(LearningError, match="device 'cuda' cannot be used here"):
        learn(device="cuda")


def test_pixels_nobody_saw_are_no_error(recwarn: pytest.WarningsRecorder) -> None:
    mask = np.zeros(IMAGES.shape, dtype=bool)
    mask[:, 2] = True
    model = learn(np.ma.masked_array(IMAGES, mask))
    assert np.isfinite(model.log_prob(IMAGES)).all()
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_parameters_that_do_not_fit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(learner, "initial_parameters", full)
    with pytest.raises(LearningError, match=r"sum weights take .* Reduce the batch"):
        learn()


def test_out_of_memory_names_sizes_and_keeps_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.safetensors"
    options = {"epochs": 4, "checkpoint": path, "seed": 7}
    real, calls = train.expected_counts, 0

    def small_device(*given: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 6:  # two batches an epoch: in the third
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return real(*given, **named)

    monkeypatch.setattr(train, "expected_counts", small_device)
    with pytest.raises(LearningError) as caught:
        learn(**options)
    for words in ("sum weights take", "batch of 10 rows", "width 3", "Reduce the batch", "20.00"):
        assert words in str(caught.value)
    monkeypatch.undo()
    resumed = learn(**options)
    whole = learn(**(options | {"checkpoint": None}))
    assert resumed.fit_report.curve == whole.fit_report.curve
    np.testing.assert_array_equal(resumed.log_prob(IMAGES), whole.log_prob(IMAGES))
