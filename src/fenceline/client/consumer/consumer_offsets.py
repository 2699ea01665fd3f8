"""Commits and offset lookups of a consumer. Never changes positions.

Owns the consumer's side of committed offsets (with their leader epochs, `epochs.md` E61) and of ListOffsets.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from fenceline.client.consumer.group import GroupMember
from fenceline.client.consumer.positions import Positions
from fenceline.client.consumer.protocol_member import ConsumerProtocolMember
from fenceline.client.core.cluster import Cluster
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import CommitFailedError, TimedOut
from fenceline.client.core.group_requests import CommitMembership, commit, fetch_committed
from fenceline.client.core.offset_lookups import list_offsets
from fenceline.client.core.offsets import EARLIEST, LATEST, CommittedOffset, LogOffset, OffsetAndEpoch, OffsetSpec
from fenceline.errors import ErrorCode, OperatorError
from fenceline.ids import NO_EPOCH, TopicPartition


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """Offsets, and the membership under which their records were returned: no other one may commit them. None: without
    membership in the group.
    """

    offsets: Mapping[TopicPartition, CommittedOffset]
    membership: CommitMembership | None = None


class ConsumerOffsets(ABC):
    """Mixin of `AsyncConsumer`."""

    config: ClientConfig
    cluster: Cluster
    positions: Positions

    def __init__(self) -> None:
        self._commit_lock = asyncio.Lock()
        """Commits are sent in the order of their calls: the retry of an earlier one never overwrites a later one."""

    @property
    @abstractmethod
    def _member(self) -> GroupMember | ConsumerProtocolMember | None:
        """The membership of a subscribed consumer; others commit without membership."""

    async def committed(
        self, partitions: Collection[TopicPartition], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, CommittedOffset | None]:
        """The group's committed offsets; None for partitions without one."""
        group_id = self._require_group()
        found = await fetch_committed(self.cluster, group_id, partitions, self._deadline(timeout_ms))
        return {TopicPartition(*tp): found.get(TopicPartition(*tp)) for tp in partitions}

    async def commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> None:
        """Commit positions (None: of all records that were returned), with their leader epochs (E61).

        A commit belongs to the group generation in which it was called. Raises CommitFailedError if the group
        rebalances before it succeeds, and for a partition that is not assigned to a subscribed consumer.
        """
        self._require_group()
        if offsets is None:
            values = self.committable()
        else:
            values = {
                TopicPartition(*tp): CommittedOffset(value) if isinstance(value, int) else _with_epoch(*value)
                for tp, value in offsets.items()
            }
        pending = self._capture_commit(values)
        # The task of an earlier automatic commit may not have started: let it run first.
        await asyncio.sleep(0)
        await self._send_commit(pending, timeout_ms)

    def _capture_commit(self, values: Mapping[TopicPartition, CommittedOffset]) -> PendingCommit:
        return PendingCommit(values, None if (member := self._member) is None else member.membership)

    async def _send_commit(self, pending: PendingCommit, timeout_ms: float | None) -> None:
        """Raises CommitFailedError as `commit` does."""
        if not pending.offsets:
            return
        group_id = self._require_group()
        deadline = self._deadline(timeout_ms)
        try:
            async with asyncio.timeout(deadline.left_ms / 1000):
                await self._commit_lock.acquire()
        except TimeoutError:
            raise TimedOut(
                f"group {group_id}: an earlier commit has had no response for {deadline.timeout_ms:.0f} ms"
            ) from None
        try:
            if pending.membership is None:
                await commit(self.cluster, group_id, pending.offsets, deadline)
                return
            if (member := self._member) is None:
                raise CommitFailedError(
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    f"group {group_id}: the consumer left the group before its commit succeeded. Other members may "
                    "read records since the last commit again.",
                )
            if unassigned := sorted(tp for tp in pending.offsets if tp not in self.positions):
                raise CommitFailedError(
                    ErrorCode.ILLEGAL_GENERATION,
                    f"group {group_id}: {', '.join(map(str, unassigned))} is not assigned to this member, and another "
                    "member may have committed it. Commit before partitions are revoked (on_revoked).",
                )
            await member.commit(pending.offsets, deadline, membership=pending.membership)
        finally:
            self._commit_lock.release()

    def committable(self) -> dict[TopicPartition, CommittedOffset]:
        """The positions behind the records that were returned."""
        return {
            tp: CommittedOffset(state.position.offset, state.position.record_epoch)
            for tp, state in self.positions.items()
            if state.position is not None and not state.is_lost
        }

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, LogOffset]:
        """Log start offsets, each with the leader epoch of its record (-1: unknown)."""
        return await self._lookup(partitions, EARLIEST, timeout_ms)

    async def end_offsets(
        self, partitions: Collection[TopicPartition], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, LogOffset]:
        """High watermarks, or last stable offsets with isolation.level=read_committed, each with the leader's epoch."""
        return await self._lookup(partitions, LATEST, timeout_ms)

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndEpoch | None]:
        """The offset of the first record at or after each time, with its leader epoch; None if there is none."""
        wanted = {TopicPartition(*tp): at for tp, at in timestamps_ms.items()}
        found = await self._list(wanted, timeout_ms)
        return {tp: None if answer.offset < 0 else answer for tp, answer in found.items()}

    async def partitions_for(self, topic: str, *, timeout_ms: float | None = None) -> list[int]:
        answer = await self.cluster.fetch_metadata([topic], self._deadline(timeout_ms))
        known = answer.topics.get(topic)
        return [] if known is None else sorted(known.partitions)

    async def _lookup(
        self, partitions: Collection[TopicPartition], spec: int, timeout_ms: float | None
    ) -> dict[TopicPartition, LogOffset]:
        found = await self._list({TopicPartition(*tp): spec for tp in partitions}, timeout_ms)
        return {tp: LogOffset(each.offset, each.leader_epoch) for tp, each in found.items()}

    async def _list(
        self, wanted: Mapping[TopicPartition, OffsetSpec], timeout_ms: float | None
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        return await list_offsets(
            self.cluster,
            wanted,
            deadline=self._deadline(timeout_ms),
            isolation_level=int(self.config.reads_committed),
        )

    def _require_group(self) -> str:
        group_id: str | None = self.config["group.id"]
        if not group_id:
            raise OperatorError("Committed offsets require a group", "Set group.id.")
        return group_id

    def _deadline(self, timeout_ms: float | None) -> Deadline:
        return Deadline(self.config["default.api.timeout.ms"] if timeout_ms is None else timeout_ms)


def _with_epoch(offset: int, leader_epoch: int = NO_EPOCH, metadata: str = "") -> CommittedOffset:
    """A negative epoch means none (E56)."""
    return CommittedOffset(offset, max(leader_epoch, NO_EPOCH), metadata)
