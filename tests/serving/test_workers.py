"""Questions that take too long: answered in time, and never more at work than allowed.

How fast this is depends on the machine and what else it does: where a test waits for a deadline, no
answer can come before it; where it waits for an answer, no deadline can come before that.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pandas as pd
import psutil
import pytest

import fedcircuits as fc
from fedcircuits import encoding
from fedcircuits.errors import FedcircuitsError
from fedcircuits.serving.questions import Limits
from fedcircuits.serving.workers import NICENESS, Reply, Workers

pytestmark = pytest.mark.engine
NEVER = 3600.0  # seconds: a deadline that does not come within a test
LONG = {"n": 10**8, "given": None, "rows": None, "seed": 1, "unknown": "error"}


def settle(workers: Workers, seconds: float) -> None:
    """Give the questions to come another deadline."""
    workers._limits = dataclasses.replace(workers._limits, seconds=seconds)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for something that comes for certain."""
    with anyio.fail_after(120.0):
        while not holds():
            await anyio.sleep(0.02)


@pytest.fixture(scope="module")
def model() -> bytes:
    rows = pd.DataFrame({"a": [1.0, 2.0, 2.5, 4.0] * 20, "b": ["x", "y", "x", "x"] * 20})
    return encoding.pack(fc.learn(rows, learner="factorised").to_record())


@pytest.fixture
def _endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that draw samples for ever."""
    monkeypatch.setattr("fedcircuits.serving.workers.WORKER", "contracts.endless_worker")
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.fixture
def workers(model: bytes) -> Iterator[Workers]:
    made = Workers(model, "a model", Limits(seconds=NEVER, workers=2, samples=10**9))
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
    workers = Workers(model, "a model", Limits(seconds=3.0, workers=1, samples=10**12))

    async def scenario() -> None:
        reply = await workers.ask("sample", LONG)
        assert reply["status"] == 503
        assert "no answer within 3.0 s" in reply["error"]
        settle(workers, NEVER)
        reply = await workers.ask("schema", {})  # of the same process or a fresh one
        assert reply["status"] == 200

    try:
        anyio.run(scenario)
    finally:
        workers.close()


@pytest.mark.usefixtures("_endless")
def test_a_question_given_up_while_its_process_starts_leaves_nothing_at_work(model: bytes) -> None:
    """A process takes a second to start: a deadline within it leaves no question behind."""
    workers = Workers(model, "a model", Limits(seconds=0.3, workers=2, samples=10**12))

    async def scenario() -> list[int]:
        found: list[int] = []

        async def one() -> None:
            found.append((await workers.ask("sample", LONG))["status"])

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(one)

        def all_idle() -> bool:
            with workers._changed:
                there = [process for process in workers._all if process.is_alive]
                return not workers._running and {*there} == {*workers._idle}

        await until(all_idle)  # whatever was being started is there, for the next question
        return found

    try:
        before = {each.pid for each in psutil.Process().children()}
        assert set(anyio.run(scenario)) == {503}
        left = [each for each in psutil.Process().children() if each.pid not in before]
        assert len(left) <= 2
    finally:
        workers.close()


@pytest.mark.usefixtures("_endless")
def test_a_question_that_is_given_up_leaves_its_process(
    model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next question is answered by the same process, which need not be started again."""
    monkeypatch.setattr("fedcircuits.serving.workers.GIVING_UP", 120.0)
    workers = Workers(model, "a model", Limits(seconds=2.0, workers=1, samples=10**12))
    (before,) = workers._all

    async def scenario() -> None:
        assert (await workers.ask("sample", LONG))["status"] == 503
        settle(workers, NEVER)
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


@pytest.mark.usefixtures("_endless")
def test_long_questions_give_way_to_short_ones(
    model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endless questions on all processes: some are given up, and short ones are answered."""
    monkeypatch.setattr("fedcircuits.serving.workers.GIVING_UP", 120.0)
    workers = Workers(model, "a model", Limits(seconds=NEVER, workers=3, samples=10**12))
    replies: list[Reply] = []

    async def long() -> None:
        replies.append(await workers.ask("sample", LONG))

    async def scenario() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(long)
            await until(lambda: len(workers._running) == 3)
            for _ in range(3):
                assert (await workers.ask("schema", {}))["status"] == 200
            group.cancel_scope.cancel()

    try:
        anyio.run(scenario)
        assert replies  # without which there was no process for a short one
        assert {reply["status"] for reply in replies} == {503}
        assert all("given up" in reply["error"] for reply in replies)
    finally:
        workers.close()


@pytest.mark.usefixtures("_endless")
def test_questions_that_waited_long_are_not_begun(model: bytes) -> None:
    workers = Workers(model, "a model", Limits(seconds=NEVER, workers=1, samples=10**12))

    async def scenario() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(workers.ask, "sample", LONG)
            await until(lambda: len(workers._running) == 1)
            settle(workers, 2.0)
            reply = await workers.ask("schema", {})
            assert reply["status"] == 503
            assert "not begun within 1 s" in reply["error"]
            assert len(workers._running) == 1  # the first, which has time
            group.cancel_scope.cancel()

    try:
        anyio.run(scenario)
    finally:
        workers.close()


@pytest.mark.usefixtures("_endless")
def test_a_deadline_counts_from_the_request_on(workers: Workers) -> None:
    """Time that went by before a question was to be begun is part of its time."""

    async def scenario() -> None:
        reply = await workers.ask("schema", {}, time.monotonic() - NEVER)
        assert reply["status"] == 503
        assert "not begun" in reply["error"]
        assert not workers._running

    anyio.run(scenario)


def test_workers_give_way_to_the_process_that_keeps_their_deadlines(workers: Workers) -> None:
    (process,) = workers._all
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, process._process.pid) == min(19, own + NICENESS)


def test_a_service_that_stops_answers_what_is_under_way(model: bytes) -> None:
    workers = Workers(model, "a model", Limits(seconds=NEVER, workers=1, samples=10**12))

    async def scenario() -> None:
        found: list[int] = []

        async def one() -> None:
            found.append((await workers.ask("sample", LONG))["status"])

        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)  # it waits for the first
            await until(lambda: len(workers._running) == 1)
            await anyio.to_thread.run_sync(workers.close)
        assert found == [503, 503]  # long before the deadline, which is later than the test's

    anyio.run(scenario)


def test_a_model_that_cannot_be_read_is_an_error_at_the_start() -> None:
    with pytest.raises(FedcircuitsError, match="not a fedcircuits file"):
        Workers(b"no model at all, no model at all", "x.fc", Limits())
