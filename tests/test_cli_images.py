"""The command line with images: folders of PNG and JPEG files and NPZ files in, PNG out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import fedcircuits as fc
from fedcircuits.cli.app import app
from fedcircuits.density.pictures import read_images
from fedcircuits.errors import SchemaError


def pictures(n: int) -> np.ndarray:
    """(n, 4, 5) gray images, bright or dark by halves."""
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 40, size=(n, 4, 5)) + (np.arange(n) % 2 * 180)[:, None, None]
    return levels.astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images by label in PNG files, and a model learned from them."""
    at = tmp_path_factory.mktemp("images")
    for number, image in enumerate(pictures(40)):
        kind = at / "digits" / ("bright" if number % 2 else "dark")
        kind.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(kind / f"{number:03d}.png")
    ran(["learn", at / "digits", "-o", at / "m.fc", "--learner", "factorised"])
    return at


def ran(arguments: list[object]) -> str:
    """Run a command that must work and return what it printed."""
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_folder_of_images_is_learned_with_its_labels(folder: Path) -> None:
    images, labels = read_images(folder / "digits")
    assert labels == ["bright"] * 20 + ["dark"] * 20
    assert np.array_equal(images, np.concatenate([pictures(40)[1::2], pictures(40)[::2]]))
    model = fc.load(folder / "m.fc")
    assert model.schema["label"].categories == ("bright", "dark")
    assert len(model.schema) == 21


def test_samples_are_written_as_a_grid(folder: Path) -> None:
    path = folder / "grid.png"
    said = ran(["query", folder / "m.fc", "--sample", 16, "-o", path, "--json"])
    assert json.loads(said) == {"images": 16, "written": str(path)}
    scale = 64 // 5
    assert Image.open(path).size == ((4 * 6 - 1) * scale, (4 * 5 - 1) * scale)


def test_gaps_are_painted_and_scored(folder: Path) -> None:
    images = pictures(3)
    mask = np.zeros(images.shape, dtype=bool)
    mask[:, :2] = True
    gaps = folder / "gaps.npz"
    np.savez(gaps, images=images, mask=mask)
    for how in ("--impute", "--mpe"):
        ran(["query", folder / "m.fc", how, gaps, "-o", folder / "painted.png"])
        painted = np.asarray(Image.open(folder / "painted.png"))[:: 64 // 5, :: 64 // 5, 0]
        assert np.array_equal(painted[2:4, :5], images[0, 2:])
    said = json.loads(ran(["query", folder / "m.fc", "--log-prob", gaps, "--json"]))
    expected = fc.load(folder / "m.fc").log_prob(np.ma.masked_array(images, mask))
    assert [row["log_prob"] for row in said["rows"]] == pytest.approx(list(expected))
    said = json.loads(ran(["query", folder / "m.fc", "--impute", gaps, "--json"]))
    assert "label" in said["rows"][0]


def test_transparent_pixels_are_masked_and_colours_are_kept(tmp_path: Path) -> None:
    levels = np.random.default_rng(0).integers(0, 256, size=(2, 4, 5, 4), dtype=np.uint8)
    levels[..., 3] = 255
    levels[0, 1, 2, 3] = 0
    for number, image in enumerate(levels):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    images, labels = read_images(tmp_path)
    assert labels is None
    assert images.shape == (2, 4, 5, 3)
    assert np.argwhere(images.mask.any(axis=3)).tolist() == [[0, 1, 2]]
    assert np.array_equal(images.data[1], levels[1, ..., :3])


def test_bad_folders_and_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="holds no images"):
        read_images(tmp_path)
    Image.fromarray(pictures(1)[0]).save(tmp_path / "a.png")
    Image.fromarray(pictures(1)[0, :2]).save(tmp_path / "b.png")
    with pytest.raises(SchemaError, match=r"of one size: .*a.png is \(4, 5\), .*b.png is \(2, 5\)"):
        read_images(tmp_path)
    (tmp_path / "b.png").write_bytes(b"no picture")
    with pytest.raises(SchemaError, match=r"b.png is not a PNG or JPEG"):
        read_images(tmp_path)
    np.savez(tmp_path / "x.npz", pixels=pictures(1))
    with pytest.raises(SchemaError, match="no array 'images'; it has pixels"):
        read_images(tmp_path / "x.npz")
    (tmp_path / "y.npz").write_bytes(b"no arrays")
    with pytest.raises(SchemaError, match="not an NPZ file"):
        read_images(tmp_path / "y.npz")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["learn", "{at}/digits", "-o", "{at}/x.fc", "--label", "kind"], "is called 'label'"),
        (["learn", "{at}/digits", "-o", "{at}/x.fc", "--drop", "a"], "are for tables"),
        (["query", "{at}/m.fc", "--predict", "label", "-o", "{at}/x.png"], "CSV or Parquet"),
    ],
)
def test_options_that_images_do_not_have(folder: Path, arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, [a.format(at=folder) for a in arguments])
    assert result.exit_code == 1
    assert message in result.output
