"""The documentation: lines of readable length, links that lead somewhere, an example that runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for folder in (
        ".",
        "docs",
        "docs/benchmarks",
        "docs/howto",
        "docs/reference",
        "examples",
        "benchmarks",
        "tests",
    )
    for path in (ROOT / folder).glob("*.md")
)
LONGEST = 120
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def title_anchor(title: str) -> str:
    """How a heading is addressed behind # in a link."""
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def test_pages_are_found() -> None:
    found = {name(path) for path in PAGES}
    assert {"README.md", "docs/federation.md", "docs/benchmarks/privacy.md"} <= found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_lines_are_not_too_long(page: Path) -> None:
    """Tables excepted: a row cannot be broken."""
    lines = enumerate(page.read_text().splitlines(), 1)
    long = [n for n, line in lines if len(line) > LONGEST and not line.lstrip().startswith("|")]
    assert long == [], f"lines of {name(page)} over {LONGEST} characters"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    dead = []
    for target in LINK.findall(page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue  # another site
        file, _, anchor = target.partition("#")
        path = page.parent / file if file else page
        if not path.exists():
            dead.append(target)
        elif anchor:
            titles = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
            if anchor not in {title_anchor(title) for title in titles}:
                dead.append(target)
    assert dead == []


@pytest.mark.parametrize(
    "page", ["README.md", "docs/architecture.md", "docs/glossary.md", "CONTRIBUTING.md"]
)
def test_paths_in_the_maps_of_the_code_exist(page: str) -> None:
    """Names in backquotes that look like a file or folder of ours are there."""
    source = ROOT / "src/fedcircuits"
    bases = [ROOT, ROOT / "docs", source, source / "federation"]
    named = re.findall(r"`([\w./-]+(?:\.py|/))`", (ROOT / page).read_text())
    missing = [path for path in named if not any((base / path).exists() for base in bases)]
    assert missing == []


def test_tree_of_the_readme_is_the_tree() -> None:
    """Every room of the package is in "Where things are", and nothing that is not there."""
    block = (ROOT / "README.md").read_text().split("## Where things are")[1].split("```")[1]
    named = set(re.findall(r"^  ([\w/]+(?:\.py|/))", block, flags=re.MULTILINE))
    source = ROOT / "src/fedcircuits"
    rooms = {f"{path.name}/" for path in source.iterdir() if (path / "__init__.py").exists()}
    assert rooms <= named
    assert all((source / path).exists() for path in named)


def test_every_extra_that_is_named_exists_and_is_pinned() -> None:
    """pip only warns of an extra that is not there, and installs without it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    makefile = (ROOT / "Makefile").read_text()
    lists = re.findall(r"EXTRAS ?:?= ?(\S+)|EXTRAS\),([\w,]+)\]", makefile)
    named = {extra for pair in lists for extra in ",".join(pair).strip(",;:").split(",")}
    for path in [*PAGES, *(ROOT / "src").rglob("*.py")]:
        for part in re.findall(r"fedcircuits\[([\w,-]+)\]", path.read_text()):
            named |= {*part.split(",")}
    assert {"dev", "docs", "serve", "baselines"} <= named <= {*extras}
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").open()}
    assert {re.split("[<>=]", p)[0].lower() for used in extras.values() for p in used} <= pinned


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_loads_nothing_from_elsewhere(
    tmp_path: Path,
) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, env=quiet)
    assert done.returncode == 0, done.stdout + done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 40
    loaded = re.compile(r"<(?:script|img|iframe|source)[^>]*src=[\"']?(https?:)?//|url\(https?://")
    linked = re.compile(r"<link[^>]*rel=[\"']?(?:stylesheet|preconnect|preload)[^>]*https?://")
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not loaded.search(text), page
        assert not linked.search(text), page
    assert (tmp_path / "search" / "search_index.json").exists()
    models = (tmp_path / "reference" / "models.html").read_text(encoding="utf-8")
    assert all(f"Density.{name}" in models for name in ("probability", "predict_proba", "sample"))


def test_every_command_is_on_the_page_of_commands() -> None:
    from fedcircuits.cli.app import app

    page = (ROOT / "docs/reference/commands.md").read_text()
    names = [c.name or c.callback.__name__ for c in app.registered_commands if c.callback]
    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.slow
def test_first_example_of_the_readme_runs(tmp_path: Path) -> None:
    """As a newcomer pastes it, in a folder of its own."""
    code = (ROOT / "README.md").read_text().split("```python")[1].split("```")[0]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("vertical")
    assert (tmp_path / "wine.fc").exists()
