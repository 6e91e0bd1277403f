"""`fedcircuits serve` as a team meets it: a real process on loopback, compared with the library."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pandas as pd
import pytest

from contracts.service import LIMITS, PATIENT, TOKEN, serving
from fedcircuits.serving.requests import QUESTIONS

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def service(path: Path) -> Iterator[httpx.Client]:
    with serving(path, *LIMITS) as (told, process):
        assert told, process.communicate(timeout=PATIENT)[1]
        with httpx.Client(
            base_url=told["url"], headers={"Authorization": f"Bearer {TOKEN}"}, timeout=PATIENT
        ) as client:
            yield client


def ask(service: httpx.Client, question: str, **body: Any) -> Any:
    reply = service.post(f"/{question}", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def refused(reply: httpx.Response, status: int) -> str:
    assert reply.status_code == status, reply.text
    told = reply.json()
    assert set(told) == {"error", "type"}
    return f"{told['type']}: {told['error']}"


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON has them: gaps are null."""
    return json.loads(frame.to_json(orient="records", double_precision=15))


# --- the same answers as the library --------------------------------------------------------------


def test_log_densities_are_those_of_the_library(
    service: httpx.Client, model: Any, people: pd.DataFrame
) -> None:
    rows = records(people.head(50))
    expected = model.log_prob(pd.DataFrame(rows)).tolist()
    assert ask(service, "log_prob", rows=rows)["log_prob"] == expected
    # A name that is absent, or null, is missing: both are the marginal.
    for row in ({"sex": "Male"}, {"sex": "Male", "age": None}):
        found = ask(service, "log_prob", rows=[row])["log_prob"]
        assert found == model.log_prob(pd.DataFrame([{"sex": "Male"}])).tolist()
    nothing = ask(service, "log_prob", rows=[{}])["log_prob"]
    assert nothing == model.log_prob(pd.DataFrame(index=[0])).tolist()


def test_probabilities_are_those_of_the_library(
    service: httpx.Client, model: Any, people: pd.DataFrame
) -> None:
    rows = records(people.head(30).drop(columns="sex"))
    answer = ask(service, "predict_proba", rows=rows, target="sex")
    expected = model.predict_proba(pd.DataFrame(rows), "sex")
    assert answer["outcomes"] == list(expected.columns)
    assert answer["probabilities"] == expected.to_numpy().tolist()


def test_samples_and_completions_are_those_of_the_library(
    service: httpx.Client, model: Any
) -> None:
    drawn = ask(service, "sample", n=5, seed=3)["rows"]
    assert drawn == records(model.sample(5, seed=3))
    given = {"sex": "Female", "visits": 2}
    drawn = ask(service, "sample", n=5, given=given, seed=3)["rows"]
    assert drawn == records(model.sample(5, given, seed=3))
    assert all(row["sex"] == "Female" for row in drawn)
    rows = [{"sex": "Male"}, {"age": 50.0}]
    drawn = ask(service, "sample", n=2, rows=rows, seed=3)["rows"]
    assert drawn == records(model.sample(2, pd.DataFrame(rows), seed=3))
    completed = ask(service, "mpe", rows=rows)
    expected = model.mpe(pd.DataFrame(rows))
    assert completed["rows"] == records(expected)
    assert completed["log_prob"] == expected.attrs["log_prob"]
    assert completed["method"] == expected.attrs["method"]


def test_moments_are_those_of_the_library(service: httpx.Client, model: Any) -> None:
    assert ask(service, "moment", name="age")["values"] == [model.expectation("age")]
    given = {"sex": "Male"}
    second = ask(service, "moment", name="age", order=2, given=given)["values"]
    assert second == [model.moment("age", 2, given)]
    rows = [{"sex": "Male"}, {"visits": 5}]
    unseen = {"name": "age", "given": {"sex": "unseen"}, "unknown": "missing"}
    assert ask(service, "moment", **unseen)["values"] == [model.expectation("age")]
    spread = ask(service, "variance", name="age", rows=rows)["values"]
    assert spread == model.variance("age", pd.DataFrame(rows)).tolist()
    matrix = ask(service, "covariance", names=["age", "visits"], given=given)
    assert matrix["names"] == ["age", "visits"]
    expected = model.covariance(["age", "visits"], given).to_numpy()
    assert matrix["covariance"] == expected.tolist()


def test_marginals_are_those_of_the_library(service: httpx.Client, model: Any) -> None:
    given = {"sex": "Male"}
    found = ask(service, "marginals", given=given)["marginals"]
    assert set(found) == {"age", "visits", "member"}
    assert found["age"]["mean"] == model.expectation("age", given)
    assert found["age"]["sd"] == model.variance("age", given) ** 0.5
    proba = model.predict_proba(pd.DataFrame([given]), "member")
    assert found["member"]["outcomes"] == [False, True]
    assert found["member"]["probabilities"] == proba.to_numpy()[0].tolist()
    assert list(ask(service, "marginals", names=["age"])["marginals"]) == ["age"]


def test_the_schema_names_variables_and_outcomes(service: httpx.Client, model: Any) -> None:
    told = service.get("/schema").json()
    assert [v["name"] for v in told["variables"]] == list(model.schema.names)
    by_name = {v["name"]: v for v in told["variables"]}
    assert by_name["sex"]["outcomes"] == ["Female", "Male"]
    assert by_name["age"]["kind"] == "continuous"
    assert told["n_parameters"] == model.n_parameters


def test_examples_name_the_variables_and_are_answered(service: httpx.Client, model: Any) -> None:
    found = service.get("/examples").json()["examples"]
    assert set(found) == set(QUESTIONS)
    for question, body in found.items():
        reply = service.post(f"/{question}", json=body)
        assert reply.status_code == 200, (question, body, reply.text)
    assert found["predict_proba"]["target"] in model.schema


def test_many_ask_at_once_and_each_gets_its_own_answer(
    service: httpx.Client, model: Any, people: pd.DataFrame
) -> None:
    parts = [records(people.iloc[at : at + 10]) for at in range(0, 400, 10)]

    def one(rows: list[dict[str, Any]]) -> Any:
        return ask(service, "log_prob", rows=rows)["log_prob"]

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(one, parts))
    assert answers == [model.log_prob(pd.DataFrame(rows)).tolist() for rows in parts]


# --- who may ask ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN],
)
def test_a_wrong_token_gets_no_answer(service: httpx.Client, header: str) -> None:
    # Before the body is looked at: what is sent here is no JSON.
    reply = httpx.post(
        f"{service.base_url}/log_prob", content=b"{", headers={"Authorization": header}
    )
    assert "Authorization: Bearer TOKEN" in refused(reply, 401)
    assert reply.headers["www-authenticate"] == "Bearer"
    for place in ("/schema", "/nowhere"):
        reply = httpx.get(f"{service.base_url}{place}", headers={"Authorization": header})
        assert reply.status_code == 401


def test_health_and_page_need_no_token_and_load_nothing(service: httpx.Client) -> None:
    assert httpx.get(f"{service.base_url}/health").json() == {"status": "ok"}
    page = httpx.get(f"{service.base_url}/")
    assert page.status_code == 200
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    nonce = re.findall(r"<(?:script|style) nonce=\"([^\"]*)\">", page.text)
    assert len(nonce) == 2
    assert f"script-src 'nonce-{nonce[0]}'" in page.headers["content-security-policy"]
    assert page.text.count("<script") == 1
    assert "predict_proba" in page.text
    assert "visits" not in page.text  # nothing of the model without the token
    # Nothing a browser would fetch, but the document beside the page.
    assert set(re.findall(r"""(?:src|href)=["']([^"']*)""", page.text)) == {
        "data:,",
        "explore",
        "openapi.json",
    }
    assert "url(" not in page.text
    assert "@import" not in page.text
    for place in ("/docs", "/redoc"):
        assert service.get(place).status_code == 404
    told = httpx.get(f"{service.base_url}/openapi.json").json()
    assert "/predict_proba" in told["paths"]
    assert told["paths"]["/log_prob"]["post"]["security"] == [{"HTTPBearer": []}]
    assert "security" not in told["paths"]["/health"]["get"]


# --- what cannot be answered ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "body", "why"),
    [
        ("log_prob", {"rows": [{"sex": "Male"}, {"sex": "Robot"}]}, r"UnknownCategory.*'sex'.*1"),
        ("log_prob", {"rows": [{"age": 1}, {"age": "old"}]}, r"Schema.*'age'.*'old'"),
        ("log_prob", {"rows": [{"age": 1}, {"age": [1]}]}, r"row 1, variable 'age': expected a"),
        ("log_prob", {"rows": []}, "rows: List should have at least 1 item"),
        ("log_prob", {"rows": "people.csv"}, "rows: Input should be a valid list"),
        ("log_prob", {}, "rows: Field required"),
        ("log_prob", {"rows": [{}], "unknwon": "missing"}, "unknwon: Extra inputs"),
        ("predict_proba", {"rows": [{}], "target": "wealth"}, "'wealth'"),
        ("predict_proba", {"rows": [{}], "target": "age"}, "continuum"),
        ("moment", {"name": "sex"}, "QueryError.*'sex'.*not numbers"),
        ("moment", {"name": "age", "order": -1}, "order"),
        ("sample", {"given": {"height": 3}}, "'height'"),
        ("sample", {"given": {"age": 3}, "rows": [{}]}, "found both"),
        ("sample", {"n": -1}, "n: .*greater than or equal to 0"),
        ("marginals", {"names": ["sex"], "given": {"sex": "Male"}}, "'sex' is given"),
        ("covariance", {"names": ["age", "age"]}, "different names"),
    ],
)
def test_errors_name_what_is_wrong(
    service: httpx.Client, question: str, body: dict[str, Any], why: str
) -> None:
    assert re.search(why, refused(service.post(f"/{question}", json=body), 422), re.DOTALL)


def test_unseen_categories_are_missing_on_request_and_strange_columns_are_told(
    service: httpx.Client, model: Any
) -> None:
    rows = [{"sex": "Robot", "age": 40.0, "height": 3}]
    answer = ask(service, "log_prob", rows=rows, unknown="missing")
    assert answer["log_prob"] == model.log_prob(pd.DataFrame([{"age": 40.0}])).tolist()
    assert any("'height'" in note for note in answer["notes"])


def test_a_warning_is_a_note_of_the_answer_it_belongs_to(service: httpx.Client) -> None:
    def notes(visits: float) -> list[str]:
        return list(ask(service, "log_prob", rows=[{"visits": visits}]).get("notes", []))

    with ThreadPoolExecutor(8) as pool:
        told = list(pool.map(notes, [1.5, 2.0] * 20))
    assert all("'visits': rounded 1 number(s)" in note for [note] in told[::2])
    assert told[1::2] == [[]] * 20


def test_what_is_no_request_is_no_crash(service: httpx.Client) -> None:
    for content in (b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000):
        reply = service.post("/log_prob", content=content)
        assert reply.status_code in (400, 422), content[:10]
        assert set(reply.json()) == {"error", "type"}
    assert "Not Found" in refused(service.get("/rows"), 404)
    assert "Method Not Allowed" in refused(service.get("/log_prob"), 405)
    assert service.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize("depth", [60, 400, 900, 20_000])
def test_events_within_events_without_end_are_refused(service: httpx.Client, depth: int) -> None:
    nested = '{"not":' * depth + "2" + "}" * depth
    for question, body in (
        ("probability", f'{{"event": {{"visits": {nested}}}}}'),
        ("log_prob", f'{{"rows": [{{"visits": {nested}}}]}}'),
        ("explore/answer", f'{{"given": {{"visits": {nested}}}}}'),
    ):
        reply = service.post(f"/{question}", content=body)
        assert reply.status_code in (400, 422), (question, reply.text[:200])
        assert set(reply.json()) == {"error", "type"}


def test_requests_beyond_a_limit_are_refused(service: httpx.Client) -> None:
    reply = service.post("/log_prob", content=b" " * 200_001)
    assert "at most 200000 bytes" in refused(reply, 413)
    # Without a length that is told in advance.
    reply = service.post("/log_prob", content=(b" " * 10_000 for _ in range(100)))
    assert reply.status_code == 413
    assert "at most 1000 rows" in refused(
        service.post("/log_prob", json={"rows": [{}] * 1001}), 413
    )
    for body in ({"n": 501}, {"n": 2, "rows": [{}] * 251}, {"n": 10**30}):
        assert "at most 500 samples" in refused(service.post("/sample", json=body), 413)
    assert len(ask(service, "sample", n=500)["rows"]) == 500


def test_open_pages_read_no_body(service: httpx.Client) -> None:
    reply = httpx.post(f"{service.base_url}/health", content=b" " * 100_000)
    assert reply.status_code == 405


@pytest.mark.parametrize(
    ("question", "body", "status"),
    [
        ("log_prob", {"rows": [{"age": 10**400}]}, 422),
        ("log_prob", {"rows": [{"age": 10**25}]}, 422),
        ("moment", {"name": "age", "given": {"visits": -(10**30)}}, 422),
        ("log_prob", {"rows": [{f"c{at}": 1} for at in range(900)]}, 413),
        ("marginals", {"names": ["age"] * 5000}, 422),
        ("marginals", {"names": [f"c{at}" for at in range(5000)]}, 422),
    ],
)
def test_numbers_and_names_out_of_proportion_are_refused(
    service: httpx.Client, question: str, body: dict[str, Any], status: int
) -> None:
    refused(service.post(f"/{question}", json=body), status)


def test_a_lone_surrogate_is_an_error_in_words(service: httpx.Client) -> None:
    for text in (rb'{"rows": [{"sex": "\ud800"}]}', rb'{"rows": [{"\ud800": 1}]}'):
        header = {"Content-Type": "application/json"}
        reply = service.post("/log_prob", content=text, headers=header)
        assert reply.status_code in (200, 422), reply.text
        reply.json()
