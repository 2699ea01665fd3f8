"""The two sides of a comparison of answers: a broker of Apache Kafka, and handlers with an active controller behind
them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fenceline.config.node import NodeConfig
from fenceline.node.context import Api, NodeView, RequestContext
from fenceline.testing.apache_kafka import ApacheKafka
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, read_response, write_request, write_response
from fenceline.wire.errors import MalformedRequest
from tests.controller.helpers import Cluster
from tests.support.raw import ConnectionClosed, RawConnection

Step = tuple[ApiKey, int, dict[str, Any]]
Subscribe = Callable[[Callable[..., None]], None]
MakeApis = Callable[[NodeView, Callable[..., Any], Subscribe], Iterable[Api]]


class KafkaBroker:
    """Each request has a connection of its own: some close it."""

    def __init__(self, kafka: ApacheKafka) -> None:
        self._port = kafka.port

    def call(self, key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        with RawConnection(self._port) as connection:
            return connection.call(key, version, fields)

    def carry_out(self, change: Step, is_seen: Callable[[], bool]) -> None:
        """Wait until the broker knows the change, and so all earlier ones: it applies them in order."""
        self.call(*change)
        deadline = time.monotonic() + 60
        while not is_seen():
            assert time.monotonic() < deadline, "the broker does not follow"


class ControllerHandlers:
    """Those of a node that is the active controller. `make`: from the node, how it submits changes, and how it follows
    the metadata."""

    def __init__(self, make: MakeApis) -> None:
        self.cluster = Cluster()
        node = NodeView(1, "cluster", NodeConfig.load(None, {}, {}), lambda: self.cluster.image)
        self._apis = {api.key: api for api in make(node, self._submit, self._subscribe)}

    def _subscribe(self, listener: Callable[..., None]) -> None:
        replay = self.cluster.controller.replay

        def followed(*given: Any) -> Any:
            image, delta = replay(*given)
            listener(image, delta)
            return image, delta

        self.cluster.controller.replay = followed  # type: ignore[method-assign]

    async def _submit(self, request: Any, client: object = None) -> Any:
        return self.cluster.ask(request)

    def handler(self, key: ApiKey) -> Callable[..., Any]:
        return self._apis[key].handler

    def call(self, key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        """Raises ConnectionClosed where the node would close the connection."""
        request = read_request(key, version, write_request(key, version, fields))
        check = self._apis[key].check
        try:
            if check is not None:
                check(request)
        except MalformedRequest as error:
            raise ConnectionClosed(str(error)) from None
        answer = self.handler(key)(RequestContext(version, 1, "test", "peer", "host", "PLAINTEXT"), request)
        if not isinstance(answer, dict):

            async def later() -> Any:
                return await answer

            answer = asyncio.run(later())
        return read_response(key, version, write_response(key, version, answer))
