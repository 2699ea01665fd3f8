"""The log end of each replica of a topic, requested from the replicas themselves.

Sends ListOffsets to every broker as a debugging replica, which followers answer too (`epochs.md E3`), and to the leader
as a consumer. A broker that does not answer soon is left out, because this call is for clusters with problems.

Rules: `epochs.md E2-E3`, `list_offsets.md L8-L11`; `recovery.md V37` (KIP-704).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

from fenceline.client.admin.admin_requests import AdminRequests
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import error_code
from fenceline.client.core.metadata import PartitionMetadata
from fenceline.client.core.offsets import LATEST
from fenceline.errors import ErrorCode, FencelineError
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey

_CONSUMER: Final = -1
_DEBUGGER: Final = -2
_FIRST_WITH_EPOCH: Final = 4
_TIMEOUT_MS: Final = 2000
"""How long to wait for one broker."""


class ReplicaStates(NamedTuple):
    """One partition. `ends`: the log end offset of each replica that answered.

    `high_watermark` is the one that consumers get, None if the leader returns none. `is_recovering`: the leader was
    elected uncleanly and does not serve clients yet.
    """

    partition: PartitionMetadata
    ends: Mapping[int, int]
    high_watermark: int | None
    is_recovering: bool

    @property
    def lag(self) -> dict[int, int | None]:
        """How many offsets each follower is behind the leader; None if one of the two did not answer."""
        leader, end = self.partition.leader, self.ends.get(self.partition.leader)
        return {
            each: None if end is None or each not in self.ends else max(0, end - self.ends[each])
            for each in self.partition.replicas
            if each != leader
        }


class ReplicasAdmin(AdminRequests):
    """Part of `AsyncAdmin`."""

    async def describe_replicas(
        self, topics: Collection[str], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, ReplicaStates]:
        """All partitions of the topics that exist, in order."""
        deadline = self._deadline(timeout_ms)
        found = await self.cluster.fetch_metadata(list(dict.fromkeys(topics)), deadline)
        partitions = {
            TopicPartition(name, index): partition
            for name, topic in sorted(found.topics.items())
            for index, partition in topic.partitions.items()
        }
        requests = [
            (node_id, replica_id)
            for node_id in found.brokers
            for replica_id in (_DEBUGGER, _CONSUMER)
            if _asked(partitions, node_id, replica_id)
        ]
        left_ms = min(_TIMEOUT_MS, deadline.left_ms)
        answers = dict(
            zip(
                requests,
                await asyncio.gather(*(self._ends(partitions, *request, left_ms) for request in requests)),
                strict=True,
            )
        )
        return {tp: _states(tp, partition, answers) for tp, partition in partitions.items()}

    async def _ends(
        self, partitions: Mapping[TopicPartition, PartitionMetadata], node_id: int, replica_id: int, left_ms: float
    ) -> dict[TopicPartition, tuple[ErrorCode, int]]:
        """One broker's response about its partitions; empty if it does not answer."""
        by_topic: dict[str, list[dict[str, int]]] = {}
        for tp in _asked(partitions, node_id, replica_id):
            by_topic.setdefault(tp.topic, []).append(
                {
                    "partition_index": tp.partition,
                    "current_leader_epoch": partitions[tp].leader_epoch,
                    "timestamp": LATEST,
                    "max_num_offsets": 1,
                }
            )
        fields: dict[str, Any] = {
            "replica_id": replica_id,
            "isolation_level": 0,
            "topics": [{"name": name, "partitions": listed} for name, listed in by_topic.items()],
            "timeout": int(left_ms),
        }
        deadline = Deadline(left_ms)
        try:
            async with asyncio.timeout(left_ms / 1000):
                response = await self.cluster.call(
                    node_id, ApiKey.LIST_OFFSETS, fields, deadline=deadline, min_version=_FIRST_WITH_EPOCH
                )
        except (FencelineError, TimeoutError):
            return {}
        return {
            TopicPartition(str(topic.name), int(each.partition_index)): (
                error_code(each.error_code),
                int(each.offset),
            )
            for topic in response.topics
            for each in topic.partitions
        }


def _asked(
    partitions: Mapping[TopicPartition, PartitionMetadata], node_id: int, replica_id: int
) -> list[TopicPartition]:
    return [
        tp
        for tp, partition in partitions.items()
        if (node_id in partition.replicas if replica_id == _DEBUGGER else node_id == partition.leader)
    ]


def _states(
    tp: TopicPartition,
    partition: PartitionMetadata,
    answers: Mapping[tuple[int, int], Mapping[TopicPartition, tuple[ErrorCode, int]]],
) -> ReplicaStates:
    ends: dict[int, int] = {}
    for replica in partition.replicas:
        code, end = answers.get((replica, _DEBUGGER), {}).get(tp, (None, -1))
        if code is ErrorCode.NONE:
            ends[replica] = end
    code, high_watermark = answers.get((partition.leader, _CONSUMER), {}).get(tp, (None, -1))
    return ReplicaStates(
        partition,
        ends,
        high_watermark if code is ErrorCode.NONE else None,
        # Brokers check the epoch first (E2): a leader of this epoch that returns this error is recovering.
        is_recovering=code is ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )
