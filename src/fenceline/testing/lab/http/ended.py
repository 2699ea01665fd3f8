"""Requests about a cluster that ends are answered, also if the method that they have called goes on for a while.

Owns that answer. The laboratory's own clients may try to reach the brokers of an ended cluster for two minutes; the
result of that is of no use to anybody.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import MutableMapping
from typing import Any, Final

from fenceline.testing.lab.http.answers import ErrorView, answer
from fenceline.testing.lab.http.guard import App, Receive, Scope, Send
from fenceline.testing.lab.http.leases import LeasedClusters

_GRACE_S: Final = 1.0
"""For the answer of the method itself."""
_CLUSTERS: Final = ["", "v1", "clusters"]


class EndedClusterAnswers:
    """ASGI middleware."""

    def __init__(self, app: App, clusters: LeasedClusters) -> None:
        self._app = app
        self._clusters = clusters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parts = scope["path"].split("/") if scope["type"] == "http" else []
        if parts[:3] != _CLUSTERS or len(parts) < 5:
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(send)
        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(ended.set)

        with self._clusters.when_ended(parts[3], tell):
            call = asyncio.ensure_future(self._app(scope, receive, exchange.send))
            over = asyncio.ensure_future(ended.wait())
            try:
                await asyncio.wait({call, over}, return_when=asyncio.FIRST_COMPLETED)
                if not call.done():
                    await asyncio.wait({call}, timeout=_GRACE_S)
            except asyncio.CancelledError:
                call.cancel()
                raise
            finally:
                over.cancel()
        if call.done() or exchange.has_begun:
            await call
            return
        exchange.is_over = True
        call.add_done_callback(_forget)
        reason = self._clusters.end_reason(parts[3])
        view = ErrorView(error="unknown_id", message=f"Cluster {parts[3]} has ended meanwhile: {reason}")
        await answer(404, view)(scope, receive, send)


class _Exchange:
    """The answer of the method; ignored once another one is sent."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False
        self.is_over = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if not self.is_over:
            self.has_begun = True
            await self._send(message)


def _forget(call: asyncio.Future[None]) -> None:
    """Its error is of no interest any more."""
    if not call.cancelled():
        call.exception()
