"""Experiments are whole, run each cell once, and their pages follow from their records."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedcircuits.experiments import data
from fedcircuits.experiments.cells.density import setting_of
from fedcircuits.experiments.experiment import (
    NAMES,
    Context,
    Experiment,
    ExperimentError,
    published,
)
from fedcircuits.experiments.figure import write_figure
from fedcircuits.experiments.page import comparison, in_cell, lines, rows_of, table, write_page
from fedcircuits.experiments.prose import filled, unrun
from fedcircuits.experiments.records import Records
from fedcircuits.experiments.run import run
from fedcircuits.experiments.splits import shares

RESULTS = Path(__file__).parents[2] / "docs" / "results"

SMALL: dict[str, Any] = {
    "title": "Small",
    "text": "Two settings.",
    "seeds": 1,
    "data": ["cancer"],
    "models": ["published"],
    "metrics": {"log_likelihood": "log-likelihood", "relative_seconds": "run time"},
    "settings": {
        "centralised": {"split": "none"},
        "rows": {"split": "rows", "clients": 2, "how": "iid"},
    },
    "options": {"epochs": 1},
    "paper": {"cancer": {"rows": {"published": {"log_likelihood": [-38.5, 1.1]}}}},
    "quick": {"most_rows": 150},
}


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_cells_are_distinct_and_the_papers_figures_have_a_place(name: str, quick: bool) -> None:
    experiment = Experiment.named(name, quick=quick)
    keys = [cell.key for cell in experiment.cells()]
    assert keys
    assert len(set(keys)) == len(keys)
    whole = Experiment.named(name)
    for of_data, settings in whole.paper.items():
        assert of_data in whole.data
        for setting, models in settings.items():
            assert setting in whole.settings
            for model, figures in models.items():
                assert model in whole.models
                assert set(figures) <= set(whole.metrics)


def test_the_quick_variant_is_smaller() -> None:
    for name in NAMES:
        quick = list(Experiment.named(name, quick=True).cells())
        assert 5 * len(quick) <= len(list(Experiment.named(name).cells())), name


def test_unknown_experiment_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ExperimentError, match=r"density"):
        Experiment.named("densty")


def test_parameters_of_the_appendix() -> None:
    assert published("rows", "income") == {"threshold": 0.3, "min_instances": 200}
    assert published("both", "credit") == {"threshold": 0.5, "min_instances": 50}
    assert (
        published("none", "cancer") == published("rows", "cancer") == published("alone", "cancer")
    )


def test_one_client_alone_has_the_rows_that_it_has_in_the_federation() -> None:
    split = data.load("cancer", None, 0)
    rows = {"split": "rows", "clients": 5, "how": "iid"}
    first = next(iter(shares(split, rows, 3).values()))
    (alone,) = shares(split, {**rows, "split": "alone"}, 3).values()
    pd.testing.assert_frame_equal(alone, first)
    assert len(split.train) / 5 - 1 < len(alone) < len(split.train) / 5 + 1


def test_the_published_model_has_the_label_at_one_client_where_columns_are_split() -> None:
    experiment = Experiment.named("density")
    labels = {
        (cell.setting, cell.model): setting_of(cell, experiment).get("label")
        for cell in experiment.cells()
    }
    assert labels["columns, 2", "published"] == "one"
    assert labels["columns, 2", "default"] is None
    assert labels["both, 2", "published"] is None


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Experiment, Path, pd.DataFrame]:
    experiment = Experiment.read("density", SMALL, quick=True)
    path = tmp_path_factory.mktemp("records") / "a.parquet"
    records, notes = run(experiment, Context(), path)
    assert notes == []
    return experiment, path, records.frame()


def test_one_tidy_row_a_cell(small: tuple[Experiment, Path, pd.DataFrame]) -> None:
    _, path, frame = small
    assert len(frame) == 2
    assert list(frame["setting"]) == ["centralised", "rows"]
    for name in ("log_likelihood", "seconds_slowest", "bytes", "rows", "date", "versions"):
        assert frame[name].notna().all(), name
    pd.testing.assert_frame_equal(pd.read_parquet(path), frame)


def test_what_is_recorded_is_not_run_again(small: tuple[Experiment, Path, pd.DataFrame]) -> None:
    experiment, path, frame = small
    asked: list[str] = []
    records, _ = run(experiment, Context(), path, lambda _, text: asked.append(text))
    assert asked == []
    assert len(records.frame()) == len(frame)


def test_a_run_of_few_minutes_goes_on_later(tmp_path: Path) -> None:
    experiment = Experiment.read("density", SMALL, quick=True)
    asked: list[str] = []
    records, notes = run(
        experiment, Context(), tmp_path / "a.parquet", lambda _, text: asked.append(text), 0.0
    )
    assert asked == []
    assert records.rows == []
    assert notes == ["2 cells are not run yet; the same command goes on"]


def test_some_data_sets_settings_and_models_alone_or_a_name_that_is_not_there() -> None:
    experiment = Experiment.named("one-pass").only(["cancer", "synthetic"])
    assert {cell.data for cell in experiment.cells()} == {"cancer", "synthetic"}
    with pytest.raises(ExperimentError, match="did you mean 'cancer'"):
        Experiment.named("one-pass").only(["cancr"])
    rivals = Experiment.named("classification").only(["income", "columns, 2", "SplitNN [network]"])
    assert [cell.seed for cell in rivals.cells()] == [0, 1, 2, 3, 4]
    assert {(c.data, c.setting, c.model) for c in rivals.cells()} == {
        ("income", "columns, 2", "SplitNN [network]")
    }


def test_runs_that_write_one_file_keep_each_others_rows(tmp_path: Path) -> None:
    one, other = Records(tmp_path / "a.parquet"), Records(tmp_path / "a.parquet")
    cells = list(Experiment.read("density", SMALL).cells())
    one.add(cells[0], {"auc": 0.5})
    other.add(cells[1], {"auc": 0.75})
    other.add(cells[0], {"auc": 0.0})  # recorded already: stays
    assert list(Records(tmp_path / "a.parquet").frame()["auc"]) == [0.5, 0.75]


def test_communication_takes_trainings_that_classification_has_recorded(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("pytorch_tabnet")
    found = {
        "title": "", "text": "", "seeds": 1, "data": ["cancer"], "metrics": {},
        "models": ["FedAvg [TabNet]"],
        "settings": {"rows": {"split": "rows", "clients": 5, "how": "iid"}},
        "options": {"same_training_as": "classification"},
    }  # fmt: skip
    experiment = Experiment.read("communication", found)
    cell = next(experiment.cells())
    records = Records(tmp_path / "a.parquet")
    facts = {"bytes": 7, "rows": 100, "parameters": 10, "rounds": 3, "machine": "another"}
    records.add(replace(cell, experiment="classification"), facts)
    after, notes = run(experiment, Context(), tmp_path / "a.parquet")
    row = after.find(cell)
    assert notes == []
    assert row is not None
    assert (row["bytes"], row["machine"]) == (7, "another")
    assert row["bytes_formula"] == 4 * 2 * 10 * 5 * 3


def test_the_same_seed_gives_the_same_figures(
    small: tuple[Experiment, Path, pd.DataFrame], tmp_path: Path
) -> None:
    experiment, _, frame = small
    again, _ = run(experiment, Context(), tmp_path / "b.parquet")
    np.testing.assert_array_equal(again.frame()["log_likelihood"], frame["log_likelihood"])
    np.testing.assert_array_equal(again.frame()["bytes"], frame["bytes"])


def test_page_shows_ours_beside_the_papers_figure(
    small: tuple[Experiment, Path, pd.DataFrame], tmp_path: Path
) -> None:
    experiment, _, frame = small
    page = write_page(experiment, frame, tmp_path, "a command").read_text()
    value = frame.set_index("setting")["log_likelihood"]["rows"]
    assert f"| cancer | rows | {value:,.2f} *-38.5 ± 1.1* |" in page
    assert "`a command`" in page
    assert (tmp_path / "density.quick.svg").read_text().startswith("<?xml")


def test_page_counts_what_has_not_been_run(small: tuple[Experiment, Path, pd.DataFrame]) -> None:
    experiment, _, frame = small
    assert not any("not been run" in line for line in lines(experiment, frame, "", []))
    part = list(lines(experiment, frame[frame["setting"] == "rows"], "", []))
    assert "Of 2 trainings 1 have not been run." in part


def of_two_seeds() -> pd.DataFrame:
    """Return AUC of two models in one setting: both seeds of A, the second of B."""
    found = [("A", 0, 0.5), ("A", 1, 0.75), ("B", 1, 0.5)]
    rows = [{"model": m, "seed": k, "auc": v, "rows": 10} for m, k, v in found]
    return pd.DataFrame(rows).assign(data="cancer", setting="rows, 5", experiment="density")


def test_figures_in_the_text_of_a_page_are_those_of_the_records() -> None:
    mine = of_two_seeds()
    assert filled("AUC {auc: cancer / rows, 5 / A}.", mine) == "AUC 0.6250."
    gap = "{auc: cancer / rows, 5 / A - cancer / rows, 5 / B}"
    assert filled(gap, mine) == "+0.2500"  # of the seed that both have
    with pytest.raises(ExperimentError, match="no record has auc of cancer / rows, 5 / C"):
        filled("{auc: cancer / rows, 5 / C}", mine)


def test_cells_without_a_run_are_named_with_the_reason() -> None:
    rule = {"model": ["B"], "why": "it takes a week."}
    settings = {name: {"split": "rows", "clients": 2} for name in ("rows, 5", "rows, 10")}
    found = {**SMALL, "models": ["A", "B"], "settings": settings, "left_out": [rule], "paper": {}}
    experiment = Experiment.read("density", {**found, "metrics": {"auc": "AUC"}})
    mine = of_two_seeds().assign(quick=False, date="today", machine="", versions="", bytes=1.0)
    assert unrun(experiment, mine) == {
        ("cancer", "rows, 10", "A"): "",
        ("cancer", "rows, 10", "B"): "it takes a week.",
    }
    page = list(lines(experiment, mine, "", []))
    assert page[-2:] == [
        "- cancer, A (rows, 10)",
        "- cancer, B (rows, 10): it takes a week.",
    ]
    assert "| cancer | rows, 10 | not run | not run |" in page


def test_run_time_is_relative_to_the_same_model_and_seed() -> None:
    experiment = Experiment.read("density", SMALL)
    facts = {"experiment": "density", "data": "cancer", "model": "published", "quick": False}
    seconds = [("centralised", 0, 4.0), ("rows", 0, 1.0), ("centralised", 1, 2.0), ("rows", 1, 1.0)]
    frame = pd.DataFrame(
        [{**facts, "setting": s, "seed": k, "seconds_slowest": t} for s, k, t in seconds]
    )
    assert list(rows_of(experiment, frame)["relative_seconds"]) == [1.0, 0.25, 1.0, 0.5]


def test_likelihood_is_held_against_the_same_seed_on_one_table() -> None:
    options = {"centralised_of": {"joint": "published"}}
    experiment = Experiment.read("density", {**SMALL, "options": options})
    facts = {"experiment": "density", "data": "cancer", "quick": False}
    found = [("centralised", "published", 0, -3.0), ("rows", "published", 0, -3.5)]
    found += [("rows", "joint", 0, -3.25), ("rows", "joint", 1, -3.0)]
    frame = pd.DataFrame(
        [
            {**facts, "setting": s, "model": m, "seed": k, "log_likelihood": v}
            for s, m, k, v in found
        ]
    )
    gaps = rows_of(experiment, frame)["nats_to_centralised"].to_numpy()
    np.testing.assert_array_equal(gaps, [0.0, -0.5, -0.25, np.nan])


@pytest.mark.parametrize(
    ("rule", "words"),
    [({}, "holds"), ({"within": 0.005}, "below"), ({"within": 0.02}, "holds")],
)
def test_comparison_pairs_seeds_and_counts_what_holds(rule: dict[str, Any], words: str) -> None:
    experiment = Experiment.read("density", {**SMALL, "seeds": 3})
    facts = {"data": "cancer", "setting": "rows"}
    found = [("ours", 0, 0.90), ("ours", 1, 0.92), ("rival", 0, 0.91), ("rival", 1, 0.93)]
    frame = pd.DataFrame([{**facts, "model": m, "seed": k, "auc": v} for m, k, v in found])
    rule = {"metric": "auc", "ours": "ours", "against": ["rival", "absent"], **rule}
    *_, row, _, kept = comparison(experiment, frame, rule)
    assert row == (
        f"| cancer | rows | 0.9100 ± 0.0141 | rival | 0.9200 ± 0.0141 | -0.0100 | "
        f"{words} (2 seeds) |"
    )
    assert kept == f"{int(words == 'holds')} of 1 rows hold."
    *_, kept = comparison(experiment, frame, {**rule, "excepted": ["rows"]})
    assert kept == "0 of 0 rows hold; 1 excepted."


def test_spread_has_n_less_one_and_few_seeds_are_named() -> None:
    assert in_cell(np.array([1.0, 3.0]), "auc", 2) == "2.0000 ± 1.4142"
    assert in_cell(np.array([1.0]), "auc", 5) == "1.0000 (1)"
    assert in_cell(np.array([]), "auc", 5) == ""


def test_missing_data_says_what_to_fetch(tmp_path: Path) -> None:
    note = data.available("income", tmp_path)
    assert note is not None
    assert "adult.parquet" in note
    assert data.available("cancer", None) is None
    experiment = Experiment.named("communication")
    with pytest.raises(ExperimentError, match=r"fetch adult\.parquet"):
        run(experiment, Context(tmp_path), tmp_path / "r.parquet")


def test_a_rival_whose_package_is_absent_is_left_out_and_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported = [name for name in sys.modules if name.startswith("pytorch_tabnet.")]
    for name in ["pytorch_tabnet", *imported]:  # a submodule is found without its package
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if name.startswith("fedcircuits.baselines.")]:
        monkeypatch.delitem(sys.modules, name)
    whole = Experiment.named("classification", quick=True)
    models = ("FedAvg [TabNet]",)
    experiment = replace(whole, seeds=2, data=("cancer",), models=models)
    records, notes = run(experiment, Context(), tmp_path / "a.parquet")
    assert records.rows == []
    assert len(notes) == 1
    assert "pip install 'fedcircuits[baselines]'" in notes[0]


def test_synthetic_data_couple_clusters_by_degrees() -> None:
    pytest.importorskip("torch")
    from fedcircuits.experiments.cells.one_pass import coupled

    found = []
    for share in (0.0, 0.5, 1.0):
        frame = coupled(share, 0).train
        halves = frame.iloc[:, :4].to_numpy(), frame.iloc[:, 4:8].to_numpy()
        joint = np.corrcoef(np.concatenate(halves, axis=1), rowvar=False)[:4, 4:]
        found.append(np.abs(joint).max())
    assert found[0] < 0.1 < found[1] < found[2]


PAGES = sorted(RESULTS.glob("*.md"))
SHORT = (
    "rows, 5 at random", "columns, 2",
    "default", "FedAvg [TabNet]", "FedAvg [network]", "SplitNN [TabNet]", "SplitNN [network]",
    "federated trees",
)  # fmt: skip


def of_page(page: Path) -> tuple[Experiment, pd.DataFrame]:
    """Return the experiment of a page in the docs, and the records beside it."""
    quick = page.stem.endswith(".quick")
    experiment = Experiment.named(page.stem.removesuffix(".quick"), quick=quick)
    return experiment, Records(RESULTS / "experiments.parquet").frame()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_results_in_the_docs_follow_from_their_records(page: Path) -> None:
    experiment, frame = of_page(page)
    text = page.read_text()
    command = next(line for line in text.splitlines() if line.startswith("`fedcircuits experiment"))
    shown = lines(experiment, frame, command.split("`")[1], [page.with_suffix(".svg")])
    assert text.splitlines() == "\n".join(shown).splitlines()


def test_the_overview_of_results_shows_the_figures_of_the_records() -> None:
    whole = Experiment.named("classification")
    mine = rows_of(whole, Records(RESULTS / "experiments.parquet").frame())
    shown = table(whole.only(SHORT), mine, "auc", mine["seed"].nunique())
    assert "\n".join(shown) in (RESULTS.parent / "results.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_cells_of_the_docs_without_a_run_have_a_reason(page: Path) -> None:
    experiment, frame = of_page(page)
    without = unrun(experiment, rows_of(experiment, frame))
    assert [cell for cell, why in without.items() if not why] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_figures_in_the_docs_follow_from_their_records(page: Path, tmp_path: Path) -> None:
    mpl = pytest.importorskip("matplotlib")
    experiment, frame = of_page(page)
    kept = page.with_suffix(".svg").read_text()
    if f"Matplotlib v{mpl.__version__}," not in kept:
        pytest.skip("drawn by another version of matplotlib, whose files differ in detail")
    write_figure(experiment, rows_of(experiment, frame), tmp_path / f"{page.stem}.svg")
    assert (tmp_path / f"{page.stem}.svg").read_text() == kept


def test_a_page_with_a_changed_figure_is_noticed(
    small: tuple[Experiment, Path, pd.DataFrame],
) -> None:
    experiment, _, frame = small
    changed = frame.assign(log_likelihood=frame["log_likelihood"] + 0.01)
    shown = [list(lines(experiment, rows, "a command", [])) for rows in (frame, changed)]
    assert shown[0] != shown[1]
