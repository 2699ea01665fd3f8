"""An event loop whose connections go through `links`.

Owns that every connection of the node, accepted or opened, has a `Link`. Everything else is the loop's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import uvloop

from fenceline.testing.lab.nodes.links import FaultyLink, FaultyLinks


class FaultyLoop(uvloop.Loop):
    """uvloop's loop. `links` has all of its connections."""

    def __init__(self) -> None:
        super().__init__()
        self.links = FaultyLinks(self)

    async def create_server(self, protocol_factory: Callable[[], Any], *args: Any, **options: Any) -> Any:
        return await super().create_server(lambda: self.links.wrap(protocol_factory(), None), *args, **options)

    async def create_connection(
        self, protocol_factory: Callable[[], Any], host: Any = None, port: Any = None, *args: Any, **options: Any
    ) -> tuple[Any, Any]:
        transport, outer = await super().create_connection(
            lambda: self.links.wrap(protocol_factory(), f"{host}:{port}"), host, port, *args, **options
        )
        if isinstance(outer, FaultyLink):
            return outer, outer.protocol
        return transport, outer


def links_of(loop: asyncio.AbstractEventLoop) -> FaultyLinks:
    """The connections of a loop that `FaultyLoop` has made."""
    assert isinstance(loop, FaultyLoop), "the node runs in a loop with faults"
    return loop.links
