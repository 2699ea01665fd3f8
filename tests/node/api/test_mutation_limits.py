"""Requests that change topics, under a quota of changes. Rules: security.md A61."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fenceline.metadata.image import MetadataImage
from fenceline.node.api.mutation_limits import MutationLimits
from fenceline.node.context import Api, RequestContext
from fenceline.quotas.client_quotas import ClientQuotas, MutationQuota
from fenceline.quotas.rates import Windows
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, write_request
from fenceline.wire.principal import Principal
from tests.node.api.handlers.fakes import image_of, partition, topic_image

CREATE, DELETE, ADD = ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS
ROWS = {CREATE: "topics", DELETE: "responses", ADD: "results"}
WAIT = 89


class Node:
    """The active controller of a cluster whose topic `old` has three partitions; anna has a quota of one change a
    second, and eleven at once."""

    def __init__(self) -> None:
        self.quotas = ClientQuotas(Windows(), Windows())
        self.quotas.follow({(("user", "anna"),): {"controller_mutation_rate": 1.0}})
        self.now_ms = 0
        self.is_active = True
        self.asked: list[Any] = []
        self.failing: set[str] = set()
        self.image: MetadataImage = image_of([topic_image("old", *[partition((1,))] * 3)])
        limits = MutationLimits(self, lambda: self.image, lambda: self.is_active, 4)  # type: ignore[arg-type]
        self.apis = {api.key: api for api in limits.limited(Api(key, 0, 9, self._handler(key)) for key in ROWS)}
        self.context: Any = None

    def mutations(self, principal: Principal, client_id: str | None) -> MutationQuota | None:
        return self.quotas.mutations(principal.name, client_id or "", self.now_ms)

    def _handler(self, key: ApiKey) -> Any:
        async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
            topics = [each if isinstance(each, str) else each.name for each in getattr(request, _field(key, context))]
            self.asked.append(topics)
            return {ROWS[key]: [{"name": name, "error_code": 36 if name in self.failing else 0} for name in topics]}

        return handle

    def ask(self, key: ApiKey, version: int, *topics: dict[str, Any] | str, user: str = "anna") -> dict[str, int]:
        """The code of each topic."""
        fields = {_field(key, version): topics}
        request = read_request(key, version, write_request(key, version, fields))
        self.context = RequestContext(version, 1, "app", "", "", "", Principal(name=user))
        answer = self.apis[key].handler(self.context, request)
        found: Any = answer if isinstance(answer, dict) else asyncio.run(answer)  # type: ignore[arg-type]
        return {row["name"]: int(row["error_code"]) for row in found[ROWS[key]]}

    def create(self, name: str, partitions: int, version: int = 7, **more: Any) -> int:
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
        return self.ask(CREATE, version, topic, **more)[name]


def _field(key: ApiKey, version: int | RequestContext) -> str:
    number = version if isinstance(version, int) else version.api_version
    return "topic_names" if key is DELETE and number < 6 else "topics"


def test_a_bucket_that_is_overdrawn_refuses_until_it_is_filled() -> None:
    node = Node()
    assert node.create("a", 15) == 0
    assert node.context.throttle_ms == 4_000
    assert node.create("b", 1) == WAIT
    assert node.context.throttle_ms == 4_000
    assert node.asked == [["a"]]
    node.now_ms = 4_000
    assert node.create("b", 1) == 0
    assert node.context.throttle_ms == 1_000


@pytest.mark.parametrize(("key", "version"), [(CREATE, 5), (DELETE, 4), (ADD, 2)])
def test_older_clients_are_throttled_and_not_refused(key: ApiKey, version: int) -> None:
    node = Node()
    node.create("a", 15)
    topic: Any = {CREATE: {"name": "t"}, DELETE: "old", ADD: {"name": "old", "count": 5}}[key]
    assert set(node.ask(key, version, topic).values()) == {0}
    assert node.context.throttle_ms > 4_000 - 1


def test_each_topic_of_a_request_is_counted_by_itself() -> None:
    node = Node()
    topics = [{"name": name, "num_partitions": 6, "replication_factor": 1} for name in "abc"]
    assert node.ask(CREATE, 7, *topics) == {"a": 0, "b": 0, "c": WAIT}
    assert node.asked == [["a", "b"]]


def test_what_was_not_changed_is_given_back() -> None:
    node = Node()
    node.failing = {"a"}
    assert node.create("a", 15) == 36
    node.failing = set()
    assert node.create("a", 11) == 0
    assert node.context.throttle_ms == 0


@pytest.mark.parametrize(
    ("key", "version", "topic", "cost"),
    [
        (CREATE, 7, {"name": "t", "num_partitions": -1, "replication_factor": -1}, 4),
        (CREATE, 7, {"name": "t", "assignments": [{"partition_index": 0, "broker_ids": [1]}]}, 1),
        (DELETE, 6, {"name": "old", "topic_id": None}, 3),
        (DELETE, 5, "old", 3),
        (DELETE, 6, {"name": "none", "topic_id": None}, 0),
        (ADD, 3, {"name": "old", "count": 5}, 2),
        (ADD, 3, {"name": "old", "count": 1}, 0),
    ],
)
def test_a_change_costs_its_partitions(key: ApiKey, version: int, topic: Any, cost: int) -> None:
    node = Node()
    node.ask(key, version, topic)
    left = node.mutations(Principal(name="anna"), "app")
    assert left is not None
    assert left._bucket.tokens == 11 - cost


def test_only_the_active_controller_counts_and_only_clients_with_a_quota() -> None:
    node = Node()
    assert node.create("a", 100, user="otto") == 0
    node.is_active = False
    assert node.create("a", 100) == 0
    assert node.create("b", 100) == 0
    assert node.context.throttle_ms == 0
