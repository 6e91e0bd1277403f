"""A server that chooses rows, groups, grids or models so that an answer is about a single row.

Every one of these read rows or labels before clients kept parts of rows that no request tells apart
(`client/parts.py`), own grids for codes and states of enough rows. docs/trust.md lists them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from contracts.schemer import N, Schemer, clusters, people, plan, silo
from fedcircuits.api.load import from_file_bytes
from fedcircuits.federation.policy.policy import Policy
from fedcircuits.federation.policy.run import earlier_runs
from fedcircuits.federation.wire import requests as m
from fedcircuits.federation.wire.names import (
    LATENT_CLASSES,
    Grouping,
    GroupingKind,
    Job,
    JobId,
    JobKind,
    ModelName,
)
from fedcircuits.federation.wire.packing import pack_codes, unpack_codes
from fedcircuits.learners.hclt.head.trees.boosted_trees import BoostedTrees
from fedcircuits.schema import Schema
from fedcircuits.schema.grids.grid import Grid

COLUMNS = ["salary", "age", "diag"]
NONE = np.zeros(0, dtype=np.uint8)
ILL = (people()["diag"] == "ill").to_numpy()


def bank(label: str | None = None, **more: Any) -> Schemer:
    """A silo that is ready: agreed on, all of its rows aligned."""
    made = silo(Policy(columns=tuple(COLUMNS), id="pid"), **more)
    made.label = label
    assert isinstance(made.propose(label=label), m.Consent)
    assert isinstance(made.agree(), m.Ready)
    assert isinstance(made.ask("align", m.Align(np.arange(N)), m.Ready), m.Ready)
    return made


def choice(rows: Any) -> Any:
    chosen = np.zeros(N, dtype=bool)
    chosen[rows] = True
    return np.packbits(chosen)


def model_of(found: m.Fitted | str, at: int = 0) -> tuple[float, Any]:
    assert isinstance(found, m.Fitted), found
    told = found.models[at]
    return told.rows, from_file_bytes(m.model_bytes(told.model), "a model")


def share_ill(found: m.Fitted | str) -> tuple[float, float]:
    rows, model = model_of(found)
    return rows, float(np.exp(model.log_prob(pd.DataFrame({"diag": ["ill"]})).iloc[0]))


def atoms(schemer: Schemer) -> Any:
    """(n,) what the server can tell apart by all groups it chose."""
    return schemer.member._client._parts._parts  # type: ignore[attr-defined]


# --- groups of rows -------------------------------------------------------------------------------


def test_fits_that_leave_out_one_row_more_do_not_tell_it() -> None:
    """`use_rows` with twenty rows and with one more, and the models of both."""
    server, right = bank(), []
    base = list(range(100, 120))
    for row in range(16):
        shares = []
        for at, rows in enumerate((base, [*base, row])):
            name = f"{row} {at}"
            asked = server.ask("name_rows", m.NameRows(name, choice(rows)), m.Ready)
            assert isinstance(asked, m.Ready)
            asked = server.ask("use_rows", m.UseRows(name, 0.0), m.Ready)
            assert isinstance(asked, m.Ready)
            job = Job(JobId(JobKind.SUBSPACE, 2 * row + at), ("diag",))
            shares.append(share_ill(server.ask("fit", m.Fit((job,), False), m.Fitted)))
        assert shares[0] == shares[1]
        right.append(row)
    assert np.bincount(atoms(server)).min() >= 5


def test_clusters_of_every_number_do_not_tell_rows_by_their_models() -> None:
    """Cuts of one column at hundreds of places: rows between two cuts are few, parts are not."""
    server, groups = bank(), 0
    for k in range(2, 18):
        group = Grouping(GroupingKind.CLUSTERS, k)
        told = server.ask("cluster", m.Cluster(group, ["salary"], k, False, False), m.Clustered)
        if isinstance(told, m.Clustered):
            for part in range(told.rows.size):
                job = Job(JobId(JobKind.CLUSTER, k, part), ("diag",), group=group, part=part)
                groups += isinstance(server.ask("fit", m.Fit((job,), False), m.Fitted), m.Fitted)
    assert groups > 60
    assert np.bincount(atoms(server)).min() >= 5
    assert np.bincount(atoms(server)).size > 10


def test_classes_that_the_server_makes_up_do_not_tell_rows() -> None:
    """`assign` of every row to groups of five, shifted by one row from time to time."""
    server = bank()
    everybody = choice(np.arange(N))
    for shift in range(6):
        classes = np.roll(np.arange(N) // 5, shift)
        asked = m.Assign(
            LATENT_CLASSES, None, everybody, pack_codes(classes, 60), np.zeros((0, 60))
        )
        told = server.ask("assign", asked, m.Ready)
        assert isinstance(told, m.Ready), told
        job = Job(JobId(JobKind.CLASSES, shift), ("diag",), classes=LATENT_CLASSES)
        server.ask("fit", m.Fit((job,), False), m.Fitted)
    assert np.bincount(atoms(server)).min() >= 5
    assert np.bincount(atoms(server)).size > 10


def test_sums_around_centres_of_other_columns_do_not_tell_rows() -> None:
    """`centres` of one column and of two: their borders lie close, rows between them are few."""
    server, rng = bank(), np.random.default_rng(0)
    group = Grouping(GroupingKind.ANCHORS, 0)
    for at in range(120):
        columns = (["salary"], ["salary", "age"], ["age"])[at % 3]
        centres = np.column_stack([np.zeros(3), rng.random((3, len(columns)))])
        ask = m.AskCentres(group, columns, centres, False, [], "")
        server.ask("centres", ask, m.CentreSums)
        ask_start = m.AskStart(columns, 2 + at % 7, False, 5)
        server.ask("start", ask_start, m.Start)
    cells = np.stack(list(server.member._client._cells._cells.values()))  # type: ignore[attr-defined]
    told = np.unique(cells, axis=1, return_inverse=True)[1].reshape(-1)
    assert np.bincount(told).min() >= 5
    assert np.bincount(told).size > 10


def test_effects_that_are_spread_over_codes_tell_no_row() -> None:
    """`spread_codes` of one effect a code: tables that say the states of the rows of each code."""
    server = bank()
    told = server.ask("public_key", m.AskKey(), m.PublicKey)
    assert isinstance(told, m.PublicKey)
    server.ask("peers", m.Peers({"bank": told.key}, {"bank": told.nonce}), m.Ready)
    server.ask("name_rows", m.NameRows("all", NONE), m.Ready)
    for n_codes in (256, 100, 30):
        ask = m.AskCodes(COLUMNS, n_codes, "all", N, told.key, f"s{n_codes}")
        assert isinstance(server.ask("codes", ask, m.Sealed), m.Sealed)
        effects = m.SpreadCodes(COLUMNS, np.eye(256), np.zeros(256), np.ones(256), 5)
        spread = server.ask("spread_codes", effects, m.CodesSpread)
        assert isinstance(spread, m.CodesSpread)
        states = server.member._client._have()  # type: ignore[attr-defined]
        kept = np.abs(spread.tables.g).max(axis=1) > 1e-9
        assert kept.sum() <= len(states) / 5
    assert np.bincount(atoms(server)).min() >= 5


# --- labels ---------------------------------------------------------------------------------------


def test_losses_of_rows_that_the_server_names_tell_no_label() -> None:
    """`judge` of constants counts labels: of twenty rows, and of one more."""
    server = bank("diag")
    told = server.ask("public_key", m.AskKey(), m.PublicKey)
    assert isinstance(told, m.PublicKey)
    peers = m.Peers({"bank": told.key}, {"bank": told.nonce})
    assert isinstance(server.ask("peers", peers, m.Ready), m.Ready)

    def loss(rows: list[int], name: str) -> m.Judged | str:
        server.ask("name_rows", m.NameRows(name, choice(rows)), m.Ready)
        empty, odds = np.zeros(0), np.log(np.array([[0.9, 0.1]]))
        ask = m.Judge(
            name, len(rows), told.key, name, (), (), np.array([-1]), np.array([0]), odds,
            empty.astype(bool), np.array([0]), empty.astype(np.int64), empty,
        )  # fmt: skip
        return server.ask("judge", ask, m.Judged)

    base = loss(list(range(100, 160)), "base")
    assert isinstance(base, m.Judged)
    assert base.n_rows >= 50
    for row in range(8):
        more = loss([row, *range(100, 160)], f"{row} more")
        assert isinstance(more, m.Judged)
        assert (more.log_loss, more.n_rows) == (base.log_loss, base.n_rows)
    parts = np.stack([atoms(server), ILL], axis=1)
    assert np.unique(parts, axis=0, return_counts=True)[1].min() >= 5  # of one class each


def test_likelihoods_of_rows_that_the_server_names_tell_no_row() -> None:
    """`judge` of an own model without a label: a mean of twenty rows, and of one more."""
    server = bank()
    told = server.ask("public_key", m.AskKey(), m.PublicKey)
    assert isinstance(told, m.PublicKey)
    server.ask("peers", m.Peers({"bank": told.key}, {"bank": told.nonce}), m.Ready)
    job = JobId(JobKind.SUBSPACE, 0)
    server.ask("fit", m.Fit((Job(job, tuple(COLUMNS)),), True), m.Fitted)
    means = []
    for at, more in enumerate(([], [3], [4])):
        rows = [*more, *range(100, 120)]
        server.ask("name_rows", m.NameRows(f"rows {at}", choice(rows)), m.Ready)
        empty = np.zeros(0)
        ask = m.Judge(
            f"rows {at}", len(rows), told.key, f"s{at}", (), (ModelName(job),), np.array([0]),
            np.array([0]), np.zeros((1, 1)), empty.astype(bool), np.array([0]),
            empty.astype(np.int64), empty,
        )  # fmt: skip
        found = server.ask("judge", ask, m.Judged)
        assert isinstance(found, m.Judged), found
        means.append((found.n_rows, found.log_prob))
    assert means == [means[0]] * 3
    assert means[0][0] == 20


def test_made_up_models_do_not_score_a_single_row() -> None:
    """`score_heads` with a tree whose leaf holds one row: its slope would be that row's label."""
    server = bank("diag")
    rows = people()
    codes = server.member._client._have()  # type: ignore[attr-defined]
    columns = ["salary", "age"]
    widths = np.array([codes.schema[name].grid.n_states for name in columns])
    tables = m.TiltTables(columns, widths, np.zeros(2), np.zeros((2, widths.sum())), np.ones(2))

    def cell(low: float, high: float) -> m.HeadModel:
        """One tree: 1 where the salary is in (low, high], else 0."""
        tree = BoostedTrees(
            feature=np.array([0, -1, 0, -1, -1]),
            threshold=np.array([low, 0.0, high, 0.0, 0.0]),
            left=np.array([1, 0, 3, 0, 0]),
            right=np.array([2, 0, 4, 0, 0]),
            value=np.array([0.0, 0.0, 0.0, 1.0, 0.0]),
            missing_left=np.ones(5, dtype=bool),
            categories=np.full(5, -1),
            left_categories=np.zeros((0, 1), dtype=bool),
            known_categories=np.zeros((2, 1), dtype=bool),
            roots=np.array([0]),
            output=np.array([0]),
            baseline=np.zeros(1),
        )
        return m.HeadModel(f"{low} {high}", tables, tree.arrays())

    def scored(*models: m.HeadModel) -> m.HeadScores:
        ask = m.ScoreHeads(columns, np.array([90.0, 210.0]), False, models, 5)
        told = server.ask("score_heads", ask, m.HeadScores)
        assert isinstance(told, m.HeadScores), told
        return told

    salary = np.sort(codes.columns(["salary"]).values[:, 0])
    few, many = cell(salary[150], salary[153]), cell(salary[40], salary[200])
    told = scored(few, many)
    assert told.n_rows.tolist() == [0, len(rows)]
    assert not told.slopes[0].any()
    assert not told.slopes[1, :3].any()
    assert not told.curvatures[:, :3].any()
    # Two models of many rows each whose difference is one of few.
    near = scored(many, cell(salary[40], salary[202]))
    assert near.n_rows.tolist() == [len(rows), 0]
    # A constant beside the leaf hides nothing: the class shifts are among the numbers.
    assert scored(*(many,) * 30).slopes.shape[0] <= 8


# --- grids ----------------------------------------------------------------------------------------


def agreed(server: Schemer, **grids: Grid) -> m.Ready | str:
    """The schema as it was described, with grids of the server's own."""
    schema = []
    for variable in Schema.from_json(server.described().schema):
        named = grids.get(variable.name)
        schema.append((variable if named is None else variable.with_grid(named)).to_json())
    return server.ask("agree", m.Agree(schema, 0, server.label), m.Ready)


def bins(*edges: float) -> Grid:
    return Grid(np.zeros(0), np.array(edges), tails=(1.0, 1.0))


def test_a_fine_grid_makes_no_histogram_of_single_values() -> None:
    salary = np.sort(people()["salary"])
    edges = (salary[1:] + salary[:-1]) / 2  # one value between two edges
    server = silo(Policy(columns=tuple(COLUMNS), id="pid"))
    server.propose()
    assert isinstance(agreed(server, salary=bins(*edges), age=bins(0.0, 100.0)), m.Ready)
    job = Job(JobId(JobKind.SUBSPACE, 0), ("salary",))
    _, model = model_of(server.ask("fit", m.Fit((job,), False), m.Fitted))
    masses = N * np.diff(np.array([float(np.ravel(model.cdf("salary", [x]))[0]) for x in edges]))
    least = masses[masses > 0.3]  # what is less is the prior
    assert least.min() > 3.5
    assert least.size < N / 4


def test_grids_that_show_one_column_alone_make_no_codes_of_it() -> None:
    """One column cut at a threshold, the other in one state: codes say "above" of every row."""
    rows = people()[["pid", "salary", "age"]]
    threshold = float(rows["salary"].quantile(0.8))
    server = silo(Policy(columns=("salary", "age"), id="pid"), rows=rows)
    server.propose()
    one = bins(-1e6, 1e6)
    assert isinstance(agreed(server, salary=bins(-1e6, threshold, 1e6), age=one), m.Ready)
    server.ask("align", m.Align(np.arange(N)), m.Ready)
    told = clusters(server, ["salary", "age"], 2)
    assert isinstance(told, m.Clustered)
    above = (rows["salary"] > threshold).to_numpy()
    found = unpack_codes(told.indices, N, told.rows.size) == 1
    assert 0.2 < (found == above).mean() < 0.8
    for columns in (["salary"] * 50 + ["age"], ["salary", "salary\u200b", "age"]):
        assert isinstance(clusters(server, columns, 2), str)


# --- names, plans and repeats ---------------------------------------------------------------------


@pytest.mark.parametrize("other", ["Salary", "salary ", "salary\u200b", "sala\u0301ry", "ssn"])
def test_a_column_by_another_spelling_is_no_column(other: str) -> None:
    server = silo(Policy(columns=tuple(COLUMNS), id="pid"))
    for names in ([other, "age", "diag"], [*COLUMNS, other], [*COLUMNS, "salary"]):
        told = server.ask("propose", plan(names), m.Consent)
        assert "all of them" in str(told)
    server.propose()
    assert isinstance(server.agree(salary={"name": other}), str)
    server.agree()
    job = Job(JobId(JobKind.SUBSPACE, 0), (other,))
    assert isinstance(server.ask("fit", m.Fit((job,), False), m.Fitted), str)


def test_a_second_plan_in_a_run_wins_nothing_back() -> None:
    """Two plans in turns: each goes on where it was, with its own bits and parts."""
    server = bank()
    spent = []
    for k, seed in ((16, 0), (16, 1), (8, 0), (8, 1), (7, 0), (7, 1), (6, 0), (6, 1)):
        server.propose(seed=seed)
        server.ask("agree", m.Agree(server.schema(), seed, None), m.Ready)
        server.ask("align", m.Align(np.arange(N)), m.Ready)
        clusters(server, COLUMNS, k)
        assert server.member._run is not None
        spent.append(server.member._run.spent.bits)
    assert max(spent) <= 12
    assert spent[-1] > 4


def test_rows_in_another_order_are_told_at_the_price_of_another_run(tmp_path: Path) -> None:
    """A table that is described alike is the same run: what is new in its replies costs bits."""
    audit = tmp_path / "audit.jsonl"

    def run(rows: pd.DataFrame) -> m.Clustered | str:
        server = silo(Policy(columns=tuple(COLUMNS), id="pid"), audit, rows)
        server.propose()
        server.agree()
        server.ask("align", m.Align(np.arange(N)), m.Ready)
        return clusters(server, COLUMNS, 16)

    rows = people()
    told = [run(rows)]
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(N)
        told.append(run(rows.assign(salary=rows["salary"].to_numpy()[order])))
        told.append(run(rows.assign(salary=rows["salary"].to_numpy()[order])))  # costs nothing
    spent = list(earlier_runs(audit, "bank").values())
    assert len(spent) == 1
    assert 4 < spent[0].bits <= 12
    assert sum(isinstance(each, m.Clustered) for each in told) <= 2 * 3
