"""Policies read from TOML files."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedcircuits.federation.policy.policy import Policy, PolicyError


def test_a_policy_is_read_from_toml(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        'columns = ["height", "bought"]\nlabel = "sent"\nqueries = ["log_prob"]\n'
        'rows_by_id = true\nrow_evidence = "server"\nplacement = "remote"\nmin_rows = 20\n'
        'id = "customer"\nlabel_column = "bought"\nbits = 8\nruns = 3\nepsilon = 1.5\n'
        'missing_values = ["?"]\n'
        "max_message_bytes = 1_000_000\n"
        'requests = ["describe", "agree", "fit", "query"]\nrare_categories = "offered"\n'
        'errors = "sent"\n[kinds]\nheight = "continuous"\n'
    )
    assert Policy.from_toml(path) == Policy(
        columns=("height", "bought"),
        id="customer",
        label_column="bought",
        kinds={"height": "continuous"},
        missing_values=("?",),
        label="sent",
        requests=("describe", "agree", "fit", "query"),
        queries=("log_prob",),
        rows_by_id=True,
        row_evidence="server",
        bits=8,
        runs=3,
        epsilon=1.5,
        placement="remote",
        min_rows=20,
        max_message_bytes=1_000_000,
        rare_categories="offered",
        errors="sent",
    )
    path.write_text("")
    assert Policy.from_toml(path) == Policy()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("min_row = 3", "no key 'min_row'; it has 'columns', 'id'"),
        ("min_rows = 0", "min_rows is a whole number from 1 on, found 0"),
        ("min_rows = true", "min_rows is a whole number from 1 on, found True"),
        ('label = "maybe"', "label is one of 'sent', 'used', 'no', found 'maybe'"),
        ('label = ["told"]', "label is one of"),
        ('columns = "height"', "columns is a list of strings, found 'height'"),
        ('columns = ["a", "a"]', "columns names something twice"),
        ('queries = ["rows"]', "queries are of 'log_prob', .* found 'rows'"),
        ('requests = ["rows"]', "requests are of 'describe', .* found 'rows'"),
        ("rows_by_id = 1", "rows_by_id is true or false, found 1"),
        ('row_evidence = "all"', "row_evidence is one of 'nobody', 'clients', 'server'"),
        ("bits = -1", "bits is a number from 0 on, found -1"),
        ("runs = 0", "runs is a whole number from 1 on, found 0"),
        ("epsilon = inf", "epsilon is a number from 0 on, found inf"),
        ("id = 3", "id is the name of a column, found 3"),
        ('kinds = "x"', "kinds maps columns to one of"),
        ('[kinds]\nx = "number"', "kinds maps columns to one of 'continuous'"),
        ('[kinds]\nx = ["continuous"]', "kinds maps columns to one of 'continuous'"),
        ("[kinds]\nx = {a = 1}", "kinds maps columns to one of 'continuous'"),
        ("min_rows = ", "is not TOML"),
    ],
)
def test_a_policy_that_says_nothing_clear_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(text)
    with pytest.raises(PolicyError, match=why) as error:
        Policy.from_toml(path)
    assert str(path) in str(error.value)


def test_a_policy_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"cannot read the policy .*none\.toml: No such file"):
        Policy.from_toml(tmp_path / "none.toml")
