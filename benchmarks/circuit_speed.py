"""How fast a circuit is evaluated: against deeprob-kit on the same circuit, and how it grows.

The peer runs in an environment of its own (`.bench-venv` with deeprob-kit 1.1.0) and is left out
with a reason where that is absent. Values are compared before times are.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil

import tables
from fedcircuits.circuits import FAMILIES, Assembler, Circuit
from fedcircuits.schema import Schema, Table, Variable

COLUMNS = 17
PARTS = 3  # about 3,000 nodes
PEER = tables.ROOT / ".bench-venv" / "bin" / "python"


def schema() -> Schema:
    """Gaussian, six-category and binary columns in turn."""
    kinds = (
        lambda j: Variable(f"x{j}", "continuous"),
        lambda j: Variable(f"x{j}", "categorical", tuple("abcdef")),
        lambda j: Variable(f"x{j}", "binary", (0, 1)),
    )
    return Schema(tuple(kinds[j % 3](j) for j in range(COLUMNS)))


def random_circuit(n_parts: int, rng: np.random.Generator) -> Circuit:
    """A tree like LearnSPN's: sums of n_parts products, each of which halves the scope."""
    of = schema()
    assembler = Assembler(of)

    def leaf(column: int) -> int:
        variable = of.variables[column]
        if variable.kind == "continuous":
            params = {"mean": rng.normal(size=1), "sd": rng.uniform(0.5, 2.0, 1)}
            return int(assembler.leaves(FAMILIES["gaussian"], column, params)[0])
        probs = rng.dirichlet(np.ones(variable.n_codes))[None]
        return int(assembler.leaves(FAMILIES["categorical"], column, {"probs": probs})[0])

    def grow(scope: list[int]) -> int:
        if len(scope) == 1:
            return leaf(scope[0])
        parts = []
        for _ in range(n_parts):
            order = [int(j) for j in rng.permutation(scope)]
            half = len(scope) // 2
            parts.append(assembler.product([grow(order[:half]), grow(order[half:])]))
        return assembler.sum(parts, np.log(rng.dirichlet(np.full(n_parts, 3.0))))

    return Circuit.assemble(assembler, grow(list(range(COLUMNS))))


def random_rows(n: int, rng: np.random.Generator) -> Table:
    """Rows with nothing missing."""
    values = np.empty((n, COLUMNS))
    for j in range(COLUMNS):
        values[:, j] = (
            rng.normal(size=n) if j % 3 == 0 else rng.integers(0, 6 if j % 3 == 1 else 2, n)
        )
    return Table(schema(), values, np.ones(values.shape, dtype=bool), pd.RangeIndex(n))


def seconds(circuit: Circuit, table: Table, repeats: int = 3) -> float:
    """Median CPU seconds of log_prob."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        circuit.log_prob_table(table)
        times.append(time.process_time() - start)
    return float(np.median(times))


def for_peer(circuit: Circuit) -> list[dict[str, object]]:
    """The circuit's nodes in order, as the peer's script reads them."""
    nodes: list[dict[str, object]] = []
    for group in circuit.groups:
        for i in range(group.size):
            if group.family.name == "gaussian":
                params = {name: float(group.params[name][i]) for name in ("mean", "sd")}
            else:
                params = {"probs": group.params["probs"][i].tolist()}
            nodes.append({"kind": group.family.name, "column": group.column, **params})
    structure = circuit.structure
    for i in range(structure.n_inner):
        edges = slice(structure.first_edge[i], structure.first_edge[i + 1])
        nodes.append(
            {
                "kind": "sum" if structure.is_sum[i] else "product",
                "children": structure.child[edges].tolist(),
                "weights": np.exp(structure.log_weight[edges]).tolist(),
            }
        )
    return nodes


def against_peer(circuit: Circuit, table: Table) -> list[list[object]]:
    """Rows of the table for ours and theirs; values must agree first."""
    ours = circuit.log_prob_table(table)
    our_seconds = seconds(circuit, table)
    model_row = circuit.schema.decode(table.values[:1], table.index[:1])
    single = []
    for _ in range(200):
        start = time.perf_counter()
        circuit.log_prob(model_row)
        single.append(time.perf_counter() - start)
    one = float(np.median(single))
    rows: list[list[object]] = [
        ["fedcircuits", circuit.n_nodes, our_seconds, 1e6 * our_seconds / len(table), 1e3 * one, ""]
    ]
    if not PEER.exists():
        print(f"deeprob-kit left out: {PEER} does not exist (see benchmarks/README.md)")
        return rows
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        (at / "circuit.json").write_text(json.dumps(for_peer(circuit)))
        np.save(at / "rows.npy", table.values)
        script = Path(__file__).parent / "peers" / "deeprob_log_prob.py"
        arguments = [at / "circuit.json", at / "rows.npy", at / "out.npz"]
        subprocess.run([str(PEER), str(script), *map(str, arguments)], check=True)
        theirs = dict(np.load(at / "out.npz"))
    worst = float(np.max(np.abs(theirs["log_prob"] - ours) / np.abs(ours)))
    # The peer keeps values in float32, so 1e-6 relative is what its own digits allow.
    if worst > 1e-6:
        sys.exit(f"values differ by {worst:.2e} relative: no timing counts")
    rows.append(
        [
            "deeprob-kit 1.1.0", circuit.n_nodes, float(theirs["seconds"]),
            1e6 * float(theirs["seconds"]) / len(table), 1e3 * float(theirs["one_row"]),
            f"{float(theirs['seconds']) / our_seconds:.0f}x slower, values within {worst:.1e}",
        ]
    )  # fmt: skip
    return rows


def growth(rng: np.random.Generator) -> list[list[object]]:
    """A decade of rows and a decade of edges."""
    rows: list[list[object]] = []
    circuit = random_circuit(PARTS, rng)
    for n in (10_000, 30_000, 100_000):
        time_ = seconds(circuit, random_rows(n, rng))
        rows.append(["rows", n, circuit.n_edges, time_, 1e9 * time_ / n / circuit.n_edges])
    table = random_rows(10_000, rng)
    for parts in (2, 3, 4):
        circuit = random_circuit(parts, rng)
        time_ = seconds(circuit, table)
        rows.append(["edges", 10_000, circuit.n_edges, time_, 1e9 * time_ / 1e4 / circuit.n_edges])
    return rows


def million(rng: np.random.Generator) -> str:
    """Peak memory above the data at a million rows."""
    circuit, table = random_circuit(PARTS, rng), random_rows(1_000_000, rng)
    process = psutil.Process()
    before = process.memory_info().rss
    peak = before
    done = []

    def watch() -> None:
        nonlocal peak
        while not done:
            peak = max(peak, process.memory_info().rss)
            time.sleep(0.01)

    import threading

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.process_time()
    circuit.log_prob_table(table)
    took = time.process_time() - start
    done.append(True)
    watcher.join()
    return (
        f"1,000,000 rows through {circuit.n_nodes} nodes: {took:.1f} CPU s, "
        f"{(peak - before) / 2**20:.0f} MiB above the data."
    )


def main() -> None:
    """Run everything and write two tables."""
    rng = np.random.default_rng(0)
    circuit, table = random_circuit(PARTS, rng), random_rows(10_000, rng)
    tables.write(
        "circuit_speed",
        "log_prob against deeprob-kit, same circuit, same rows",
        ["library", "nodes", "10,000 rows, CPU s", "us a row", "one row, ms", ""],
        against_peer(circuit, table),
        "python benchmarks/circuit_speed.py",
        [
            f"The circuit: {circuit!r}, depth {circuit.depth}.",
            "Ours: one row through the public call with a DataFrame; theirs: a NumPy row.",
            million(rng),
        ],
    )
    tables.write(
        "circuit_growth",
        "log_prob grows linearly in rows and in edges",
        ["what grows", "rows", "edges", "CPU s", "ns a row and edge"],
        growth(rng),
        "python benchmarks/circuit_speed.py",
    )


if __name__ == "__main__":
    main()
