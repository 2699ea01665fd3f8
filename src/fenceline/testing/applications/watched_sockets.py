"""The connections of an application, which the world can aim at: a fault when the answer to a request arrives.

Owns the detection of requests by their API key. Knows nothing else of the protocol.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from fenceline.testing.simulation.loop import SimLoop
from fenceline.testing.simulation.scheduler import SimulationError
from fenceline.testing.simulation.sockets import Factory, NodeSockets, Sockets, Stream, StreamTransport
from fenceline.wire.apis import ApiKey

_BROKER: Final = re.compile(r"n\d+")


@dataclass(slots=True)
class AnswerAim:
    """Wait for a request of this API; `strike` is called when its answer is sent, and returns whether the answer is
    delivered."""

    api_key: ApiKey
    strike: Callable[[], bool]


class WatchedSockets(NodeSockets):
    """The connections of one machine with a client."""

    def __init__(self, sockets: Sockets, client_id: int) -> None:
        super().__init__(sockets, client_id)
        self.aims: list[AnswerAim] = []

    async def connect(self, loop: SimLoop, factory: Factory, host: str, port: int) -> tuple[Any, Any]:
        """See `NodeSockets`. Raises SimulationError for another host than a broker, which ends the story."""
        if _BROKER.fullmatch(host) is None:
            error = SimulationError(
                f"a simulated application reaches brokers only, not {host}:{port}. Give it what it needs of other"
                " services as an argument, and in the simulation a stand-in, for example a SimulatedStore"
            )
            loop.scheduler.fail(error)
            raise error
        return await super().connect(loop, factory, host, port)

    def _stream(self, loop: SimLoop, node_id: int, port: int) -> Stream:
        return _WatchedStream(self, self._sockets, self.node_id, node_id, loop, port)


class _WatchedStream(Stream):
    """A connection that an application opened."""

    def __init__(
        self, owner: WatchedSockets, sockets: Sockets, source: int, destination: int, loop: SimLoop, port: int
    ) -> None:
        super().__init__(sockets, source, destination, loop, port)
        self._owner = owner
        self._met: AnswerAim | None = None

    def send(self, end: StreamTransport, content: bytes) -> None:
        if self._met is not None and end.me != self.source:
            met, self._met = self._met, None
            if not met.strike():
                self.cut("the answer is lost")
                return
        elif self._owner.aims and end.me == self.source:
            self._look(content)
        super().send(end, content)

    def _look(self, content: bytes) -> None:
        """A write holds whole requests: size, API key, the rest."""
        position = 0
        while position + 6 <= len(content):
            api_key = int.from_bytes(content[position + 4 : position + 6], "big")
            for aim in self._owner.aims:
                if aim.api_key == api_key:
                    self._owner.aims.remove(aim)
                    self._met = aim
                    return
            position += 4 + int.from_bytes(content[position : position + 4], "big")
