"""LearnSPN: twenty binary datasets against published figures, and speed against deeprob-kit.

    python benchmarks/learnspn.py                  # both; writes docs/benchmarks/learnspn.md
    python benchmarks/learnspn.py --only speed
    python benchmarks/learnspn.py --only debd --names nltcs,plants

The peer runs in `.bench-venv` (`python -m venv .bench-venv`, then `.bench-venv/bin/pip install
'numpy<2' scipy scikit-learn joblib tqdm matplotlib networkx torch==2.13.0` and `.bench-venv/bin/pip
install --no-deps deeprob-kit==1.1.0`); without it the comparison is skipped with a reason.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # CPU seconds of one thread, for both sides

import numpy as np
import pandas as pd

from fedcircuits.circuits import Circuit
from fedcircuits.learners.learnspn import LearnSPN
from fedcircuits.learners.learnspn.coded import Coded
from fedcircuits.schema import Schema, Table, Variable
from tables import wrapped

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("FEDCIRCUITS_DATA", ROOT.parent / "shared" / "data"))
PEER = ROOT / ".bench-venv" / "bin" / "python"
REPORT = ROOT / "docs" / "benchmarks" / "learnspn.md"
SEEDS = (0, 1, 2)
PEER_MODES = {
    "mixed": "categories as categories",
    "numbers": "categories target-encoded",
}

# Mean test log-likelihood of LearnSPN in the literature (Gens and Domingos 2013).
PUBLISHED = {
    "nltcs": -6.11, "msnbc": -6.11, "kdd": -2.18, "plants": -12.98, "baudio": -40.50,
    "jester": -53.48, "bnetflix": -57.33, "accidents": -30.04, "tretail": -11.04,
    "pumsb_star": -24.78, "dna": -82.52, "kosarek": -10.99, "msweb": -10.25, "book": -35.89,
    "tmovie": -52.49, "cwebkb": -158.20, "cr52": -85.07, "c20ng": -155.93, "bbc": -250.69,
    "ad": -19.73,
}  # fmt: skip

# One setting is varied at a time, in this order, and kept where validation rows gain.
START: dict[str, Any] = {
    "columns": "g-test",
    "rows": "em",
    "significance": 1e-4,
    "min_instances": 20,
    "smoothing": 2.0,
}
GRID: dict[str, tuple[Any, ...]] = {
    "significance": (1e-2, 1e-4, 1e-7),
    "min_instances": (10, 20, 60),
    "smoothing": (0.5, 2.0, 8.0),
    "rows": ("em", "kmeans"),
}


def load_binary(name: str) -> tuple[Table, Table, Table]:
    """Train, validation and test rows of one of the twenty datasets."""
    packed = np.load(DATA / "debd" / f"{name}.npz")
    d = int(packed["n_vars"])
    schema = Schema(tuple(Variable(f"v{i}", "binary", (0, 1)) for i in range(d)))

    def table(split: str) -> Table:
        x = np.unpackbits(packed[split], axis=1, count=d).astype(float)
        return Table(schema, x, np.ones(x.shape, dtype=bool), pd.RangeIndex(len(x)))

    return table("train"), table("valid"), table("test")


def fit(table: Table, settings: dict[str, Any], seed: int) -> tuple[Circuit, float]:
    """A circuit and the CPU seconds it took."""
    start = time.process_time()
    circuit = LearnSPN(**settings).fit(table, np.random.default_rng(seed))
    return circuit, time.process_time() - start


def choose(train: Table, valid: Table) -> dict[str, Any]:
    """Settings by coordinate search on validation rows, seed 0."""
    best, score = dict(START), -np.inf
    tried: dict[str, float] = {}
    for name, values in GRID.items():
        for value in values:
            settings = {**best, name: value}
            key = json.dumps(settings, sort_keys=True)
            if key not in tried:
                circuit, _ = fit(train, settings, SEEDS[0])
                tried[key] = float(circuit.log_prob_table(valid).mean())
            if tried[key] > score:
                score, chosen = tried[key], value
                best = {**best, name: chosen}
    return best


def debd(names: list[str]) -> list[str]:
    """The table of the twenty datasets, as lines of Markdown."""
    lines = [
        "| data | published | ours, mean of 3 seeds | range | gap, % | within 3 % | CPU s a fit "
        "| nodes | rows | significance | min rows | smoothing |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    within = better = 0
    for name in names:
        train, valid, test = load_binary(name)
        chosen = choose(train, valid)
        fits = [fit(train, chosen, seed) for seed in SEEDS]
        scores = [float(circuit.log_prob_table(test).mean()) for circuit, _ in fits]
        mean, published = float(np.mean(scores)), PUBLISHED[name]
        gap = 100 * (published - mean) / abs(published)
        within += gap <= 3
        better += gap <= 0
        lines.append(
            f"| {name} | {published:.2f} | {mean:.3f} | {min(scores):.3f} to {max(scores):.3f} "
            f"| {gap:+.2f} | {'yes' if gap <= 3 else 'no'} | {np.mean([t for _, t in fits]):.1f} "
            f"| {fits[0][0].n_nodes:,} | {chosen['rows']} | {chosen['significance']:g} "
            f"| {chosen['min_instances']} | {chosen['smoothing']:g} |"
        )
        print(lines[-1], flush=True)
    lines += [
        "",
        f"Within 3 % of published (gap at most 3): {within} of {len(names)}; "
        f"as good or better: {better} of {len(names)}. A positive gap is worse than published.",
    ]
    return lines


def adult() -> tuple[Table, Table]:
    """First 80 % of the UCI training rows, and the UCI test rows, on the grid of the former."""
    frame = pd.read_parquet(DATA / "adult.parquet")
    train, test = (frame[frame.split == s].drop(columns="split") for s in ("train", "test"))
    train = train.iloc[: int(0.8 * len(train))]
    schema = Schema.infer(train)
    schema = schema.with_grids(schema.encode(train))
    return schema.encode(train), schema.encode(test, unknown="missing")


def log_mass(circuit: Circuit, table: Table) -> float:
    """Mean log-mass of the rows' grid states: the density without what is within a state."""
    within = np.zeros(len(table))
    for at, variable in enumerate(table.schema):
        if variable.grid is not None:
            within += variable.grid.log_within(table.values[:, at])
    return float((circuit.log_prob_table(table) - within).mean())


def peer(train: Coded, test: Coded, label: int, mode: str, seed: int) -> dict[str, Any]:
    """deeprob-kit's figures on the same states."""
    with tempfile.TemporaryDirectory() as folder:
        rows, answer = Path(folder) / "rows.npz", Path(folder) / "answer.json"
        np.savez(
            rows,
            train=train.states.T, test=test.states.T, cards=train.cards, ordered=train.ordered,
            label=label, mode=mode, threshold=0.4, min_instances=200, seed=seed,
        )  # fmt: skip
        script = ROOT / "benchmarks" / "peers" / "learnspn_deeprob.py"
        subprocess.run([PEER, script, rows, answer], check=True)
        found: dict[str, Any] = json.loads(answer.read_text())
    return found


def speed() -> list[str]:
    """Adult, threshold .4, min 200: CPU seconds and test log-mass, as lines of Markdown."""
    train, test = adult()
    settings: dict[str, Any] = {"threshold": 0.4, "min_instances": 200}
    fit(train.rows(slice(0, 2000)), settings, 0)  # warm: imports and first calls
    ours = [fit(train, settings, seed) for seed in SEEDS]
    times = [t for _, t in ours]
    masses = [log_mass(circuit, test) for circuit, _ in ours]
    peers: dict[str, dict[str, Any]] = {}
    if PEER.exists():
        coded_train, coded_test = (Coded.of(t, train.schema) for t in (train, test))
        label = train.schema.position("income")
        for mode in PEER_MODES:
            peers[mode] = peer(coded_train, coded_test, label, mode, SEEDS[0])
            # Again beside each run of the peer: other work on the machine slows both.
            times += [fit(train, settings, seed)[1] for seed in SEEDS]
    seconds = float(np.median(times))
    lines = [
        "| learner | CPU s | nodes | test log-mass, nats a row | times slower than ours |",
        "|---|---|---|---|---|",
        f"| fedcircuits learnspn (RDC, k-means), 3 seeds | {seconds:.2f} (median of {len(times)}, "
        f"{min(times):.2f} to {max(times):.2f}) | {ours[0][0].n_nodes:,} "
        f"| {np.mean(masses):.3f} ({min(masses):.3f} to {max(masses):.3f}) | 1 |",
    ]
    for mode, found in peers.items():
        lines.append(
            f"| deeprob-kit learn_spn (RDC, k-means), {PEER_MODES[mode]} "
            f"| {found['cpu_seconds']:.2f} | {found['nodes']:,} | {found['log_mass']:.3f} "
            f"| {found['cpu_seconds'] / seconds:.1f} |"
        )
    print("\n".join(lines), flush=True)
    if not peers:
        return [*lines, "", f"Peer skipped: {PEER.relative_to(ROOT)} does not exist."]
    return [*lines, "", f"Peer: {next(iter(peers.values()))['versions']}."]


def main() -> None:
    """Run what was asked for; a part that is run whole replaces its section of the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("debd", "speed"))
    parser.add_argument("--names", default=",".join(PUBLISHED))
    arguments = parser.parse_args()
    names = arguments.names.split(",")
    if arguments.only != "debd":
        report("Adult: speed and log-mass", "speed", [*SPEED_TEXT, "", *speed()])
    if arguments.only != "speed":
        lines = debd(names)
        print("\n".join(lines))
        if set(names) == set(PUBLISHED):
            report("Twenty binary datasets", "debd", [*DEBD_TEXT, "", *lines])


def report(title: str, part: str, lines: list[str]) -> None:
    """Write one section of the report, keeping the others."""
    versions = ", ".join(f"{p} {version(p)}" for p in ("fedcircuits", "numpy", "scikit-learn"))
    setting = (
        f"Command: `python benchmarks/learnspn.py --only {part}` (both parts: `make bench`). "
        f"Date: {datetime.date.today().isoformat()}. Machine: 2 cores, one BLAS thread. "
        f"Versions: {versions}, Python {platform.python_version()}."
    )
    text = REPORT.read_text() if REPORT.exists() else "# LearnSPN\n"
    head, *sections = text.split("\n## ")
    kept = {section.split("\n", 1)[0]: section.rstrip() for section in sections}
    kept[title] = "\n".join([title, "", setting, "", *lines]).rstrip()
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_text(wrapped("\n\n## ".join([head.rstrip(), *kept.values()])))
    print(f"wrote {title!r} to {REPORT.relative_to(ROOT)}")


SPEED_TEXT = [
    "First 80 % (26,048) of the UCI training rows, 15 columns with the label; threshold .4, at "
    "least 200 rows to split. Log-mass of the 16,281 UCI test rows on one grid: every leaf of both "
    "sides is a table of masses of the same states. Learning only, CPU seconds, same run."
]
DEBD_TEXT = [
    "Mean test log-likelihood, nats a row. Settings by coordinate search on the validation rows "
    "(seed 0): significance of the G-test, least rows of a split, smoothing, EM or k-means; then "
    "three seeds. Published: Gens and Domingos 2013."
]

if __name__ == "__main__":
    main()
