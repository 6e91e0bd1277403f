"""Questions that take too long: answered in time, and never more at work than allowed."""

from __future__ import annotations

import json
import threading

import anyio
import pytest

pytest.importorskip("fastapi")

from starlette.exceptions import HTTPException

from fedcircuits.serving.app import Workers
from fedcircuits.serving.questions import Limits


def test_work_given_up_keeps_its_slot_until_it_ends() -> None:
    finish, ended, begun = threading.Event(), threading.Event(), []

    def long() -> dict[str, int]:
        finish.wait(30)
        ended.set()
        return {}

    def short() -> dict[str, int]:
        begun.append(1)
        return {"answer": 7}

    async def scenario() -> None:
        workers = Workers(Limits(seconds=0.2, workers=1))
        for work in (long, short):  # the second finds the only slot taken
            with pytest.raises(HTTPException, match=r"no answer within 0\.2 s") as error:
                await workers.run(work)
            assert error.value.status_code == 503
        assert begun == []
        finish.set()
        await anyio.to_thread.run_sync(ended.wait)
        reply = await workers.run(short)
        assert json.loads(bytes(reply.body)) == {"answer": 7}

    anyio.run(scenario)


def test_a_slot_is_given_back_where_no_thread_began(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await anyio.sleep_forever()

    async def scenario() -> None:
        workers = Workers(Limits(seconds=0.1, workers=1))
        with monkeypatch.context() as patch:
            patch.setattr(anyio.to_thread, "run_sync", never)
            with pytest.raises(HTTPException):
                await workers.run(dict)
        assert workers.busy == 0
        assert (await workers.run(dict)).status_code == 200

    anyio.run(scenario)
