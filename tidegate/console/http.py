"""The HTTP endpoint of a worker: `/metrics` for Prometheus, `/livez` and `/readyz` for whoever keeps it running, and
what the worker hands in besides."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tidegate.console.health import Health
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.settings import Settings

# A scrape that hangs must not keep a stopped worker from ending.
_SHUTDOWN_SECONDS = 2


@asynccontextmanager
async def serve(
    settings: Settings, *, metrics: Metrics, health: Health, more: Sequence[Route] = ()
) -> AsyncIterator[int]:
    """The endpoint answers inside the block, with `more` routes; yields its port (the one chosen, where that is 0).

    Raises Misconfigured if the address cannot be listened on.
    """
    with _listening(settings.http_host, settings.http_port) as listener:
        config = uvicorn.Config(
            _application(metrics, health, more),
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        )
        server = _Server(config)
        task = asyncio.create_task(server.serve([listener]), name="http")
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await task


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM belongs to the worker: taken by the server, it would cut a batch off instead of settling it."""
        yield


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen(128)
        except OSError as error:
            raise Misconfigured(_unusable(host, port, error)) from error
        yield listener


def _unusable(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; choose another with --port or TIDEGATE_HTTP_PORT (0: any free one)"
    why = error.strerror or str(error)
    return f"cannot listen on {host}:{port} ({why}); check TIDEGATE_HTTP_HOST and TIDEGATE_HTTP_PORT"


def _application(metrics: Metrics, health: Health, more: Sequence[Route]) -> Starlette:
    async def show_metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.registry), media_type=None, headers={"content-type": content_type})

    return Starlette(
        routes=[
            Route("/metrics", show_metrics),
            Route("/livez", _probe(health.live)),
            Route("/readyz", _probe(health.ready)),
            *more,
        ]
    )


def _probe(problems: Callable[[], Sequence[str]]) -> Callable[[Request], Response]:
    async def answer(request: Request) -> Response:  # noqa: ARG001  # starlette passes it
        found = list(problems())
        return JSONResponse({"ok": not found, "problems": found}, status_code=503 if found else 200)

    return answer  # type: ignore[return-value]  # starlette takes coroutine functions
