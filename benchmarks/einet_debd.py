"""The twenty binary datasets: hidden Chow-Liu trees of several widths, chosen on the valid split.

python benchmarks/einet_debd.py FOLDER_WITH_NPZ_FILES [name ...]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import torch

from fedcircuits.learners.einet.chow_liu import hidden_chow_liu_tree
from fedcircuits.learners.einet.layout import lay_out
from fedcircuits.learners.einet.leaves import Bernoulli
from fedcircuits.learners.einet.network import initial_parameters, make_network
from fedcircuits.learners.einet.rows import Rows
from fedcircuits.learners.einet.train import Schedule, evaluate, train

# Mean test log-likelihoods from the literature: RAT-SPN, EiNet, HCLT.
PUBLISHED = {
    "nltcs": (-6.01, -6.02, -5.99), "msnbc": (-6.04, -6.12, -6.05), "kdd": (-2.13, -2.18, -2.18),
    "plants": (-13.44, -13.68, -14.26), "baudio": (-39.96, -39.88, -39.77),
    "jester": (-52.97, -52.56, -52.46), "bnetflix": (-56.85, -56.54, -56.27),
    "accidents": (-35.49, -35.59, -26.74), "tretail": (-10.91, -10.92, -10.84),
    "pumsb_star": (-32.53, -31.95, -23.64), "dna": (-97.23, -96.09, -79.05),
    "kosarek": (-10.89, -11.03, -10.66), "msweb": (-10.12, -10.03, -9.98),
    "book": (-34.68, -34.74, -33.83), "tmovie": (-53.63, -51.71, -50.81),
    "cwebkb": (-157.53, -157.28, -152.77), "cr52": (-87.37, -87.37, -86.26),
    "c20ng": (-152.06, -153.94, -153.40), "bbc": (-252.14, -248.33, -251.04),
    "ad": (-48.47, -26.27, -16.07),
}  # fmt: skip
# Width, rows' worth of smoothing in leaves, in sums.
CHOICES = [(32, 0.5, 1.0), (16, 1.0, 4.0)]


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:] or list(PUBLISHED)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found = {}
    for name in names:
        start = time.time()
        kept = np.load(folder / f"{name}.npz")
        parts = [
            np.unpackbits(kept[s], axis=1, count=int(kept["n_vars"]))
            for s in ("train", "valid", "test")
        ]
        x, valid, test = parts
        layout = lay_out(hidden_chow_liu_tree(x, 2, max_rows=50_000, device=str(device)))
        batch = 256 if len(x) < 50_000 else 1024
        epochs = int(np.clip(1200 * batch / len(x), 6, 60))
        best: tuple[float, float, int] | None = None
        for width, leaf_count, sum_count in CHOICES:
            network = make_network(layout, [Bernoulli(pseudo_count=leaf_count)] * x.shape[1], width)
            sample = torch.as_tensor(x[:2048], device=device)
            params = initial_parameters(
                network, sample, torch.ones_like(sample, dtype=torch.bool),
                torch.Generator().manual_seed(0),
            )  # fmt: skip
            schedule = Schedule(epochs, batch, 0.5, 0.03, pseudo_count=sum_count)
            state = train(network, params, Rows(x), schedule, 0)
            score = float(evaluate(network, state.params, Rows(valid), 1024).mean())
            if best is None or score > best[0]:
                mine = float(evaluate(network, state.params, Rows(test), 1024).mean())
                best = (score, mine, width)
        assert best is not None
        found[name] = best[1]
        rat, einet, hclt = PUBLISHED[name]
        worse = 100 * (rat - best[1]) / abs(rat)
        print(f"{name:10s} test {best[1]:9.3f} (valid {best[0]:9.3f}, K={best[2]:3d}, "
              f"{time.time() - start:5.1f} s) | RAT-SPN {rat} EiNet {einet} HCLT {hclt} | "
              + (f"worse than RAT-SPN by {worse:.1f}%" if worse > 0 else ""),
              flush=True)  # fmt: skip
    ours = np.mean(list(found.values()))
    theirs = np.mean([PUBLISHED[name][1] for name in found])
    print(f"mean over {len(found)}: ours {ours:.3f}, EiNet {theirs:.3f}")


if __name__ == "__main__":
    main()
