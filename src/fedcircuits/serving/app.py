"""The routes of the service. FastAPI is imported here and nowhere else."""

from __future__ import annotations

import logging
import secrets
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from fedcircuits.serving.explore_page import explore_page, own_script_alone
from fedcircuits.serving.gate import BEGUN, Gate
from fedcircuits.serving.page import page
from fedcircuits.serving.questions import Limits
from fedcircuits.serving.requests import QUESTIONS, Explore
from fedcircuits.serving.workers import Workers

_log = logging.getLogger(__name__)
# The gate has checked the token before; this puts it into the OpenAPI document.
_TOKEN = [Depends(HTTPBearer(auto_error=False))]


def make_app(workers: Workers, limits: Limits, token: str, name: str) -> Gate:
    """Returns the FastAPI application that answers questions to one model.

    Args:
        workers: processes that answer questions to the model.
        limits: of a request.
        token: that requests carry.
        name: of the model, for the pages.
    """
    app = FastAPI(
        title=f"fedcircuits: {name}",
        description="Questions to one joint distribution. Missing values are summed out exactly.",
        version="1",
        docs_url=None,  # FastAPI's own pages load scripts from elsewhere
        redoc_url=None,
    )
    _add_errors(app)
    _add_open_routes(app, name)
    _add_questions(app, workers)
    _add_explorer(app, workers)
    return Gate(app, token, limits)


def _add_open_routes(app: FastAPI, name: str) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        """Whether the service is up; needs no token."""
        return {"status": "ok"}

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> HTMLResponse:
        nonce = secrets.token_urlsafe(16)
        html = page(app.openapi(), str(request.base_url), nonce)
        return HTMLResponse(html, headers={"Content-Security-Policy": own_script_alone(nonce)})

    @app.get("/explore", include_in_schema=False)
    async def explore() -> HTMLResponse:
        nonce = secrets.token_urlsafe(16)
        headers = {"Content-Security-Policy": own_script_alone(nonce)}
        return HTMLResponse(explore_page(name, nonce), headers=headers)


async def _answer(
    workers: Workers, request: Request, question: str, arguments: dict[str, Any]
) -> JSONResponse:
    """Asks a worker process and returns its reply as a response."""
    reply = await workers.ask(question, arguments, request.scope[BEGUN])
    if reply["status"] == 200:
        return JSONResponse(reply["answer"])
    return _error(reply["status"], reply["error"], reply["type"])


def _add_questions(app: FastAPI, workers: Workers) -> None:
    @app.get("/schema", dependencies=_TOKEN)
    async def schema(request: Request) -> JSONResponse:
        """The model's variables: kinds, outcomes, units."""
        return await _answer(workers, request, "schema", {})

    @app.get("/examples", dependencies=_TOKEN)
    async def examples(request: Request) -> JSONResponse:
        """A request to every question, with the model's own variables."""
        return await _answer(workers, request, "examples", {})

    def add(question: str, kind: Any) -> None:
        async def ask(request: Request, body: Any) -> JSONResponse:
            return await _answer(workers, request, question, body.model_dump())

        ask.__annotations__["body"] = kind
        app.post(f"/{question}", dependencies=_TOKEN, name=question, description=kind.__doc__)(ask)

    for question, kind in QUESTIONS.items():
        add(question, kind)


def _add_explorer(app: FastAPI, workers: Workers) -> None:
    """Adds what the page at /explore asks."""

    @app.get("/explore/variables", dependencies=_TOKEN, include_in_schema=False)
    async def variables(request: Request) -> JSONResponse:
        return await _answer(workers, request, "explore_variables", {})

    @app.post("/explore/{question}", dependencies=_TOKEN, include_in_schema=False)
    async def explore(request: Request, question: str, body: Explore) -> JSONResponse:
        if question not in ("answer", "complete", "sample"):
            return _error(404, "Not Found", "RequestError")
        return await _answer(workers, request, f"explore_{question}", body.model_dump())


def _add_errors(app: FastAPI) -> None:
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
    headers = {"Retry-After": "1"} if status == 503 else None
    # Text that quotes a lone surrogate is no UTF-8: it is escaped rather than an error of its own.
    plain = text.encode("utf-8", "backslashreplace").decode()
    return JSONResponse({"error": plain, "type": kind}, status, headers)


def _told(fault: dict[str, Any]) -> str:
    """One fault of a body: where, what was expected, what was found."""
    place = [str(part) for part in fault["loc"][1:]]
    if len(place) > 2 and place[0] == "rows":  # rows, number, name, and which type was tried
        expected = "a string, a number, true, false, null or an event"
        return f"row {place[1]}, variable {place[2]!r}: expected {expected}"
    found = repr(fault.get("input"))
    return f"{'.'.join(place) or 'the body'}: {fault['msg']}, found {found[:80]}"
