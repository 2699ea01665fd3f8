"""The connections of a simulated node's quorum to its peers: one to each, opened at its first use.

Replaces `fenceline.node.quorum.peers`: messages are passed as objects, and the port of a peer is its node id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from fenceline.quorum.duties import Send
from fenceline.quorum.messages import QuorumFetchResponse, ResponseMessage
from fenceline.testing.simulation.loop import SimLoop
from fenceline.testing.simulation.network import Frame, Network, PeerRefused, SimulatedConnection

_CONNECT_S: Final = 2.0


class SimPeers:
    """See the module. `answered` or `unanswered` (with: was it refused) is called with the id of a request, at most one
    of them and at most once."""

    def __init__(
        self,
        network: Network,
        node_id: int,
        answered: Callable[[int, ResponseMessage], None],
        unanswered: Callable[[int, bool], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop), "a simulated process"
        self._loop = loop
        self._network = network
        self._node_id = node_id
        self._answered = answered
        self._unanswered = unanswered
        self._connections: dict[int, tuple[SimulatedConnection, float]] = {}
        """By node, with the time when it was opened."""
        self._is_closed = False

    def send(self, duty: Send) -> None:
        """A connection that does not open is replaced after a while."""
        them, now_s = duty.destination.port, self._loop.time()
        connection, begun_s = self._connections.get(them, (None, 0.0))
        if connection is None or not connection.is_open or not (connection.is_opened or now_s < begun_s + _CONNECT_S):
            if connection is not None:
                connection.close()
            connection = self._network.open(self._node_id, them, self._loop)
            self._connections[them] = (connection, now_s)
        request_id = duty.request_id

        def answered(answer: Frame) -> None:
            if self._is_closed:
                return
            if isinstance(answer, ConnectionError):
                self._unanswered(request_id, isinstance(answer, PeerRefused))
            elif isinstance(answer, QuorumFetchResponse):
                self._answered(request_id, replace(answer, is_prompt=True))
            else:
                self._answered(request_id, answer)

        connection.ask(duty.message, answered)

    @staticmethod
    def silent_for_s(node_id: int) -> float:
        """No broker of these scenarios is reported as silent."""
        return 0.0

    async def close(self) -> None:
        self._is_closed = True
        for connection, _ in self._connections.values():
            connection.close()
