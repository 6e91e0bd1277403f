"""Decodings where a circuit is not deterministic, and samples that know nothing of chunks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedcircuits as fc
from fedcircuits import build as b
from fedcircuits.circuits import Circuit, Composite, over_parts, passes
from fedcircuits.circuits.composite import compose
from fedcircuits.circuits.queries import mpe
from fedcircuits.circuits.structure_builder import StructureBuilder
from oracles.random_circuits import Case, cases

SCHEMA = fc.Schema(tuple(fc.Variable(name, "binary", (0, 1)) for name in "abc"))


def agreeing(shares: list[float], probabilities: list[float]) -> Circuit:
    """A mixture of products of three equal coins."""
    products = [b.product([b.bernoulli(name, p) for name in "abc"]) for p in probabilities]
    return b.circuit(SCHEMA, b.sum(products, shares))


# The likeliest branch is undecided; the likeliest tree is certain.
ONE_IS_SURE = agreeing([0.6, 0.4], [0.5, 1.0])


@given(cases(), st.integers(0, 2**32))
def test_a_completion_is_no_worse_than_either_decoding(case: Case, seed: int) -> None:
    rng = np.random.default_rng(seed)
    frame = case.worlds.frame.iloc[rng.integers(0, len(case.worlds.frame), 12)].astype(object)
    frame = frame.mask(rng.random(frame.shape) < 0.5, None)
    table = case.circuit.schema.encode(frame)
    table = table.rows(case.circuit.log_prob_table(table) > -np.inf)

    def value(completed: np.ndarray) -> np.ndarray:
        np.testing.assert_array_equal(completed[table.observed], table.values[table.observed])
        known = np.ones(completed.shape, dtype=bool)
        return case.circuit.log_prob_table(
            fc.schema.Table(table.schema, completed, known, table.index)
        )

    found = value(case.circuit.mpe_table(table))
    one = value(mpe.max_product_decoding(case.circuit, table))
    two = value(mpe.posterior_decoding(case.circuit, table))
    assert (one > -np.inf).all()
    if case.circuit.mpe_is_exact:
        np.testing.assert_array_equal(found, one)
        assert (found >= two - 1e-9).all()
    else:
        np.testing.assert_array_equal(found, np.maximum(one, two))


def test_a_branch_in_the_minority_can_hold_the_likeliest_tree() -> None:
    assert ONE_IS_SURE.mpe().iloc[0].tolist() == [1, 1, 1]
    table = fc.schema.Table.empty(SCHEMA, 1)
    alone = mpe.posterior_decoding(ONE_IS_SURE, table)[0]
    assert alone.tolist() != [1.0, 1.0, 1.0]


def test_the_likeliest_branch_can_beat_the_likeliest_tree() -> None:
    # Four trees of 0.19 agree on 5, against one of 0.24 at 0.
    schema = fc.Schema((fc.Variable("x", "continuous"),))
    table = fc.schema.Table.empty(schema, 1)
    nested = b.circuit(
        schema,
        b.sum(
            [
                b.gaussian("x", 0.0, 1.0),
                b.sum([b.gaussian("x", 5.0, 1.1) for _ in range(4)], [0.25] * 4),
            ],
            [0.24, 0.76],
        ),
    )
    assert mpe.max_product_decoding(nested, table)[0, 0] == 0.0
    assert nested.mpe()["x"].iloc[0] == 5.0


def test_a_composite_takes_the_better_decoding() -> None:
    schema = fc.Schema((fc.Variable("x", "continuous"),))
    parts = [b.circuit(schema, b.gaussian("x", 0.0, 1.0))]
    parts += [b.circuit(schema, b.gaussian("x", 5.0, 1.1)) for _ in range(4)]
    graph = StructureBuilder()
    graph.number(5)
    inner = graph.sum([1, 2, 3, 4], np.log([0.25] * 4))
    made = compose(schema, list(parts), graph, graph.sum([0, inner], np.log([0.24, 0.76])))
    assert isinstance(made, Composite)
    assert made.mpe()["x"].iloc[0] == 5.0


def latent(seed: int = 0) -> Circuit:
    """A random circuit with nested sums over several variables, one of them shared."""
    rng = np.random.default_rng(seed)
    schema = fc.Schema(
        (
            fc.Variable("c", "categorical", ("p", "q", "r")),
            fc.Variable("x", "continuous"),
            fc.Variable("k", "count"),
        )
    )

    def mixture(names: list[str]) -> object:
        children = []
        for _ in range(3):
            if len(names) > 1:
                children.append(b.product([mixture(names[:1]), mixture(names[1:])]))
            elif names == ["c"]:
                children.append(b.categorical("c", rng.dirichlet(np.ones(3))))
            elif names == ["x"]:
                children.append(b.gaussian("x", rng.normal(0, 3), 0.5))
            else:
                children.append(b.poisson("k", rng.uniform(1, 9)))
        return b.sum(children, rng.dirichlet(np.ones(3)))

    return b.circuit(schema, mixture(["c", "x", "k"]))


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_a_sample_does_not_depend_on_the_size_of_a_chunk(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    circuit = latent()
    parts = [circuit, latent(1)]
    graph = StructureBuilder()
    graph.number(2)
    both = compose(circuit.schema, list(parts), graph, graph.sum([0, 1], np.log([0.5, 0.5])))
    evidence = circuit.sample(150, seed=1).astype(object)
    evidence = evidence.mask(np.random.default_rng(2).random(evidence.shape) < 0.6)
    whole = [m.sample(given=evidence, seed=3) for m in (circuit, both)]
    monkeypatch.setattr(passes, "chunk_rows", lambda _: rows)
    monkeypatch.setattr(over_parts, "ROWS_PER_CHUNK", rows)
    for model, expected in zip((circuit, both), whole, strict=True):
        pd.testing.assert_frame_equal(model.sample(given=evidence, seed=3), expected)


@given(cases())
def test_no_two_sums_of_a_tree_share_a_random_number(case: Case) -> None:
    circuit, slots = case.circuit, case.circuit.choice_slots
    structure = circuit.structure
    # The sums that can be in a tree with each other: walk down with sets of slots.
    used: list[set[int]] = [set() for _ in range(circuit.n_nodes)]
    for inner in range(structure.n_inner):
        node = structure.n_leaves + inner
        children = structure.child[structure.first_edge[inner] : structure.first_edge[inner + 1]]
        below = [used[c] for c in children]
        if structure.is_sum[inner]:
            assert all(slots[node] not in one for one in below)
            used[node] = set.union({int(slots[node])}, *below)
        else:
            assert sum(map(len, below)) == len(set.union(*below))
            used[node] = set.union(*below)
