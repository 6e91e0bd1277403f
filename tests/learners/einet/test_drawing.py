"""Region graphs of saved models: recovered from their arrays, told in words, drawn."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

import fedcircuits as fc
from fedcircuits.cli.app import app
from fedcircuits.errors import StorageError
from fedcircuits.learners.einet import hidden_chow_liu_tree, poon_domingos, random_trees
from fedcircuits.learners.einet.network.layout import lay_out, region_graph
from fedcircuits.learners.einet.structures.drawing import Picture, draw
from fedcircuits.schema.images import image_schema, pixel_places

OPTIONS = {"width": 3, "epochs": 1, "batch": 20, "device": "cpu", "pieces": 2, "repetitions": 2}


def graph_of(kind: str) -> Any:
    rng = np.random.default_rng(1)
    if kind == "poon-domingos":
        return poon_domingos(5, 5, (2, 3))
    if kind == "random-trees":
        return random_trees(25, 3, 2, rng)
    return hidden_chow_liu_tree(rng.integers(3, size=(100, 25)), 3)


KINDS = ["poon-domingos", "random-trees", "hclt"]


def by_scope(graph: Any) -> list[Any]:
    """Partitions as scopes: what stays when regions are renumbered."""
    return sorted(
        (graph.scopes[p.region], tuple(sorted(graph.scopes[c] for c in p.children)))
        for p in graph.partitions
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_layout_gives_its_region_graph_back(kind: str) -> None:
    graph = graph_of(kind)
    found = region_graph(lay_out(graph))
    assert found.kind == graph.kind
    assert by_scope(found) == by_scope(graph)
    assert found.summary() == graph.summary()


def test_a_graph_of_one_leaf_region_is_recovered() -> None:
    graph = random_trees(4, 0, 1, np.random.default_rng(0))
    found = region_graph(lay_out(graph))
    assert (found.scopes, found.partitions, found.root) == (((0, 1, 2, 3),), (), 0)


@pytest.mark.parametrize("kind", KINDS)
def test_every_region_has_a_place_of_its_own_below_its_parents(kind: str) -> None:
    graph = graph_of(kind)
    schema = image_schema(5, 5)
    picture = Picture(graph, schema.names, pixel_places(schema))
    at = picture.positions()
    assert len(np.unique(at.round(9), axis=0)) == len(graph.scopes)
    parents, children = picture.edges.T
    assert (at[parents, 1] > at[children, 1]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_image", [True, False])
def test_the_picture_has_a_line_for_every_edge(kind: str, on_image: bool) -> None:
    graph, schema = graph_of(kind), image_schema(5, 5)
    places = pixel_places(schema) if on_image else None
    picture = Picture(graph, schema.names, places)
    figure = draw(picture, "words above")
    panels = [ax for ax in figure.axes if ax.get_label() != "<colorbar>"]
    assert len(panels) == 1 + on_image
    assert len(panels[0].collections[0].get_segments()) == len(picture.edges)
    if on_image and kind == "hclt":  # one link less than there are pixels
        assert len(panels[1].collections[0].get_segments()) == 24
    assert figure._suptitle.get_text() == "words above"


def inspect(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedcircuits", "inspect", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small EiNet of colour images in a file."""
    path = tmp_path_factory.mktemp("drawing") / "m.fc"
    images = np.random.default_rng(0).integers(256, size=(40, 4, 4, 3)).astype(np.uint8)
    fc.learn(images, learner="einet", structure="poon-domingos", **OPTIONS).save(path)
    return path


@pytest.mark.slow
def test_inspect_tells_and_draws_the_region_graph(saved: Path, tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["inspect", str(saved), "--picture", f"{tmp_path}/graph.svg"])
    assert told.exit_code == 0, told.output
    assert "poon-domingos: 48 variables, 9 regions, 6 partitions, 2 levels" in told.stdout
    assert ET.parse(tmp_path / "graph.svg").getroot().tag.endswith("svg")
    answer = json.loads(inspect(saved, "--picture", tmp_path / "graph.png", "--json").stdout)
    assert (answer["regions"], answer["partitions"]) == (9, 6)
    assert (tmp_path / "graph.png").read_bytes()[:4] == b"\x89PNG"


def test_pictures_that_cannot_be_are_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        fc.load(saved).draw(tmp_path / "graph.nonsense")
    told = inspect(saved, "--picture", tmp_path / "none" / "graph.png")
    assert told.returncode == 1
    assert "cannot be written" in told.stderr
