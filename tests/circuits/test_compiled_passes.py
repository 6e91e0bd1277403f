"""Compiled passes agree with the passes in NumPy on any circuit, also where numbers underflow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits import native
from fedcircuits.circuits import FAMILIES, Assembler, Circuit
from fedcircuits.circuits.compiled import places, program
from fedcircuits.circuits.compiled.places import Places
from fedcircuits.circuits.compiled.run import compiled
from fedcircuits.circuits.queries import mpe
from fedcircuits.native import numpy_only
from fedcircuits.schema import Schema, Table, Variable
from oracles.random_circuits import COMBINATIONS, seeded_case

pytestmark = pytest.mark.skipif(
    native.kernels() is None, reason="the inner loops are not compiled (no C compiler)"
)


@pytest.fixture(autouse=True)
def every_circuit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled passes also for circuits that are faster without."""
    monkeypatch.setattr(program, "MOST_MIXED", 1.0)


def some_rows(circuit: Circuit, n: int, seed: int, missing: float) -> Table:
    rng = np.random.default_rng(seed)
    values = circuit.sample_table(Table.empty(circuit.schema, n), rng)
    observed = rng.random(values.shape) >= missing
    return Table(circuit.schema, values, observed, pd.RangeIndex(n))


def check(circuit: Circuit, table: Table) -> None:
    """Every query, compiled and not."""

    def answers() -> dict[str, Any]:
        found: dict[str, Any] = {
            "log_prob": circuit.log_prob_table(table),
            "moments": circuit.moment_table(table, 1),
            "variances": circuit.variance_table(table),
            "one moment": circuit.moment_of(table, len(circuit.schema) - 1, 2),
            "sample": circuit.sample_table(table, np.random.default_rng(5)),
        }
        for at, variable in enumerate(circuit.schema):
            if variable.is_coded:
                found[f"posterior {at}"] = circuit.posterior_table(table, at)
        return found

    fast_ones = answers()
    with numpy_only():
        plain = answers()
    for name, expected in plain.items():
        np.testing.assert_allclose(
            fast_ones[name], expected, rtol=1e-9, atol=1e-9, err_msg=name, equal_nan=True
        )
    # Trees of equal posterior may be told apart by rounding alone; the best value may not.
    fast = compiled(circuit)
    assert fast is not None
    found = fast[0](fast[1], table, is_max=True, walk=True)
    values = mpe._max_product_values(circuit, table, circuit.modes)
    kept = np.delete(np.arange(len(table)), found.risky)
    np.testing.assert_allclose(found.log_prob[kept], values[-1, kept], rtol=1e-9, atol=1e-9)
    assert found.leaf_of is not None
    leaves = mpe._likeliest_leaves(circuit, values)
    same = (leaves == found.leaf_of) | table.observed
    assert kept.size == 0 or same[kept].mean() > 0.9


@pytest.mark.parametrize("names", COMBINATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_random_circuits(names: tuple[str, ...], seed: int) -> None:
    circuit = seeded_case(seed, names).circuit
    for missing in (0.0, 0.4, 1.0):
        check(circuit, some_rows(circuit, 40, seed, missing))


@pytest.mark.parametrize("names", COMBINATIONS)
@pytest.mark.parametrize("goes_down", [False, True])
def test_places_are_used_again_only_when_nobody_reads_them(
    names: tuple[str, ...], goes_down: bool
) -> None:
    circuit = seeded_case(1, names).circuit
    made = program.Program.of(circuit)
    above = (made.scopes & np.uint64(goes_down)).any(axis=1)  # those of the first column
    shared, own = Places.shared(made, above), Places.own(made)
    assert shared.width <= own.width
    ops = made.ops.tolist()
    below = [places._blocks_below(made, op) for op in ops]
    last = {block: at for at, blocks in enumerate(below) for block in blocks}
    for at in np.flatnonzero(above):
        last |= dict.fromkeys([int(at), *below[at]], len(ops))
    holds: dict[int, int] = {}  # by number in a row of values: the block
    for at, op in enumerate(ops):
        if places._is_in_table(op):
            continue
        mine = range(shared.place[at], shared.place[at] + op[program.SIZE])
        assert mine.stop <= shared.width
        assert shared.seat[at] < shared.n_seats
        for number in mine:
            before = holds.get(number)
            assert before is None or last.get(before, -1) < at, "a block that is read still"
            holds[number] = at
        for block in below[at]:
            if not places._is_in_table(ops[block]):
                start = shared.place[block]
                assert {holds[n] for n in range(start, start + ops[block][program.SIZE])} == {block}


def test_values_of_a_pass_up_do_not_grow_with_the_branches() -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(1200, 4)), columns=list("abcd"))
    widths = []
    for n_clients in (4, 12):
        model = fc.federate(fc.partition.iid(rows, n_clients), seed=0)._one
        assert isinstance(model, Circuit)
        widths.append(Places.shared(program.Program.of(model)).width)
    assert widths[1] <= widths[0] + 2 * 12


@pytest.mark.parametrize("learner", ["hclt", "mixture", "learnspn"])
@pytest.mark.parametrize("label", [None, "c"])
def test_learned_circuits(learner: str, label: str | None) -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(size=300)
    data = pd.DataFrame(
        {
            "a": np.round(a, 1),
            "b": a + rng.normal(size=300),
            "c": np.where(a + rng.normal(size=300) > 0, "x", "y"),
            "d": rng.poisson(np.exp(0.3 * a)),
            "e": rng.choice(list("pqr"), 300),
        }
    )
    options = {"head": False} if label and learner != "learnspn" else {}
    model = fc.learn(data, None if learner == "learnspn" else label, learner, seed=0, **options)
    assert isinstance(model, Circuit)
    check(model, some_rows(model, 200, 1, 0.3))


def test_events_are_rows_of_the_tables() -> None:
    rng = np.random.default_rng(0)
    data = pd.DataFrame({"a": rng.normal(size=300), "b": rng.choice(list("pqr"), 300)})
    model = fc.learn(data, seed=0)
    given = {"a": fc.between(-1.0, 0.5), "b": fc.one_of(["p", "q"])}
    found = model.probability(given), model.sample(50, given, seed=0)
    with numpy_only():
        expected = model.probability(given), model.sample(50, given, seed=0)
    assert found[0] == pytest.approx(expected[0], rel=1e-12)
    pd.testing.assert_frame_equal(found[1], expected[1])


def wide(n_columns: int, n_parts: int) -> Circuit:
    """A mixture whose parts are far apart: their densities differ by thousands of nats."""
    schema = Schema(tuple(Variable(f"x{j}", "continuous") for j in range(n_columns)))
    assembler = Assembler(schema)
    leaves = [
        assembler.leaves(
            FAMILIES["gaussian"],
            j,
            {"mean": 10.0 * np.arange(n_parts), "sd": np.full(n_parts, 0.5)},
        )
        for j in range(n_columns)
    ]
    parts = assembler.products(np.stack(leaves, axis=1))
    return Circuit.assemble(assembler, assembler.sum(parts, np.log(np.full(n_parts, 1 / n_parts))))


def test_wide_mixture_of_distant_parts() -> None:
    circuit = wide(60, 5)
    check(circuit, some_rows(circuit, 30, 0, 0.1))


@pytest.mark.parametrize("weight", [0.0, 1e-300, 1e-60])
def test_largest_child_without_weight(weight: float) -> None:
    """What counts lies hundreds of nats below a child of weight (nearly) zero."""
    schema = Schema(tuple(Variable(f"x{j}", "continuous") for j in range(40)))
    assembler = Assembler(schema)
    leaves = [
        assembler.leaves(FAMILIES["gaussian"], j, {"mean": np.array([0.0, 9.0]), "sd": np.ones(2)})
        for j in range(40)
    ]
    parts = assembler.products(np.stack(leaves, axis=1))
    with np.errstate(divide="ignore"):
        log_weights = np.log([[weight, 1 - weight], [0.5, 0.5]])
    pair = assembler.sums(np.broadcast_to(parts, (2, 2)), log_weights)
    circuit = Circuit.assemble(assembler, assembler.sum(pair, np.log([1.0 - 1e-12, 1e-12])))
    rng = np.random.default_rng(0)
    values = rng.normal(size=(20, 40))
    check(circuit, Table(schema, values, rng.random(values.shape) > 0.1, pd.RangeIndex(20)))


def test_impossible_rows() -> None:
    schema = Schema(
        (Variable("a", "categorical", ("p", "q", "r")), Variable("b", "binary", (0, 1)))
    )
    assembler = Assembler(schema)
    a = assembler.leaves(
        FAMILIES["categorical"], 0, {"probs": np.array([[1.0, 0, 0], [0, 1.0, 0]])}
    )
    b = assembler.leaves(FAMILIES["categorical"], 1, {"probs": np.array([[1.0, 0], [0, 1.0]])})
    parts = assembler.products(np.stack([a, b], axis=1))
    circuit = Circuit.assemble(assembler, assembler.sum(parts, np.log([0.25, 0.75])))
    values = np.array([[0.0, 0], [0, 1], [1, 1], [2, 0], [1, 0]])
    table = Table(schema, values, np.ones(values.shape, dtype=bool), pd.RangeIndex(5))
    np.testing.assert_allclose(
        np.exp(circuit.log_prob_table(table)), [0.25, 0, 0.75, 0, 0], atol=1e-15
    )


@pytest.mark.parametrize("n_branches", [3, 30])
def test_blocks_of_a_branch_follow_each_other(n_branches: int) -> None:
    numbers = [
        [fc.build.gaussian(name, float(at + k), 1.0) for k in range(3)]
        for at in range(n_branches)
        for name in "ab"
    ]
    sums = [fc.build.sum(leaves, [0.2, 0.3, 0.5]) for leaves in numbers]
    products = [fc.build.product(list(pair)) for pair in zip(sums[::2], sums[1::2], strict=True)]
    schema = Schema((Variable("a", "continuous"), Variable("b", "continuous")))
    circuit = fc.build.circuit(schema, fc.build.sum(products, np.full(n_branches, 1 / n_branches)))
    found = program.Program.of(circuit)
    ops, n_leaf_blocks = found.ops, len(circuit.groups)
    assert int(found.position[circuit.n_nodes - 1]) == circuit.n_nodes - 1  # the root comes last
    for at, op in enumerate(ops):
        if op[0] != program.PRODUCT:
            continue
        below = found.args[op[4] : op[4] + 3 * op[3] : 3]
        inner = below[below >= n_leaf_blocks]
        assert inner.size == 2
        assert (inner < at).all()
        assert (at - inner <= 2).all()  # both sums of the branch, right before it
    assert (ops[:, 0] == program.PRODUCT).sum() == n_branches
