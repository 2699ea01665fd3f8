"""A fake broker: handlers see only what the test sets up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from immutables import Map

from fenceline.config.node import NodeConfig
from fenceline.controller.requests import Outcome
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
from fenceline.node.context import RequestContext
from fenceline.node.replication.absent_brokers import NO_ABSENT, Absent
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, read_response, write_request, write_response

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


class FakeTransactionSupport:
    """A `TransactionSupport` with a fixed answer."""

    def __init__(self, exists: bool) -> None:
        self.exists = exists
        self.told: list[str] = []

    async def may_be_available(self) -> bool:
        return self.exists

    def log_rejected(self, client_id: str | None, peer: str, transactional_id: str) -> None:
        self.told.append(transactional_id)


class FakeController:
    """Returns configured answers and records requests."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answer: Any = None

    async def submit(self, request: Any) -> Any:
        self.asked.append(request)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@dataclass(eq=False)
class FakeBroker:
    image: MetadataImage
    settings: dict[str, str] = field(default_factory=dict)
    node_id: int = 1
    cluster_id: str = "cluster"
    created: list[Sequence[str]] = field(default_factory=list)
    controller: FakeController = field(default_factory=FakeController)
    absent: Absent = NO_ABSENT
    transaction_support: FakeTransactionSupport = field(default_factory=lambda: FakeTransactionSupport(True))

    def __post_init__(self) -> None:
        self.config = NodeConfig.load(None, self.settings, {})

    async def topics_created(self, names: Collection[str], timeout_s: float) -> None:
        """There are no replicas to wait for."""

    async def auto_create(self, names: Sequence[str]) -> dict[str, Outcome]:
        self.created.append(names)
        topics = [*self.image.topics_by_name.values(), *(topic_image(name) for name in names if name != "refused")]
        self.image = replace(image_of(topics), brokers=self.image.brokers)
        return {name: Outcome(ErrorCode.POLICY_VIOLATION if name == "refused" else ErrorCode.NONE) for name in names}


def context(broker: FakeBroker, version: int, listener: str = "PLAINTEXT") -> RequestContext:
    return RequestContext(broker, version, 1, "test", "127.0.0.1:1", "127.0.0.1", listener)  # type: ignore[arg-type]


async def ask(
    handler: Any, broker: FakeBroker, key: ApiKey, version: int, listener: str = "PLAINTEXT", **fields: Any
) -> Any:
    """The response entity as a client would decode it."""
    request = read_request(key, version, write_request(key, version, fields))
    answer = handler(context(broker, version, listener), request)
    if not isinstance(answer, (bytes, dict)):
        answer = await answer
    body = answer if isinstance(answer, bytes) else write_response(key, version, answer)
    return read_response(key, version, body)
