"""A fake broker: handlers see only what the test sets up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from immutables import Map

from fenceline.config.node import NodeConfig
from fenceline.controller.requests import RequestOutcome
from fenceline.errors import ErrorCode
from fenceline.metadata.image import (
    EMPTY_IMAGE,
    BrokerImage,
    ConfigResource,
    ConfigResourceType,
    Endpoint,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from fenceline.node.api.tables import broker_apis, controller_apis
from fenceline.node.client_limits import NodeQuotas
from fenceline.node.context import NodeView, RequestContext
from fenceline.node.replication.absent_brokers import NO_ABSENT, Absent
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, read_response, write_request, write_response
from tests.node.controller_helpers import StillClock

DIRECTORY = UUID(int=77)


def broker_image(broker_id: int, **changes: Any) -> BrokerImage:
    image = BrokerImage(
        id=broker_id,
        epoch=1,
        incarnation_id=UUID(int=broker_id),
        endpoints=(Endpoint("PLAINTEXT", f"host{broker_id}", 9092, 0),),
        features={},
        rack=None,
        fenced=False,
        in_controlled_shutdown=False,
        log_dirs=(DIRECTORY,),
    )
    return replace(image, **changes)


def topic_image(name: str, *partitions: PartitionImage, number: int = 0) -> TopicImage:
    topic_id = UUID(int=number or abs(hash(name)) % 2**64 + 10)
    return TopicImage(topic_id, name, partitions or (partition(),))


def partition(replicas: tuple[int, ...] = (1,), **changes: Any) -> PartitionImage:
    base = PartitionImage(replicas, replicas, leader=replicas[0], directories=(DIRECTORY,) * len(replicas))
    return base._replace(**changes)


def image_of(
    topics: Iterable[TopicImage] = (),
    brokers: Iterable[BrokerImage] | None = None,
    configs: dict[tuple[ConfigResourceType, str], dict[str, str]] | None = None,
) -> MetadataImage:
    topics = tuple(topics)
    brokers = tuple(brokers) if brokers is not None else (broker_image(1),)
    return replace(
        EMPTY_IMAGE,
        offset=10,
        topics_by_name=Map({each.name: each for each in topics}),
        topics_by_id=Map({each.id: each for each in topics}),
        brokers=Map({each.id: each for each in brokers}),
        configs=Map({ConfigResource(*key): Map(value) for key, value in (configs or {}).items()}),
    )


class FakeController:
    """Returns configured answers and records requests."""

    active_epoch = -1
    is_active = False

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answer: Any = None
        self.active = self

    def now_ms(self) -> int:
        return 1_000

    def broker_identified(self, listener: str, peer: str, broker_id: int, broker_epoch: int) -> None:
        """No test asks for it."""

    def subscribe(self, listener: Any) -> None:
        """A test sets the image."""

    async def submit(self, request: Any, client: object = None) -> Any:
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@dataclass(eq=False)
class FakeBroker:
    """What handlers use of a broker and of a controller; other ports are missing until a test sets them."""

    image: MetadataImage
    settings: dict[str, str] = field(default_factory=dict)
    created: list[Sequence[str]] = field(default_factory=list)
    controller: FakeController = field(default_factory=FakeController)
    absent: Absent = NO_ABSENT
    ports: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        config = NodeConfig.load(None, self.settings, {})
        node = NodeView(1, "cluster", config, lambda: self.image)
        self.quotas = NodeQuotas(config, StillClock(), self.controller.subscribe)
        missing = (
            *("log_start_moved", "coordinator", "transaction_coordinator", "producer_ids", "directories", "moves"),
            *("threads", "create_offsets_topic", "create_transaction_topic", "authorization"),
        )
        ports: dict[str, Any] = {
            **dict.fromkeys(missing),
            "markers": SimpleNamespace(handle=None),
            "controller": self.controller,
            "quotas": self.quotas,
            "replicas": SimpleNamespace(vacated=_at_once),
            "replication": SimpleNamespace(absent_now=lambda: self.absent, deletions=None),
            "auto_create": self.auto_create,
            "check_certificates": self.check_certificates,
            **self.ports,
        }
        self.apis = broker_apis(node, **ports)
        self.controller_apis = controller_apis(node, self.controller, None, self.quotas)  # type: ignore[arg-type]
        self._by_key = {api.key: api for api in (*self.controller_apis, *self.apis)}

    async def auto_create(self, names: Sequence[str]) -> dict[str, RequestOutcome]:
        self.created.append(names)
        topics = [*self.image.topics_by_name.values(), *(topic_image(name) for name in names if name != "refused")]
        self.image = replace(image_of(topics), brokers=self.image.brokers)
        return {
            name: RequestOutcome(ErrorCode.POLICY_VIOLATION if name == "refused" else ErrorCode.NONE) for name in names
        }

    async def check_certificates(self, overrides: Mapping[str, str], named: Iterable[str]) -> None:
        """They are usable."""

    def call(self, key: ApiKey, version: int, listener: str = "PLAINTEXT", /, **fields: Any) -> Any:
        """The answer as the handler returns it, or an awaitable of it."""
        request = read_request(key, version, write_request(key, version, fields))
        context = RequestContext(version, 1, "test", "127.0.0.1:1", "127.0.0.1", listener)
        return self._by_key[key].handler(context, request)


async def _at_once(names: Collection[str], timeout_s: float) -> None:
    """There are no replicas to wait for."""


async def ask(broker: FakeBroker, key: ApiKey, version: int, listener: str = "PLAINTEXT", /, **fields: Any) -> Any:
    """The response entity as a client would decode it."""
    answer = broker.call(key, version, listener, **fields)
    if not isinstance(answer, (bytes, dict)):
        answer = await answer
    return read_response(key, version, answer if isinstance(answer, bytes) else write_response(key, version, answer))
