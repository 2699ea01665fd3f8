"""Which brokers coordinate transactions, by their own ApiVersions: asked when a client needs it, once per
registration.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fenceline.metadata.image import Endpoint
from fenceline.node.clock import Clock
from fenceline.node.net.peer_connection import dial
from fenceline.node.transactions.support import TransactionSupport
from fenceline.wire import entities
from fenceline.wire.apis import ApiKey
from fenceline.wire.frame import parse_request_header
from tests.node.api.handlers.fakes import broker_image, image_of
from tests.node.controller_helpers import StillClock


class Peer:
    """A broker on a real socket that reports its supported APIs."""

    def __init__(self, *keys: ApiKey) -> None:
        self._keys = (ApiKey.API_VERSIONS, *keys)
        self.connections = 0
        self.port = 0
        self._server: asyncio.Server | None = None

    async def serve(self) -> None:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        frame = memoryview(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))
        header = parse_request_header(frame)
        keys = [{"api_key": each, "min_version": 0, "max_version": 3} for each in self._keys]
        fields = {"error_code": 0, "api_keys": keys}
        body = entities.write_response(ApiKey.API_VERSIONS, header.api_version, fields)
        answer = header.correlation_id.to_bytes(4, "big") + body
        writer.write(len(answer).to_bytes(4, "big") + answer)
        await reader.read()
        writer.close()


def _support(image: Any, peers: dict[int, Peer], clock: Clock) -> TransactionSupport:
    def endpoint(node_id: int) -> Endpoint | None:
        return Endpoint("PLAINTEXT", "127.0.0.1", peers[node_id].port, 0) if node_id in peers else None

    return TransactionSupport(1, lambda: image[0], endpoint, clock, dial)


def test_brokers_are_asked_once_per_registration() -> None:
    async def story() -> None:
        fenceline, kafka = Peer(ApiKey.FETCH), Peer(ApiKey.FETCH, ApiKey.ADD_PARTITIONS_TO_TXN)
        await fenceline.serve()
        await kafka.serve()
        image = [image_of()]
        support = _support(image, {2: fenceline, 3: kafka}, StillClock())
        assert not await support.may_be_available(), "only this one"
        image[0] = image_of((), [broker_image(1), broker_image(2)])
        for _ in range(3):
            assert not await support.may_be_available()
        assert fenceline.connections == 1
        image[0] = image_of((), [broker_image(1), broker_image(2), broker_image(3)])
        assert all(await asyncio.gather(*(support.may_be_available() for _ in range(5))))
        assert (fenceline.connections, kafka.connections) == (1, 1)
        image[0] = image_of((), [broker_image(1), broker_image(2, epoch=9)])
        assert not await support.may_be_available()
        assert fenceline.connections == 2, "a new registration may be of another implementation"
        fenceline.close()
        kafka.close()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_an_unreachable_broker_may_be_a_kafka_broker() -> None:
    async def story() -> None:
        peer, clock = Peer(ApiKey.FETCH), StillClock()
        await peer.serve()
        peer.close()
        image = [image_of((), [broker_image(1), broker_image(2)])]
        support = _support(image, {2: peer}, clock)
        assert await support.may_be_available()
        await peer.serve()
        assert await support.may_be_available(), "it is not asked again so soon"
        assert peer.connections == 0
        clock.ms += 2_000
        assert not await support.may_be_available()
        image[0] = image_of((), [broker_image(1), broker_image(4)])
        assert await support.may_be_available(), "it has no listener for brokers"
        peer.close()

    asyncio.run(asyncio.wait_for(story(), 60))
