"""One EM step of large EiNets on one CUDA GPU, beside the peers' figures and the floor.

    python benchmarks/einet_gpu.py [folder with mnist.npz] [--only parity resume memory steps 3 6]

Prints, in this order: the copy rate of the device; parity of every kernel with its PyTorch twin in
float64, discretised Gaussians (which have no kernel of their own) included; whether an interrupted
training goes on to the same bits; what running out of device memory says and keeps; and the table
of step times with the likelihood each precision costs. A step is forward, flows
and parameter update on one batch, replayed as a CUDA graph; the median of 8 after 3. Peers'
figures were measured earlier on the same kind of GPU. The floor is three passes over the float32
parameters at the measured copy rate, or the multiply-adds of three passes at the tensor cores'
nominal dense rate, whichever is larger.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedcircuits.errors import LearningError
from fedcircuits.learners.einet.kernels.fused_step import Engine
from fedcircuits.learners.einet.leaves import Categorical, DiscretisedGaussian, Family, Gaussian
from fedcircuits.learners.einet.network.layout import Layout, lay_out
from fedcircuits.learners.einet.network.network import (
    Network,
    Parameters,
    initial_parameters,
    make_network,
)
from fedcircuits.learners.einet.passes import downward, forward, m_step
from fedcircuits.learners.einet.structures.hidden_tree import hidden_chow_liu_tree
from fedcircuits.learners.einet.structures.poon_domingos import poon_domingos
from fedcircuits.learners.einet.structures.random_trees import random_trees
from fedcircuits.learners.einet.training.checkpoint import State, load_state
from fedcircuits.learners.einet.training.cuda_graph import Captured
from fedcircuits.learners.einet.training.rows import Rows
from fedcircuits.learners.einet.training.train import Schedule, train

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
    pairs = lay_out(poon_domingos(8, 8, 3, 3))
    limits = {"float32": 2e-4, "tf32": 3e-3, "bf16": 2e-2}
    fine = True
    cases: list[tuple[Layout, str, int, Family]] = [
        (square, "cp", 40, PIXEL), (square, "cp", 100, Categorical(256, 1.0, 2.0)),
        (square, "tucker", 24, PIXEL), (trees, "tucker", 10, Categorical(256, 1.0)),
        (hidden, "cp", 64, Categorical(256, 1.0)), (hidden, "cp", 1, PIXEL),
        (pairs, "tucker", 40, PIXEL), (hidden, "cp", 32, DiscretisedGaussian()),
    ]  # fmt: skip
    for layout, layer, width, family in cases:
        network = make_network(layout, [family] * layout.n_variables, width, layer)
        # Up to 64 rows a Tucker update has all of them at once.
        batch = 60 if layout is pairs else 96
        x = torch.as_tensor(small[:batch], device=DEVICE)
        params = started(network, small, torch.float64)
        settings = m_step.EMSettings(1.0, 0.1, by_mass=True, share=0.5)
        for masked in (False, True):
            known = torch.as_tensor(rng.random(x.shape) < 0.8, device=DEVICE)
            known = known if masked else None
            expected = params.clone()
            counts = downward.expected_counts(network, expected, x, known)
            masses = m_step.Masses.zeros(network, expected)
            expected = m_step.m_step_(network, expected, counts, settings, masses)
            want = forward.log_likelihood(network, params, x, known)
            for precision, limit in limits.items():
                mine = params.to(dtype=torch.float32).clone()
                engine = Engine(network, mine, batch, precision)
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


def resume(images: np.ndarray) -> bool:
    """Four epochs at once, and two, a checkpoint and two more: every tensor the same bits."""
    fine = True
    small = images[:512].reshape(512, 32, 32, 3)[:, :8, :8].reshape(512, -1)
    hidden = lay_out(hidden_chow_liu_tree(small, 8, device="cuda"))
    square = lay_out(poon_domingos(8, 8, 4, 3))
    for layout, layer, width, family, batch, every in (
        (hidden, "cp", 64, Categorical(256, 1.0), 128, 1),
        (square, "cp", 40, DiscretisedGaussian(), 100, 1),
        (square, "tucker", 24, PIXEL, 64, 1),
        (square, "tucker", 24, PIXEL, 128, 1),
        (square, "cp", 40, PIXEL, 64, 2),  # updates every two batches: no kernels
    ):
        network = make_network(layout, [family] * layout.n_variables, width, layer)
        start = started(network, small)
        for precision in ("float32", "tf32", "bf16"):
            schedule = Schedule(4, batch, frequency=every, precision=precision)
            whole = train(network, start, Rows(small), schedule, 3)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "half.safetensors"
                train(network, start, Rows(small), schedule, 3, path, lambda s: s.epoch == 2)
                parted = train(network, start, Rows(small), schedule, 3, path)
            same = parted.history == whole.history and all(
                torch.equal(tensor, parted.params.tensors()[name])
                for name, tensor in whole.params.tensors().items()
            )
            fine &= same
            print(f"  {'ok ' if same else 'BAD'} {layout.kind:13s} {layer:6s} {family.name:20s} "
                  f"batch {batch:<3d} every {every} {precision}", flush=True)  # fmt: skip
    return fine


def memory(images: np.ndarray) -> bool:
    """A batch too large for the device: an error in the user's terms, and the checkpoint kept."""
    network = make_network(lay_out(poon_domingos(32, 32, 8, 3)), [PIXEL] * 3072, 64)
    rows, start = Rows(images), started(network, images)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kept.safetensors"

        def one(state: State) -> bool:
            return state.epoch == 1

        train(network, start, rows, Schedule(3, 64), 0, path, one)
        before = path.read_bytes()
        gc.collect()
        torch.cuda.empty_cache()
        held = torch.cuda.memory_reserved() + 2**30  # one GiB more than is held now
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(held / total)
        try:
            train(network, start, rows, Schedule(3, 1024), 0, path)
            said = ""
        except LearningError as error:
            said = str(error)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        kept = path.read_bytes() == before and load_state(path, network, DEVICE).epoch == 1
        goes_on = train(network, start, rows, Schedule(3, 64), 0, path).epoch == 3
    named = all(word in said for word in ("batch of 1024 rows", "width", "GiB", "checkpoint"))
    good = named and kept and goes_on
    print(f"  {'ok ' if good else 'BAD'} checkpoint kept: {kept}, goes on: {goes_on}; said: {said}")
    return good


def measure(setting: Setting, layout: Layout, images: np.ndarray, rate: float) -> list[str]:
    network = make_network(layout, [setting.family] * layout.n_variables, setting.width,
                           setting.layer)  # fmt: skip
    x = torch.as_tensor(images[: setting.batch], device=DEVICE)
    settings = m_step.EMSettings(0.05, 1e-3)
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--only", nargs="*", default=["parity", "resume", "memory", "steps"])
    given = parser.parse_args()
    images = colour_images(1024, np.random.default_rng(0))
    rate = copy_rate()
    print(f"{torch.cuda.get_device_name()}: copy {rate / 1e12:.2f} TB/s, torch {torch.__version__}")
    fine = True
    for name, title, check in (
        ("parity", "parity with the PyTorch twins in float64:", parity),
        ("resume", "a resumed training ends with the same bits:", resume),
        ("memory", "out of memory:", memory),
    ):
        if name in given.only:
            print(title, flush=True)
            fine &= check(images)
    square = lay_out(poon_domingos(32, 32, 8, 3))
    for number, setting in enumerate(SETTINGS):
        if "steps" not in given.only and str(number) not in given.only:
            continue
        if not setting.hclt:
            measure(setting, square, images, rate)
        elif given.folder is not None:
            digits = np.load(given.folder / "mnist.npz")["x_train"][:10_000].reshape(10_000, -1)
            layout = lay_out(hidden_chow_liu_tree(digits, 8, device="cuda"))
            measure(setting, layout, digits, rate)
    if not fine:
        sys.exit("a check failed")


if __name__ == "__main__":
    main()
