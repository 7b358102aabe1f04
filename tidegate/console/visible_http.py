"""`GET /v1/jobs/JOB/visible`: a caller that has written an event waits until readers see it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tidegate.app import App
from tidegate.console.sight import Answer, Question, Sight
from tidegate.console.sights import TooManyWaiters, UnknownRecord, Waiters, question_of
from tidegate_kernel.clock import Clock
from tidegate_kernel.errors import Misconfigured, Transient

LONGEST_SECONDS = 30.0
"""Less than what proxies cut off; a caller asks again."""

_STATUS = {Sight.VISIBLE: 200, Sight.PENDING: 202, Sight.DEAD: 409, Sight.PARKED: 409, Sight.SKIPPED: 409}


def visible_route(app: App, waiters: Waiters, clock: Clock) -> Route:
    """200 visible · 202 not yet · 409 dead, parked or skipped · 400 and 404 misuse · 429 too many · 503 cannot tell."""

    async def answer(request: Request) -> Response:
        asked = request.query_params
        try:
            seconds = _seconds(asked.get("timeout", "0"))
            question = question_of(app, request.path_params["job"], asked.get("offset", ""))
        except UnknownRecord as error:
            return _trouble(404, error)
        except Misconfigured as error:
            return _trouble(400, error)
        return await _waited(waiters, question, seconds, clock)

    return Route("/v1/jobs/{job}/visible", answer)


async def _waited(waiters: Waiters, question: Question, seconds: float, clock: Clock) -> Response:
    began = clock.monotonic()
    try:
        found: Answer = await waiters.wait(question, seconds)
    except TooManyWaiters as error:
        return _trouble(429, error, headers={"retry-after": "1"})
    except Transient as error:
        return _trouble(503, error)
    return JSONResponse(found.plain(clock.monotonic() - began), status_code=_STATUS[found.sight])


def _trouble(status: int, error: Exception, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": str(error)}, status_code=status, headers=headers)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_SECONDS:
        raise Misconfigured(f"timeout has to be 0 to {LONGEST_SECONDS:.0f} seconds; ask again for longer")
    return seconds
