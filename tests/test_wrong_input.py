"""Wrong input at every surface: a message that says what is wrong and what to do, no traceback."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedcircuits as fc
from fedcircuits.cli.app import app
from fedcircuits.errors import FedcircuitsError

TOKEN = "a-token-for-tests-alone"


def people(n: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    sex = rng.choice(["Male", "Female"], n)
    return pd.DataFrame(
        {
            "id": np.arange(n) * 7 + 1000,
            "age": rng.normal(np.where(sex == "Male", 45.0, 35.0), 8.0).round(1),
            "sex": sex,
            "visits": rng.poisson(3.0, n),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables, a model, and files that are none."""
    at = tmp_path_factory.mktemp("wrong")
    rows = people()
    rows.to_csv(at / "people.csv", index=False)
    rows[["id", "age", "sex"]].to_csv(at / "clinic.csv", index=False)
    rows[["id", "visits"]].to_csv(at / "registry.csv", index=False)
    rows[["visits"]].to_csv(at / "no_id.csv", index=False)
    (at / "empty.csv").write_text("")
    (at / "heads.csv").write_text("age,sex\n")
    (at / "notes.txt").write_text("not a model\n")
    (at / "fake.parquet").write_text("no Parquet\n")
    pd.DataFrame({"age": ["old", "young"]}).to_csv(at / "words.csv", index=False)
    fc.learn(rows.drop(columns="id"), label="sex", learner="mixture").save(at / "model.fc")
    return at


# --- the command line -----------------------------------------------------------------------------

COMMANDS = [
    (["learn", "people.csv", "-o", "m.fc", "--sep", ";;"], "a separator is one character, found"),
    (["learn", "people.csv", "-o", "m.fc", "--kind", "agee=count"], "did you mean 'age'"),
    (
        ["learn", "people.csv", "-o", "m.fc", "--learner", "factorised", "--test", "notes.txt"],
        "the rows to score on have none of the model's columns",
    ),
    (["query", "model.fc", "--predict", "sex", "--given", "age=50..40"], "nothing lies in"),
    (["query", "model.fc", "--expect", "sex"], "ask --predict"),
    (["init", "people.csv", "people.csv", "-o", "twice.toml"], "people.csv is named twice"),
    (["demo", "--data", "people.csv"], "--label COLUMN (the table has id, age"),
    (["serve", "model.fc", "--token-file", "nowhere"], "in nowhere: No such file or directory"),
    (["learn", "nowhere.csv", "-o", "m.fc"], "no such file: nowhere.csv"),
    (["learn", "empty.csv", "-o", "m.fc"], "empty.csv is empty"),
    (["learn", "heads.csv", "-o", "m.fc"], "the table has no row"),
    (["learn", "people.csv", "--label", "sx", "-o", "m.fc"], "did you mean 'sex'"),
    (["learn", "people.csv", "--learner", "hctl", "-o", "m.fc"], "did you mean 'hclt'"),
    (["learn", "people.csv", "--drop", "agee", "-o", "m.fc"], "did you mean 'age'"),
    (["learn", "people.csv", "--kind", "age", "-o", "m.fc"], "--kind takes NAME=VALUE"),
    (["learn", "people.csv", "--kind", "age=number", "-o", "m.fc"], "is one of continuous, count"),
    (["learn", "people.csv", "-o", "none/m.fc"], "not a file in an existing folder"),
    (["learn", "people.csv", "-o", "m.fc", "--holdout", "2"], "--holdout is a share"),
    (["query", "notes.txt", "--sample", "1"], "is not a fedcircuits file"),
    (["query", "nowhere.fc", "--sample", "1"], "cannot read nowhere.fc"),
    (["query", "model.fc"], "--predict"),
    (["query", "model.fc", "--predict", "sexx"], "did you mean 'sex'"),
    (["query", "model.fc", "--predict", "sex", "--given", "age"], "NAME=VALUE"),
    (
        ["query", "model.fc", "--predict", "sex", "--given", "age=old"],
        "--given age: expected a number",
    ),
    (["query", "model.fc", "--predict", "visits", "--given", "sex=Other"], "--unknown missing"),
    (["query", "model.fc", "--expect", "sex"], "categories that are not numbers"),
    (["query", "model.fc", "--log-prob", "words.csv"], "'age'"),
    (["query", "model.fc", "--sample", "-3"], "whole number of samples >= 0"),
    (["inspect", "model.fc", "--picture", "a.docx"], "cannot be written"),
    (["report", "model.fc", "--label", "sexx"], "did you mean 'sex'"),
    (["report", "model.fc", "-o", "none/r.html"], "not a file in an existing folder"),
    (["init", "people.csv"], "a federation has two or more tables"),
    (["federate", "nowhere.toml"], "nowhere.toml"),
    (["federate", "people.csv"], "`fedcircuits init people.csv OTHER` writes a federation file"),
    (
        ["query", "model.fc", "--predict", "sex", "--given", "age=50,visits=2"],
        "one condition for each --given",
    ),
    (["query", "model.fc", "--probability", "sex=Malle"], "found 'Malle'"),
    (["query", "model.fc", "--predict", "sex", "--given", "sex=Male"], "what --predict asks for"),
    (["learn", "fake.parquet", "-o", "m.fc"], "fake.parquet is no Parquet file"),
    (["learn", "people.csv", "-o", "."], "cannot write .: not a file"),
    (
        ["learn", "people.csv", "-o", "m.fc", "--seed", "-1"],
        "seed is a whole number >= 0, found -1",
    ),
    (["query", "model.fc", "--predict", "sex", "--expect", "age"], "ask one question"),
    (["query", "model.fc", "--probability", "age=30..x"], "expected a number, found 'x'"),
    (["query", "model.fc", "--probability", "sex>Male"], "categories, which have no order"),
    (["query", "model.fc", "--sample", "3", "--unknown", "skip"], "is 'error' or 'missing'"),
    (["inspect", "model.fc", "--picture", "picture"], "its name ends in one of .png, .svg"),
    (["inspect", "model.fc", "--picture", "none/a.svg"], "cannot be written: No such file"),
    (["serve", "model.fc", "--workers", "0"], "a limit is above 0, found workers 0"),
    (["init", "clinic.csv", "registry.csv", "--id", "nr"], "--id: no column 'nr'"),
    (["demo", "--data", "people.csv", "--label", "age"], "the demo predicts classes"),
    (["experiment", "densty", "--quick"], "did you mean 'density'"),
]


def test_a_port_is_one_that_there_is(folder: Path) -> None:
    for command, port, message in (("serve", "99999", "65535"), ("explore", "-1", "equal to 0")):
        answer = CliRunner().invoke(app, [command, str(folder / "model.fc"), "--port", port])
        assert answer.exit_code == 2  # a usage error; 99999 was taken for 34463
        assert message in " ".join(answer.output.split())


@pytest.mark.parametrize(("words", "message"), COMMANDS, ids=lambda w: " ".join(w)[:50])
def test_a_command_says_what_is_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    monkeypatch.chdir(folder)
    answer = CliRunner().invoke(app, words)
    said = " ".join(answer.output.split())
    assert answer.exit_code == 1
    assert message in said
    assert "Traceback" not in said
    assert "unexpected" not in said
    assert isinstance(answer.exception, SystemExit)


def test_debug_shows_where(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    answer = CliRunner().invoke(app, ["--debug", "query", "notes.txt", "--sample", "1"])
    CliRunner().invoke(app, ["inspect", "model.fc"])  # the next command is without it again
    assert isinstance(answer.exception, FedcircuitsError)


# --- federation files -----------------------------------------------------------------------------

GOOD = """id = "id"
label = "sex"
output = "fed.fc"
learner = "factorised"

[clients]
clinic = "clinic.csv"
registry = "registry.csv"
"""
FILES = [
    ("[clients]", "[clients", "is not a TOML file"),
    ('label = "sex"', 'lable = "sex"', "line 2: no setting 'lable'; .*did you mean 'label'"),
    ('label = "sex"', 'label = "sexx"', "line 2: no client holds the label 'sexx'"),
    ('id = "id"', 'id = "nr"', "'nr'"),
    ('learner = "factorised"', 'learner = "factorized"', "line 4.*did you mean 'factorised'"),
    ('learner = "factorised"', 'agreement = "produce"', "line 4.*did you mean 'product'"),
    ('learner = "factorised"', 'engine = "rey"', "did you mean 'ray'"),
    ('learner = "factorised"', "seed = -1", "line 4: seed is a whole number >= 0"),
    ('learner = "factorised"', "min_rows = 0", "min_rows"),
    ('registry = "registry.csv"', 'registry = "nowhere.csv"', "line 8: client 'registry'.*no such"),
    ('registry = "registry.csv"', "registry = 5", "line 8: client 'registry' needs data"),
    ('registry = "registry.csv"', 'registry = "no_id.csv"', "'registry'"),
    ('output = "fed.fc"', 'output = "none/fed.fc"', "cannot write"),
    ('label = "sex"', "label = sex", "line 2, column 9.; text stands in quotes"),
    ('registry = "registry.csv"', 'clinic = "registry.csv"', "a name stands there twice"),
    ("[clients]", '[kinds]\nage = "integer"\n[clients]', "line 7: .*is one of continuous, count"),
    ("[clients]", "[client]", "line 6: no setting 'client'.*did you mean 'clients'"),
    ("[clients]", '[kinds]\nagee = "count"\n[clients]', "no column 'agee'.*did you mean 'age'"),
    ("[clients]", "[clients]\n[clients]", "not a TOML file: Cannot declare"),
    ('id = "id"', "id = 3", "line 1: id has a value of the wrong type: expected a text"),
    ('label = "sex"', 'label = ["sex"]', "line 2: label has a value of the wrong type"),
    ('label = "sex"', 'label = "sex"\nlabel_use = "hidden"', "line 3: label_use is 'sent', 'used'"),
    ('output = "fed.fc"', "output = 3", "line 3: output is the name of a file"),
    ('output = "fed.fc"', "", "say where the model goes"),
    ('learner = "factorised"', "learner = 3", "line 4: .*expected a text or a table, found 3"),
    ('learner = "factorised"', 'placement = "here"', "line 4: placement is gathered or remote"),
    ('learner = "factorised"', 'placement = "remote"', "a model file holds gathered densities"),
    ('learner = "factorised"', 'operation = "sum"', "line 4: operation is mixture, average or"),
    ('learner = "factorised"', "seed = 1.5", "line 4: .*expected a whole number, found 1.5"),
    ('learner = "factorised"', 'missing_values = "?"', "line 4: .*expected a list, found '\\?'"),
    ('learner = "factorised"', 'drop = ["agee"]', "line 4: drop: no column 'agee'"),
    ('learner = "factorised"', 'drop = ["sex"]', "line 4: drop names 'sex', which is the label"),
    ('learner = "factorised"', 'allow_missing = "yes"', "line 4: .*expected true or false"),
    ('learner = "factorised"', "timeout = -1", "line 4: timeout is a number of seconds > 0"),
    ('learner = "factorised"', 'trust = "all"', "line 4: trust is 'one owner' or None"),
    ('learner = "factorised"', "[domains]\nage = 3", "line 4: no setting 'domains'"),
    ('learner = "factorised"', "[engine_options]\nn = 2", "line 5: the engine has no option 'n'"),
    (
        'learner = "factorised"',
        '[policies]\nclinic = "mine.toml"',
        "policies holds a policy for each client, found 'mine.toml'.*Policy.from_toml",
    ),
    (
        'learner = "factorised"',
        'agreement = "latent"\n[options]\nn_clusters = "many"',
        "line 6: option 'n_clusters' of the rule 'latent' is a whole number >= 1 or None",
    ),
    ('learner = "factorised"', "[options]\nn_clusters = 0", "whole number >= 1.*found 0"),
    ('registry = "registry.csv"', 'server = "registry.csv"', "a name of its own, not 'server'"),
    ('registry = "registry.csv"', '"" = "registry.csv"', "a name of its own.*found ''"),
    ('registry = "registry.csv"', "registry = {}", "line 8: client 'registry' needs data"),
    (
        'registry = "registry.csv"',
        'registry = {data = "registry.csv", lerner = "hclt"}',
        "line 8: client 'registry' has no setting 'lerner'.*did you mean 'learner'",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), FILES)
def test_a_federation_file_says_what_is_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str
) -> None:
    monkeypatch.chdir(folder)
    assert old in GOOD
    Path("federation.toml").write_text(GOOD.replace(old, new))
    answer = CliRunner().invoke(app, ["federate", "federation.toml"])
    said = " ".join(answer.output.split())
    assert answer.exit_code == 1
    assert re.search(message, said), said
    assert "Traceback" not in said


def test_the_file_itself_trains(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    Path("federation.toml").write_text(GOOD)
    answer = CliRunner().invoke(app, ["federate", "federation.toml"])
    assert answer.exit_code == 0, answer.output


# --- HTTP -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Any]:
    """The application itself, its workers in this process."""
    testclient = pytest.importorskip("starlette.testclient")
    pytest.importorskip("fastapi")
    from fedcircuits.serving.app import make_app
    from fedcircuits.serving.explorer import Explorer
    from fedcircuits.serving.questions import Limits
    from fedcircuits.serving.worker import answer

    limits = Limits(rows=5, samples=50)

    class Here:
        """Answers as a worker process does."""

        questions = Explorer(fc.load(folder / "model.fc"), limits)

        async def ask(
            self, question: str, arguments: dict[str, Any], begun: float
        ) -> dict[str, Any]:
            del begun  # no deadline here
            return answer(self.questions, question, arguments)

    made: Any = make_app(Here(), limits, TOKEN, "model.fc")  # type: ignore[arg-type]
    with testclient.TestClient(made) as client:
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        yield client


REQUESTS: list[tuple[str, Any, int, str]] = [
    ("log_prob", {"rows": []}, 422, "rows"),
    ("log_prob", {}, 422, "rows: Field required"),
    ("log_prob", {"rows": [{"agee": 3}]}, 422, "agee"),
    ("log_prob", {"rows": [{"age": "old"}]}, 422, "'age'"),
    ("log_prob", {"rows": [{"age": [1, 2]}]}, 422, "row 0, variable 'age'"),
    ("log_prob", {"rows": [{"age": 3}] * 9}, 413, "at most 5 rows"),
    ("log_prob", {"rows": [{"sex": "Other"}]}, 422, "expected one of"),
    ("predict_proba", {"rows": [{"age": 3}], "target": "sexx"}, 422, "did you mean 'sex'"),
    ("predict_proba", {"rows": [{"visits": 3}], "target": "age"}, 422, "continuum"),
    ("predict_proba", {"rows": [{"age": 3}], "taget": "sex"}, 422, "taget"),
    ("sample", {"n": -1}, 422, "n: Input should be greater than or equal to 0"),
    ("sample", {"n": 100}, 413, "at most 50 samples"),
    ("probability", {"event": {}}, 422, "event"),
    ("probability", {"event": {"age": {"betwen": [1, 2]}}}, 422, "betwen"),
    ("quantile", {"name": "age", "p": [2.0]}, 422, "p lies strictly between 0 and 1"),
    ("moment", {"name": "sex"}, 422, "categories that are not numbers"),
    ("interval", {"name": "age", "level": 2}, 422, "level"),
    ("nothing", {}, 404, "Not Found"),
    ("log_prob", {"rows": 3}, 422, "rows: Input should be a valid list, found 3"),
    ("log_prob", {"rows": [[]]}, 422, "rows.0: Input should be a valid dictionary"),
    ("log_prob", {"rows": [{}], "unknown": "skip"}, 422, "should be 'error' or 'missing'"),
    ("log_prob", {"rows": [{"age": {"between": [1]}}]}, 422, "takes [low, high]"),
    ("log_prob", {"rows": [{"age": {"between": ["a", "b"]}}]}, 422, "expected a number"),
    ("log_prob", {"rows": [{"sex": {"above": "Male"}}]}, 422, "categories, which have no order"),
    ("predict_proba", {"rows": [{"age": 3}]}, 422, "target: Field required"),
    ("predict_proba", {"rows": [{"age": 3}], "target": ["sex"]}, 422, "valid string"),
    ("sample", {"n": "many"}, 422, "n: Input should be a valid integer"),
    ("sample", {"n": 2, "seed": -1}, 422, "seed: Input should be greater"),
    ("sample", {"n": 2, "given": {"agee": 1}}, 422, "did you mean 'age'"),
    ("sample", {"n": 2, "given": {"age": 1}, "rows": [{"age": 1}]}, 422, "found both"),
    ("probability", {"event": {"age": {}}}, 422, "at least one key"),
    ("moment", {"name": "age", "order": 99}, 422, "less than or equal to 16"),
    ("variance", {"name": "agee"}, 422, "did you mean 'age'"),
    ("cdf", {"name": "age", "x": ["a"]}, 422, "expected a number"),
    ("entropy", {"names": ["age"]}, 422, "it has no entropy of its own"),
    ("entropy", {"names": ["sex", "sex"]}, 422, "one or more different names"),
    ("covariance", {"names": ["sex", "age"]}, 422, "has no moments"),
    ("impute", {"rows": [{"agee": 1}]}, 422, "knows none of the columns 'agee'"),
    ("explore/answer", {"without": ["c"]}, 422, "no client 'c' to switch off"),
    ("explore/sample", {"gvn": {}}, 422, "gvn: Extra inputs are not permitted"),
]


@pytest.mark.parametrize(("question", "body", "status", "message"), REQUESTS)
def test_a_request_is_told_what_is_wrong(
    service: Any, question: str, body: Any, status: int, message: str
) -> None:
    reply = service.post(f"/{question}", json=body)
    assert reply.status_code == status, reply.text
    assert message in reply.json()["error"]
    assert "Traceback" not in reply.text


@pytest.mark.parametrize(
    ("content", "header", "status"),
    [(b"{not json", TOKEN, 422), (b"", TOKEN, 422), (b"{}", "wrong", 401), (b"[1]", TOKEN, 422)],
)
def test_what_is_no_request_is_told_so(
    service: Any, content: bytes, header: str, status: int
) -> None:
    reply = service.post(
        "/log_prob", content=content, headers={"Authorization": f"Bearer {header}"}
    )
    assert reply.status_code == status
    assert json.loads(reply.text)["error"]


# --- Python ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return fc.load(folder / "model.fc")


ASKED: list[tuple[str, Any, str]] = [
    ("an unknown variable", lambda m: m.expectation("agee"), "did you mean 'age'"),
    ("evidence that is no evidence", lambda m: m.expectation("age", 5), "found int"),
    ("an event of nothing", lambda m: m.probability({}), "an event is a mapping"),
    ("an unknown category", lambda m: m.log_prob({"sex": "Other"}), "expected one of"),
    ("text for a number", lambda m: m.log_prob({"age": "old"}), "'age'"),
    ("a level beyond one", lambda m: m.interval("age", 1.5), "level lies strictly between"),
    ("one variable twice", lambda m: m.marginal(["age", "age"]), "different names"),
    ("everything given", lambda m: m.condition(age=3.0, sex="Male", visits=1), "no variable"),
    ("a list of pairs", lambda m: m.condition([("age", 3)]), "takes values by name"),
    ("a wrong way to impute", lambda m: m.impute(people(), "median"), "how is 'mean'"),
    ("a folder to write to", lambda m: m.report("none/a.html"), "not a file in an existing"),
    ("no clients", lambda _: fc.federate({}), "at least one client"),
    ("clients that are one table", lambda _: fc.federate(people()), "clients is a mapping"),
    ("a misspelt setting", lambda _: fc.federate([people()], lable="sex"), "did you mean 'label'"),
    ("an unknown rule", lambda _: fc.federate([people()], agreement="prod"), "no agreement rule"),
    ("an unknown learner", lambda _: fc.learn(people(), learner="mixtur"), "'mixture'"),
    ("an unknown option", lambda _: fc.learn(people(), learner="mixture", n=3), "no option 'n'"),
    ("a file that is none", lambda _: fc.learn("nowhere.csv"), "no such file"),
    ("progress of another sort", lambda _: fc.learn(people(), progress=3), "progress is True"),
    ("several labels", lambda _: fc.learn(people(), label=["sex"]), "name of one column"),  # type: ignore[arg-type]
    ("a table to load", lambda _: fc.load(people()), "takes the path of a model file"),
    ("text for a share", lambda m: m.quantile("age", ["a"]), "p is a number or a list of numbers"),
    ("text for a point", lambda m: m.cdf("age", "old"), "variable 'age': expected a number"),
    ("a file to save that is none", lambda m: m.save(None), "path of a file, found NoneType"),
    ("kinds as a list", lambda _: fc.learn(people(), kinds=["age"]), "kinds is a mapping"),  # type: ignore[arg-type]
    ("domains as a text", lambda _: fc.learn(people(), domains="age"), "domains is a mapping"),  # type: ignore[arg-type]
    ("an ordinary array", lambda _: fc.learn(np.zeros((3, 2))), "needs names"),
    ("a range of categories", lambda m: m.probability({"sex": fc.above("F")}), "have no order"),
    ("a client without a name", lambda _: fc.federate({"": people()}), "a name of its own"),
    (
        "a policy that is a text",
        lambda _: fc.federate([people()], policies={"client-1": "p"}),  # type: ignore[dict-item]
        "Policy.from_toml",
    ),
    (
        "an option of a rule of another type",
        lambda _: fc.federate([people()], agreement="latent", n_clusters=1.5),
        "whole number >= 1 or None, found 1.5",
    ),
    ("a picture of no kind", lambda m: m.draw("picture"), "its name ends in one of"),
    ("a level that is a text", lambda m: m.interval("age", "wide"), "level"),
    ("samples by half", lambda m: m.sample(2.5), "whole number of samples"),
    ("a negative seed", lambda m: m.sample(2, seed=-1), "seed is a whole number >= 0"),
    ("a target that is none", lambda m: m.predict_proba(people(), "sexx"), "did you mean 'sex'"),
    ("moments of words", lambda m: m.variance("sex"), "categories that are not numbers"),
    ("a label of nobody", lambda _: fc.federate([people()], label="sexx"), "'sexx'"),
    ("an unknown setting of a rule", lambda _: fc.federate([people()], n_cluster=3), "n_clusters"),
    ("a rule that is none", lambda _: fc.federate([people()], agreement=3), "name of a rule"),  # type: ignore[arg-type]
    ("an engine that is none", lambda _: fc.federate([people()], engine=3), "name of an engine"),  # type: ignore[arg-type]
    ("clients by half", lambda _: fc.partition.iid(people(), 1.5), "a whole number; found 1.5"),  # type: ignore[arg-type]
    ("weights that are texts", lambda _: fc.learn(people(), weights=["a"]), "finite numbers"),
    ("a negative seed to learn", lambda _: fc.learn(people(), seed=-1), "seed is a whole number"),
]


@pytest.mark.filterwarnings("ignore::fedcircuits.FedcircuitsWarning")
@pytest.mark.parametrize(("what", "ask", "message"), ASKED, ids=[case[0] for case in ASKED])
def test_python_says_what_is_wrong(model: Any, what: str, ask: Any, message: str) -> None:
    with pytest.raises(FedcircuitsError) as raised:
        ask(model)
    assert message in str(raised.value), what


def test_there_are_enough_cases() -> None:
    assert min(map(len, (COMMANDS, FILES, REQUESTS, ASKED))) >= 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"n_states": 0},
            "'n_states' of learner 'mixture' is a whole number >= 1 or None, found 0",
        ),
        ({"n_states": "many"}, "whole number >= 1 or None, found 'many'"),
        ({"n_states": 2.5}, "whole number >= 1 or None, found 2.5"),
        ({"n_trees": True}, "whole number >= 1 or None, found True"),
        ({"smoothing": -1.0}, "'smoothing' .* is a number >= 0 or None, found -1.0"),
        ({"smoothing": float("nan")}, "a number >= 0 or None, found nan"),
        ({"head": "yes"}, "is True or False or None, found 'yes'"),
        ({"aim": "speed"}, "is 'label' or 'density', found 'speed'"),
        ({"validation_share": None}, "is a number >= 0, found None"),
        ({"min_rows": 0}, "'min_rows' .* is a whole number >= 1 or None, found 0"),
        ({"rows_in_memory": 0}, "'rows_in_memory' .* is a whole number >= 1 or None, found 0"),
        ({"validation_share": 1.0}, "validation_share is a share from 0 to below 1, found 1.0"),
        ({"prior_scale": 0}, "prior_scale is a number above 0, found 0"),
    ],
)
def test_options_of_a_learner_are_checked_by_their_type(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(FedcircuitsError, match=message):
        fc.learn(people(), learner="mixture", **options)
