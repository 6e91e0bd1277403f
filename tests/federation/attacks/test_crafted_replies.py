"""A client whose replies are well-formed and made up: it is named, or the model is one.

Every number, list and text of every reply of a small run, and everything sealed, is changed in some
way (`contracts/crafted.py`): not a number, negative, enormous, of another shape or length. The run
ends with a model that answers, or with an error of ours that names the client; no other exception,
no question without end. `make test` tries a sample, FEDCIRCUITS_FULL=1 one change of every kind.
"""

from __future__ import annotations

import os
import random
import warnings
from typing import Any

import numpy as np
import pytest

import fedcircuits as fc
from contracts.crafted import Craft, CraftedLine, every_craft
from contracts.engine import table
from contracts.federations import ID, LABEL, split
from contracts.runs import SETTINGS
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.errors import FedcircuitsError
from fuzzing.cases import limited

FULL = os.environ.get("FEDCIRCUITS_FULL") == "1"
SAMPLED, SECONDS = 4, 30.0
LATENT = {"agreement": "latent", **SETTINGS}
ANCHORS = {"agreement": "anchors", "n_clusters": 3, "n_anchors": 3, "n_rounds": 2}
# Setting, rows, learner and options of a run.
CASES: dict[str, tuple[str, int, Any, dict[str, Any]]] = {
    "rows, product": ("horizontal", 90, "factorised", {"agreement": "product"}),
    "rows, joint": ("horizontal", 90, "mixture", {"agreement": "joint"}),
    "rows, heads": ("horizontal", 260, "hclt", {"agreement": "product"}),
    "columns, product": ("vertical", 90, "factorised", {"agreement": "product"}),
    "columns, latent": ("vertical", 90, "factorised", LATENT),
    "columns, table": ("vertical", 90, "factorised", {**LATENT, "table": True}),
    "columns, em": ("vertical", 90, "factorised", {"agreement": "em", "n_clusters": 3}),
    "columns, label used": ("vertical", 260, "hclt", {**LATENT, "label_use": "used"}),
    "columns, tilt": ("vertical", 90, "mixture", LATENT),
    "both, latent": ("hybrid", 90, "factorised", LATENT),
    "both, anchors": ("hybrid", 90, "factorised", ANCHORS),
}  # fmt: skip


def specs_of(case: str) -> dict[str, bytes]:
    setting, n, learner, _ = CASES[case]
    options = {"n_iterations": 3} if learner == "mixture" else {}
    kinds: Any = {LABEL: "categorical"}
    return {
        name: ClientSpec(
            name, rows, learner, options, id=ID, kinds={k: v for k, v in kinds.items() if k in rows}
        ).to_bytes()
        for name, rows in split(setting, table(n=n)).items()
    }


def run(case: str, engine: CraftedLine) -> Any:
    options = {"trust": "one owner", **CASES[case][3]}
    return fc.federate(None, engine=engine, id=ID, label=LABEL, min_rows=3, **options)


def chosen(case: str, line: CraftedLine) -> list[Craft]:
    """One change of every kind, or a sample of these that is drawn once."""
    every = every_craft(line)
    random.Random(case).shuffle(every)
    kinds: dict[Any, Craft] = {}
    for craft in every:
        names = tuple(key for key in craft.place if isinstance(key, str))
        kinds.setdefault((craft.verb, names, craft.what, repr(craft.value)), craft)
    found = list(kinds.values())
    return found if FULL else found[:SAMPLED]


def check(case: str, specs: dict[str, bytes], craft: Craft) -> None:
    """What comes of one change."""
    rows = table(n=20, seed=1).drop(columns=ID)
    try:
        with limited(SECONDS):
            fed = run(case, CraftedLine(specs, craft))
            log_prob = fed.log_prob(rows, unknown="missing").to_numpy()
            asked = rows.drop(columns=LABEL)
            proba = fed.predict_proba(asked, LABEL, unknown="missing").to_numpy()
    except FedcircuitsError as error:
        if repr(craft.client) not in str(error):
            raise AssertionError(f"{craft}: the client is not named in {error}") from error
        return
    assert set(fed.dropped) <= {craft.client}, craft
    assert not np.isnan(log_prob).any(), craft
    assert (log_prob < np.inf).all(), craft
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=0, atol=1e-6, err_msg=str(craft))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_made_up_reply_is_its_clients_error_or_makes_a_model(case: str) -> None:
    specs = specs_of(case)
    line = CraftedLine(specs)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        run(case, line)
        for craft in chosen(case, line):
            check(case, specs, craft)


# What was found first; each ended with a foreign exception, or named nobody or somebody else.
FOUND = [
    ("rows, product", Craft("b", "describe", 1, ("sketches/height\x1fpoint_rows",), "infinite")),
    ("rows, product", Craft("b", "describe", 1, ("sketches/height\x1fpoint_spreads",), "empty")),
    ("rows, product", Craft("b", "agree", 1, ("label_counts",), value=[])),
    ("rows, product", Craft("b", "fit", 1, ("models", 0, "name", "cls"), value=2**62)),
    ("rows, heads", Craft("b", "fit_head", 1, ("trees/right",), "highest")),
    ("columns, product", Craft("a", "group_secret", 1, ("wrapped",), value={})),
    ("columns, product", Craft("a", "group_secret", 1, ("wrapped", "b"), value="")),
    ("columns, product", Craft("b", "public_key", 1, ("key",), value="\u202e../../x\x00")),
    ("columns, product", Craft("a", "send_label", 1, (), "one more")),
    ("columns, em", Craft("b", "fit", 1, ("models", 0, "rows"), value=0)),
    ("columns, label used", Craft("a", "fit_by_codes", 1, ("tables/counts",), "nothing but zeros")),
    ("both, anchors", Craft("a", "start", 1, ("centres",), "not a number")),
    ("both, anchors", Craft("a", "start", 1, ("centres",), "enormous")),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("case", "craft"), FOUND)
def test_what_was_found_first(case: str, craft: Craft) -> None:
    check(case, specs_of(case), craft)
