"""The client's metadata cache: brokers, topics, leaders, and the newest leader epoch seen of each partition.

Owns the rules by which a stale response does not replace newer metadata. Pure: no sockets, no clock. A leader is
returned only if its epoch is the newest that was seen in any response; otherwise it is unknown until the next refresh.

Rules: `epochs.md` E57-E60.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from fenceline.client.core.errors import error_code
from fenceline.errors import ErrorCode
from fenceline.ids import NO_EPOCH, ZERO_UUID, TopicPartition
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_response

TRUSTED_EPOCHS_VERSION: Final = 9
"""Metadata responses below this version have no reliable leader epochs (E57)."""

_KEPT_RESPONSES: Final = 2
"""Spark's planner alternates between all topics and those of a batch."""
_KEPT_BYTES: Final = 1024 * 1024
"""Longer responses, of more than about 15,000 partitions, are not kept."""


class BrokerAddress(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionMetadata(NamedTuple):
    """One partition in a Metadata response; leader -1: none.

    untrusted_epoch: the leader epoch of a response whose epochs may be stale (E57); `leader_epoch` is -1 then.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    error: ErrorCode = ErrorCode.NONE
    offline_replicas: tuple[int, ...] = ()
    untrusted_epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    name: str
    id: UUID
    partitions: Mapping[int, PartitionMetadata]
    is_internal: bool = False
    error: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """One Metadata response: brokers by id, topics by name."""

    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, BrokerAddress]
    topics: Mapping[str, TopicMetadata]


class LeaderAndEpoch(NamedTuple):
    """leader -1: unknown. epoch -1: unknown (an old broker)."""

    leader: int
    epoch: int


UNKNOWN_LEADER: Final = LeaderAndEpoch(-1, NO_EPOCH)


def parse_metadata(version: int, response: Any) -> ClusterMetadata:
    """Convert a Metadata response; leader epochs of versions where they are not reliable become -1 (E57)."""
    topics: dict[str, TopicMetadata] = {}
    for topic in response.topics:
        if topic.name is None:
            continue
        partitions = {
            int(p.partition_index): PartitionMetadata(
                int(p.leader_id),
                int(p.leader_epoch) if version >= TRUSTED_EPOCHS_VERSION else NO_EPOCH,
                tuple(map(int, p.replica_nodes)),
                tuple(map(int, p.isr_nodes)),
                error_code(p.error_code),
                tuple(map(int, getattr(p, "offline_replicas", ()))),
                NO_EPOCH if version >= TRUSTED_EPOCHS_VERSION else int(getattr(p, "leader_epoch", NO_EPOCH)),
            )
            for p in topic.partitions
        }
        name = str(topic.name)
        topics[name] = TopicMetadata(
            name,
            getattr(topic, "topic_id", None) or ZERO_UUID,
            dict(sorted(partitions.items())),
            bool(topic.is_internal),
            error_code(topic.error_code),
        )
    brokers = {int(b.node_id): BrokerAddress(int(b.node_id), b.host, int(b.port), b.rack) for b in response.brokers}
    return ClusterMetadata(response.cluster_id, int(response.controller_id), brokers, topics)


class MetadataReader:
    """Reads Metadata responses. The same bytes as before are the same `ClusterMetadata`, which costs a comparison: a
    client that plans with many partitions requests them again and again, and they seldom change."""

    def __init__(self) -> None:
        self._kept: deque[_KeptResponse] = deque(maxlen=_KEPT_RESPONSES)

    def __call__(self, version: int, body: memoryview) -> tuple[ErrorCode, ClusterMetadata]:
        """The error code of the response, and its content."""
        whole = bytes(body)
        for kept in self._kept:
            if kept.version == version and kept.body == whole:
                return kept.read
        response = read_response(ApiKey.METADATA, version, body)
        read = error_code(getattr(response, "error_code", 0)), parse_metadata(version, response)
        if len(whole) <= _KEPT_BYTES:
            self._kept.append(_KeptResponse(version, whole, read))
        return read


class _KeptResponse(NamedTuple):
    version: int
    body: bytes
    read: tuple[ErrorCode, ClusterMetadata]


def parse_controllers(response: Any) -> ClusterMetadata:
    """Convert a DescribeCluster response about controllers (KIP-919): the nodes are the controllers."""
    nodes = {int(b.broker_id): BrokerAddress(int(b.broker_id), b.host, int(b.port), b.rack) for b in response.brokers}
    return ClusterMetadata(response.cluster_id, int(response.controller_id), nodes, {})


class MetadataCache:
    """The newest known metadata. `update_version` changes with every update, so that users act once for each (E46)."""

    def __init__(self) -> None:
        self.cluster_id: str | None = None
        self.controller_id = -1
        self.brokers: dict[int, BrokerAddress] = {}
        self.topics: dict[str, TopicMetadata] = {}
        self.update_version = 0
        self._last_seen: dict[TopicPartition, int] = {}
        self._leaders: dict[TopicPartition, LeaderAndEpoch] = {}
        """What `leader` returned since the last change of what it depends on: brokers, topics, epochs seen."""

    def apply(self, answer: ClusterMetadata, *, complete: bool = False, asked: Iterable[str] = ()) -> None:
        """Apply a response. `complete`: it has all topics, so topics that it lacks were deleted.

        `asked`: the requested topics; those that the response does not have are forgotten.
        """
        self.update_version += 1
        self.cluster_id = answer.cluster_id or self.cluster_id
        self.controller_id = answer.controller_id
        if answer.brokers and answer.brokers != self.brokers:
            self.brokers = dict(answer.brokers)
            self._leaders.clear()
        if complete:
            for name in self.topics.keys() - answer.topics.keys():
                self._forget(name)
        for name in asked:
            if name not in answer.topics:
                self._forget(name)
        for name, topic in answer.topics.items():
            known = self.topics.get(name)
            if topic == known:
                continue
            if topic.error is not ErrorCode.NONE and not topic.partitions:
                if topic.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    self._forget(name)
                # After any other error the cached topic stays; without one the error is kept, to be raised.
                self.topics.setdefault(name, topic)
                continue
            self.topics[name] = self._merged(topic, known)
            self._leaders.clear()

    def forget_brokers(self) -> None:
        """Before a rebootstrap (KIP-1102)."""
        self.brokers = {}
        self._leaders.clear()

    def note_epoch(self, tp: TopicPartition, epoch: int) -> bool:
        """Note a leader epoch that was seen outside of metadata; True if it is newer, so a refresh is needed (E58).

        It is also remembered before the partition's first metadata, so that older metadata is not trusted (G8). Ignored
        if metadata has no epochs, because they cannot be compared.
        """
        if epoch <= self._last_seen.get(tp, NO_EPOCH):
            return False
        topic = self.topics.get(tp.topic)
        known = None if topic is None else topic.partitions.get(tp.partition)
        if known is not None and known.leader_epoch < 0:
            return False
        self._last_seen[tp] = epoch
        self._leaders.pop(tp, None)
        return True

    def leader(self, tp: TopicPartition) -> LeaderAndEpoch:
        """Leader and epoch; leader -1 while metadata is older than the newest epoch seen (E58)."""
        found = self._leaders.get(tp)
        if found is None:
            found = self._leaders[tp] = self._find_leader(tp)
        return found

    def _find_leader(self, tp: TopicPartition) -> LeaderAndEpoch:
        topic = self.topics.get(tp.topic)
        partition = None if topic is None else topic.partitions.get(tp.partition)
        last_seen = self._last_seen.get(tp, NO_EPOCH)
        if partition is None:
            return LeaderAndEpoch(-1, last_seen)
        if partition.leader_epoch < last_seen:
            return LeaderAndEpoch(-1, last_seen)
        leader = partition.leader if partition.leader in self.brokers else -1
        return LeaderAndEpoch(leader, partition.leader_epoch)

    def untrusted_epoch(self, tp: TopicPartition) -> int:
        """The metadata's leader epoch if it may be stale (E57); -1 if there is none or it is reliable."""
        topic = self.topics.get(tp.topic)
        partition = None if topic is None else topic.partitions.get(tp.partition)
        return NO_EPOCH if partition is None else partition.untrusted_epoch

    def accept_hint(
        self, tp: TopicPartition, leader: int, epoch: int, endpoints: Mapping[int, BrokerAddress] | None = None
    ) -> bool:
        """Apply the leader that a Fetch or Produce response names, if it is newer and its endpoint is known (E59).
        True if it was applied.
        """
        topic = self.topics.get(tp.topic)
        partition = None if topic is None else topic.partitions.get(tp.partition)
        if topic is None or partition is None or epoch <= max(partition.leader_epoch, self._last_seen.get(tp, -1)):
            return False
        endpoint = (endpoints or {}).get(leader) or self.brokers.get(leader)
        if endpoint is None:
            return False
        self.brokers[leader] = endpoint
        changed = partition._replace(leader=leader, leader_epoch=epoch, error=ErrorCode.NONE, untrusted_epoch=NO_EPOCH)
        self.topics[tp.topic] = TopicMetadata(
            topic.name, topic.id, {**topic.partitions, tp.partition: changed}, topic.is_internal, topic.error
        )
        self._last_seen[tp] = epoch
        self._leaders.clear()
        self.update_version += 1
        return True

    def topic_id(self, topic: str) -> UUID:
        """The topic's id, all zero if it is unknown or the broker has no topic ids."""
        known = self.topics.get(topic)
        return ZERO_UUID if known is None else known.id

    def _merged(self, topic: TopicMetadata, known: TopicMetadata | None) -> TopicMetadata:
        same_topic = known is not None and known.id != ZERO_UUID and known.id == topic.id
        nameless = known is not None and known.id == ZERO_UUID and topic.id == ZERO_UUID
        partitions: dict[int, PartitionMetadata] = {}
        is_answer = True
        for index, partition in topic.partitions.items():
            tp = TopicPartition(topic.name, index)
            last_seen = self._last_seen.get(tp)
            if partition.leader_epoch < 0:
                self._last_seen.pop(tp, None)
            elif (
                (known is None or same_topic or nameless)
                and last_seen is not None
                and partition.leader_epoch < last_seen
            ):
                kept = known.partitions.get(index) if known is not None else None
                if kept is not None:
                    partitions[index] = kept
                    is_answer = False
                    continue
            else:
                self._last_seen[tp] = partition.leader_epoch
            partitions[index] = partition
        if is_answer:
            return topic
        return TopicMetadata(topic.name, topic.id, partitions, topic.is_internal, topic.error)

    def _forget(self, topic: str) -> None:
        self.topics.pop(topic, None)
        self._leaders.clear()
        for tp in [tp for tp in self._last_seen if tp.topic == topic]:
            del self._last_seen[tp]
