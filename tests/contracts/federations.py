"""Small federations of every setting, and transports that record or break what passes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pandas as pd
import pytest

from contracts.engine import table
from fedcircuits.api.client_spec import ClientSpec
from fedcircuits.engines import LocalEngine
from fedcircuits.federation.wire.noise import KEY_BYTES, KeyedNoise
from fedcircuits.federation.wire.transport import Transport
from recorder import Recorder

LABEL, ID = "bought", "customer"
Reply = bytes | Exception


def split(setting: str, rows: pd.DataFrame | None = None) -> dict[str, pd.DataFrame]:
    """A table over two or three clients; the label is shared in hybrid, on one vertically.

    "branches" is hybrid too: two clients with the same columns and different rows, and a third
    with other columns of all these rows.
    """
    rows = table() if rows is None else rows
    n = len(rows)
    if setting == "horizontal":
        return {name: rows.iloc[at::3].reset_index(drop=True) for at, name in enumerate("abc")}
    if setting == "vertical":
        return {
            "a": rows[[ID, "height", "colour", LABEL]],
            "b": rows[[ID, "visits"]].iloc[::-1].reset_index(drop=True),
            "c": rows[[ID, "size"]].iloc[5:].reset_index(drop=True),
        }
    if setting == "branches":
        mine = rows[[ID, "height", "colour", LABEL]]
        return {
            "a": mine.iloc[: n // 2],
            "b": mine.iloc[n // 2 :].reset_index(drop=True),
            "c": rows[[ID, "visits", "size"]],
        }
    return {
        "a": rows[[ID, "height", "colour", "size", LABEL]].iloc[: int(0.7 * n)],
        "b": rows[[ID, "visits", "size", LABEL]].iloc[int(0.3 * n) :].reset_index(drop=True),
    }


class Breaking(Recorder):
    """Hands every reply to a function that may spoil it."""

    def __init__(self, inner: Transport, spoil: Callable[[str, str, bytes], Reply]) -> None:
        super().__init__(inner)
        self.spoil = spoil

    def call(
        self, verb: str, payloads: Mapping[str, bytes], timeout: float | None = None
    ) -> dict[str, Reply]:
        answers = super().call(verb, payloads, timeout)
        return {
            client: self.spoil(verb, client, answer) if isinstance(answer, bytes) else answer
            for client, answer in answers.items()
        }


def local(
    clients: Mapping[str, pd.DataFrame], learner: Any = "factorised", id_secret: str = ""
) -> LocalEngine:
    """An engine in this process, to be wrapped."""
    return LocalEngine(
        {
            name: ClientSpec(
                name,
                frame,
                learner[name] if isinstance(learner, dict) else learner,
                id=ID if ID in frame else None,
                kinds={LABEL: "categorical"},
                id_secret=id_secret,
            ).make()
            for name, frame in clients.items()
        }
    )


@contextmanager
def same_noise() -> Iterator[None]:
    """Have noise of the server and of clients come from the same bytes, so that runs compare.

    A client's noise follows from its sealing key, which is a new one in every run.
    """

    def system_bytes(n: int) -> bytes:
        return hashlib.shake_256(b"the same").digest(n)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedcircuits.federation.wire.noise.system_bytes", system_bytes)
        patch.setattr(
            "fedcircuits.federation.client.client.KeyedNoise",
            lambda _: KeyedNoise(system_bytes(KEY_BYTES)),
        )
        yield
