"""Laws of networks on plain tensors, in float64: mass, marginals, flows, monotone EM, samples."""

# ruff: noqa: E402  (torch is an extra: what needs it is imported after the check for it)

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fedcircuits.errors import LearningError, StructureError
from fedcircuits.learners.einet.density import tensor_queries
from fedcircuits.learners.einet.leaves import (
    Bernoulli,
    Binomial,
    Categorical,
    DiscretisedGaussian,
    Gaussian,
)
from fedcircuits.learners.einet.network.layout import lay_out
from fedcircuits.learners.einet.network.network import initial_parameters, make_network
from fedcircuits.learners.einet.passes import downward, forward, m_step
from fedcircuits.learners.einet.structures.hidden_tree import (
    chow_liu_parents,
    hidden_chow_liu_tree,
    hidden_tree,
    mutual_information,
)
from fedcircuits.learners.einet.structures.poon_domingos import poon_domingos
from fedcircuits.learners.einet.structures.random_trees import random_trees
from fedcircuits.learners.einet.structures.regions import Partition, RegionGraph

N_VALUES = 3
N_VARIABLES = 4
WORLDS = torch.tensor(list(itertools.product(range(N_VALUES), repeat=N_VARIABLES)))
FAMILIES = [
    Categorical(N_VALUES),
    Binomial(N_VALUES - 1),
    DiscretisedGaussian(1e-2, 1.0, n_levels=N_VALUES),
]
STRUCTURES = ["pd", "rat", "hclt"]


def graph_of(structure: str) -> RegionGraph:
    rng = np.random.default_rng(3)
    if structure == "pd":
        return poon_domingos(2, 2, 2)
    if structure == "rat":
        return random_trees(N_VARIABLES, 2, 3, rng)
    return hidden_chow_liu_tree(rng.integers(N_VALUES, size=(100, N_VARIABLES)), N_VALUES)


def made(structure: str, layer: str, family: Any, classes: int = 2, width: int = 3) -> Any:
    layout = lay_out(graph_of(structure))
    if layer == "tucker" and not layout.binary:
        pytest.skip("not binary")
    network = make_network(layout, [family] * N_VARIABLES, width, layer, classes)
    generator = torch.Generator().manual_seed(1)
    top = 2 if isinstance(family, Bernoulli) else N_VALUES
    x = torch.randint(top, (80, N_VARIABLES), generator=generator)
    known = torch.rand(x.shape, generator=generator) > 0.2
    return network, initial_parameters(network, x, known, generator, torch.float64), x, known


def reference(network: Any, params: Any, row: Any, known: Any) -> float:
    """log p of one row by plain recursion over regions in linear space."""
    layout, width = network.layout, network.width
    leaf = [np.ones(width) for _ in range(layout.n_leaves)]
    for block, own in zip(network.blocks, params.leaves, strict=True):
        for slot, (variable, region) in enumerate(zip(block.variables, block.regions, strict=True)):
            if known[variable]:
                one = {name: tensor[slot : slot + 1] for name, tensor in own.items()}
                logs = block.family.log_prob(one, row[variable].reshape(1, 1))[0, 0]
                leaf[region] = leaf[region] * np.exp(logs.numpy())

    def sums(children: Any, weights: Any) -> Any:
        total = 0.0
        for kids, w in zip(children, weights.numpy(), strict=True):
            values = [value(int(c)) for c in kids if c < layout.n_regions]
            if network.layer == "cp":
                total = total + w @ np.prod(values, axis=0)
            else:
                total = total + np.einsum("oij,i,j->o", w, *values)
        return total

    def value(region: int) -> Any:
        if region < layout.n_leaves:
            return leaf[region]
        mine = np.flatnonzero(layout.owner == region)
        return sums(layout.children[mine], params.weights[torch.as_tensor(mine)])

    root = sums(layout.root_children, params.root)
    return float(np.log(params.prior.numpy() @ root))


CASES = [(s, layer, f) for s in STRUCTURES for layer in ("cp", "tucker") for f in FAMILIES]


@pytest.mark.parametrize(("structure", "layer", "family"), CASES)
def test_mass_is_one_and_marginals_are_sums(structure: str, layer: str, family: Any) -> None:
    network, params, _, _ = made(structure, layer, family)
    log_p = forward.log_likelihood(network, params, WORLDS)
    assert float(log_p.exp().sum()) == pytest.approx(1.0, abs=1e-12)
    known = torch.tensor([True, False, True, False]).expand(len(WORLDS), -1)
    marginal = forward.log_likelihood(network, params, WORLDS, known).exp()
    summed = log_p.exp().view(3, 3, 3, 3).sum((1, 3))[WORLDS[:, 0], WORLDS[:, 2]]
    torch.testing.assert_close(marginal, summed, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("structure", "layer", "family"), CASES)
def test_the_tensor_pass_equals_the_recursive_reference(
    structure: str, layer: str, family: Any
) -> None:
    network, params, x, known = made(structure, layer, family)
    found = forward.log_likelihood(network, params, x[:10], known[:10])
    for row in range(10):
        assert float(found[row]) == pytest.approx(
            reference(network, params, x[row], known[row]), rel=1e-12
        )


@pytest.mark.parametrize(("structure", "layer", "family"), [*CASES, ("pd", "cp", Bernoulli())])
def test_flows_are_conserved_and_em_never_loses(structure: str, layer: str, family: Any) -> None:
    network, params, x, known = made(structure, layer, family)
    labels = torch.arange(len(x)) % 3 - 1
    history = []
    for _ in range(12):
        counts = downward.expected_counts(network, params, x, known, labels)
        history.append(float(counts.log_likelihood))
        assert float(counts.root.sum()) == pytest.approx(len(x))
        assert float(counts.leaves[0]["n"].sum()) == pytest.approx(float(known.sum()))
        params = m_step.m_step_(network, params, counts, m_step.EMSettings())
    assert min(np.diff(history)) > -1e-9
    assert history[-1] > history[0]


def test_gaussian_em_never_loses_with_bounded_variances() -> None:
    network, params, x, known = made("rat", "tucker", Gaussian(0.05, 0.3))
    history = []
    for _ in range(15):
        counts = downward.expected_counts(network, params, x.double(), known)
        history.append(float(counts.log_likelihood))
        params = m_step.m_step_(network, params, counts, m_step.EMSettings())
    assert min(np.diff(history)) > -1e-9
    assert float(params.leaves[0]["variance"].min()) >= 0.05
    assert float(params.leaves[0]["variance"].max()) <= 0.3


@pytest.mark.parametrize("family", [Categorical(4), DiscretisedGaussian(1e-3, 0.25, n_levels=4)])
def test_nothing_is_nan_with_constant_extreme_and_dead_parts(family: Any) -> None:
    layout = lay_out(poon_domingos(2, 2, 2))
    network = make_network(layout, [family] * 4, 3, "tucker")
    x = torch.tensor([[0, 3, 0, 3]] * 30 + [[0, 0, 3, 3]] * 2)
    known = torch.ones_like(x, dtype=torch.bool)
    params = initial_parameters(network, x, known, torch.Generator().manual_seed(0), torch.float64)
    params.weights[0, 0] = 0.0  # a node without weights: log 0 is legal
    params.weights[:, :, 2] = 0.0  # left states that nothing reaches: no flow
    for _ in range(60):
        counts = downward.expected_counts(network, params, x, known)
        params = m_step.m_step_(network, params, counts, m_step.EMSettings())
        assert torch.isfinite(counts.log_likelihood)
        for tensor in params.tensors().values():
            assert not torch.isnan(tensor).any()


@pytest.mark.parametrize("layer", ["cp", "tucker"])
def test_single_precision_em_keeps_every_row_possible(layer: str) -> None:
    # Few rows, many variables, no smoothing: leaves of a region are far apart for every row, and
    # edges that one batch has no use for underflow while a later step needs them.
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.random((64, 784)), dtype=torch.float32)
    network = make_network(lay_out(random_trees(784, 4, 10, rng)), [Gaussian()] * 784, 10, layer)
    known = torch.ones_like(x, dtype=torch.bool)
    params = initial_parameters(network, x, known, torch.Generator().manual_seed(0))
    history = []
    for _ in range(8):
        counts = downward.expected_counts(network, params, x)
        history.append(float(counts.log_likelihood))
        assert float(counts.n_rows) == pytest.approx(64, rel=1e-3)  # no row's flow is lost
        params = m_step.m_step_(network, params, counts, m_step.EMSettings())
        assert not any(torch.isnan(t).any() for t in params.tensors().values())
    assert min(np.diff(history)) > -1e-4 * abs(history[-1])  # rounding of float32


def test_tucker_flows_are_conserved_in_single_precision_far_from_zero() -> None:
    # Log-values in the thousands have few digits left in float32; flows do not pass through them.
    layout = lay_out(poon_domingos(28, 28, 4))
    network = make_network(layout, [Gaussian(1e-4)] * 784, 4, "tucker")
    generator = torch.Generator().manual_seed(0)
    x = torch.rand((20, 784), generator=generator)
    known = torch.ones_like(x, dtype=torch.bool)
    params = initial_parameters(network, x, known, generator)
    counts = downward.expected_counts(network, params, x)
    leaves = counts.leaves[0]["n"].sum(1)  # every slot sees each row once
    torch.testing.assert_close(leaves, torch.full_like(leaves, 20.0), rtol=1e-5, atol=0)


def test_counts_in_used_memory_are_the_same() -> None:
    network, params, x, known = made("pd", "tucker", Categorical(N_VALUES))
    fresh = downward.expected_counts(network, params, x, known)
    used = downward.expected_counts(network, params, x[:10], known[:10])
    again = downward.expected_counts(network, params, x, known, spare=used)
    assert again.weights.data_ptr() == used.weights.data_ptr()
    assert torch.equal(again.weights, fresh.weights)
    assert torch.equal(again.leaves[0]["counts"], fresh.leaves[0]["counts"])


def test_impossible_rows_have_minus_infinity_and_send_no_flow() -> None:
    network, params, x, _ = made("pd", "cp", Categorical(3), classes=1)
    params.leaves[0]["probs"][:, 2] = 0.0
    params.leaves[0]["probs"] /= params.leaves[0]["probs"].sum(1, keepdim=True)
    bad = torch.full_like(x[:5], 2)
    assert torch.isneginf(forward.log_likelihood(network, params, bad)).all()
    counts = downward.expected_counts(network, params, bad)
    assert float(counts.n_rows) == 0
    assert not torch.isnan(counts.weights).any()
    after = m_step.m_step_(network, params, counts, m_step.EMSettings())
    assert not any(torch.isnan(t).any() for t in after.tensors().values())


@pytest.mark.parametrize("layer", ["cp", "tucker"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_impossible_part_does_not_hide_an_improbable_one(layer: str, dtype: Any) -> None:
    # Two trees over 40 variables: in one the row is impossible, in the other exp(-1105).
    layout = lay_out(random_trees(40, 2, 2, np.random.default_rng(0)))
    network = make_network(layout, [Categorical(4)] * 40, 3, layer)
    x = torch.zeros((5, 40), dtype=torch.long)
    known = torch.ones_like(x, dtype=torch.bool)
    params = initial_parameters(network, x, known, torch.Generator().manual_seed(0), dtype)
    probs = params.leaves[0]["probs"]
    probs[:, 0], probs[:, 1:] = 1e-12, 1 / 3
    first = int(layout.slot_region[np.flatnonzero(layout.slot_variable == 7)[0]])
    mine = np.flatnonzero((layout.slot_variable == 7) & (layout.slot_region == first))
    probs[mine, 0] = 0.0
    assert torch.isfinite(forward.log_likelihood(network, params, x)).all()
    counts = downward.expected_counts(network, params, x)
    assert float(counts.n_rows) == pytest.approx(5)
    assert float(counts.leaves[0]["n"].sum()) == pytest.approx(5 * 40, rel=1e-4)
    assert not torch.isnan(counts.weights).any()


def test_far_pixels_keep_a_finite_exact_mass() -> None:
    family = DiscretisedGaussian(1e-3, 0.25)
    params = {"mean": torch.full((1, 1), 0.05), "variance": torch.full((1, 1), 1e-3)}
    single = family.log_prob(params, torch.arange(256).view(1, -1))
    double = family.log_prob({k: v.double() for k, v in params.items()}, torch.arange(256)[None])
    assert torch.isfinite(single).all()
    assert float(double.exp().sum()) == pytest.approx(1.0, abs=1e-13)
    torch.testing.assert_close(single.double(), double, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("layer", ["cp", "tucker"])
def test_conditional_samples_follow_enumeration(structure: str, layer: str) -> None:
    network, params, _, _ = made(structure, layer, Categorical(N_VALUES))
    log_p = forward.log_likelihood(network, params, WORLDS).exp().view(3, 3, 3, 3)
    n = 20_000
    x = torch.tensor([[1, 0, 0, 0]]).expand(n, -1)
    known = torch.tensor([[True, False, False, False]]).expand(n, -1)
    drawn, _ = tensor_queries.sample(
        network, params, x, known, None, torch.Generator().manual_seed(4)
    )
    assert bool((drawn[:, 0] == 1).all())
    code = (drawn[:, 1] * 9 + drawn[:, 2] * 3 + drawn[:, 3]).long()
    found = torch.bincount(code, minlength=27).double() / n
    expected = (log_p[1] / log_p[1].sum()).reshape(-1)
    spread = torch.sqrt(expected * (1 - expected) / n)
    assert float(((found - expected).abs() / spread).max()) < 4.6  # once in about 10,000 seeds


def test_decoding_keeps_evidence_and_is_a_lower_bound() -> None:
    network, params, _, _ = made("rat", "tucker", Categorical(N_VALUES))
    log_p = forward.log_likelihood(network, params, WORLDS)
    known = torch.zeros((1, N_VARIABLES), dtype=torch.bool)
    best, _ = tensor_queries.decode(network, params, WORLDS[:1], known, None)
    value = forward.log_likelihood(network, params, best)
    assert float(value) <= float(log_p.max()) + 1e-12
    assert float(value) > float(log_p.median())


def test_structures_are_what_they_say() -> None:
    graph = poon_domingos(32, 32, 8, 3)
    assert (len(graph.scopes), len(graph.partitions)) == (1296, 6048)
    uneven = poon_domingos(28, 28, 8)
    assert {len(uneven.scopes[r]) for r in uneven.leaf_regions} == {9, 12, 16}
    trees = random_trees(784, 4, 10, np.random.default_rng(0))
    assert len(trees.partitions) == 150
    assert "poon-domingos" in graph.summary()
    single = lay_out(random_trees(1, 3, 2, np.random.default_rng(0)))
    network = make_network(single, [Categorical(2)], 1)
    params = initial_parameters(
        network, torch.tensor([[0], [1]]), torch.ones(2, 1, dtype=torch.bool), torch.Generator(),
        torch.float64,
    )  # fmt: skip
    total = forward.log_likelihood(network, params, torch.tensor([[0], [1]])).exp().sum()
    assert float(total) == pytest.approx(1.0)


def test_the_chow_liu_tree_finds_a_chain() -> None:
    rng = np.random.default_rng(0)
    x = np.zeros((4000, 5), dtype=np.int64)
    x[:, 0] = rng.integers(2, size=4000)
    for at in range(1, 5):
        x[:, at] = np.where(rng.random(4000) < 0.9, x[:, at - 1], 1 - x[:, at - 1])
    parents = chow_liu_parents(mutual_information(x, 2))
    edges = {frozenset((at, int(p))) for at, p in enumerate(parents) if p >= 0}
    assert edges == {frozenset((at, at + 1)) for at in range(4)}
    assert int(np.flatnonzero(parents < 0)[0]) == 2  # rooted in the middle


def test_bad_structures_are_refused_by_name() -> None:
    with pytest.raises(StructureError, match="children overlap"):
        RegionGraph(2, ((0, 1), (0,), (0, 1)), (Partition(0, (1, 2)),), 0)
    with pytest.raises(LearningError, match="9 pieces along the rows of 8 pixels"):
        poon_domingos(8, 8, 9)
    with pytest.raises(StructureError, match="one root"):
        hidden_tree(np.array([-1, -1]))
    layout = lay_out(hidden_tree(np.array([-1, 0, 0])))
    with pytest.raises(LearningError, match="exactly two regions"):
        make_network(layout, [Categorical(2)] * 3, 2, "tucker")
    with pytest.raises(LearningError, match="width 0"):
        make_network(layout, [Categorical(2)] * 3, 0)
