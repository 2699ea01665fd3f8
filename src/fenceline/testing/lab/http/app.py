"""The service as an ASGI application.

Owns what it consists of. Opens no port.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Final

import anyio.to_thread
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from fenceline import __version__
from fenceline.testing.lab.http import clusters, injection
from fenceline.testing.lab.http.answers import add_error_handlers
from fenceline.testing.lab.http.ended import EndedClusterAnswers
from fenceline.testing.lab.http.guard import OriginGuard
from fenceline.testing.lab.http.leases import LeasedClusters
from fenceline.testing.lab.http.page import html_page

_THREADS: Final = 256
"""Requests that may wait at the same time."""
_DESCRIPTION: Final = (
    "Kafka clusters of real processes whose disks, clocks, networks and answers fail on request, for tests in any"
    " language. Create a cluster, hold its lease, inject faults or ask for a situation, and see what your application"
    " makes of it. The same as Fenceline's Python test kit; its predicates and callbacks have no form in JSON."
)


def create_app(leased: LeasedClusters, *, allow_remote: bool = False) -> FastAPI:
    """The application. `leased` is not closed by it."""
    app = FastAPI(
        title="Fenceline laboratory",
        version=__version__,
        description=_DESCRIPTION,
        # The usual pages load scripts from elsewhere; `html_page` does not.
        docs_url=None,
        redoc_url=None,
        lifespan=_more_threads,
    )
    app.state.clusters = leased
    app.include_router(clusters.router)
    app.include_router(injection.router)
    app.add_middleware(EndedClusterAnswers, clusters=leased)
    app.add_middleware(OriginGuard, allow_remote=allow_remote)
    add_error_handlers(app)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    def page(request: Request) -> HTMLResponse:
        return HTMLResponse(html_page(app.openapi(), str(request.base_url).rstrip("/")))

    return app


@contextlib.asynccontextmanager
async def _more_threads(app: FastAPI) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
    yield
