"""A coordinator with topics, and consumer protocol members that act like clients. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from immutables import Map

from fenceline.errors import ErrorCode
from fenceline.groups.consumer.model import ConsumerGroup
from fenceline.groups.consumer.settings import ConsumerSettings, Interval
from fenceline.groups.messages import ConsumerHeartbeatRequest, ConsumerHeartbeatResponse, Partitions
from fenceline.groups.settings import GroupSettings
from fenceline.metadata.image import (
    EMPTY_IMAGE,
    BrokerImage,
    ConfigResource,
    ConfigResourceType,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from tests.groups.helpers import GROUP, Ticket, World

AT_ONCE = ConsumerSettings(assignment=Interval(0, 0, 15_000))
"""A target is computed for every change at once, so that tests need not wait."""
REBALANCE_MS = 30_000
Named = frozenset[tuple[str, int]]
"""Partitions as (topic, index)."""


def id_of(topic: str) -> UUID:
    """The id of a topic in these tests."""
    return UUID(bytes=topic.encode().rjust(16, b"\1"))


def topic_image(name: str, partitions: int, replicas: tuple[int, ...] = (1,)) -> TopicImage:
    return TopicImage(id_of(name), name, (PartitionImage(replicas, replicas, replicas[0]),) * partitions)


def image_of(topics: Mapping[str, int], racks: Mapping[int, str] | None = None) -> MetadataImage:
    images = [topic_image(name, count) for name, count in topics.items()]
    brokers = {
        node: BrokerImage(node, 1, UUID(int=node), (), {}, rack, False, False, ())
        for node, rack in (racks or {}).items()
    }
    return replace(
        EMPTY_IMAGE,
        offset=1,
        topics_by_name=Map({image.name: image for image in images}),
        topics_by_id=Map({image.id: image for image in images}),
        brokers=Map(brokers),
    )


def parts(**topics: Iterable[int]) -> Partitions:
    return {id_of(name): frozenset(indexes) for name, indexes in topics.items()}


class ConsumerWorld(World):
    """With the topics t (4 partitions) and u (2)."""

    def __init__(self, consumer: ConsumerSettings = AT_ONCE, **topics: int) -> None:
        image = image_of(topics or {"t": 4, "u": 2})
        super().__init__(GroupSettings(initial_rebalance_delay_ms=0, consumer=consumer), image=image)

    def set_topics(self, **topics: int) -> None:
        """Change the metadata: these are the topics now."""
        known = self.image.topics_by_name
        offset = self.image.offset + 1
        self.image = replace(image_of(topics), offset=offset, configs=self.image.configs)
        if topics.keys() - set(known):
            self.coordinator.on_topics_created(offset)

    def set_group_config(self, group: str, **configs: str) -> None:
        resource = ConfigResource(ConfigResourceType.GROUP, group)
        values = Map({name.replace("_", "."): value for name, value in configs.items()})
        self.image = replace(self.image, configs=self.image.configs.set(resource, values))

    def consumers(self, group: str = GROUP) -> ConsumerGroup:
        return self.shard(group).state.consumer[group]

    def partition(self, group: str = GROUP) -> int:
        return self.coordinator.partition_of(group)

    def has_consumers(self, group: str = GROUP) -> bool:
        return group in self.shard(group).state.consumer

    def ask(self, member_id: str, epoch: int, *, group: str = GROUP, **fields: Any) -> Ticket:
        """Any heartbeat; the ticket stays open while a write is held."""
        ticket = Ticket(f"heartbeat of {member_id} at {epoch}")
        asked = {"client_id": "c", "client_host": "/127.0.0.1", **fields}
        request = ConsumerHeartbeatRequest(group, member_id, epoch, **asked)
        self.do(self.coordinator.consumer_heartbeat(ticket, request, self.now))
        return ticket

    def beat(self, member_id: str, epoch: int, **fields: Any) -> ConsumerHeartbeatResponse:
        answer = self.ask(member_id, epoch, **fields).outcome
        assert isinstance(answer, ConsumerHeartbeatResponse)
        return answer

    def error(self, member_id: str, epoch: int, **fields: Any) -> ErrorCode:
        return self.beat(member_id, epoch, **fields).error

    def enter(self, member_id: str, *topics: str, **fields: Any) -> ConsumerHeartbeatResponse:
        """Join as a client does."""
        asked: dict[str, Any] = {
            "rebalance_timeout_ms": REBALANCE_MS,
            "subscribed_names": topics,
            "owned": {},
            **fields,
        }
        return self.beat(member_id, 0, **asked)


@dataclass
class Client:
    """A consumer that follows the protocol: it revokes partitions no longer assigned to it, and then reports that."""

    world: ConsumerWorld
    member_id: str
    topics: tuple[str, ...] = ("t",)
    instance: str | None = None
    group: str = GROUP
    epoch: int = 0
    owned: dict[UUID, frozenset[int]] = field(default_factory=dict)
    errors: list[ErrorCode] = field(default_factory=list)

    def beat(self, *, answer_is_lost: bool = False) -> ErrorCode:
        """One full heartbeat, as after an error; the response is applied unless it is lost."""
        if self.epoch == 0:
            self.owned = {}
        answer = self.world.beat(
            self.member_id,
            self.epoch,
            group=self.group,
            instance_id=self.instance,
            rebalance_timeout_ms=REBALANCE_MS,
            subscribed_names=self.topics,
            owned=dict(self.owned),
        )
        if answer_is_lost:
            return answer.error
        return self.hear(answer)

    def hear(self, answer: ConsumerHeartbeatResponse) -> ErrorCode:
        if answer.error is ErrorCode.NONE:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.owned = {topic_id: frozenset(indexes) for topic_id, indexes in answer.assignment}
        else:
            self.errors.append(answer.error)
            # Fenced or unknown: it drops all partitions and rejoins.
            self.epoch, self.owned = 0, {}
        return answer.error

    def leave(self) -> None:
        self.world.ask(self.member_id, -1, group=self.group, instance_id=self.instance)
        self.epoch, self.owned = 0, {}

    @property
    def uses(self) -> Named:
        return frozenset((str(topic_id), index) for topic_id, indexes in self.owned.items() for index in indexes)


def settle(world: ConsumerWorld, clients: Iterable[Client], rounds: int = 12) -> None:
    """All clients send heartbeats until no assignment changes."""
    alive = list(clients)
    for _ in range(rounds):
        for client in alive:
            client.beat()
        world.advance(1_000)
