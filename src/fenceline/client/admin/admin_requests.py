"""What all calls of Admin share: the deadline of a call, and requests to any node or to the active controller.

Owns their retries. Knows no API.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from fenceline.client.core.client_base import AsyncClient
from fenceline.client.core.cluster import Cluster
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import broker_error, error_code
from fenceline.errors import ErrorCode
from fenceline.wire.apis import ApiKey

_NOT_THE_CONTROLLER: Final = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_LEADER_OR_FOLLOWER})
"""The second is the error of the quorum's own requests."""


class AdminRequests(AsyncClient):
    """The base of the classes that `AsyncAdmin` consists of."""

    def __init__(self, config: ClientConfig) -> None:
        self.config = config
        self.cluster = Cluster(config)

    async def close(self) -> None:
        await self.cluster.close()

    def _deadline(self, timeout_ms: float | None) -> Deadline:
        return Deadline(self.config["default.api.timeout.ms"] if timeout_ms is None else timeout_ms)

    def _broker_timeout_ms(self, deadline: Deadline) -> int:
        return int(max(1.0, min(deadline.left_ms, self.config["request.timeout.ms"])))

    async def _ask(self, node_id: int | None, api_key: ApiKey, fields: dict[str, Any], deadline: Deadline) -> Any:
        return await self.cluster.retrying(
            deadline, lambda: self.cluster.call(node_id, api_key, fields, deadline=deadline)
        )

    async def _ask_controller(
        self,
        api_key: ApiKey,
        fields: dict[str, Any],
        deadline: Deadline,
        results: Callable[[Any], Iterable[Any]],
        *,
        min_version: int = 0,
    ) -> Any:
        """Send a request to the controller in metadata (any KRaft broker forwards it); retried if it is none."""

        async def attempt() -> Any:
            cached = self.cluster.metadata
            if cached.controller_id not in cached.brokers:
                await self.cluster.fetch_metadata([], deadline)
            node_id = cached.controller_id if cached.controller_id in cached.brokers else None
            response = await self.cluster.call(node_id, api_key, fields, deadline=deadline, min_version=min_version)
            if any(error_code(r.error_code) in _NOT_THE_CONTROLLER for r in results(response)):
                cached.controller_id = -1
                raise broker_error(ErrorCode.NOT_CONTROLLER, api_key.name)
            return response

        return await self.cluster.retrying(deadline, attempt)
