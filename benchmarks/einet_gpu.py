"""One EM step of large EiNets on one CUDA GPU, beside the peers' figures and the floor.

    python benchmarks/einet_gpu.py [folder with mnist.npz] [numbers of settings, as 3,6]

Prints, in this order: the copy rate of the device, parity of every kernel with its PyTorch twin in
float64, the likelihood each precision costs, and the table of step times. A step is forward, flows
and parameter update on one batch, replayed as a CUDA graph; the median of 8 after 3. Peers'
figures were measured earlier on the same kind of GPU. The floor is three passes over the float32
parameters at the measured copy rate, or the multiply-adds of three passes at the tensor cores'
nominal dense rate, whichever is larger.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedcircuits.learners.einet import em, flows, forward
from fedcircuits.learners.einet.chow_liu import hidden_chow_liu_tree
from fedcircuits.learners.einet.graph import Captured
from fedcircuits.learners.einet.kernels.engine import Engine
from fedcircuits.learners.einet.layout import Layout, lay_out
from fedcircuits.learners.einet.leaves import Categorical, Family, Gaussian
from fedcircuits.learners.einet.network import Network, Parameters, initial_parameters, make_network
from fedcircuits.learners.einet.poon_domingos import poon_domingos
from fedcircuits.learners.einet.random_trees import random_trees

DEVICE = torch.device("cuda")
TENSOR_RATE = {"tf32": 495e12, "bf16": 989e12}
PIXEL = Gaussian(scale=1 / 255)


@dataclass(frozen=True)
class Setting:
    """One line of the table; peer times in ms, peer memory in GiB, `wanted` in ms."""

    name: str
    layer: str
    width: int
    batch: int
    family: Family
    peer: str
    peer_ms: float
    peer_gib: float
    wanted: float | None = None
    hclt: bool = False


SETTINGS = [
    Setting("PD-8 32x32x3", "tucker", 40, 64, PIXEL, "EinsumNetworks", 75.3, 6.0, 6.2),
    Setting("PD-8 32x32x3", "tucker", 40, 256, PIXEL, "EinsumNetworks", 251.5, 14.7, 12.5),
    Setting("PD-8 32x32x3", "tucker", 10, 64, PIXEL, "EinsumNetworks", 45.5, 0.41),
    Setting("PD-8 32x32x3", "cp", 64, 256, PIXEL, "PyJuice", 10.4, 1.28, 2.6),
    Setting("PD-8 32x32x3", "cp", 40, 64, Categorical(256), "PyJuice", 4.87, 0.56),
    Setting("PD-8 32x32x3", "cp", 256, 64, Categorical(256), "PyJuice", 40.8, 5.6, 8.0),
    Setting("HCLT 28x28", "cp", 128, 512, Categorical(256), "PyJuice", 5.17, 0.99, 2.6, True),
]


def colour_images(n: int, rng: np.random.Generator) -> np.ndarray:
    """Blocky random photographs, (n, 3072) uint8: never zeros, never pure noise."""
    base = rng.integers(0, 256, size=(64, 8, 8, 3)).repeat(4, 1).repeat(4, 2)
    noisy = base[rng.integers(64, size=n)] + rng.integers(-40, 40, size=(n, 32, 32, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8).reshape(n, -1)


def median_ms(function, repeats: int = 8, warm: int = 3) -> float:
    for _ in range(warm):
        function()
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop))
    return float(np.median(times))


def copy_rate() -> float:
    """Bytes per second read plus written by a large copy on the device."""
    source = torch.rand(2**28, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / (median_ms(lambda: target.copy_(source)) * 1e-3)


def started(network: Network, images: np.ndarray, dtype: torch.dtype = torch.float32) -> Parameters:
    x = torch.as_tensor(images[:1024], device=DEVICE)
    known = torch.ones_like(x, dtype=torch.bool)
    return initial_parameters(network, x, known, torch.Generator().manual_seed(0), dtype)


def parity(images: np.ndarray) -> bool:
    """Every kernel against its twin in float64, masked and not, on fresh random parameters."""
    rng = np.random.default_rng(1)
    small = images[:96].reshape(96, 32, 32, 3)[:, :8, :8].reshape(96, -1)
    square = lay_out(poon_domingos(8, 8, 4, 3))
    trees = lay_out(random_trees(small.shape[1], 3, 2, rng))
    hidden = lay_out(hidden_chow_liu_tree(small, 8, device="cuda"))
    limits = {"float32": 2e-4, "tf32": 3e-3, "bf16": 2e-2}
    fine = True
    cases: list[tuple[Layout, str, int, Family]] = [
        (square, "cp", 40, PIXEL), (square, "cp", 100, Categorical(256, 1.0, 2.0)),
        (square, "tucker", 24, PIXEL), (trees, "tucker", 10, Categorical(256, 1.0)),
        (hidden, "cp", 64, Categorical(256, 1.0)), (hidden, "cp", 1, PIXEL),
    ]  # fmt: skip
    for layout, layer, width, family in cases:
        network = make_network(layout, [family] * layout.n_variables, width, layer)
        x = torch.as_tensor(small, device=DEVICE)
        params = started(network, small, torch.float64)
        settings = em.EMSettings(1.0, 0.1, by_mass=True, share=0.5)
        for masked in (False, True):
            known = torch.as_tensor(rng.random(small.shape) < 0.8, device=DEVICE)
            known = known if masked else None
            expected = params.clone()
            counts = flows.expected_counts(network, expected, x, known)
            masses = em.Masses.zeros(network, expected)
            expected = em.m_step_(network, expected, counts, settings, masses)
            want = forward.log_likelihood(network, params, x, known)
            for precision, limit in limits.items():
                mine = params.to(dtype=torch.float32).clone()
                engine = Engine(network, mine, 96, precision, masked)
                found = engine.step(x, known, None, settings)
                worst = max(
                    float((a - mine.tensors()[n]).norm() / a.norm())
                    for n, a in expected.tensors().items()
                )
                off = float((found - want).abs().max()) / layout.n_variables
                good = worst < limit and bool(torch.isfinite(found).all())
                fine &= good
                print(f"  {'ok ' if good else 'BAD'} {layout.kind:13s} {layer:6s} K={width:<3d} "
                      f"{family.name:11s} mask={masked!s:5s} {precision:7s} parameters off by "
                      f"{worst:.1e}, log-likelihood by {off:.1e} nats/dim")  # fmt: skip
    return fine


def measure(setting: Setting, layout: Layout, images: np.ndarray, rate: float) -> list[str]:
    network = make_network(layout, [setting.family] * layout.n_variables, setting.width,
                           setting.layer)  # fmt: skip
    x = torch.as_tensor(images[: setting.batch], device=DEVICE)
    settings = em.EMSettings(0.05, 1e-3)
    lines = []
    start = started(network, images).to("cpu")  # so that only one copy counts as memory
    for precision in ("tf32", "bf16"):
        gc.collect()
        torch.cuda.empty_cache()
        params = start.to(DEVICE)
        torch.cuda.reset_peak_memory_stats()
        engine = Engine(network, params, setting.batch, precision)
        engine.step_size.fill_(0.05)
        step = Captured(lambda x, e=engine: e.step(x, None, None, settings), (x,))
        time = median_ms(lambda s=step: s(x))
        peak = torch.cuda.max_memory_allocated() / 2**30
        up = Captured(lambda x, e=engine: e.forward(x), (x,))
        ahead = median_ms(lambda u=up: u(x))
        healthy = bool(torch.isfinite(up(x)).all())
        # What the precision costs after these steps, against float32 products.
        exact = Engine(network, params, setting.batch, "float32", training=False)
        away = (up(x) - exact.forward(x)).abs().mean().item() / layout.n_variables
        total = sum(t.numel() for t in params.tensors().values())
        by_bytes = 3 * 4 * total / rate * 1e3
        by_work = 3 * 2 * network.n_weights * setting.batch / TENSOR_RATE[precision] * 1e3
        floor = max(by_bytes, by_work)
        verdict = "" if setting.wanted is None else (
            f" wanted {setting.wanted}: {'yes' if time <= setting.wanted else 'NO'}")  # fmt: skip
        lines.append(
            f"{setting.name:13s} {setting.layer:6s} K={setting.width:<4d} b={setting.batch:<4d} "
            f"{setting.family.name:11s} {total / 1e6:6.0f}M {precision:5s} step {time:6.2f} ms "
            f"forward {ahead:5.2f} | floor {floor:5.2f} ({time / floor:4.1f}x) | {setting.peer} "
            f"{setting.peer_ms} ms: {setting.peer_ms / time:5.1f}x{verdict} | "
            f"memory {peak:.2f} GiB "
            f"(peer {setting.peer_gib}) | off {away:.1e} nats/dim "
            + ("" if healthy else "NOT FINITE")
        )
        print("  " + lines[-1], flush=True)
        del step, up, engine, exact, params
    return lines


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    rng = np.random.default_rng(0)
    images = colour_images(1024, rng)
    rate = copy_rate()
    print(f"{torch.cuda.get_device_name()}: copy {rate / 1e12:.2f} TB/s, torch {torch.__version__}")
    wanted = sys.argv[2].split(",") if len(sys.argv) > 2 else []
    print("parity with the PyTorch twins in float64:")
    good = bool(wanted) or parity(images)
    print("steps:")
    square = lay_out(poon_domingos(32, 32, 8, 3))
    for number, setting in enumerate(SETTINGS):
        if wanted and str(number) not in wanted:
            continue
        if not setting.hclt:
            measure(setting, square, images, rate)
        elif folder is not None:
            digits = np.load(folder / "mnist.npz")["x_train"][:10_000].reshape(10_000, -1)
            layout = lay_out(hidden_chow_liu_tree(digits, 8, device="cuda"))
            measure(setting, layout, digits, rate)
    if not good:
        sys.exit("parity failed")


if __name__ == "__main__":
    main()
