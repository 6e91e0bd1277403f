"""The public surface: names, settings, import cost, and errors for names that are not known."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import MISSING, fields
from inspect import Parameter, signature
from typing import Any, get_overloads

import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits.api.federate import federate
from fedcircuits.api.settings import RunSettings
from fedcircuits.engines import ENGINES, engine_named
from fedcircuits.errors import FederationError, LearningError, StorageError, unknown_name

HEAVY = ("matplotlib", "jinja2", "torch", "ray", "nvflare", "sklearn", "rich", "typer", "fastapi",
         "scipy.stats", "scipy.optimize", "scipy.linalg")  # fmt: skip
ROWS = pd.DataFrame({"x": [0.0, 1.0, 2.0, 1.5] * 5, "y": ["a", "b", "a", "b"] * 5})


@pytest.mark.parametrize("name", fc.__all__)
def test_every_listed_name_is_there(name: str) -> None:
    assert getattr(fc, name) is not None
    assert name in dir(fc)


def test_an_unknown_attribute_is_named() -> None:
    with pytest.raises(AttributeError, match="'fedcircuits' has no attribute 'Learn'"):
        fc.Learn  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import fedcircuits", ("numpy", "pandas", "scipy", *HEAVY)),
        ("import fedcircuits; fedcircuits.learn; fedcircuits.load", HEAVY),
        ("import fedcircuits; fedcircuits.federate; fedcircuits.RunSettings", HEAVY),
        ("import fedcircuits.api.client_spec", HEAVY),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code: str, absent: tuple[str, ...]) -> None:
    program = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    assert not set(absent) & set(json.loads(done.stdout))


def test_settings_of_federate_are_those_of_the_dataclass() -> None:
    """The overload that type checkers read must list every setting with its default."""
    typed = signature(get_overloads(federate)[-1]).parameters
    listed = {
        name: entry.default
        for name, entry in typed.items()
        if entry.kind != Parameter.VAR_KEYWORD and name not in ("clients", "progress")
    }
    declared: dict[str, Any] = {}
    for field in fields(RunSettings):
        if field.name != "options":
            declared[field.name] = None if field.default is MISSING else field.default
    assert listed == declared


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"seed": -1}, "seed is a whole number >= 0, found -1"),
        ({"seed": 0.5}, "seed is a whole number"),
        ({"min_rows": 0}, "min_rows is a whole number >= 1"),
        ({"timeout": 0}, "timeout is a number of seconds > 0"),
        ({"placement": "here"}, "placement is gathered or remote, found 'here'"),
        ({"operation": "sum"}, "operation is mixture, average or vote, found 'sum'"),
        ({"agreement": "laten"}, "no agreement rule 'laten'.*did you mean 'latent'"),
        ({"engine": "proceses"}, "no engine 'proceses'.*did you mean 'processes'"),
        ({"engine_options": {"cpus": 1}}, "has no option 'cpus'; it has none"),
        ({"agreement": "independent", "seeds": 1}, "no option 'seeds'.*did you mean 'seed'"),
        ({"seeds": 1}, "no option 'seeds'.*did you mean 'seed'"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(FederationError, match=words):
        fc.federate({"a": ROWS, "b": ROWS}, **settings)


def test_unknown_learner_and_option_are_named() -> None:
    with pytest.raises(LearningError, match=r"no learner 'hlct'; there are .*did you mean 'hclt'"):
        fc.learn(ROWS, learner="hlct")
    with pytest.raises(LearningError, match=r"no learner 'forst'.*did you mean 'forest'"):
        fc.federate({"a": ROWS}, learner={"a": "forst"})
    with pytest.raises(LearningError, match=r"'hclt' has no option 'states'; it has .*n_states"):
        fc.learn(ROWS, learner="hclt", states=3)


def test_no_suggestion_where_nothing_is_close() -> None:
    assert unknown_name("engine", "x", ["local"]) == "no engine 'x'; there are local"
    assert unknown_name("option", "x", [], "it") == "it has no option 'x'; it has none"


def test_load_checks_the_kind_that_is_asked_for(tmp_path: Any) -> None:
    path = tmp_path / "m.fc"
    fc.learn(ROWS, learner="factorised").save(path)
    assert isinstance(fc.load(path, fc.Circuit), fc.Circuit)
    with pytest.raises(StorageError, match="holds a Circuit, expected a FederatedCircuit"):
        fc.load(path, fc.FederatedCircuit)


@pytest.mark.parametrize("name", [*ENGINES, "ray", "nvflare"])
def test_options_of_an_engine_are_its_keywords(name: str) -> None:
    if name not in ENGINES:
        pytest.importorskip(name)
    engine = engine_named(name)
    taken = list(signature(engine).parameters)
    if name == "local":
        assert (taken, engine.OPTIONS) == (["clients"], ())
    else:
        assert taken[:2] == ["specs", "make"]
        assert tuple(k for k in taken[2:] if k != "rows") == engine.OPTIONS
