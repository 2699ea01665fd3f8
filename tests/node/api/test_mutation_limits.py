"""Handlers of topics under a quota of changes: who counts, and what the answer says. What a change costs:
`tests/controller/test_topics.py`; beside Apache Kafka: `tests/node/test_mutation_quotas.py`.

Rules: security.md A61.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fenceline.node.api.mutation_limits import MutationLimits
from fenceline.node.client_limits import RequestMutations
from fenceline.node.context import Api, RequestContext
from fenceline.quotas.client_quotas import ClientQuotas
from fenceline.quotas.rates import Windows
from fenceline.wire.apis import ApiKey
from fenceline.wire.principal import Principal

CREATE, DELETE, ADD = ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS


class Node:
    """Its handlers ask for three changes. Anna has a quota of one change a second, and eleven at once."""

    def __init__(self) -> None:
        self.quotas = ClientQuotas(Windows(), Windows())
        self.quotas.follow({(("user", "anna"),): {"controller_mutation_rate": 1.0}})
        self.now_ms = 0
        self.is_active = True
        limits = MutationLimits(self, lambda: self.is_active)  # type: ignore[arg-type]
        keys = (CREATE, DELETE, ADD, ApiKey.ELECT_LEADERS)
        self.apis = {api.key: api for api in limits.limited(Api(key, 0, 9, self._change) for key in keys)}

    def monotonic_ms(self) -> int:
        return self.now_ms

    def mutations(self, principal: Principal, client_id: str | None, *, is_strict: bool) -> RequestMutations | None:
        quota = self.quotas.mutations(principal.name, client_id or "", self.now_ms, is_strict=is_strict)
        return None if quota is None else RequestMutations(quota, self)  # type: ignore[arg-type]

    async def _change(self, context: RequestContext, request: Any) -> dict[str, Any]:
        mutations = context.mutations
        return {"done": [mutations is None or mutations.takes(6) for _ in range(3)]}

    def ask(self, key: ApiKey, version: int, user: str = "anna") -> tuple[list[bool], int]:
        """Which changes are carried out, and for how long the client is throttled."""
        context = RequestContext(version, 1, "app", "", "", "", Principal(name=user))
        found: Any = asyncio.run(self.apis[key].handler(context, None))  # type: ignore[arg-type]
        return found["done"], context.throttle_ms


@pytest.mark.parametrize(("key", "version"), [(CREATE, 6), (DELETE, 5), (ADD, 3)])
def test_an_overdrawn_bucket_refuses(key: ApiKey, version: int) -> None:
    node = Node()
    assert node.ask(key, version) == ([True, True, False], 1_000)
    assert node.ask(key, version) == ([False, False, False], 1_000)
    node.now_ms = 500
    assert node.ask(key, version) == ([False, False, False], 500)
    node.now_ms = 1_000
    assert node.ask(key, version) == ([True, False, False], 6_000)


@pytest.mark.parametrize(("key", "version"), [(CREATE, 5), (DELETE, 4), (ADD, 2)])
def test_older_clients_are_throttled_and_not_refused(key: ApiKey, version: int) -> None:
    assert Node().ask(key, version) == ([True, True, True], 7_000)


def test_only_the_active_controller_counts_and_only_clients_with_a_quota() -> None:
    node = Node()
    assert node.ask(CREATE, 7, user="otto") == ([True, True, True], 0)
    assert node.ask(ApiKey.ELECT_LEADERS, 2) == ([True, True, True], 0)
    node.is_active = False
    assert node.ask(CREATE, 7) == ([True, True, True], 0)
    node.is_active = True
    assert node.ask(CREATE, 7) == ([True, True, False], 1_000)
