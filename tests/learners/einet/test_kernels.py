"""Triton kernels against their PyTorch twins: on a GPU, or interpreted (TRITON_INTERPRET=1)."""

# ruff: noqa: E402  (torch is an extra: what needs it is imported after the check for it)

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (INTERPRETED or torch.cuda.is_available()):
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)

from fedcircuits.learners.einet.kernels.fused_step import Engine
from fedcircuits.learners.einet.kernels.launch_plan import Tuning
from fedcircuits.learners.einet.leaves import (
    Bernoulli,
    Categorical,
    DiscretisedGaussian,
    Gaussian,
)
from fedcircuits.learners.einet.network.layout import lay_out
from fedcircuits.learners.einet.network.network import initial_parameters, make_network
from fedcircuits.learners.einet.passes import downward, forward, m_step
from fedcircuits.learners.einet.structures.hidden_tree import hidden_chow_liu_tree, hidden_tree
from fedcircuits.learners.einet.structures.poon_domingos import poon_domingos

# The interpreter computes with NumPy, which warns of log 0; on the device that is -inf.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
BATCH, N_VARIABLES = 20, 9
DISCRETISED = DiscretisedGaussian(n_levels=5)
DEVICE = "cpu" if INTERPRETED else "cuda"
TUNINGS = [
    # Tiles smaller than the batch, so that every loop runs more than once.
    Tuning(rows=16, wide=32, update_rows=16, leaf=(16, 32, 4)),
    # The batch in one tile, partitions not shared out.
    Tuning(rows=32, fill=0),
]


@pytest.mark.parametrize(("by_mass", "masked"), [(False, True), (True, False)])
@pytest.mark.parametrize(
    "family", [Categorical(5, 0.3, 0.7), Gaussian(1e-2, 9.0), Bernoulli(), DISCRETISED]
)
@pytest.mark.parametrize("case", ["pd-cp", "pd-tucker", "hclt-cp", "path-cp"])
@pytest.mark.parametrize("tuning", TUNINGS)
def test_one_step_equals_the_twins(
    tuning: Tuning, case: str, family: Any, by_mass: bool, masked: bool
) -> None:
    rng = np.random.default_rng(0)
    structure, layer = case.split("-")
    if structure == "pd":
        graph = poon_domingos(3, 3, 3)
    elif structure == "path":  # so narrow that whole subtrees are walked by one program
        graph = hidden_tree(np.array([1, 2, 3, 4, -1, 4, 5, 6, 7]))
    else:
        graph = hidden_chow_liu_tree(rng.integers(3, size=(200, N_VARIABLES)), 3)
    width = 6 if layer == "tucker" else 20
    network = make_network(lay_out(graph), [family] * N_VARIABLES, width, layer, 2)
    top = 2 if isinstance(family, Bernoulli) else 5
    x = torch.as_tensor(rng.integers(top, size=(BATCH, N_VARIABLES)), device=DEVICE)
    known = torch.as_tensor(rng.random(x.shape) < 0.8, device=DEVICE) if masked else None
    labels = torch.as_tensor(rng.integers(-1, 2, size=BATCH), device=DEVICE)
    everything = torch.ones_like(x, dtype=torch.bool) if known is None else known
    generator = torch.Generator().manual_seed(1)
    start = initial_parameters(network, x, everything, generator, torch.float64)
    settings = m_step.EMSettings(1.0 if by_mass else 0.7, 0.3, by_mass, 0.5)
    mine = start.to(dtype=torch.float32).clone()
    engine = Engine(network, mine, BATCH, "float32", tuning=tuning)
    if structure == "path":
        assert engine._layers._upper == 2
    engine.step_size.fill_(settings.step)
    found = engine.step(x, known, labels, settings)
    want = forward.log_likelihood(network, start, x, known, labels)
    torch.testing.assert_close(found.double(), want, rtol=1e-5, atol=1e-5)
    counts = downward.expected_counts(network, start, x, known, labels)
    masses = m_step.Masses.zeros(network, start)
    expected = m_step.m_step_(network, start.clone(), counts, settings, masses)
    for name, tensor in expected.tensors().items():
        torch.testing.assert_close(mine.tensors()[name].double(), tensor, rtol=1e-3, atol=1e-5)
