"""Parameters kept in one place and asked in another; rows in batches; sums in a fixed order."""

# ruff: noqa: E402  (torch is an extra: what needs it is imported after the check for it)

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fedcircuits.learners.einet import answering_on
from fedcircuits.learners.einet.leaves import Gaussian
from fedcircuits.learners.einet.network.answering_device import placed
from fedcircuits.learners.einet.network.layout import lay_out
from fedcircuits.learners.einet.network.network import (
    initial_parameters,
    make_network,
    normalise_,
    sum_partitions,
)
from fedcircuits.learners.einet.structures.poon_domingos import poon_domingos
from fedcircuits.learners.einet.training.rows import Rows
from fedcircuits.learners.einet.training.train import evaluate

NETWORK = make_network(lay_out(poon_domingos(3, 3, 3)), [Gaussian()] * 9, 4)
X = np.random.default_rng(0).normal(size=(11, 9)).astype(np.float32)


def parameters() -> object:
    x = torch.as_tensor(X)
    known = torch.ones_like(x, dtype=torch.bool)
    return initial_parameters(NETWORK, x, known, torch.Generator().manual_seed(0))


def test_parameters_stay_where_they_are_without_a_wish() -> None:
    params = parameters()
    assert placed(params) is params


def test_a_wish_moves_a_copy_and_ends_with_its_block() -> None:
    params = parameters()
    with answering_on("meta"):  # a device that holds shapes only
        assert placed(params).device.type == "meta"
        with answering_on("cpu"):
            assert placed(params).device.type == "cpu"
        assert placed(params).device.type == "meta"
    assert params.device.type == "cpu"
    assert placed(params) is params


def test_a_wish_ends_with_an_error_too() -> None:
    with pytest.raises(KeyError), answering_on("meta"):
        raise KeyError
    assert placed(parameters()).device.type == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_device_answers_alike_and_keeps_nothing() -> None:
    params = parameters()
    here = evaluate(NETWORK, params, Rows(X))
    before = torch.cuda.memory_allocated()
    with answering_on("cuda"):
        there = evaluate(NETWORK, params, Rows(X))
    np.testing.assert_allclose(there, here, rtol=1e-5)
    sizes = [tensor.numel() * 4 for tensor in params.tensors().values()]
    assert torch.cuda.memory_allocated() - before < sum(sizes)


def test_batches_are_sorted_disjoint_and_whole() -> None:
    found = list(Rows(X).batches(3, (1, 2)))
    assert [len(rows) for rows in found] == [3, 3, 3]
    assert all((np.diff(rows) > 0).all() for rows in found)
    together = np.concatenate(found)
    assert len(set(together.tolist())) == 9
    again = list(Rows(X).batches(3, (1, 2)))
    assert all((a == b).all() for a, b in zip(found, again, strict=True))
    parts = Rows(X).epoch(3, (1, 2), torch.device("cpu"))
    for rows, part in zip(found, parts, strict=True):
        np.testing.assert_array_equal(part.x.numpy(), X[rows])


def test_partitions_are_summed_by_their_regions() -> None:
    layout = NETWORK.layout
    each = torch.rand((layout.n_partitions, 4), generator=torch.Generator().manual_seed(1))
    want = torch.zeros((layout.n_regions - layout.n_leaves, 4))
    for partition, owner in enumerate(layout.owner):
        want[int(owner) - layout.n_leaves] += each[partition]
    torch.testing.assert_close(sum_partitions(layout, each), want)
    assert len(want) < layout.n_partitions  # some regions have several


def test_normalised_weights_add_up_to_one() -> None:
    params = parameters()
    params.weights.mul_(3.0)
    normalise_(NETWORK, params.weights, params.root)
    totals = sum_partitions(NETWORK.layout, params.weights.flatten(2).sum(2))
    torch.testing.assert_close(totals, torch.ones_like(totals))
