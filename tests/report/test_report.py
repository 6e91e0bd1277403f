"""Reports and the explorer's answers, without a browser."""

from __future__ import annotations

import html
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import fedcircuits as fc
from fedcircuits.errors import FedcircuitsError
from fedcircuits.report import about_federation
from fedcircuits.report.networks import dependence_tree
from fedcircuits.report.scores import area_under_curve, label_scores, roc_curve
from fedcircuits.serving.explorer import Explorer
from fedcircuits.serving.questions import Limits


def rows(n: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(3)
    amount = rng.gamma(2.0, 10.0, n).round(2)
    return pd.DataFrame(
        {
            "day": pd.Timestamp("2025-01-01") + pd.to_timedelta(rng.integers(0, 300, n), unit="D"),
            "amount": amount,
            "size": rng.choice(["small", "large"], n),
            "loyal": np.where(amount + rng.normal(0, 5, n) > 20, "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def model() -> fc.Density:
    return fc.learn(rows(), label="loyal", learner="mixture", head=False)


def test_a_report_with_dates_and_figures(model: fc.Density, tmp_path: Path) -> None:
    page = model.report(tmp_path / "a.html", rows(), label="loyal", figures_to=tmp_path / "figures")
    text = page.read_text(encoding="utf-8")
    assert "Held-out rows" in text
    assert "What moves loyal" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert len(list((tmp_path / "figures").glob("*.svg"))) >= 6


def test_a_report_that_cannot_be_written_says_why(model: fc.Density, tmp_path: Path) -> None:
    with pytest.raises(FedcircuitsError, match="not a file in an existing folder"):
        model.report(tmp_path / "none" / "a.html")
    with pytest.raises(FedcircuitsError, match="no variable 'loyalty'"):
        model.report(tmp_path / "a.html", label="loyalty")


def test_scores_agree_with_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    score, hit = rng.random(300).round(2), rng.random(300) < 0.4
    assert area_under_curve(score, hit) == pytest.approx(roc_auc_score(hit, score))
    false, true = roc_curve(score, hit)
    assert np.trapezoid(true, false) == pytest.approx(roc_auc_score(hit, score))
    proba = pd.DataFrame({"a": [0.9, 0.2, 0.4], "b": [0.1, 0.8, 0.6]})
    found = label_scores(proba, pd.Series(["a", "b", "a"]))
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.log_loss == pytest.approx(-np.log([0.9, 0.8, 0.4]).mean())
    assert found.baseline_accuracy == pytest.approx(2 / 3)


def test_categories_that_the_rows_lack_are_drawn_too(tmp_path: Path) -> None:
    table = pd.DataFrame({"region": ["north", "south", "east"] * 30, "y": [0, 1, 1] * 30})
    held = pd.DataFrame({"region": ["north", "east"] * 5, "y": [0, 1] * 5})
    model = fc.learn(table, learner="factorised")
    model.report(tmp_path / "a.html", held, figures_to=tmp_path)
    assert "south" in (tmp_path / "single-variables-region.svg").read_text(encoding="utf-8")


def test_a_report_explains_its_words_and_baselines(model: fc.Density, tmp_path: Path) -> None:
    held = rows()[:60]
    text = model.report(tmp_path / "a.html", held).read_text(encoding="utf-8")
    assert "Words on this page" in text
    assert "0.5 is guessing" in text
    assert "typical distance of the prediction" not in text  # the label is no number
    alone = sum(model.marginal([name]).mean_log_prob(held[[name]]) for name in model.schema.names)
    assert f"(every column by its own: {alone:.3f})" in text


def test_a_report_about_images_shows_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    dark = rng.integers(0, 2, 120)
    pictures = rng.integers(0, 40, (120, 2, 3)) + 200 * dark[:, None, None]
    model = fc.learn(pictures[:80].astype(np.uint8), learner="mixture", head=False)
    page = model.report(tmp_path / "a.html", pictures[80:].astype(np.uint8))
    text = page.read_text(encoding="utf-8")
    assert "held-out images, and the mean of ten draws of their lower halves" in text
    assert text.count("data:image/png;base64") == 4
    assert "Single variables" not in text


def test_a_report_about_labelled_colour_images_takes_them_without_labels(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 90)
    pictures = rng.integers(0, 60, (90, 2, 2, 3))
    pictures[..., 0] += 150 * label[:, None, None]
    pictures = pictures.astype(np.uint8)
    names = np.array(["blue", "red"])[label]
    model = fc.learn(pictures[:60], label=names[:60], learner="mixture", head=False)
    text = model.report(tmp_path / "a.html", pictures[60:], label="label").read_text(
        encoding="utf-8"
    )
    assert "A model of colour images of 2 x 2 pixels" in text
    assert "mean for each label: blue, red" in text
    assert "12 of 13" in text  # columns of the model in these rows


def test_the_explorer_gives_the_probabilities_of_the_library(model: fc.Density) -> None:
    explorer = Explorer(model, Limits())
    bins = {v["name"]: v["bins"] for v in explorer.explore_variables()["variables"]}
    day = bins["day"]
    given = {"day": {"between": [day[3]["low"], day[9]["high"]]}, "size": "large"}
    answer = explorer.explore_answer(given, [])
    ends = [pd.Timestamp("1970-01-01") + pd.Timedelta(days=x) for x in given["day"]["between"]]
    event = {"day": fc.between(*ends), "size": "large"}
    assert answer["probability"] == pytest.approx(model.probability(event))
    evidence = pd.DataFrame({name: pd.Series([value]) for name, value in event.items()})
    expected = model.predict_proba(evidence, "loyal").iloc[0]
    assert answer["variables"]["loyal"] == pytest.approx(list(expected), abs=1e-12)
    for name, shares in answer["variables"].items():
        assert sum(shares) == pytest.approx(1.0), name
        assert len(shares) == len(bins[name])
    assert answer["variables"]["size"] == [1.0, 0.0] or answer["variables"]["size"] == [0.0, 1.0]
    assert sum(answer["variables"]["day"][:2]) == 0.0
    assert len(explorer.explore_sample(given, [])["rows"]) == 5


def test_a_model_of_one_variable_has_a_report(tmp_path: Path) -> None:
    rows = pd.DataFrame({"visits": [0, 1, 1, 2, 3] * 20})
    page = fc.learn(rows, learner="factorised").report(tmp_path / "one.html").read_text()
    assert "visits" in page


# --- numbers, federations, pictures ---------------------------------------------------------------


def test_a_report_about_a_number(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=150)
    table = pd.DataFrame({"x": x, "price": 3 * x + rng.normal(size=150) / 3})
    made = fc.learn(table[:100], label="price")
    text = made.report(tmp_path / "a.html", table[100:]).read_text(encoding="utf-8")
    assert "root mean square error" in text
    assert "rows within their 90 % interval" in text
    assert "predicted mean over true price" in text


def test_scores_of_another_model_are_said_to_be_so(model: fc.Density, tmp_path: Path) -> None:
    other = fc.learn(rows()[:150], label="loyal", learner="factorised")
    page = model.report(tmp_path / "a.html", rows()[150:], scored=other)
    text = page.read_text(encoding="utf-8")
    assert "learned in the same way without them" in text
    assert f"{other.mean_log_prob(rows()[150:]):.3f} nats a row" in text


def split_rows() -> dict[str, pd.DataFrame]:
    table = rows().drop(columns="day").assign(id=range(200))
    return {"shop": table[["id", "amount", "loyal"]], "bank": table[["id", "size"]]}


@pytest.fixture(scope="module")
def fed() -> fc.FederatedCircuit:
    return fc.federate(split_rows(), id="id", label="loyal", learner="mixture")


def test_a_report_about_a_federation_says_who_sent_what(
    fed: fc.FederatedCircuit, tmp_path: Path
) -> None:
    page = fed.report(tmp_path / "a.html", rows().drop(columns="day"))
    text = page.read_text(encoding="utf-8")
    assert fed.why is not None
    assert fed.why.reason in text
    assert f"{fed.ledger.n_bytes:,}" in text
    assert "bits a row" in text
    assert "AUC of each client alone, and of all together" in text
    timeline = text.split("<h2>Timeline</h2>")[1].split("</section>")[0]
    assert timeline.index('<td class="">schema</td>') < timeline.index(">training</td>")
    assert "begins (s)" in timeline
    assert "messages and clients' work over time" in html.unescape(timeline)
    assert page.stat().st_size < 5_000_000


def test_what_a_rule_reveals_is_grouped_by_who_learns_it() -> None:
    lines = (
        "label everywhere: to other clients, bounded codes: its class",
        "to the server, bounded codes, 7.1 bits a row: the `cluster`",
        "to the server, aggregates: rows of each class",
        "label everywhere: to the server, aggregates: trees",
        "a text of a rule of one's own",
    )
    assert about_federation.who_learns_what(lines) == [
        ("a client", "a text of a rule of one's own"),
        ("the server, aggregates", "rows of each class; label everywhere: trees"),
        ("the server, bounded codes, 7.1 bits a row", "the cluster"),
        ("other clients, bounded codes", "label everywhere: its class"),
    ]


def test_a_report_of_rows_without_the_label_has_no_scores_of_it(
    fed: fc.FederatedCircuit, tmp_path: Path
) -> None:
    label = fed.fitted.label
    known = pd.concat(split_rows().values(), axis=1).loc[:, lambda f: ~f.columns.duplicated()]
    page = fed.report(tmp_path / "r.html", known.drop(columns=label, errors="ignore"))
    assert "gain in nats" in page.read_text()
    assert "gain in AUC" not in page.read_text()
    with pytest.raises(fc.FedcircuitsError, match="did you mean"):
        fed.contributions(known, label + "x")


def test_times_are_of_the_run_and_never_in_the_file(
    fed: fc.FederatedCircuit, tmp_path: Path
) -> None:
    steps = fed.ledger.steps()
    times = [second for *_, begin, end in steps for second in (begin, end)]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert {verb for _, verb, *_ in steps} == {entry.verb for entry in fed.ledger.entries}
    fed.save(tmp_path / "a.fc")
    again = fc.load(tmp_path / "a.fc")
    assert isinstance(again, fc.FederatedCircuit)
    assert again.ledger.steps() == []
    text = again.report(tmp_path / "b.html").read_text(encoding="utf-8")
    assert "begins (s)" not in text
    assert "hold no times" in text


def test_the_tree_of_dependences_is_the_heaviest_one() -> None:
    """Compared with all spanning trees of four variables."""
    rng = np.random.default_rng(1)
    half = np.triu(rng.random((4, 4)), 1)
    matrix = pd.DataFrame(half + half.T, index=list("abcd"), columns=list("abcd"))
    tree = dependence_tree(matrix, "b")
    assert tree.parent[1] == -1
    best = 0.0
    pairs = list(combinations(range(4), 2))
    for edges in combinations(pairs, 3):
        joined = [{at} for at in range(4)]
        for i, j in edges:
            one = joined[i] | joined[j]
            for at in one:
                joined[at] = one
        if len(joined[0]) == 4:
            best = max(best, sum(matrix.iloc[i, j] for i, j in edges))
    assert sum(tree.strength) == pytest.approx(best)


def test_every_model_is_drawn(model: fc.Density, fed: fc.FederatedCircuit, tmp_path: Path) -> None:
    one = fc.learn(rows()[["size", "loyal"]], learner="factorised")
    headed = fc.learn(rows().drop(columns="day"), label="loyal")
    for at, each in enumerate([model, fed, one, headed, model.condition(size="large")]):
        each.draw(tmp_path / f"{at}.png")
        assert (tmp_path / f"{at}.png").read_bytes().startswith(b"\x89PNG")
    fed.draw(tmp_path / "fed.svg")
    drawn = (tmp_path / "fed.svg").read_text()
    assert all(client in drawn for client in fed.clients)
    headed.draw(tmp_path / "tree.svg")
    assert "amount" in (tmp_path / "tree.svg").read_text()
    with pytest.raises(FedcircuitsError, match="cannot be written"):
        model.draw(tmp_path / "a.docx")


def test_pictures_say_what_they_show(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    n = 400
    answer = rng.integers(1, 6, n).astype(float)
    frame = pd.DataFrame(
        {
            "How much do you agree with the first of all statements?": np.where(
                rng.random(n) < 0.1, np.nan, answer
            ),
            "brand": [f"A rather long name of a brand, number {k}" for k in rng.integers(0, 15, n)],
            "rent": (300 * answer + rng.normal(0, 50, n)).round(1),
            "a_bought": np.where(answer + rng.normal(0, 1, n) > 5, "a", "b"),
        }
    )
    classes = fc.learn(frame, label="a_bought", learner="mixture", head=False)
    text = html.unescape(
        classes.report(tmp_path / "a.html", frame, label="a_bought").read_text(encoding="utf-8")
    )
    assert (frame["a_bought"] == "a").mean() < 0.5
    assert "p(a_bought = a)" in text
    assert "calibration of a" in text
    assert "brand (the 10 commonest of 15)" in text
    assert "a_bought given brand (the 10 commonest of 15)" in text
    assert "How much do y…ments?" in text
    bars = text[text.index("distribution of How") :]
    places = [bars.index(f">{value}<") for value in range(1, 6)]
    assert places == sorted(places)  # numbers in their own order, and as whole ones
    number = fc.learn(frame, label="rent", learner="mixture", head=False)
    text = html.unescape(
        number.report(tmp_path / "b.html", frame, label="rent").read_text(encoding="utf-8")
    )
    assert "how its mean moves with the variable" in text
    assert "mean of rent" in text


def test_a_report_and_the_pages_know_the_label_and_times_of_a_loaded_model(
    tmp_path: Path,
) -> None:
    frame = rows(200)
    frame["day"] = frame["day"] + pd.to_timedelta(np.arange(200) * 61, unit="s")
    made = fc.learn(frame, label="loyal", learner="factorised")
    made.save(tmp_path / "m.fc")
    loaded = fc.load(tmp_path / "m.fc")
    assert loaded.fit_report is not None
    assert loaded.fit_report.label == "loyal"
    text = loaded.report(tmp_path / "a.html", frame).read_text(encoding="utf-8")
    assert "What moves loyal" in text
    picture = text[text.index("distribution of day") :]
    assert ">2025-0" in picture[: picture.index("</svg>")]  # no seconds since 1970
    variables = Explorer(loaded, Limits()).explore_variables()["variables"]
    assert [v["name"] for v in variables if v["label"]] == ["loyal"]
    day = next(v for v in variables if v["name"] == "day")
    assert (day["date"], day["bins"][0]["text"][:5]) == ("datetime", "2025-")


def test_warnings_name_the_label_and_no_column_that_a_client_made_up() -> None:
    rng = np.random.default_rng(4)
    label = np.where(np.arange(400) % 2, "yes", "no")
    lab = pd.DataFrame({"id": [f"p{i}" for i in range(400)], "level": rng.normal(size=400)})
    lab.loc[(label == "yes") & (rng.random(400) < 0.7), "level"] = np.nan
    ward = pd.DataFrame({"id": lab["id"], "age": rng.normal(size=400), "ill": label})
    fed = fc.federate({"lab": lab, "ward": ward}, id="id", label="ill")
    said = about_federation.fits(fed)[1]
    assert any("'level' lacks a value says something about 'ill'" in line for line in said)
    assert not any("\x1f" in line or "\\x1f" in line for line in said)
