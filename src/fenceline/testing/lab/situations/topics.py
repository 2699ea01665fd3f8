"""Situations of offsets and topics: records that are gone, and a topic that is another one.

Owns the choreography of these. Rules: `list_offsets.md`, KIP-107, KIP-516.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from fenceline.client import NewTopic, TopicPartition
from fenceline.errors import ErrorCode, PeerError
from fenceline.testing.lab.situations.common import WAIT_S, SituationBase, SituationImpossible, values_of
from fenceline.testing.waiting import eventually

_DELETE: Final = "delete"


@dataclass(frozen=True, slots=True)
class OffsetsOutOfRange:
    """Offsets below `log_start` are gone; `end_offset` is the next one."""

    topic: str
    partition: int
    log_start: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class TopicRecreated:
    """The same name, and another topic. `written`: values of the new one."""

    topic: str
    old_id: UUID
    new_id: UUID
    old_end_offsets: tuple[int, ...]
    written: tuple[bytes, ...]


class TopicSituations(SituationBase):
    """Part of `Situations`."""

    def offsets_out_of_range(self, topic: str, partition: int = 0, *, before: int | None = None) -> OffsetsOutOfRange:
        """Delete all records, or those below the offset `before`: a position below it is out of range."""
        self._deletable(topic, partition)
        tp = TopicPartition(topic, partition)
        start = self._cluster.admin.delete_records({tp: -1 if before is None else before})[tp]
        self._note("offsets out of range", topic=topic, partition=partition, log_start=start)
        return OffsetsOutOfRange(topic, partition, start, self._end(topic, partition))

    def expiry(self, topic: str, partition: int = 0) -> OffsetsOutOfRange:
        """All records that are there expire by retention, as if a reader had been too slow. The topic's own retention
        is restored."""
        self._partition(topic, partition)
        if _DELETE not in self._config(topic, "cleanup.policy"):
            raise SituationImpossible(
                f"{topic} has cleanup.policy={self._config(topic, 'cleanup.policy')}: nothing expires",
                "Use a topic with cleanup.policy=delete.",
            )
        end = self._end(topic, partition)
        resource = ("topic", topic)
        entries = self._cluster.admin.describe_configs([resource])[resource]
        changed = {"retention.ms": "1", "segment.ms": "1"}
        # Records of this millisecond are not older than a millisecond.
        time.sleep(0.01)
        self._cluster.admin.alter_configs({resource: changed})
        tp = TopicPartition(topic, partition)

        def expired() -> int | None:
            start = self._cluster.admin.list_offsets({tp: "earliest"})[tp].offset
            return start if start >= end else None

        try:
            start = eventually(expired, f"the records of {topic}-{partition} expire", wait_s=WAIT_S) if end else 0
        finally:
            own = {name: entries[name] for name in changed if name in entries}
            before = {name: entry.value if "topic" in entry.source.lower() else None for name, entry in own.items()}
            self._cluster.admin.alter_configs({resource: before})
        self._note("expired", topic=topic, partition=partition, log_start=start)
        return OffsetsOutOfRange(topic, partition, start, self._end(topic, partition))

    def topic_recreated(self, topic: str, *, write: int = 0) -> TopicRecreated:
        """Delete a topic and create it anew with the same partitions, replicas and configs, and `write` records in each
        partition."""
        admin = self._cluster.admin
        found = admin.metadata([topic]).topics.get(topic)
        if found is None or found.error is not ErrorCode.NONE:
            raise SituationImpossible(f"There is no topic {topic}", "Create it first: create_topic().")
        ends = tuple(self._end(topic, index) for index in sorted(found.partitions))
        resource = ("topic", topic)
        entries = admin.describe_configs([resource])[resource]
        own = {name: entry.value for name, entry in entries.items() if "topic" in entry.source.lower() and entry.value}
        wanted = NewTopic(
            topic,
            configs=own,
            assignments={index: list(partition.replicas) for index, partition in found.partitions.items()},
        )
        admin.delete_topics([topic])

        def created() -> bool:
            try:
                admin.create_topics([wanted])
            except PeerError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
                # A client has made the broker create it (auto.create.topics.enable), with other settings.
                existing = admin.metadata([topic]).topics.get(topic)
                if existing is not None and existing.error is ErrorCode.NONE and existing.id != found.id:
                    admin.delete_topics([topic])
                return False
            return True

        eventually(created, f"{topic} is created anew", wait_s=WAIT_S)
        for index in sorted(found.partitions):
            self._await_partition(topic, index, lambda it: it.leader >= 0, "it has a leader")
        values = tuple(values_of("anew", write))
        for index in sorted(found.partitions) if write else ():
            self._write(topic, index, values)
        new_id = admin.metadata([topic]).topics[topic].id
        self._note("topic recreated", topic=topic, old_id=str(found.id), new_id=str(new_id))
        return TopicRecreated(topic, found.id, new_id, ends, values)

    def _deletable(self, topic: str, partition: int) -> None:
        self._partition(topic, partition)
        policy = self._config(topic, "cleanup.policy")
        if _DELETE not in policy:
            raise SituationImpossible(
                f"{topic} has cleanup.policy={policy}: records cannot be deleted by offset",
                "Use a topic with cleanup.policy=delete.",
            )
