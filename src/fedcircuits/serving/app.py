"""The routes. FastAPI is imported here and nowhere else."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from typing import Annotated, Any, Literal

import anyio
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict
from starlette.exceptions import HTTPException

from fedcircuits.errors import FedcircuitsError
from fedcircuits.serving.gate import Gate
from fedcircuits.serving.notes import collected
from fedcircuits.serving.page import POLICY, page
from fedcircuits.serving.questions import Answer, Limits, Questions, TooMuchError

_log = logging.getLogger(__name__)
# A value, or an event as an object: {"between": [30, 40]}, {"one_of": [...]}, {"not": ...}, ...
Cell = str | bool | int | float | dict[str, Any] | None
Row = dict[str, Cell]
Unknown = Annotated[
    Literal["error", "missing"], Field(description="what an unseen category is taken for")
]
Impossible = Annotated[
    Literal["error", "nan"], Field(description="what evidence of probability zero gives")
]
ROW: JsonDict = {"age": 40, "sex": "Male", "income": None}


class _Body(BaseModel):
    """A misspelt field is an error, not a default."""

    model_config = ConfigDict(extra="forbid")


class _OfRows(_Body):
    rows: Annotated[
        list[Row], Field(min_length=1, description="rows; an absent or null value is missing")
    ]
    unknown: Unknown = "error"


class _WithEvidence(_Body):
    given: Annotated[Row | None, Field(description="evidence: values by name")] = None
    rows: Annotated[
        list[Row] | None, Field(min_length=1, description="or: one answer for each of these rows")
    ] = None


class LogProb(_OfRows):
    model_config = ConfigDict(json_schema_extra={"examples": [{"rows": [ROW]}]})


class Mpe(_OfRows):
    model_config = ConfigDict(json_schema_extra={"examples": [{"rows": [ROW]}]})


class PredictProba(_OfRows):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"rows": [{"age": 40}], "target": "income"}]}
    )
    target: Annotated[str, Field(description="name of the variable")]
    impossible: Impossible = "error"


class Sample(_WithEvidence):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"n": 3, "given": {"age": 40}, "seed": 1}]}
    )
    n: Annotated[int, Field(ge=0, description="how many, for each row of evidence")] = 1
    seed: Annotated[int | None, Field(ge=0, description="for the same sample again")] = None
    unknown: Unknown = "error"


class Variance(_WithEvidence):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "age", "given": {"sex": "Male"}}]}
    )
    name: Annotated[str, Field(description="name of the variable")]
    impossible: Impossible = "error"
    unknown: Unknown = "error"


class Moment(Variance):
    order: Annotated[int, Field(ge=0, le=16, description="1 is the mean")] = 1


class Probability(_WithEvidence):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"event": {"hours": {"above": 50}}, "given": {"age": {"between": [30, 40]}}}
            ]
        }
    )
    event: Annotated[Row, Field(min_length=1, description="values or events by name; all hold")]
    impossible: Impossible = "error"
    unknown: Unknown = "error"


class Cdf(Variance):
    x: Annotated[list[float], Field(min_length=1, description="where: P(name <= x)")]


class Quantile(Variance):
    p: Annotated[list[float], Field(min_length=1, description="shares between 0 and 1")]


class Interval(Variance):
    level: Annotated[float, Field(gt=0, lt=1, description="probability of the interval")] = 0.9


class Impute(_OfRows):
    model_config = ConfigDict(json_schema_extra={"examples": [{"rows": [ROW]}]})


class _OfNames(_Body):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"names": ["age"], "given": {"sex": "Male"}}]}
    )
    names: Annotated[list[str] | None, Field(description="variables; all that fit")] = None
    given: Annotated[Row | None, Field(description="evidence: values by name")] = None


class Marginals(_OfNames):
    pass


class Covariance(_OfNames):
    pass


class MutualInformation(_OfNames):
    pass


class Entropy(_OfNames):
    names: Annotated[list[str], Field(min_length=1, description="discrete variables, together")]


class Workers:
    """Threads that questions are worked on in, no more than a few at once.

    A question that takes too long is answered with an error; its thread ends when it is done, and
    counts as busy until then, so that abandoned work never piles up.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._slots = anyio.CapacityLimiter(limits.workers)
        self._threads = anyio.CapacityLimiter(math.inf)  # the slots are what is counted

    @property
    def busy(self) -> int:
        """Slots that are taken."""
        return int(self._slots.borrowed_tokens)

    async def run(self, work: Callable[[], Answer]) -> JSONResponse:
        """The answer, or status 503 where there is none in time."""
        slot = threading.Lock()  # whoever takes it answers for giving the slot back
        held = False
        try:
            with anyio.fail_after(self._limits.seconds):
                await self._slots.acquire_on_behalf_of(slot)
                held = True
                answer = await anyio.to_thread.run_sync(
                    self._work, work, slot, abandon_on_cancel=True, limiter=self._threads
                )
        except TimeoutError:
            if held and slot.acquire(blocking=False):  # no thread had begun, and none will
                self._slots.release_on_behalf_of(slot)
            raise HTTPException(
                503, f"no answer within {self._limits.seconds} s: ask for less at a time"
            ) from None
        return JSONResponse(answer)

    def _work(self, work: Callable[[], Answer], slot: threading.Lock) -> Answer:
        """In a thread: do the work, then give the slot back, however late it is."""
        if not slot.acquire(blocking=False):
            return {}
        try:
            with collected() as notes:
                answer = work()
            return {**answer, "notes": notes} if notes else answer
        finally:
            anyio.from_thread.run_sync(self._slots.release_on_behalf_of, slot)


def make_app(questions: Questions, token: str, name: str) -> Gate:
    """The application.

    Args:
        questions: to the model, with limits.
        token: that requests carry.
        name: of the model, for the page.
    """
    app = FastAPI(
        title=f"fedcircuits: {name}",
        description="Questions to one joint distribution. Missing values are summed out exactly.",
        version="1",
        docs_url=None,  # FastAPI's own pages load scripts from elsewhere
        redoc_url=None,
    )
    workers = Workers(questions.limits)
    _add_errors(app)
    _add_open_routes(app)
    _add_questions(app, questions, workers)
    return Gate(app, token, questions.limits)


def _add_open_routes(app: FastAPI) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the service is up; needs no token."""
        return {"status": "ok"}

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> HTMLResponse:
        html = page(app.openapi(), str(request.base_url))
        return HTMLResponse(html, headers={"Content-Security-Policy": POLICY})


def _add_questions(app: FastAPI, q: Questions, workers: Workers) -> None:
    # The gate has checked the token before; this puts it into the OpenAPI document.
    token = [Depends(HTTPBearer(auto_error=False))]

    @app.get("/schema", dependencies=token)
    async def schema() -> JSONResponse:
        """The model's variables: kinds, outcomes, units."""
        return await workers.run(q.schema)

    @app.post("/log_prob", dependencies=token)
    async def log_prob(body: LogProb) -> JSONResponse:
        """Log-density of every row in nats, missing values summed out."""
        return await workers.run(lambda: q.log_prob(body.rows, body.unknown))

    @app.post("/predict_proba", dependencies=token)
    async def predict_proba(body: PredictProba) -> JSONResponse:
        """Probability of every outcome of one variable, given the other values of each row."""
        return await workers.run(
            lambda: q.predict_proba(body.rows, body.target, body.unknown, body.impossible)
        )

    @app.post("/mpe", dependencies=token)
    async def mpe(body: Mpe) -> JSONResponse:
        """Rows with missing values filled by a most probable completion."""
        return await workers.run(lambda: q.mpe(body.rows, body.unknown))

    @app.post("/sample", dependencies=token)
    async def sample(body: Sample) -> JSONResponse:
        """Exact samples, given nothing, some values, or each of some rows."""
        return await workers.run(
            lambda: q.sample(body.n, body.given, body.rows, body.seed, body.unknown)
        )

    @app.post("/moment", dependencies=token)
    async def moment(body: Moment) -> JSONResponse:
        """E[name**order | evidence]."""
        return await workers.run(
            lambda: q.moment(
                body.name, body.order, body.given, body.rows, body.impossible, body.unknown
            )
        )

    @app.post("/variance", dependencies=token)
    async def variance(body: Variance) -> JSONResponse:
        """Var[name | evidence]."""
        return await workers.run(
            lambda: q.variance(body.name, body.given, body.rows, body.impossible, body.unknown)
        )

    @app.post("/probability", dependencies=token)
    async def probability(body: Probability) -> JSONResponse:
        """P(event | evidence)."""
        return await workers.run(
            lambda: q.probability(body.event, body.given, body.rows, body.impossible, body.unknown)
        )

    @app.post("/cdf", dependencies=token)
    async def cdf(body: Cdf) -> JSONResponse:
        """P(name <= x | evidence), for every x."""
        return await workers.run(
            lambda: q.at_points(
                "cdf", body.name, body.x, body.given, body.rows, body.impossible, body.unknown
            )
        )

    @app.post("/quantile", dependencies=token)
    async def quantile(body: Quantile) -> JSONResponse:
        """The smallest x with P(name <= x | evidence) >= p, for every p."""
        return await workers.run(
            lambda: q.at_points(
                "quantile", body.name, body.p, body.given, body.rows, body.impossible, body.unknown
            )
        )

    @app.post("/interval", dependencies=token)
    async def interval(body: Interval) -> JSONResponse:
        """The central interval of one variable with that probability."""
        ends = [(1 - body.level) / 2, (1 + body.level) / 2]
        return await workers.run(
            lambda: q.at_points(
                "quantile", body.name, ends, body.given, body.rows, body.impossible, body.unknown
            )
        )

    @app.post("/impute", dependencies=token)
    async def impute(body: Impute) -> JSONResponse:
        """Rows with missing values filled: means of numbers, likeliest values of categories."""
        return await workers.run(lambda: q.impute(body.rows, body.unknown))

    @app.post("/mutual_information", dependencies=token)
    async def mutual_information(body: MutualInformation) -> JSONResponse:
        """Mutual information of all pairs of some variables, in nats."""
        return await workers.run(lambda: q.mutual_information(body.names, body.given))

    @app.post("/entropy", dependencies=token)
    async def entropy(body: Entropy) -> JSONResponse:
        """Entropy of some discrete variables together, in nats."""
        return await workers.run(lambda: q.entropy(body.names, body.given))

    @app.post("/covariance", dependencies=token)
    async def covariance(body: Covariance) -> JSONResponse:
        """Covariance matrix of numeric variables."""
        return await workers.run(lambda: q.covariance(body.names, body.given))

    @app.post("/marginals", dependencies=token)
    async def marginals(body: Marginals) -> JSONResponse:
        """The distribution of single variables: probabilities, or mean and standard deviation."""
        return await workers.run(lambda: q.marginals(body.names, body.given))


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(FedcircuitsError)
    async def ours(_: Request, error: FedcircuitsError) -> JSONResponse:
        status = 413 if isinstance(error, TooMuchError) else 422
        return _error(status, str(error), type(error).__name__)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> JSONResponse:
        return _error(422, "; ".join(map(_told, error.errors()[:5])), "RequestError")

    @app.exception_handler(HTTPException)
    async def http(_: Request, error: HTTPException) -> JSONResponse:
        return _error(error.status_code, str(error.detail), "RequestError")

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> JSONResponse:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return _error(500, "an error of the service; its log has more", "InternalError")


def _error(status: int, text: str, kind: str) -> JSONResponse:
    return JSONResponse({"error": text, "type": kind}, status)


def _told(fault: dict[str, Any]) -> str:
    """One fault of a body: where, what was expected, what was found."""
    place = [str(part) for part in fault["loc"][1:]]
    if len(place) > 2 and place[0] == "rows":  # rows, number, name, and which type was tried
        expected = "a string, a number, true, false, null or an event"
        return f"row {place[1]}, variable {place[2]!r}: expected {expected}"
    found = repr(fault.get("input"))
    return f"{'.'.join(place) or 'the body'}: {fault['msg']}, found {found[:80]}"
