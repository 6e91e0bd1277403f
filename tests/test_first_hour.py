"""The first hour: drafting a federation file, errors with their line, progress, scores of learn."""

from __future__ import annotations

import io
import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import fedcircuits as fc
from contracts.federations import ID, LABEL, split
from fedcircuits import learners
from fedcircuits.api.progress import TextBar, shown
from fedcircuits.api.watched import Stages
from fedcircuits.cli.app import app
from fedcircuits.cli.commands.options import ENGINES, LEARNERS, RULES
from fedcircuits.cli.federation_file import read_federation
from fedcircuits.cli.federation_file.draft import draft
from fedcircuits.cli.federation_file.lines import place
from fedcircuits.cli.init import run as init
from fedcircuits.cli.output import Output
from fedcircuits.engines import ENGINES as KNOWN_ENGINES
from fedcircuits.engines import LATER
from fedcircuits.errors import FedcircuitsWarning, FederationError, LearningError
from fedcircuits.federation.agreement.by_name import RULES as KNOWN_RULES
from fedcircuits.report.meanings import MEANINGS, explained

runner = CliRunner()


def invoke(*arguments: object) -> Any:
    return runner.invoke(app, [str(a) for a in arguments])


def bank_and_shop(seed: int = 0) -> dict[Path, pd.DataFrame]:
    """Two tables of one set of customers: whole numbers, categories, "?" for missing, a label."""
    rng = np.random.default_rng(seed)
    n = 80
    debt = rng.normal(10, 3, n).round(2)
    debt_text = [str(v) for v in debt]
    debt_text[3] = "?"
    bank = pd.DataFrame(
        {
            "customer_id": rng.permutation(n) + 1000,
            "debt": debt_text,
            "default": np.where(debt > 11, "yes", "no"),
        }
    )
    shop = pd.DataFrame(
        {
            "customer_id": bank["customer_id"].sample(frac=1, random_state=1).to_numpy(),
            "visits": rng.poisson(4, n),
            "town": rng.choice(["north", "south"], n),
        }
    )
    return {Path("data/bank.csv"): bank, Path("data/shop.csv"): shop}


# --- init -----------------------------------------------------------------------------------------


def test_draft_finds_id_label_missing_spelling_and_split() -> None:
    found = draft(bank_and_shop(), Path("data"))
    assert (found.setting, found.id, found.label) == ("vertical", "customer_id", "default")
    assert found.missing_values == ("?",)
    read = tomllib.loads(found.text)
    assert read["label"] == "default"
    assert read["id"] == "customer_id"
    assert read["clients"] == {"bank": "bank.csv", "shop": "shop.csv"}
    assert read["kinds"] == {}
    assert '# debt = "continuous"' in found.text
    assert '# visits = "count"' in found.text
    assert '# town = "categorical"' in found.text


def test_init_is_told_what_means_missing_and_advises_in_words_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    levels = [f"{i},5" for i in range(60)]
    for name in ("a", "b"):
        rows = [f"{i};{level};{'uv'[i % 2]}" for i, level in enumerate([*levels, "siehe Akte"])]
        (tmp_path / f"{name}.csv").write_text("\n".join(["id;level;y", *rows]))
    files, to = [tmp_path / "a.csv", tmp_path / "b.csv"], tmp_path / "f.toml"
    out = Output(settings_in=to.name)
    with out.errors():
        init(out, files, to, "y", None, [], None, False)
    said = " ".join(capsys.readouterr().err.split())
    assert "unless these cells are mended or 'missing_values = ['siehe Akte']' in f.toml" in said
    with out.errors():
        init(out, files, to, "y", None, ["siehe Akte"], None, True)
    assert tomllib.loads(to.read_text())["missing_values"] == ["siehe Akte"]
    assert '# level = "continuous"' in to.read_text()


def test_draft_of_equal_columns_is_a_split_of_rows() -> None:
    bank = next(iter(bank_and_shop().values()))
    found = draft({Path("a.csv"): bank[:40], Path("b.csv"): bank[40:]}, Path("."))
    assert found.setting == "horizontal"
    assert found.id == "customer_id"  # named so: it is kept out of the model


def test_draft_of_some_equal_columns_is_a_split_of_both() -> None:
    tables = bank_and_shop()
    bank, shop = tables.values()
    both = shop.assign(default=bank.set_index("customer_id")["default"][shop["customer_id"]].values)
    found = draft({Path("bank.csv"): bank, Path("shop.csv"): both}, Path("."))
    assert found.setting == "hybrid"


def test_draft_declares_a_column_that_clients_read_differently() -> None:
    a = pd.DataFrame({"zone": [1, 2, 3] * 20, "y": ["u", "v", "w"] * 20})
    b = a.assign(zone=["one", "two", "three"] * 20)
    found = draft({Path("a.csv"): a, Path("b.csv"): b}, Path("."))
    assert tomllib.loads(found.text)["kinds"] == {"zone": "categorical"}


def test_draft_quotes_odd_names() -> None:
    odd = pd.DataFrame({'say "hi"': [1.5, 2.5] * 20, "größe\\": ["a", "b"] * 20})
    found = draft({Path("x y.csv"): odd, Path("z/x y.csv"): odd}, Path("."), label="größe\\")
    read = tomllib.loads(found.text)
    assert read["label"] == "größe\\"
    assert list(read["clients"].values()) == ["x y.csv", "z/x y.csv"]


def test_drafted_file_trains(tmp_path: Path) -> None:
    for path, table in bank_and_shop().items():
        table.to_csv(tmp_path / path.name, index=False)
    at = tmp_path / "federation.toml"
    made = invoke("init", tmp_path / "bank.csv", tmp_path / "shop.csv", "-o", at)
    assert made.exit_code == 0, made.output
    assert "fedcircuits federate" in made.output
    at.write_text('learner = "factorised"\nagreement = "independent"\n' + at.read_text())
    trained = invoke("federate", at, "--json")
    assert trained.exit_code == 0, trained.output
    fed = fc.load(tmp_path / "model.fc")
    assert set(fed.schema.names) == {"debt", "default", "visits", "town"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bank.csv"], "a federation has two or more tables"),
        (["bank.csv", "nowhere.csv"], "no such file"),
        (["bank.csv", "shop.csv", "--label", "defualt"], "did you mean 'default'"),
        (["bank.csv", "shop.csv", "-o", "there.toml"], "is there already"),
        (["bank.csv", "shop.csv", "-o", "no/where.toml"], "cannot write"),
    ],
)
def test_init_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for path, table in bank_and_shop().items():
        table.to_csv(path.name, index=False)
    Path("there.toml").write_text("label = 'mine'")
    answer = invoke("init", *arguments)
    assert answer.exit_code == 1
    assert message in " ".join(answer.output.split())
    assert Path("there.toml").read_text() == "label = 'mine'"


# --- errors of a federation file ------------------------------------------------------------------


FILE = """label = "y"
seed = 3

[clients]
bank = "bank.csv"
"my shop" = "shop.csv"

[options]
n_clusters = 3
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("label",), 1),
        (("clients",), 4),
        (("clients", "bank"), 5),
        (("clients", "my shop"), 6),
        (("options", "n_clusters"), 9),
        (("options", "elsewhere"), 8),
    ],
)
def test_line_of_a_key(path: tuple[str, ...], line: int) -> None:
    assert place(FILE, path) == f", line {line}"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seed = 3", "sede = 3", r"line 2: no setting 'sede'; .*did you mean 'seed'"),
        ("seed = 3", "seed = -3", r"line 2: seed is a whole number >= 0, found -3"),
        ("seed = 3", "seed = true", r"line 2: seed has a value of the wrong type"),
        ("seed = 3", 'learner = "hctl"', r"line 2: no learner 'hctl'.*did you mean 'hclt'"),
        ("seed = 3", 'agreement = "latnet"', r"line 2: no agreement rule.*did you mean 'latent'"),
        ("n_clusters", "n_cluster", r"line 9: no option 'n_cluster'.*did you mean 'n_clusters'"),
        ('bank = "bank.csv"', "bank = 7", r"line 5: client 'bank' needs data = 'file.csv', found"),
        ("[clients]", "clients = 3\n[kinds]", r"line 4: name the clients"),
        ("[options]", "[options", r"not a TOML file: .*line 8"),
    ],
)
def test_error_names_line_and_key(tmp_path: Path, old: str, new: str, message: str) -> None:
    at = tmp_path / "federation.toml"
    at.write_text(FILE.replace(old, new, 1))
    with pytest.raises((FederationError, LearningError), match=message):
        read_federation(at)


def test_error_found_while_training_names_the_line(tmp_path: Path) -> None:
    for path, table in bank_and_shop().items():
        table.to_csv(tmp_path / path.name, index=False)
    at = tmp_path / "federation.toml"
    start = 'output = "m.fc"\nid = "customer_id"\n'
    clients = '[clients]\nbank = "bank.csv"\nshop = "shop.csv"\n'
    at.write_text(f'{start}label = "town hall"\n{clients}')
    said = " ".join(invoke("federate", at).output.split())
    assert "line 3: no client holds the label 'town hall'" in said
    at.write_text(f"{start}{clients}".replace("shop.csv", "shops.csv"))
    assert "line 5: client 'shop': no such file" in " ".join(invoke("federate", at).output.split())


# --- help -----------------------------------------------------------------------------------------


def test_help_lists_every_learner_rule_and_engine() -> None:
    assert set(LEARNERS) == set(learners.BY_NAME)
    assert set(RULES) == {"auto", *KNOWN_RULES}
    assert set(ENGINES) == {*KNOWN_ENGINES, *LATER}
    learn, federate = invoke("learn", "--help").output, invoke("federate", "--help").output
    assert all(f"\n    {name} " in learn for name in LEARNERS)
    assert all(f"\n    {name} " in federate for name in [*RULES, *ENGINES])


def test_reference_page_has_every_setting() -> None:
    from dataclasses import fields

    page = (Path(__file__).parents[1] / "docs/federation-toml.md").read_text()
    settings = {f.name for f in fields(fc.RunSettings)} - {"schema"}
    assert {
        name for name in settings if f"`{name}`" not in page and f"[{name}]" not in page
    } == set()
    for name in (*LEARNERS, *RULES, *ENGINES):
        assert f"`{name}`" in page


# --- learn: scores and warnings -------------------------------------------------------------------


def test_learn_shows_a_held_out_score_beside_the_baseline(tmp_path: Path) -> None:
    bank = next(iter(bank_and_shop().values()))
    bank["debt"] = bank["debt"].replace("?", "9.9").astype(float)
    bank.to_csv(tmp_path / "bank.csv", index=False)
    to = tmp_path / "m.fc"
    answer = invoke("learn", tmp_path / "bank.csv", "--label", "default", "-o", to, "--json")
    found = json.loads(answer.stdout)["held_out"]
    assert found["accuracy"][0] > found["accuracy"][1] + 0.1
    assert found["log-loss"][0] < found["log-loss"][1]
    held, baseline = found["mean log-density, nats per row"]
    assert held > baseline
    none = invoke("learn", tmp_path / "bank.csv", "-o", to, "--holdout", 0, "--json")
    assert json.loads(none.stdout)["held_out"] is None
    bad = invoke("learn", tmp_path / "bank.csv", "-o", to, "--holdout", 1)
    assert "--holdout is a share from 0 to below 1" in bad.output


def test_learn_scores_a_number_and_a_file_of_test_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    table = pd.DataFrame({"x": x, "price": 3 * x + rng.normal(size=300) / 10})
    table[:200].to_csv(tmp_path / "a.csv", index=False)
    table[200:].to_csv(tmp_path / "b.csv", index=False)
    answer = invoke(
        "learn", tmp_path / "a.csv", "--label", "price", "-o", tmp_path / "m.fc",
        "--test", tmp_path / "b.csv", "--json",
    )  # fmt: skip
    error, baseline = json.loads(answer.stdout)["held_out"]["root mean square error"]
    assert error < baseline / 2
    truth, mean = table[200:]["price"], table[:200]["price"].mean()
    assert baseline == pytest.approx(float(np.sqrt(np.mean((truth - mean) ** 2))))


def test_warnings_of_a_fit_are_explained() -> None:
    table = pd.DataFrame({"x": [1.0, 2.0, 3.5] * 5, "same": [4] * 15})
    report = fc.learn(table, learner="learnspn").fit_report
    assert report is not None
    assert any("constant" in w for w in report.warnings)
    for warning in report.warnings:
        assert any(explained(warning) == f"{warning}: {text}" for text in MEANINGS.values())
    assert explained("something else") == "something else"


# --- progress -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "engine"),
    [
        ("horizontal", "local"),
        ("vertical", "local"),
        ("hybrid", "local"),
        pytest.param("vertical", "processes", marks=pytest.mark.slow),
    ],
)
def test_progress_never_falls_and_names_clients(setting: str, engine: str) -> None:
    seen: list[tuple[float, str]] = []
    shares = split(setting)  # type: ignore[arg-type]
    given: dict[str, Any] = {"id": ID, "label": LABEL, "learner": "factorised", "engine": engine}
    fed = fc.federate(shares, **given, progress=lambda part, words: seen.append((part, words)))
    parts = [part for part, _ in seen]
    assert parts == sorted(parts)
    assert 0.3 <= parts[-1] < 1
    text = "; ".join(words for _, words in seen)
    assert "training" in text
    assert "reading the columns of" in text
    assert ("starting clients" in text) is (engine != "local")
    assert all(name in text for name in shares)
    quiet = fc.federate(shares, **given)
    rows = next(iter(shares.values())).drop(columns=ID).head(5)
    assert fed.log_prob(rows).tolist() == quiet.log_prob(rows).tolist()


def test_what_an_engine_says_of_a_message_is_told_without_the_name_of_the_message() -> None:
    seen: list[str] = []
    stages = Stages(lambda _, words: seen.append(words))
    stages.answered(0.5, "starting clients")
    stages.begin("fit_tilt", ["bank", "shop"])
    stages.answered(0.5, "fit_tilt: 1 of 2 clients have answered")
    assert seen[0] == "starting clients"
    assert seen[-1] == "training bank, shop: 1 of 2 clients have answered"


def test_progress_true_draws_a_bar_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    shares = split("horizontal")
    fc.federate(shares, id=ID, label=LABEL, learner="factorised", progress=True)
    drawn = capsys.readouterr().err
    assert "100% done" in drawn
    assert drawn.endswith("\n")
    rows = next(iter(shares.values())).drop(columns=ID)
    fc.learn(rows, learner="mixture", progress=True)
    assert "100% done" in capsys.readouterr().err
    with pytest.raises(LearningError, match="progress is True, False or a function"):
        fc.learn(rows, progress=3)  # type: ignore[arg-type]


def test_a_notebook_keeps_the_last_state_of_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[str] = []

    class Handle:
        def update(self, text: str) -> None:
            states.append(text)

    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    display.HTML = str  # type: ignore[attr-defined]
    display.display = lambda *_, **__: Handle()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with shown(True) as progress:
        assert progress is not None
        progress(0.25, "reading <a>")
    assert states == [
        '<progress value="0.250" max="1"></progress> 25% reading &lt;a&gt;',
        '<progress value="1.000" max="1"></progress> 100% done',
    ]


def test_warnings_name_the_line_of_the_caller() -> None:
    model = fc.learn(pd.DataFrame({"a": [1, 2, 3, 4] * 9}), learner="factorised")
    with pytest.warns(FedcircuitsWarning, match="does not know: 'b'") as found:
        model.log_prob(pd.DataFrame({"a": [1], "b": [2]}))
    assert [each.filename for each in found] == [__file__]


def test_text_bar_is_drawn_over_itself() -> None:
    stream = io.StringIO()
    bar = TextBar(stream)
    bar.show(0.5, "training bank and shop")
    bar.show(0.6, "done soon")
    first, second = stream.getvalue().split("\r")[1:]
    assert len(first) == len(second)
    with shown(None) as nothing:
        assert nothing is None


# --- tables and unexpected errors -----------------------------------------------------------------


def test_few_rows_of_many_columns_are_printed_a_line_a_column(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = Output()
    out.table("t", [f"column_{i}" for i in range(30)], [list(range(30)), list(range(30, 60))])
    lines = capsys.readouterr().out.splitlines()
    assert any(all(word in line for word in ("column_17", " 17 ", " 47 ")) for line in lines)
    assert max(map(len, lines)) <= 80


def test_unexpected_error_is_one_line_without_debug(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        with Output().errors():
            raise ZeroDivisionError("by nothing")

    with pytest.raises(SystemExit):
        fails()
    monkeypatch.setattr(Output, "debug", True)
    with pytest.raises(ZeroDivisionError):
        fails()


def test_init_leaves_out_keys_and_free_text(tmp_path: Path) -> None:
    for at, name in enumerate(("a", "b")):
        frame = pd.DataFrame(
            {
                "memo": [f"{at} {i}" for i in range(60)],
                "empty": None,
                "x": [*range(20)] * 3,
                "y": ["no", "yes"] * 30,
            }
        )
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    file = tmp_path / "federation.toml"
    tables = [str(tmp_path / f"{name}.csv") for name in ("a", "b")]
    made = CliRunner().invoke(app, ["init", *tables, "-o", str(file)])
    assert made.exit_code == 0, made.output
    assert "not learned: memo (another text in every row)" in made.output
    assert "not learned: empty (no value in any row)" in made.output
    assert 'drop = ["memo", "empty"]' in file.read_text()
    trained = CliRunner().invoke(app, ["federate", str(file), "-o", str(tmp_path / "m.fc")])
    assert trained.exit_code == 0, trained.output
    assert fc.load(tmp_path / "m.fc").schema.names == ("x", "y")
    refused = CliRunner().invoke(app, ["provision", str(file)])
    assert "each party chooses its own columns: `columns` in its policy" in refused.output
