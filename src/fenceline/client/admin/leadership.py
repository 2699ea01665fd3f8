"""Leader elections and reassignments of partitions.

Sends ElectLeaders, AlterPartitionReassignments and ListPartitionReassignments to the controller.

Rules: `controller.md C38-C47`; KIP-183, KIP-460, KIP-455.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from fenceline.client.admin.admin_requests import AdminRequests
from fenceline.client.core.errors import raise_if
from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey


class ElectionKind(IntEnum):
    """As in ElectLeaders."""

    PREFERRED = 0
    """The first replica, if it is in sync."""
    UNCLEAN = 1
    """If no replica in sync is alive: any that is, and records are lost."""


class ReassignmentInProgress(NamedTuple):
    """A partition whose replicas change."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class LeadershipAdmin(AdminRequests):
    """Part of `AsyncAdmin`."""

    async def elect_leaders(
        self,
        partitions: Collection[TopicPartition] | None,
        kind: ElectionKind = ElectionKind.PREFERRED,
        *,
        timeout_ms: float | None = None,
    ) -> None:
        """Elect leaders of these partitions, or of all that need it. A partition that needs no election is left as it
        is. Raises PeerError: PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE, ...
        """
        deadline = self._deadline(timeout_ms)
        wanted = None if partitions is None else _by_topic(dict.fromkeys(partitions), "partitions")
        fields = {
            "election_type": int(kind),
            "topic_partitions": wanted,
            "timeout": self._broker_timeout_ms(deadline),
        }
        response = await self._ask_controller(ApiKey.ELECT_LEADERS, fields, deadline, lambda found: (found,))
        raise_if(response, "electing leaders")
        for topic in response.replica_election_results:
            for result in topic.partition_result:
                if result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                    raise_if(result, f"electing a leader of {topic.topic}-{result.partition_id}")

    async def reassign_partitions(
        self,
        replicas: Mapping[TopicPartition, Sequence[int] | None],
        *,
        timeout_ms: float | None = None,
    ) -> None:
        """Move partitions to other replicas, the preferred leader first; None cancels a reassignment in progress.

        Returns when the controller has begun. Raises PeerError (NO_REASSIGNMENT_IN_PROGRESS, ...)."""
        deadline = self._deadline(timeout_ms)
        topics: dict[str, list[dict[str, Any]]] = {}
        for tp, wanted in replicas.items():
            row = {"partition_index": tp.partition, "replicas": None if wanted is None else list(wanted)}
            topics.setdefault(tp.topic, []).append(row)
        fields = {
            "timeout": self._broker_timeout_ms(deadline),
            "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
        }
        response = await self._ask_controller(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS, fields, deadline, lambda found: (found,)
        )
        raise_if(response, "reassigning partitions")
        for topic in response.responses:
            for result in topic.partitions:
                raise_if(result, f"reassigning {topic.name}-{result.partition_index}")

    async def list_reassignments(
        self, *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, ReassignmentInProgress]:
        """The reassignments in progress. Raises PeerError."""
        deadline = self._deadline(timeout_ms)
        fields = {"timeout": self._broker_timeout_ms(deadline), "topics": None}
        response = await self._ask_controller(
            ApiKey.LIST_PARTITION_REASSIGNMENTS, fields, deadline, lambda found: (found,)
        )
        raise_if(response, "listing reassignments")
        return {
            TopicPartition(str(topic.name), int(found.partition_index)): ReassignmentInProgress(
                tuple(found.replicas), tuple(found.adding_replicas), tuple(found.removing_replicas)
            )
            for topic in response.topics
            for found in topic.partitions
        }


def _by_topic(partitions: Collection[TopicPartition], name: str) -> list[dict[str, Any]]:
    topics: dict[str, list[int]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return [{"topic": topic, name: indexes} for topic, indexes in topics.items()]
