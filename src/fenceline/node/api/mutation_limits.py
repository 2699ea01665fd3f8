"""CreateTopics, DeleteTopics and CreatePartitions under a quota of changes (`controller_mutation_rate`).

Owns which versions are refused a change, and the throttle time of the answer. Counted by the active controller only:
when it decides, once a topic has passed all other checks, so that one that fails costs nothing.

Rules: security.md A61; KIP-599.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.node.client_limits import NodeQuotas
    from fenceline.node.context import Answer, Api, Handler, RequestContext

_FIRST_STRICT: Final = {ApiKey.CREATE_TOPICS: 6, ApiKey.DELETE_TOPICS: 5, ApiKey.CREATE_PARTITIONS: 3}
"""Older clients are throttled, and nothing is refused."""


class MutationLimits(NamedTuple):
    """`is_active`: whether this node is the active controller."""

    quotas: NodeQuotas
    is_active: Callable[[], bool]

    def limited(self, apis: Iterable[Api]) -> tuple[Api, ...]:
        """The same APIs, those of topics with their quota."""
        return tuple(
            api._replace(handler=self._limited(api.handler, _FIRST_STRICT[api.key]))
            if api.key in _FIRST_STRICT
            else api
            for api in apis
        )

    def _limited(self, handler: Handler, first_strict: int) -> Handler:
        def handle(context: RequestContext, request: Any) -> Answer | Awaitable[Answer]:
            if not self.is_active():
                return handler(context, request)
            is_strict = context.api_version >= first_strict
            quota = self.quotas.mutations(context.principal, context.client_id, is_strict=is_strict)
            context.mutations = quota
            answer = handler(context, request)
            if quota is None or not inspect.isawaitable(answer):
                return answer

            async def later(waiting: Awaitable[Answer]) -> Answer:
                answered = await waiting
                context.throttle_ms = max(context.throttle_ms, quota.throttle_ms)
                return answered

            return later(answer)

        return handle
