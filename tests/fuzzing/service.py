"""Requests to the service: fuzzed bodies, paths, methods and tokens."""

from __future__ import annotations

import json
import warnings
from functools import cached_property
from typing import Any

import anyio
import httpx

import fedcircuits as fc
from contracts.federations import LABEL
from contracts.mutations import JUNK, mutate_tree
from fedcircuits.federation.wire.envelope import unwrap, wrap
from fedcircuits.serving.app import make_app
from fedcircuits.serving.explorer import Explorer
from fedcircuits.serving.questions import Limits
from fedcircuits.serving.worker import answer
from fuzzing.basis import ROWS, Rng, WrongError, pick


class _Direct:
    """The service's workers in this process: what a worker process does, without the process."""

    def __init__(self, model: Any, limits: Limits) -> None:
        self._questions = Explorer(model, limits)

    async def ask(self, method: str, arguments: dict[str, Any], begun: float) -> dict[str, Any]:
        del begun  # no deadline here
        try:
            given = json.loads(json.dumps(arguments, ensure_ascii=False).encode())
        except UnicodeEncodeError:
            return {"status": 422, "error": "a lone surrogate", "type": "RequestError"}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reply: dict[str, Any] = json.loads(json.dumps(answer(self._questions, method, given)))
            return reply


ROW = {"height": 0.5, "colour": "red", "visits": 2, "size": None, "bought": "yes"}
EVENT = {"height": {"between": [0, 1]}, "colour": {"one_of": ["red", "blue"]}, "visits": {"not": 2}}
BODIES: dict[str, dict[str, Any]] = {
    "log_prob": {"rows": [ROW, {"colour": "blue"}], "unknown": "missing"},
    "predict_proba": {"rows": [{"height": 1.0}], "target": "bought", "impossible": "nan"},
    "mpe": {"rows": [{"colour": "red"}]},
    "sample": {"n": 3, "given": {"colour": "red"}, "seed": 1},
    "moment": {"name": "height", "order": 2, "rows": [{"colour": "red"}]},
    "variance": {"name": "size", "given": {"visits": 1}},
    "probability": {"event": EVENT, "given": {"bought": "no"}},
    "cdf": {"name": "height", "x": [0.0, 1.5]},
    "quantile": {"name": "size", "p": [0.1, 0.9], "rows": [{"colour": "red"}]},
    "interval": {"name": "height", "level": 0.9},
    "impute": {"rows": [{"colour": "red"}]},
    "mutual_information": {"names": ["colour", "bought"], "given": {"visits": 2}},
    "entropy": {"names": ["colour", "bought"]},
    "covariance": {"names": ["height", "size"]},
    "marginals": {"names": ["colour", "height"], "given": {"visits": {"above": 1}}},
    "explore/answer": {"given": {"colour": "red"}, "without": []},
    "explore/complete": {"given": {"colour": "red"}},
    "explore/sample": {"given": {"visits": {"below": 3}}},
}
MORE: tuple[Any, ...] = (
    *JUNK,
    "height",
    "colour",
    {"between": [1, 0]},
    {"above": "x"},
    {"not": {}},
    {"one_of": []},
    {"between": [None, 1e308]},
    [1e400],
    "NaN",
    ["height"] * 50,
    {"not": {"not": {"not": 1}}},
    10**18,
    -(10**18),
    1e-320,
)
STATUSES = {200, 400, 401, 404, 405, 413, 415, 422, 503}


class Http:
    """Requests to the service, through its gate and its routes."""

    name = "http"
    TOKEN = "a token for fuzzing"

    @cached_property
    def app(self) -> Any:
        """The service in this process."""
        limits = Limits(body_bytes=200_000, rows=200, samples=200)
        workers: Any = _Direct(fc.learn(ROWS, learner="factorised", label=LABEL), limits)
        return make_app(workers, limits, self.TOKEN, "x.fc")

    def make(self, rng: Rng) -> bytes:
        """A request with something wrong: in its JSON, its bytes, its path or its headers."""
        question = pick(tuple(BODIES), rng)
        body = json.loads(json.dumps(BODIES[question]))
        for _ in range(int(rng.integers(1, 3))):
            holder = {"body": body}
            if rng.random() < 0.4:
                mutate_tree(holder, rng)
            else:
                _replace(holder, pick(MORE, rng), rng)
            body = holder.get("body", {})
        data = json.dumps(body).encode()
        if rng.random() < 0.15 and len(data) > 1:
            at = int(rng.integers(len(data)))
            data = data[:at] + rng.bytes(2) + data[at + 1 :]
        path = (
            question if rng.random() < 0.95 else pick(("", "..", "health", "x" * 5000, "%00"), rng)
        )
        method = "POST" if rng.random() < 0.95 else pick(("GET", "PUT", "HEAD", "X"), rng)
        token = self.TOKEN if rng.random() < 0.97 else pick(("", "x", "é"), rng)
        return wrap({"path": path, "method": method, "token": token}, data)

    def check(self, data: bytes) -> None:
        """An answer in JSON with a status that says whose fault it is; never 500."""
        head, (body,) = unwrap(data)

        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app)
            headers = {
                b"authorization": b"Bearer " + head["token"].encode(),
                b"content-type": b"application/json",
            }
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.request(
                    head["method"], f"/{head['path']}", content=body, headers=headers
                )

        reply = anyio.run(ask)
        if reply.status_code not in STATUSES:
            raise WrongError(f"status {reply.status_code}: {reply.text[:300]}")
        if head["method"] == "POST":
            found = reply.json()
            if reply.status_code != 200 and set(found) != {"error", "type"}:
                raise WrongError(f"an error of another form: {found}")


def _replace(tree: Any, value: Any, rng: Rng) -> None:
    """Put a value in a random place."""
    places = []
    stack = [tree]
    while stack:
        at = stack.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at))
        places += [(at, key) for key in keys]
        stack += [at[key] for key in keys if isinstance(at[key], (dict, list))]
    at, key = pick(places, rng)
    at[key] = json.loads(json.dumps(value))
