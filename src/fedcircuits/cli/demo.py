"""`fedcircuits demo`: the main job on built-in data, in seconds."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import accuracy_score, roc_auc_score

from fedcircuits import api
from fedcircuits.cli.output import Output
from fedcircuits.datasets import cancer

TARGET = "diagnosis"
POSITIVE = "malignant"


def run(out: Output, seed: int) -> None:
    """Learn, save, load and ask every kind of question."""
    split = cancer(seed)
    train, test = split.train, split.test
    out.say(f"Breast cancer data: {len(train)} rows to learn from, {len(test)} held out.")
    start = time.perf_counter()
    with out.progress() as progress:
        model = api.learn(train, label=TARGET, seed=seed, progress=progress)
    seconds = time.perf_counter() - start
    out.say(f"Learned in {seconds:.1f} s: {model!r}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.fc"
        model.save(path)
        size = path.stat().st_size
        model = api.load(path)
    rng = np.random.default_rng(seed)
    hidden = test.mask(rng.random(test.shape) < 0.3)
    rows: list[list[Any]] = [["mean log-density", model.mean_log_prob(test), None, "nats per row"]]
    answers: dict[str, Any] = {"seconds": seconds, "bytes": size, "test_log_prob": rows[0][1]}
    for name, data in (("all cells known", test), ("30 % of the cells missing", hidden)):
        proba = model.predict_proba(data, TARGET)[POSITIVE]
        truth = test[TARGET] == POSITIVE
        accuracy = float(accuracy_score(truth, proba > 0.5))
        auc = float(roc_auc_score(truth, proba))
        rows.append([f"diagnosis, {name}", accuracy, auc, "accuracy, AUC"])
        answers[name] = {"accuracy": accuracy, "auc": auc}
    out.table("on the held-out rows", ["question", "", "", "unit"], rows)
    _questions(out, model, answers, seed)
    out.result(answers)


def _questions(out: Output, model: Any, answers: dict[str, Any], seed: int) -> None:
    """A conditional mean, a conditional sample and a most probable completion."""
    given = {TARGET: POSITIVE}
    shown = ["mean_radius", "mean_texture", "mean_area"]
    rows = [
        [name, model.expectation(name), model.expectation(name, given),
         model.variance(name, given) ** 0.5]
        for name in shown
    ]  # fmt: skip
    out.table(
        "what is known of a malignant case", ["variable", "mean", "given malignant", "sd"], rows
    )
    answers["expectation"] = {row[0]: row[2] for row in rows}
    sampled = model.condition(given).sample(3, seed=seed)[shown]
    out.frame("three samples given malignant", sampled, None) if not out.as_json else None
    answers["sample"] = sampled.to_dict("records")
    completed = model.mpe({"mean_radius": 21.0})
    answers["mpe"] = completed[[*shown, TARGET]].to_dict("records")[0]
    out.say(
        f"most probable completion ({completed.attrs['method']}) of mean_radius = 21: "
        + ", ".join(f"{k} = {v:.4g}" if isinstance(v, float) else f"{k} = {v}"
                    for k, v in answers["mpe"].items())
    )  # fmt: skip
