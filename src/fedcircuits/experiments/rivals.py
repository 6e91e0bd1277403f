"""Models of `fedcircuits.baselines` in an experiment, on the same rows and splits as ours."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcircuits.api import partition
from fedcircuits.api.datasets import Split
from fedcircuits.arrays import FloatArray, IntArray
from fedcircuits.baselines.prepare import Features
from fedcircuits.errors import MissingExtraError
from fedcircuits.experiments.splits import shares

if TYPE_CHECKING:
    from fedcircuits.baselines.training import Rival

VALIDATION = 0.1
RIVALS = (
    "FedAvg [TabNet]", "FedAvg [network]", "SplitNN [TabNet]", "SplitNN [network]",
    "federated trees", "LightGBM", "LightGBM tuned",
)  # fmt: skip


def train(
    name: str, split: Split, setting: Mapping[str, Any], seed: int, options: Mapping[str, Any]
) -> tuple[FloatArray, list[object], dict[str, Any]]:
    """Return probabilities of the test rows, the classes, and what the training cost.

    A tenth of the training rows is held out for choices; no rival sees a test row before it is
    scored, and columns are prepared from training rows alone.

    Args:
        name: of the rival.
        split: the data.
        setting: how rows and columns are split.
        seed: of split, validation rows and training.
        options: `settings` (how many are tried), `rounds`, `trees`, and `trial_rows`, which
            networks are tried on.
    """
    try:
        return _train(name, split, setting, seed, options)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"the rival {name!r} ({error.name})", "baselines") from error


def _train(
    name: str, split: Split, setting: Mapping[str, Any], seed: int, options: Mapping[str, Any]
) -> tuple[FloatArray, list[object], dict[str, Any]]:
    from fedcircuits.baselines import boosted
    from fedcircuits.baselines.fed_avg import fed_avg
    from fedcircuits.baselines.split_nn import split_nn
    from fedcircuits.baselines.training import PLAIN, SETTINGS

    features = Features.fit(split.train, split.label)
    valid = _validation_rows(len(split.train), seed)
    test = features.arrays(split.test)
    x, y = features.arrays(split.train), features.codes(split.train)
    n_settings, rounds = int(options["settings"]), int(options["rounds"])
    trials = {"trial_most": options["trial_rows"], "seed": seed}
    short = max(1, rounds // 6)
    start, cpu = time.perf_counter(), cpu_seconds()
    facts: dict[str, Any] = {"rule": name}
    if name.startswith("LightGBM"):
        codes = range(len(features.medians), x.shape[1])
        proba = boosted.lightgbm(
            (x[~valid], y[~valid]), (x[valid], y[valid]), test, codes,
            tuned=name.endswith("tuned"), seed=seed,
        )  # fmt: skip
        facts["bytes"] = 0
    elif name == "federated trees":
        tried = boosted.TREE_SETTINGS[:n_settings]
        rows = (x[~valid], y[~valid]), (x[valid], y[valid])
        chosen = boosted.tree_setting(*rows, tried, int(options["trees"]))
        found = boosted.federated_trees(
            setting["split"],
            _tree_parts(split, setting, seed, features, valid, test),
            [chosen],
            int(options["trees"]),
        )
        proba = found["proba"]
        facts |= {"bytes": found["bytes"], "note": f"{found['trees']} trees, {found['setting']}"}
    elif name.startswith("FedAvg"):
        settings = (SETTINGS if "TabNet" in name else PLAIN)[:n_settings]
        owners = _row_owners(split, setting, seed)
        clients = [(x[mine & ~valid], y[mine & ~valid]) for mine in owners]
        clients = [rows for rows in clients if len(rows[1]) > 1]
        rival = fed_avg(
            features, clients, (x[valid], y[valid]), settings, rounds=rounds, trial_rounds=short,
            **trials,
        )  # fmt: skip
        proba = rival.proba(test)
        facts |= _about(rival)
    else:
        settings = (SETTINGS if "TabNet" in name else PLAIN)[:n_settings]
        blocks = _column_blocks(split, setting, seed, features)
        parts = [features.select([features.names[i] for i in block]) for block in blocks]
        rival = split_nn(
            parts, [x[~valid][:, b] for b in blocks], y[~valid],
            ([x[valid][:, b] for b in blocks], y[valid]), settings,
            epochs=rounds, trial_epochs=short, **trials,
        )  # fmt: skip
        proba = rival.proba(np.concatenate([test[:, b] for b in blocks], axis=1))
        facts |= _about(rival)
    facts |= {"seconds": cpu_seconds() - cpu, "wall_seconds": time.perf_counter() - start}
    return proba, list(features.classes), facts


def _about(rival: Rival) -> dict[str, Any]:
    return {
        "bytes": rival.n_bytes, "parameters": rival.n_parameters, "rounds": rival.rounds,
        "note": rival.setting,
    }  # fmt: skip


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of those it started that have ended.

    Federated trees train in processes of their own.
    """
    return sum(os.times()[:4])


def _validation_rows(n_rows: int, seed: int) -> Any:
    """Return which training rows are held out for choices, (n,)."""
    order = np.random.default_rng([seed, 17]).permutation(n_rows)
    chosen = np.zeros(n_rows, dtype=bool)
    chosen[order[: max(20, round(VALIDATION * n_rows))]] = True
    return chosen


def _row_owners(split: Split, setting: Mapping[str, Any], seed: int) -> list[Any]:
    """Return the rows of each client as masks, found by splitting the row numbers alike."""
    numbered = split.train.assign(**{partition.ID: np.arange(len(split.train))})
    numbered_split = Split(numbered, split.test, split.label, split.positive)
    masks = []
    for table in shares(numbered_split, setting, seed).values():
        mask = np.zeros(len(numbered), dtype=bool)
        mask[table[partition.ID].to_numpy()] = True
        masks.append(mask)
    return masks


def _column_blocks(
    split: Split, setting: Mapping[str, Any], seed: int, features: Features
) -> list[IntArray]:
    """Return the columns of each client as positions in prepared arrays."""
    tables = shares(split, setting, seed)
    at = {name: i for i, name in enumerate(features.names)}
    return [np.array(sorted(at[n] for n in t.columns if n in at)) for t in tables.values()]


def _tree_parts(
    split: Split,
    setting: Mapping[str, Any],
    seed: int,
    features: Features,
    valid: Any,
    test: FloatArray,
) -> list[dict[str, Any]]:
    """Return the arrays of each client; with columns split the first one has the label."""
    x, y = features.arrays(split.train), features.codes(split.train)
    if setting["split"] == "rows":
        return [
            {
                "train": x[mine & ~valid], "y_train": y[mine & ~valid],
                "valid": x[mine & valid], "y_valid": y[mine & valid], "test": test,
            }
            for mine in _row_owners(split, setting, seed)
        ]  # fmt: skip
    parts: list[dict[str, Any]] = [
        {"train": x[~valid][:, b], "valid": x[valid][:, b], "test": test[:, b]}
        for b in _column_blocks(split, setting, seed, features)
    ]
    parts[0] |= {"y_train": y[~valid], "y_valid": y[valid]}
    return parts
