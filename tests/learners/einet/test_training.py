"""Training, images, checkpoints and bad input."""

# ruff: noqa: E402  (torch is an extra: what needs it is imported after the check for it)

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fedcircuits.errors import LearningError, SchemaError, StorageError
from fedcircuits.learners.einet import EiNet, EiNetDensity
from fedcircuits.learners.einet.leaves import Categorical
from fedcircuits.learners.einet.network.layout import lay_out
from fedcircuits.learners.einet.network.network import initial_parameters, make_network
from fedcircuits.learners.einet.structures.random_trees import random_trees
from fedcircuits.learners.einet.training.checkpoint import load_state
from fedcircuits.learners.einet.training.rows import Rows
from fedcircuits.learners.einet.training.train import Schedule, out_of_memory, train
from fedcircuits.schema.colour import from_ycocg, to_ycocg
from fedcircuits.schema.images import image_table, images_from_pixels


def started(n: int = 90) -> Any:
    rng = np.random.default_rng(0)
    x = rng.integers(4, size=(n, 6)).astype(np.uint8)
    network = make_network(lay_out(random_trees(6, 2, 2, rng)), [Categorical(4, 1.0)] * 6, 3)
    known = torch.ones(x.shape, dtype=torch.bool)
    start = initial_parameters(network, torch.as_tensor(x), known, torch.Generator().manual_seed(1))
    return network, start, Rows(x)


def same(one: Any, two: Any) -> bool:
    return all(torch.equal(t, two.tensors()[n]) for n, t in one.tensors().items())


def test_a_resumed_run_gives_the_same_bits(tmp_path: Path) -> None:
    network, start, rows = started()
    schedule = Schedule(epochs=6, batch=20)
    whole = train(network, start, rows, schedule, seed=5)
    path = tmp_path / "run.safetensors"
    train(network, start, rows, schedule, 5, path, report=lambda state: state.epoch == 2)
    resumed = train(network, start, rows, schedule, 5, path)
    assert same(whole.params, resumed.params)
    assert whole.history == resumed.history
    again = train(network, load_state(path, network, "cpu"), rows, schedule, 5)
    assert again.epoch == 6


def test_a_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    network, start, rows = started()
    path = tmp_path / "run.safetensors"
    train(network, start, rows, Schedule(epochs=1, batch=20), 0, path)
    other = make_network(network.layout, [Categorical(4, 1.0)] * 6, 2)
    with pytest.raises(StorageError, match="the network needs"):
        load_state(path, other, "cpu")
    path.write_bytes(b"nothing")
    with pytest.raises(StorageError, match="not an EiNet checkpoint"):
        load_state(path, network, "cpu")


def test_training_does_not_touch_its_start_and_streams_a_memory_map(tmp_path: Path) -> None:
    network, start, rows = started()
    before = start.clone()
    stored = np.lib.format.open_memmap(
        tmp_path / "rows.npy", mode="w+", dtype=np.uint8, shape=rows.x.shape
    )
    stored[:] = rows.x
    schedule = Schedule(epochs=2, batch=32)
    one = train(network, start, rows, schedule, 3)
    two = train(network, start, Rows(np.load(tmp_path / "rows.npy", mmap_mode="r")), schedule, 3)
    assert same(start, before)
    assert same(one.params, two.params)


def test_full_batch_training_is_monotone() -> None:
    network, start, rows = started()
    plain = make_network(network.layout, [Categorical(4)] * 6, 3)
    schedule = Schedule(10, 40, 1.0, 1.0, frequency=0, pseudo_count=0.0, by_mass=False)
    state = train(plain, start.to(dtype=torch.float64), rows, schedule, 0)
    assert min(np.diff(state.history)) > -1e-9


def test_the_whole_likelihood_is_kept_by_the_colour_transform(rng: np.random.Generator) -> None:
    cube = np.stack(np.meshgrid(*[np.arange(0, 256, 15)] * 3), axis=-1).reshape(-1, 3)
    assert np.array_equal(from_ycocg(to_ycocg(cube)), cube)
    codes = to_ycocg(cube)
    assert codes.min() >= 0
    assert codes[:, 0].max() <= 255
    assert codes.max() <= 510
    assert len(np.unique(codes, axis=0)) == len(cube)
    images = rng.integers(256, size=(5, 2, 2, 3)).astype(np.uint8)
    table = image_table(images, colour="ycocg")
    assert np.array_equal(images_from_pixels(table.schema.names, table.values), images)


def test_images_have_stable_names_and_masks(rng: np.random.Generator) -> None:
    images = rng.integers(256, size=(4, 3, 2)).astype(np.uint8)
    table = image_table(images)
    assert table.schema.names[:3] == ("pixel_000_000", "pixel_000_001", "pixel_001_000")
    masked = np.ma.masked_array(images, mask=images > 128)
    assert np.array_equal(image_table(masked).observed, (images <= 128).reshape(4, -1))
    assert np.array_equal(images_from_pixels(table.schema.names, table.values), images)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((3, 4)), r"\(n, h, w\) or \(n, h, w, 3\)"),
        (np.zeros((3, 4, 4, 2)), r"found shape \(3, 4, 4, 2\)"),
        (np.full((2, 2, 2), 256), "whole levels 0..255, found 256"),
        (np.full((2, 2, 2), 0.5), "scale floats by 255"),
        (np.full((2, 2, 2), -1), "found -1"),
        (np.zeros((2, 0, 3)), "no pixels"),
        (np.array([[["a"]]]), "levels 0..255"),
    ],
)
def test_bad_images_are_refused(images: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        image_table(images)


def test_bad_settings_and_empty_data_are_refused(rng: np.random.Generator) -> None:
    table = image_table(np.zeros((5, 2, 2), dtype=np.uint8))
    with pytest.raises(LearningError, match="without rows"):
        EiNet().fit(table.rows(slice(0, 0)), rng)
    with pytest.raises(LearningError, match="structure 'grid'"):
        EiNet(structure="grid").fit(table, rng)  # type: ignore[arg-type]
    with pytest.raises(LearningError, match="epochs 0"):
        EiNet(epochs=0).fit(table, rng)
    with pytest.raises(LearningError, match="steps"):
        EiNet(step=0.0).fit(table, rng)
    part = table.columns(list(table.schema.names[:3]))
    with pytest.raises(LearningError, match="do not fill a rectangle"):
        EiNet(structure="poon-domingos").fit(part, rng)


def test_out_of_memory_names_sizes_and_remedies() -> None:
    network, _, _ = started()
    message = str(out_of_memory(network, 64, RuntimeError("CUDA out of memory")))
    assert "batch of 64 rows" in message
    assert "Reduce the batch, then the width" in message
    assert "checkpoint is kept" in message


def test_constant_images_width_one_and_inpainting(rng: np.random.Generator) -> None:
    images = np.full((30, 3, 3), 7, dtype=np.uint8)
    images[:, 1, 1] = np.arange(30) % 2 * 255
    for leaf in ("categorical", "discretised-gaussian", "binomial"):
        learner = EiNet(width=1, epochs=3, batch=10, leaf=leaf, device="cpu", leaf_count=0.0)
        density = learner.fit(image_table(images), rng)
        known = np.ones(images.shape, dtype=bool)
        known[:, 0] = False
        table = image_table(images, known)
        assert np.isfinite(density.log_prob_table(table)).all()
        filled = density.sample_table(table, rng)
        assert np.array_equal(filled[:, 3:], table.values[:, 3:])
        assert isinstance(density, EiNetDensity)


def test_patches_are_learned_by_name(rng: np.random.Generator) -> None:
    images = rng.integers(4, size=(60, 4, 4)).astype(np.uint8)
    table = image_table(images)
    lower = table.columns([n for n in reversed(table.schema.names) if n >= "pixel_002"])
    learner = EiNet(structure="poon-domingos", pieces=2, width=2, epochs=2, batch=30, device="cpu")
    density = learner.fit(lower, rng)
    assert density.schema.names[0] == "pixel_003_003"
    assert np.isfinite(density.log_prob_table(lower)).all()
