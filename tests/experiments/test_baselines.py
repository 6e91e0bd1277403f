"""Rivals are trained right: averages, running statistics, counted messages, no test row."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from fedcircuits.baselines.prepare import Features

torch = pytest.importorskip("torch")
pytest.importorskip("pytorch_tabnet")
from fedcircuits.baselines.fed_avg import _average, _distinct, fed_avg  # noqa: E402
from fedcircuits.baselines.networks import NetworkOptions, make_network  # noqa: E402
from fedcircuits.baselines.split_nn import ACTIVATION, split_nn  # noqa: E402
from fedcircuits.baselines.training import (  # noqa: E402
    PLAIN,
    SETTINGS,
    Rival,
    n_message_bytes,
    search,
    trial_rows,
)


def table(n_rows: int = 600, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_rows, 3))
    colour = rng.choice(["red", "green"], n_rows)
    score = 2 * x[:, 0] + 1.5 * (colour == "red") + 0.5 * rng.normal(size=n_rows)
    frame = pd.DataFrame(x, columns=list("abc")).assign(colour=colour)
    return frame.assign(y=np.where(score > 0.75, "yes", "no"))


FRAME = table()
FEATURES = Features.fit(FRAME, "y")
X, Y = FEATURES.arrays(FRAME), FEATURES.codes(FRAME)
TEST = table(400, 1)


def auc(proba: np.ndarray) -> float:
    return float(roc_auc_score(TEST["y"] == "yes", proba[:, 1]))


def test_columns_are_prepared_from_training_rows_alone() -> None:
    other = TEST.assign(a=TEST["a"] * 100, colour="blue")
    prepared = FEATURES.arrays(other)
    assert prepared[:, 3].max() == 0  # an unknown category
    np.testing.assert_allclose(
        prepared[:, 0], (other["a"] - FRAME["a"].mean()) / FRAME["a"].std(), rtol=1e-4
    )


def test_average_weighs_by_rows_and_covers_running_statistics() -> None:
    states = [
        {"w": torch.tensor([1.0]), "running_mean": torch.tensor([0.0]), "n": torch.tensor(3)},
        {"w": torch.tensor([4.0]), "running_mean": torch.tensor([3.0]), "n": torch.tensor(9)},
    ]
    found = _average(states, [2, 1])
    assert found["w"].item() == pytest.approx(2.0)
    assert found["running_mean"].item() == pytest.approx(1.0)
    assert found["n"].item() == 3


def test_a_message_holds_a_tensor_that_layers_share_once() -> None:
    network = make_network(FEATURES, 2, SETTINGS[0])
    found, all_tensors = _distinct(network), network.state_dict()
    assert len(found) < len(all_tensors)
    parameters = {p.data_ptr() for p in network.parameters()}
    assert parameters <= {t.data_ptr() for t in found.values()}


def test_a_trial_trains_on_few_rows_and_the_setting_taken_on_all() -> None:
    seen: list[tuple[int, int, bool]] = []

    def train(options: NetworkOptions, most: int, trial: bool) -> tuple[Rival, float]:
        seen.append((options.width, most, trial))
        return Rival(lambda x: x, 0, 0, most, ""), float(options.width != 16)

    search(train, SETTINGS[:3], 2, 9)
    assert seen == [(8, 2, True), (16, 2, True), (32, 2, True), (16, 9, False)]
    assert trial_rows(10, None, 0) == trial_rows(10, 10, 0) == slice(None)
    rows = trial_rows(10, 4, 0)
    assert isinstance(rows, np.ndarray)
    assert len(set(rows.tolist())) == 4


def test_the_setting_of_trees_is_that_of_least_validation_loss() -> None:
    pytest.importorskip("xgboost")
    from fedcircuits.baselines.boosted import tree_setting

    settings = [{"max_depth": 3, "eta": 1e-6}, {"max_depth": 3, "eta": 0.3}]
    assert tree_setting((X[:500], Y[:500]), (X[500:], Y[500:]), settings, 20) == settings[1]


@pytest.mark.parametrize(
    "settings",
    [pytest.param(SETTINGS[:1], marks=pytest.mark.slow), PLAIN[:2]],
    ids=["tabnet", "plain"],
)
def test_fed_avg_learns_and_counts_every_round(settings: tuple[object, ...]) -> None:
    parts = [(X[at:500:2], Y[at:500:2]) for at in range(2)]
    rival = fed_avg(
        FEATURES, parts, (X[500:], Y[500:]), settings, rounds=12, trial_rounds=2, patience=12
    )  # type: ignore[arg-type]
    assert auc(rival.proba(FEATURES.arrays(TEST))) > 0.9
    # 12 rounds, 2 clients, there and back; every message holds all parameters in float32
    assert rival.n_bytes > 12 * 2 * 2 * 4 * rival.n_parameters


def test_split_nn_learns_and_counts_activations_and_gradients() -> None:
    blocks = [np.array([0, 1]), np.array([2, 3])]
    parts = [FEATURES.select([FEATURES.names[i] for i in block]) for block in blocks]
    valid = ([X[500:][:, b] for b in blocks], Y[500:])
    rival = split_nn(
        parts, [X[:500][:, b] for b in blocks], Y[:500], valid, PLAIN[:1], epochs=20, patience=20
    )
    rows = FEATURES.arrays(TEST)
    assert auc(rival.proba(np.concatenate([rows[:, b] for b in blocks], axis=1))) > 0.9
    one = n_message_bytes({"a": torch.zeros(62, ACTIVATION)})  # 500 rows in 8 batches and a rest
    rest = n_message_bytes({"a": torch.zeros(4, ACTIVATION)})
    assert rival.n_bytes == 20 * 2 * (8 * one + rest)  # one client sends, and gets gradients back


def _has_namespace() -> bool:
    unshare = shutil.which("unshare")
    found = unshare and not subprocess.run([unshare, "-rn", "true"], capture_output=True).returncode
    return bool(found)


@pytest.mark.engine
@pytest.mark.skipif(not _has_namespace(), reason="no network namespace can be made here")
@pytest.mark.parametrize("mode", ["rows", "columns"])
def test_federated_trees_learn_and_count_bytes(mode: str) -> None:
    pytest.importorskip("xgboost")
    from fedcircuits.baselines.boosted import federated_trees
    from fedcircuits.experiments.rivals import cpu_seconds

    rows = FEATURES.arrays(TEST)
    if mode == "rows":
        clients = [
            {
                "train": X[at:500:2], "y_train": Y[at:500:2],
                "valid": X[500 + at :: 2], "y_valid": Y[500 + at :: 2], "test": rows,
            }
            for at in range(2)
        ]  # fmt: skip
    else:
        blocks = [np.array([0, 1]), np.array([2, 3])]
        clients = [
            {"train": X[:500][:, b], "valid": X[500:][:, b], "test": rows[:, b]} for b in blocks
        ]
        clients[0] |= {"y_train": Y[:500], "y_valid": Y[500:]}
    before = cpu_seconds()
    found = federated_trees(mode, clients, [{"max_depth": 3, "eta": 0.3}], rounds=20)
    assert cpu_seconds() - before > 0.5  # of server and clients: starting them takes longer
    assert auc(found["proba"]) > 0.9
    assert found["bytes"] > 10_000
