"""Errors as JSON: `{"error": kind, "message": ..., "advice": ...}`.

Owns which error has which status. Knows no route.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from fenceline.errors import FencelineError, OperatorError, PeerError
from fenceline.testing.lab.http.leases import UnknownIdError
from fenceline.testing.lab.situations import SituationImpossible


class WrongArgument(BaseModel):
    """An argument of a request, and what is wrong with it."""

    name: str
    message: str


class ErrorView(BaseModel):
    """What is wrong, and what to do.

    `error`: `situation_impossible` (the message says which setting rules it out), `refused` (the state rules it out,
    such as a node that is down), `kafka` (with `kafka_error` and `kafka_code`), `unknown_id`, `wrong_arguments`,
    `timeout`, `forbidden`."""

    error: str
    message: str
    advice: str = ""
    kafka_error: str | None = None
    kafka_code: int | None = None
    arguments: list[WrongArgument] | None = None


RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": ErrorView, "description": "There is nothing with this id, or no more"},
    409: {"model": ErrorView, "description": "The state of the cluster rules it out, or Kafka's answer is an error"},
    422: {"model": ErrorView, "description": "Wrong arguments"},
    504: {"model": ErrorView, "description": "It did not happen in time"},
}


def add_error_handlers(app: FastAPI) -> None:
    """Errors of the Python API become answers; others are bugs, and answer 500."""

    @app.exception_handler(FencelineError)
    async def on_error(request: Request, error: FencelineError) -> JSONResponse:
        return _of(error)

    @app.exception_handler(TimeoutError)
    async def on_timeout(request: Request, error: TimeoutError) -> JSONResponse:
        advice = "The timeline says what happened: GET .../timeline."
        return answer(504, ErrorView(error="timeout", message=str(error), advice=advice))

    @app.exception_handler(RequestValidationError)
    async def on_wrong_arguments(request: Request, error: RequestValidationError) -> JSONResponse:
        kind = error.body.get("kind") if isinstance(error.body, dict) else None
        wrong = [WrongArgument(name=_name(each, kind), message=_message(each)) for each in error.errors()]
        message = "; ".join(f"{each.name}: {each.message}" for each in wrong)
        advice = f"GET / describes the arguments of {request.method} {request.url.path}."
        return answer(422, ErrorView(error="wrong_arguments", message=message, advice=advice, arguments=wrong))


def answer(status: int, view: ErrorView) -> JSONResponse:
    """An error as a response."""
    return JSONResponse(view.model_dump(exclude_none=True), status)


def _of(error: FencelineError) -> JSONResponse:
    if isinstance(error, PeerError):
        name = error.code.name
        view = ErrorView(error="kafka", message=str(error), kafka_error=name, kafka_code=int(error.code))
        return answer(409, view)
    if isinstance(error, UnknownIdError):
        return answer(404, ErrorView(error="unknown_id", message=error.message, advice=error.advice))
    kind = "situation_impossible" if isinstance(error, SituationImpossible) else "refused"
    if isinstance(error, OperatorError):
        return answer(409, ErrorView(error=kind, message=error.message, advice=error.advice))
    return answer(409, ErrorView(error=kind, message=str(error)))


def _name(error: dict[str, Any], kind: str | None) -> str:
    """The argument, without its place in the request and without the kind of fault, which the location also has."""
    if str(error["type"]).startswith("union_tag"):
        return "kind"
    parts = [str(each) for each in error["loc"] if each not in ("body", "query", "path")]
    if len(parts) > 1 and parts[0] == kind:
        del parts[0]
    return ".".join(parts) or "body"


def _message(error: dict[str, Any]) -> str:
    return str(error["msg"]).removeprefix("Value error, ")
