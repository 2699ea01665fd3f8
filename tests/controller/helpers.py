"""A controller with brokers, driven by the test: decide, replay, inspect."""

from __future__ import annotations

from random import Random
from typing import Any
from uuid import UUID

from fenceline.controller.controller import Controller
from fenceline.controller.requests import (
    BrokerHeartbeat,
    CreateTopics,
    RegisterBroker,
    RegisterBrokerAnswer,
    Request,
    TopicToCreate,
    WriteBootstrapRecords,
)
from fenceline.controller.state import ControllerSettings, Decision
from fenceline.metadata.changes import Delta, difference
from fenceline.metadata.features import SUPPORTED, fresh_levels
from fenceline.metadata.image import EMPTY_IMAGE, Endpoint, PartitionImage
from fenceline.metadata.records import MetadataRecord, decode_record, encode_record

CLUSTER = "AAAAAAAAQACAAAAAAAAAAA"


class Cluster:
    """Time moves only when the test moves it. Every record is encoded and decoded."""

    def __init__(self, brokers: int = 1, *, features: dict[str, int] | None = None, **settings: Any) -> None:
        self.controller = Controller(ControllerSettings(CLUSTER, **settings))
        self.rng = Random(7)
        self.now_ms = 0
        self.records: list[MetadataRecord] = []
        self.deltas: list[Delta] = []
        self.epochs: dict[int, int] = {}
        self.controller.activate(EMPTY_IMAGE, 0, 0)
        self.ask(WriteBootstrapRecords(tuple((fresh_levels() if features is None else features).items())))
        for broker in range(1, brokers + 1):
            self.register(broker)
            self.heartbeat(broker)

    @property
    def image(self) -> Any:
        return self.controller.image

    def ask(self, request: Request) -> Any:
        """Decide, in one step or several, apply the records, return the response. `records` are those of the last
        request."""
        self.records = []
        while True:
            decision = self.step(request)
            self.records += decision.records
            if not decision.more:
                return decision.answer

    def step(self, request: Request) -> Decision:
        """One step of a decision, applied."""
        decision = self.controller.decide(request, self.now_ms, self.rng)
        version = self.image.metadata_version or 30
        records = [decode_record(encode_record(record, version)) for record in decision.records]
        assert records == list(decision.records)
        if records:
            before = self.image
            last = self.controller.next_offset + len(records) - 1
            after, delta = self.controller.replay(records, last, 1)
            self.deltas.append(delta)
            expected = difference(before, after)
            assert sorted(map(repr, delta.changed_partitions)) == sorted(map(repr, expected.changed_partitions))
        return decision

    def register(
        self, broker: int, *, incarnation: int = 1, rack: str | None = None, previous: int = -1, **more: Any
    ) -> int:
        answer: RegisterBrokerAnswer = self.ask(
            RegisterBroker(
                broker,
                CLUSTER,
                UUID(int=broker * 1000 + incarnation),
                (Endpoint("PLAINTEXT", f"host{broker}", 9092, 0),),
                more.pop("features", SUPPORTED),
                rack,
                more.pop("log_dirs", (UUID(int=10_000 + broker),)),
                previous,
            )
        )
        self.epochs[broker] = answer.broker_epoch
        return answer.broker_epoch

    def heartbeat(self, broker: int, **more: Any) -> Any:
        offset = more.pop("offset", self.controller.next_offset - 1)
        epoch = more.pop("epoch", self.epochs[broker])
        return self.ask(BrokerHeartbeat(broker, epoch, offset, **more))

    def create(self, name: str, *replicas: tuple[int, ...], configs: dict[str, str] | None = None) -> UUID:
        """A topic with these assignments; the request must succeed."""
        answer = self.ask(
            CreateTopics(
                (TopicToCreate(name, assignments=tuple(enumerate(replicas)), configs=tuple((configs or {}).items())),)
            )
        )
        assert not answer.topics[0].outcome.failed, answer
        topic_id: UUID = answer.topics[0].topic_id
        return topic_id

    def partition(self, topic: str, index: int = 0) -> PartitionImage:
        found = self.image.partition(topic, index)
        assert found is not None
        return found  # type: ignore[no-any-return]
