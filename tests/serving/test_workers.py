"""Questions that take too long: answered in time, and never more at work than allowed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import anyio
import anyio.from_thread
import pandas as pd
import psutil
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


def test_a_question_given_up_while_its_process_starts_leaves_nothing_at_work(model: bytes) -> None:
    """A process takes a second to start: a deadline within it leaves no question behind."""
    workers = Workers(model, "a model", Limits(seconds=0.3, workers=2, samples=10**12))
    long = {"n": 10**8, "given": None, "rows": None, "seed": 1, "unknown": "error"}

    async def scenario() -> list[int]:
        found: list[int] = []

        async def one() -> None:
            found.append((await workers.ask("sample", long))["status"])

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(one)
        await anyio.sleep(4.0)  # until whatever was being started is there
        return found

    try:
        before = {each.pid for each in psutil.Process().children()}
        assert set(anyio.run(scenario)) == {503}
        left = [each for each in psutil.Process().children() if each.pid not in before]
        busy = [each.cpu_percent(interval=0.3) for each in left]
        assert len(left) <= 2
        assert max(busy, default=0.0) < 30.0  # started for the next question, and idle
    finally:
        workers.close()


def test_a_question_that_is_given_up_leaves_its_process() -> None:
    """The next question is answered by the same process, which need not be started again."""
    rows = pd.DataFrame({"a": [1.0, 2.0, 2.5, 4.0] * 20, "b": ["x", "y", "x", "x"] * 20})
    model = encoding.pack(fc.learn(rows, learner="mixture").to_record())
    workers = Workers(model, "a model", Limits(seconds=2.0, workers=1, samples=10**12))
    long = {"n": 4 * 10**7, "given": None, "rows": None, "seed": 1, "unknown": "error"}
    (before,) = workers._all

    async def scenario() -> None:
        assert (await workers.ask("sample", long))["status"] == 503
        assert (await workers.ask("schema", {}))["status"] == 200

    try:
        anyio.run(scenario)
        assert workers._all == [before]
    finally:
        workers.close()


def test_a_process_that_was_killed_is_not_asked_again(model: bytes) -> None:
    """It is there for a moment yet: a question that was given up as it was answered."""
    workers = Workers(model, "a model", Limits(workers=1))
    try:
        (process,) = workers._idle
        process._is_killed = True  # as `kill` says it, before the signal has come
        workers._idle.clear()
        workers._put_back(process)
        assert workers._idle == []
        assert process.is_alive
    finally:
        workers.close()


def test_long_questions_give_way_to_short_ones(model: bytes) -> None:
    """Endless questions on all processes: short ones are answered long before the deadline."""
    workers = Workers(model, "a model", Limits(seconds=60.0, workers=3, samples=10**12))
    long = {"n": 10**8, "given": None, "rows": None, "seed": 1, "unknown": "error"}

    async def scenario() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(workers.ask, "sample", long)
            await anyio.sleep(2.0)
            for _ in range(3):
                with anyio.fail_after(20.0):
                    assert (await workers.ask("schema", {}))["status"] == 200
            group.cancel_scope.cancel()

    try:
        anyio.run(scenario)
    finally:
        workers.close()


def test_questions_that_waited_long_are_not_begun(model: bytes) -> None:
    workers = Workers(model, "a model", Limits(seconds=4.0, workers=1, samples=10**12))
    long = {"n": 10**8, "given": None, "rows": None, "seed": 1, "unknown": "error"}

    async def scenario() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(workers.ask, "sample", long)
            await anyio.sleep(0.2)
            start = time.monotonic()
            reply = await workers.ask("schema", {})
            assert reply["status"] == 503
            assert "not begun within 2 s" in reply["error"]
            assert time.monotonic() - start < 3.5

    try:
        anyio.run(scenario)
    finally:
        workers.close()


def test_a_service_that_stops_answers_what_is_under_way(model: bytes) -> None:
    workers = Workers(model, "a model", Limits(seconds=60.0, workers=1, samples=10**12))
    long = {"n": 10**8, "given": None, "rows": None, "seed": 1, "unknown": "error"}

    async def scenario() -> None:
        found: list[int] = []

        async def one() -> None:
            found.append((await workers.ask("sample", long))["status"])

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)  # it waits for the first
            await anyio.sleep(1.0)
            await anyio.to_thread.run_sync(workers.close)
        assert found == [503, 503]

    with anyio.from_thread.start_blocking_portal() as portal:
        start = time.monotonic()
        portal.call(scenario)
        assert time.monotonic() - start < 6.0


def test_a_model_that_cannot_be_read_is_an_error_at_the_start() -> None:
    with pytest.raises(FedcircuitsError, match="not a fedcircuits file"):
        Workers(b"no model at all, no model at all", "x.fc", Limits())
