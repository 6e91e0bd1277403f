"""Numbers that stay finite: every kind of EiNet, trained on a GPU for 20 epochs on 20,000 images.

    python benchmarks/einet_finite.py FOLDER [--processes 8] [--seconds 400] [--records FILE]
        [--precisions float32 float64]

FOLDER has mnist.npz. Structures x layers x leaves x precisions, with a label (sums of their own,
without a network beside it) and without, through `fc.learn`: training must end, every one of 2,000
test images must have a finite log-mass, and with a label a posterior that adds up to one. First
come default widths, then narrow models of every kind; what does not fit the seconds is listed as
not run; a training that stands in the file of records (one JSON object a line) is not run again,
so that a run goes on where it was. Double precision has no kernels and sees 4,000 images. Hidden
trees are not binary, so they have no Tucker layers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import numpy as np

import fedcircuits as fc
import tables
from fedcircuits.errors import FedcircuitsError
from fedcircuits.learners.einet import EiNet

KINDS = [
    ("hclt", "cp"), ("poon-domingos", "cp"), ("poon-domingos", "tucker"), ("random-trees", "cp"),
    ("random-trees", "tucker"),
]  # fmt: skip
LEAVES = ["categorical", "discretised-gaussian", "binomial", "gaussian"]
PRECISIONS = ["bf16", "tf32", "float64", "float32"]
WIDTHS = {"cp": 32, "tucker": 8}
DOUBLE_IMAGES = 4000


def cases() -> list[dict[str, Any]]:
    """Settings of all trainings, those of default width first."""
    wide = [
        {"structure": structure, "layer": "cp", "leaf": "categorical", "precision": precision,
         "label": label, "width": None}
        for structure, precision, label in itertools.product(
            ["random-trees", "hclt"], ["tf32", "bf16"], [True, False]
        )
    ]  # fmt: skip
    narrow = [
        {"structure": structure, "layer": layer, "leaf": leaf, "precision": precision,
         "label": label, "width": WIDTHS[layer]}
        for precision, (structure, layer), leaf, label in itertools.product(
            PRECISIONS, KINDS, LEAVES, [True, False]
        )
    ]  # fmt: skip
    return wide + narrow


def trained(case: dict[str, Any], folder: Path, images: int, epochs: int, device: str) -> str:
    """Trains one model and returns its nats a pixel, or what went wrong."""
    found = np.load(folder / "mnist.npz")
    n = min(images, DOUBLE_IMAGES) if case["precision"] == "float64" else images
    x, y, test = found["x_train"][:n], found["y_train"][:n].astype(int), found["x_test"][:2000]
    options = {name: value for name, value in case.items() if name != "label"}
    options |= {"epochs": epochs, "device": device, "head": False}
    labelled = {"label": y} if case["label"] else {}
    learner = EiNet(**options, label="label" if labelled else None)
    try:
        model = fc.learn(x, learner=learner, **labelled)
        each = np.asarray(model.log_prob(test))
        if not np.isfinite(each).all():
            return f"WRONG: {int((~np.isfinite(each)).sum())} test images without a finite log-mass"
        if case["label"]:
            total = np.asarray(model.predict_proba(test, "label")).sum(axis=1)
            if not np.allclose(total, 1, atol=1e-6):
                return "WRONG: posteriors do not add up to one"
    except FedcircuitsError as error:
        return f"WRONG: {error}"[:200]
    return f"{each.mean() / test[0].size:.3f}"


def timed(given: tuple[Any, ...]) -> tuple[dict[str, Any], str, float]:
    case, *rest, until = given
    if time.time() > until:
        return case, "not run", 0.0
    began = time.perf_counter()
    answer = trained(case, *rest)
    return case, answer, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--records", type=Path, help="trainings that ran; added to")
    parser.add_argument("--precisions", nargs="*", default=PRECISIONS)
    given = parser.parse_args()
    until = time.time() + given.seconds
    answers = dict.fromkeys((tuple(case.values()) for case in cases()), "not run")
    if given.records is not None and given.records.exists():
        lines = given.records.read_text().splitlines()
        answers |= {tuple(case.values()): answer for case, answer in map(json.loads, lines)}
    jobs = [
        (c, given.folder, given.images, given.epochs, given.device, until)
        for c in cases()
        if answers[tuple(c.values())] == "not run" and c["precision"] in given.precisions
    ]
    with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
        for case, answer, seconds in pool.imap_unordered(timed, jobs):
            answers[tuple(case.values())] = answer
            print(f"{seconds:6.1f} s  {answer:10s} {case}", flush=True)
            if given.records is not None and answer != "not run":
                with given.records.open("a") as file:
                    file.write(json.dumps([case, answer]) + "\n")
    rows = []
    for structure, layer, leaf, label, width in dict.fromkeys(
        (c["structure"], c["layer"], c["leaf"], c["label"], c["width"]) for c in cases()
    ):
        cells = [
            answers.get((structure, layer, leaf, precision, label, width), "")
            for precision in PRECISIONS
        ]
        shown = "default" if width is None else width
        rows.append([structure, layer, leaf, "yes" if label else "no", shown, *cells])
    ran = [answer for answer in answers.values() if answer != "not run"]
    wrong = sum(a.startswith("WRONG") for a in ran)
    tables.write(
        "einet_finite", "Numbers that stay finite: every kind of EiNet on a GPU",
        ["structure", "layer", "leaf", "label", "width", *PRECISIONS], rows,
        f"python benchmarks/einet_finite.py FOLDER --processes {given.processes}"
        f" --seconds {given.seconds:g}",
        [f"{given.images:,} MNIST images ({DOUBLE_IMAGES:,} in double precision), {given.epochs} "
         "epochs, everything else as by default. Figures are nats a pixel of 2,000 test images, "
         "log-mass of 256 levels (gaussian leaves: of the same levels).",
         f"{len(ran)} of {len(answers)} trainings ran, {wrong} went wrong."],
        device=given.device,
    )  # fmt: skip


if __name__ == "__main__":
    main()
