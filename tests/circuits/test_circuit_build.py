"""Building: every violation at once, by name; and what is built cannot be changed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedcircuits import Circuit, Schema, Variable, build
from fedcircuits.circuits.nodes import Leaf
from fedcircuits.errors import FedcircuitsError, StructureError
from fedcircuits.schema import Grid
from oracles.random_circuits import GRID, seeded_case

X = Variable("x", "continuous")
Y = Variable("y", "continuous")
FLAG = Variable("flag", "binary", (0, 1))
COLOUR = Variable("colour", "categorical", ("red", "green", "blue"))
SCHEMA = Schema((X, Y, FLAG, COLOUR))


def violations(schema: Schema, root: build.Node) -> tuple[str, ...]:
    with pytest.raises(StructureError, match="not a valid circuit") as caught:
        build.circuit(schema, root)
    return caught.value.violations


def one_of(found: tuple[str, ...], *words: str) -> str:
    """The only violation that has all the words."""
    hits = [f for f in found if all(word in f for word in words)]
    assert len(hits) == 1, (words, found)
    return hits[0]


def test_every_violation_is_listed_at_once() -> None:
    """Five faults of structure and three of leaves, planted in one circuit."""
    overlap = build.product([build.gaussian("x", 0, 1), build.gaussian("x", 2, 1)])
    rough = build.sum(
        [build.bernoulli("flag", 0.3), build.categorical("colour", [0.2, 0.3, 0.5])], [0.4, 0.6]
    )
    heavy = build.sum([build.gaussian("y", 1, 2), build.gaussian("y", 0, -3)], [0.5, 0.9])
    short = build.categorical("colour", [0.5, 0.5])
    loose = build.bernoulli("flag", 0.25)
    unfit = build.poisson("x", 2.0)
    faulty = build.product([overlap, rough, heavy, short, loose, unfit])
    found = violations(Schema((*SCHEMA, Variable("z", "continuous"))), faulty)
    one_of(found, "product", "not decomposable", "share 'x', 'flag', 'colour'")
    assert sum("not decomposable" in f for f in found) == 2
    smooth = [f for f in found if "not smooth" in f]
    assert len(smooth) == 2
    assert any("lacks 'colour'" in f for f in smooth)
    assert any("lacks 'flag'" in f for f in smooth)
    one_of(found, "weights that add up to 1.4, not 1")
    one_of(found, "does not cover 'z'")
    one_of(found, "gaussian leaf over 'y'", "sd must be positive, found -3")
    one_of(found, "categorical leaf over 'colour'", "3 numbers a leaf")
    one_of(found, "poisson leaf over 'x'", "does not fit a continuous variable")


def test_unknown_names_do_not_hide_the_other_faults() -> None:
    root = build.sum(
        [
            build.product([build.gaussian("heigth", 0, 1), build.gaussian("y", 0, 1)]),
            build.product([build.categorical("flagg", [0.1, 0.9]), build.gaussian("y", 0, 1)]),
            build.product([Leaf("x", "gausian", {}), Leaf("y", "gaussian", {"mean": 1.0})]),
        ],
        [0.3, 0.3, 0.3],
    )
    found = violations(Schema((X, Y)), root)
    one_of(found, "unknown variable 'heigth'", "the schema has 'x', 'y'")
    one_of(found, "unknown variable 'flagg'")
    one_of(found, "leaf over 'x'", "no leaf family 'gausian'")
    one_of(found, "gaussian leaf over 'y' lacks sd")
    one_of(found, "weights that add up to 0.9, not 1")
    assert sum("not smooth" in f for f in found) == 3


@pytest.mark.parametrize(
    ("root", "words"),
    [
        (build.sum([], []), "a sum has no child"),
        (build.product([]), "a product has no child"),
        (build.sum([build.gaussian("x", 0, 1)], [0.5, 0.5]), "1 children and 2 weights"),
        (build.sum([build.gaussian("x", 0, 1)] * 2, [1.5, -0.5]), "not negative"),
        (build.sum([build.gaussian("x", 0, 1)] * 2, [float("nan"), 1]), "finite"),
        (build.sum([build.gaussian("x", 0, 1)] * 2, [0, 0]), "add up to 0, not 1"),
        (build.gaussian("x", float("inf"), 1), "mean must be finite"),
        (build.gaussian("x", "tall", 1), "parameters that are no numbers"),  # type: ignore[arg-type]
        (build.gaussian("x", [1.0, 2.0], 1), "one number a leaf"),  # type: ignore[arg-type]
        (build.uniform("x", 3.0, 3.0), "low must be below high"),
        (build.truncated_gaussian("x", 0, 1, 2.0, -2.0), "low must be below high"),
        (Leaf("x", "histogram", {"masses": np.ones(1)}), "needs a grid"),
        (build.histogram("x", GRID, [0.5, 0.5]), "7 numbers a leaf"),
        (build.histogram("x", GRID, [0.2] * 7), "must sum to one, found 1.4"),
    ],
)
def test_one_fault_is_told_in_words(root: build.Node, words: str) -> None:
    with pytest.raises(StructureError, match=words):
        build.circuit(Schema((X,)), root)


def test_leaves_must_share_one_base_measure() -> None:
    """A Gaussian beside a histogram with atoms would add a density to a point mass."""
    other = Grid(np.array([0.0]), np.array([-1.0, 1.0]), tails=(0.0, 0.0))
    mixed = build.sum(
        [build.histogram("x", other, [0.5, 0.5]), build.gaussian("x", 0, 1)], [0.5, 0.5]
    )
    with pytest.raises(StructureError, match=r"leaves over 'x' have different atoms"):
        build.circuit(Schema((X,)), mixed)
    bare = Grid(np.zeros(0), np.array([-1.0, 1.0]), tails=(0.0, 0.0))
    fine = build.sum([build.histogram("x", bare, [1.0]), build.gaussian("x", 0, 1)], [0.5, 0.5])
    assert build.circuit(Schema((X,)), fine).expectation("x") == pytest.approx(0.0)


def test_a_structure_error_is_a_value_error_of_the_package() -> None:
    root = build.gaussian("x", 0, 0)
    with pytest.raises(FedcircuitsError, match="sd must be positive"):
        build.circuit(Schema((X,)), root)
    with pytest.raises(ValueError, match="sd must be positive"):
        build.circuit(Schema((X,)), root)


def test_more_than_twenty_faults_are_counted() -> None:
    leaves = [build.gaussian("x", 0, -1 - i) for i in range(3)]
    sums = [build.sum(leaves, [0.2, 0.2, 0.2 + i / 100]) for i in range(30)]
    root = build.sum(sums, [1 / 30] * 30)
    with pytest.raises(StructureError, match=r"(?s)31 fault.*and 11 more") as caught:
        build.circuit(Schema((X,)), root)
    assert len(caught.value.violations) == 31


def test_a_shared_node_is_stored_once() -> None:
    shared = build.gaussian("x", 0, 1)
    root = build.sum(
        [build.product([shared, build.bernoulli("flag", p)]) for p in (0.2, 0.6, 0.9)],
        [0.2, 0.3, 0.5],
    )
    circuit = build.circuit(Schema((X, FLAG)), root)
    assert circuit.n_nodes == 1 + 3 + 3 + 1
    assert circuit.n_edges == 9
    assert circuit.n_parameters == 2 + 3 + 2
    assert repr(circuit).startswith("Circuit(2 variables, 8 nodes: 1 sums, 3 products, 4 leaves")


def test_rounding_of_weights_is_mended_and_nothing_more() -> None:
    leaves = [build.gaussian("x", float(m), 1) for m in range(3)]
    third = build.circuit(Schema((X,)), build.sum(leaves, [0.3333333, 0.3333333, 0.3333334]))
    assert np.exp(third.structure.log_weight).sum() == pytest.approx(1.0, abs=1e-15)
    off = build.sum(leaves, [0.333, 0.333, 0.333])
    with pytest.raises(StructureError, match=r"add up to 0.999, not 1"):
        build.circuit(Schema((X,)), off)


def test_a_circuit_is_frozen() -> None:
    circuit = seeded_case(2, ("hist", "colour", "flag"), 3).circuit
    for group in circuit.groups:
        for name in group.family.parameters:
            with pytest.raises(ValueError, match="read-only"):
                group.params[name][0] = 0.5
    for name in ("is_sum", "first_edge", "child", "log_weight"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(circuit.structure, name)[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError, match="schema"):
        circuit.schema = SCHEMA  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError, match="child"):
        circuit.structure.child = np.zeros(3)  # type: ignore[misc]


def test_what_the_user_passed_in_stays_the_user_s() -> None:
    """Changing the user's array afterwards changes no answer, and the array stays writable."""
    probs = np.array([0.2, 0.3, 0.5])
    circuit: Circuit = build.circuit(Schema((COLOUR,)), build.categorical("colour", probs))
    probs[:] = [1.0, 0.0, 0.0]
    found = circuit.predict_proba({"colour": [None]}, "colour")
    assert found.iloc[0].tolist() == pytest.approx([0.2, 0.3, 0.5])


def test_nodes_that_the_root_does_not_reach_are_dropped() -> None:
    used, unused = build.gaussian("x", 1, 1), build.gaussian("x", 2, 1)
    build.sum([used, unused], [0.5, 0.5])
    assert build.circuit(Schema((X,)), used).n_nodes == 1
