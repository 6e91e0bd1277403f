"""Questions that take too long: answered in time, and never more at work than allowed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import anyio
import pandas as pd
import pytest

import fedcircuits as fc
from fedcircuits import encoding
from fedcircuits.errors import FedcircuitsError
from fedcircuits.serving.questions import Limits
from fedcircuits.serving.workers import Workers

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def model() -> bytes:
    rows = pd.DataFrame({"a": [1.0, 2.0, 2.5, 4.0] * 20, "b": ["x", "y", "x", "x"] * 20})
    return encoding.pack(fc.learn(rows, learner="factorised").to_record())


@pytest.fixture
def workers(model: bytes) -> Iterator[Workers]:
    made = Workers(model, "a model", Limits(seconds=20.0, workers=2, samples=10**9))
    yield made
    made.close()


def test_a_question_is_answered_by_a_process(workers: Workers) -> None:
    async def scenario() -> None:
        reply = await workers.ask("log_prob", {"rows": [{"b": "x"}], "unknown": "error"})
        assert reply["status"] == 200
        assert reply["answer"]["log_prob"][0] < 0
        reply = await workers.ask("log_prob", {"rows": [{"b": "z"}], "unknown": "error"})
        assert reply["status"] == 422
        assert "'b'" in reply["error"]

    anyio.run(scenario)


def test_a_deadline_ends_the_work_and_the_next_question_is_answered(model: bytes) -> None:
    workers = Workers(model, "a model", Limits(seconds=6.0, workers=1, samples=10**12))
    long = {"n": 10**8, "given": None, "rows": None, "seed": 1, "unknown": "error"}

    async def scenario() -> None:
        reply = await workers.ask("sample", long)
        assert reply["status"] == 503
        assert "no answer within 6.0 s" in reply["error"]
        reply = await workers.ask("schema", {})  # a fresh process: the old one was killed
        assert reply["status"] == 200

    try:
        anyio.run(scenario)
    finally:
        start = time.monotonic()
        workers.close()
        assert time.monotonic() - start < 5.0


def test_a_model_that_cannot_be_read_is_an_error_at_the_start() -> None:
    with pytest.raises(FedcircuitsError, match="not a fedcircuits file"):
        Workers(b"no model at all, no model at all", "x.fc", Limits())
