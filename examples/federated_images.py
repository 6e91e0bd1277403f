"""Images at four clients: one model scores, samples and paints; a client leaves.

Run: python examples/federated_images.py [--data images.npz] [--device cuda --width 128]
    [--colour ycocg --blur 2] [--pictures FOLDER]

Without `--data` (an NPZ file with `images`) the digits of scikit-learn are used. For photographs in
colour `--colour ycocg --blur 2` is better.
"""

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import fedcircuits as fc
from fedcircuits.learners.einet import EiNet, answering_on


def read(path: str | None) -> np.ndarray:
    if path is None:
        return (load_digits().images * 15).astype("uint8")
    with np.load(path) as found:
        return found["images"]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="NPZ file with images")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pictures", help="folder for PNG files")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--colour", default="rgb", choices=["rgb", "ycocg"])
    parser.add_argument("--blur", type=float, default=EiNet.blur)
    parser.add_argument("--name", default="", help="that the names of pictures end with")
    given = parser.parse_args(arguments)

    images = read(given.data)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    parts = np.array_split(train, 4)
    names = ["north", "east", "south", "west"]
    learner = EiNet(
        width=given.width, epochs=given.epochs, device=given.device, colour=given.colour,
        blur=given.blur,
    )  # fmt: skip
    fc.learn(images[parts[0]], learner=replace(learner, epochs=1))  # compiles, on a GPU

    begun = time.perf_counter()
    alone = [fc.learn(images[part], learner=learner) for part in parts]
    seconds = time.perf_counter() - begun
    begun = time.perf_counter()
    fed = fc.federate({n: images[p] for n, p in zip(names, parts, strict=True)}, learner=learner)
    ratio = (time.perf_counter() - begun) / seconds
    print(f"federated in {ratio:.2f} of the time of four trainings, {seconds:.1f} s")

    pixels = images[0].size
    with answering_on(given.device):
        print(f"nats a value: together {fed.mean_log_prob(images[test]) / pixels:.3f}", end="; ")
        print("alone", [round(one.mean_log_prob(images[test]) / pixels, 3) for one in alone])

    # Lower halves are hidden and painted in: by their mean, a draw, and the likeliest completion.
    hidden = np.zeros(images[test[:8]].shape, dtype=bool)
    hidden[:, images.shape[1] // 2 :] = True
    gaps = np.ma.masked_array(images[test[:8]], hidden)
    painted = [fed.impute(gaps, how=how) for how in ("mean", "sample", "likeliest")]
    kept = all(np.array_equal(np.asarray(p)[~hidden], images[test[:8]][~hidden]) for p in painted)
    print(f"known pixels stay as they are: {kept}")

    with tempfile.TemporaryDirectory() as folder:
        fed.save(Path(folder) / "images.fc")
        loaded = fc.load(Path(folder) / "images.fc")
    rest = loaded.without("west")
    with answering_on(given.device):
        print(f"after one left: {rest.clients}, {rest.mean_log_prob(images[test]) / pixels:.3f}")

    if given.pictures:
        place = Path(given.pictures)
        place.mkdir(parents=True, exist_ok=True)
        fed.sample_images(16, seed=0).save(place / f"samples{given.name}.png", scale=6)
        rows = [images[test[:8]], gaps, *painted]
        grid = fc.show(np.ma.concatenate(rows), columns=8)
        grid.save(place / f"painted{given.name}.png", scale=6)


if __name__ == "__main__":
    main()
