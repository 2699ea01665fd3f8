"""A consumer's membership in a classic group: JoinGroup, SyncGroup, heartbeats, LeaveGroup, commits.

Owns the member's side of the protocol (KIP-62, KIP-345, KIP-394, KIP-429). A member joins inside poll, so that a
rebalance never revokes partitions while their records are returned. Heartbeats run in the background, and stop if the
caller does not poll for max.poll.interval.ms, so that a stuck consumer loses its partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from fenceline.client.consumer.assignors import Assignor, assignors_of
from fenceline.client.core.cluster import Cluster, Purpose
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline, backoff_ms
from fenceline.client.core.errors import (
    COORDINATOR_MOVED,
    RETRIABLE,
    CommitFailedError,
    ConnectionLost,
    TimedOut,
    broker_error,
    error_code,
)
from fenceline.client.core.group_protocol import (
    ClassicSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from fenceline.client.core.group_requests import CommitMembership, ask_coordinator, commit_once, raise_group_error
from fenceline.client.core.offsets import CommittedOffset
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey

_log = logging.getLogger("fenceline.client")
_REJOIN = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.MEMBER_ID_REQUIRED,
    }
)
_LOST = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
_JOIN_SLACK_MS = 5_000
"""How much longer than the rebalance timeout to wait for a JoinGroup response."""


class GroupCallbacks(Protocol):
    """The callbacks of the consumer."""

    async def partitions_revoked(self, partitions: list[TopicPartition]) -> None: ...
    async def partitions_lost(self, partitions: list[TopicPartition]) -> None: ...
    async def partitions_assigned(self, assignment: list[TopicPartition], added: list[TopicPartition]) -> None: ...


class GroupMember:
    """One member. Runs on the consumer's loop; `poll_group` is only called inside the consumer's poll.

    `on_change()`: the next poll has something to do."""

    def __init__(
        self, cluster: Cluster, config: ClientConfig, callbacks: GroupCallbacks, on_change: Callable[[], None]
    ) -> None:
        self.group_id: str = config["group.id"]
        self._cluster = cluster
        self._config = config
        self._callbacks = callbacks
        self._instance_id: str | None = config["group.instance.id"]
        self._assignors = assignors_of(config["partition.assignment.strategy"])
        self._is_cooperative = all(a.is_cooperative for a in self._assignors)
        self.topics: frozenset[str] = frozenset()
        self.assignment: tuple[TopicPartition, ...] = ()
        self.generation_id = -1
        self.member_id = ""
        self._before_join: tuple[TopicPartition, ...] = ()
        self._needs_join = True
        self._was_lost = False
        self._joining: asyncio.Task[tuple[TopicPartition, ...]] | None = None
        self._is_leader = False
        self._assigned_counts: dict[str, int] = {}
        self._last_poll_s = asyncio.get_running_loop().time()
        self._heartbeats: asyncio.Task[None] | None = None
        self._fatal: Exception | None = None
        self._on_change = on_change

    @property
    def membership(self) -> CommitMembership:
        return CommitMembership(self.generation_id, self.member_id, self._instance_id)

    @property
    def needs_join(self) -> bool:
        return self._needs_join

    def subscribe(self, topics: Collection[str]) -> None:
        """Change the subscription; the member joins again at the next poll."""
        wanted = frozenset(topics)
        if wanted != self.topics:
            self.topics = wanted
            self._needs_join = True

    def metadata_changed(self) -> None:
        """The group's leader starts a rebalance if the partition count of a subscribed topic has changed."""
        if (
            self._is_leader
            and not self._needs_join
            and self._partition_counts(self._assigned_counts) != self._assigned_counts
        ):
            _log.info("group %s: partition counts changed, the leader starts a rebalance", self.group_id)
            self._needs_join = True
            self._on_change()

    async def poll_group(self, deadline: Deadline) -> None:
        """Join the group if needed, until `deadline`. Raises errors that are not retriable."""
        self._last_poll_s = asyncio.get_running_loop().time()
        while True:
            if self._was_lost:
                await self._drop_lost()
            if self._fatal is not None:
                raise self._fatal
            if self._joining is None:
                if not self._needs_join:
                    return
                await self._begin_join()
            assert self._joining is not None
            # The join continues after a short poll, and the next poll waits for it again.
            await asyncio.wait({self._joining}, timeout=deadline.left_ms / 1000)
            if not self._joining.done():
                return
            joined, self._joining = self._joining, None
            try:
                assignment = joined.result()
            except PeerError as error:
                self._needs_join = True
                self._handle_join_error(error)
                if deadline.is_over:
                    return
                await self._cluster.pause(deadline)
            except BaseException:
                self._needs_join = True
                raise
            else:
                await self._apply_assignment(assignment)

    async def commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        deadline: Deadline,
        *,
        membership: CommitMembership | None = None,
    ) -> None:
        """Commit as the membership of the offsets (None: the current one), with retries.

        Raises CommitFailedError if the group has rebalanced, also between two attempts: only the new owner may commit
        revoked partitions.
        """
        if not offsets:
            return
        made = self.membership if membership is None else membership

        async def attempt() -> None:
            if made.generation_id < 0:
                raise self._commit_failed(ErrorCode.UNKNOWN_MEMBER_ID, "this consumer is not a member")
            if made != self.membership:
                what = f"the commit belongs to generation {made.generation_id}, which has ended"
                raise self._commit_failed(ErrorCode.ILLEGAL_GENERATION, what)
            try:
                await commit_once(
                    self._cluster, self.group_id, offsets, deadline, membership=made, purpose=Purpose.GROUP
                )
            except PeerError as error:
                if error.code in _LOST or error.code is ErrorCode.REBALANCE_IN_PROGRESS:
                    self._handle_commit_error(error, made)
                    what = f"the coordinator rejected the commit of generation {made.generation_id}"
                    raise self._commit_failed(error.code, what) from error
                raise

        await self._cluster.retrying(deadline, attempt)

    def _handle_commit_error(self, error: PeerError, made: CommitMembership) -> None:
        """Apply the error to the current membership, unless the commit was of another one."""
        if made.member_id != self.member_id:
            return
        if error.code is ErrorCode.FENCED_INSTANCE_ID:
            self._fatal, self._was_lost = error, True
        elif error.code is not ErrorCode.REBALANCE_IN_PROGRESS:
            self._lose_membership(error.code, made.generation_id)
        elif made == self.membership:
            self._needs_join = True

    def _commit_failed(self, code: ErrorCode, what: str) -> CommitFailedError:
        return CommitFailedError(
            code,
            f"group {self.group_id} has rebalanced: {what}. Other members may read records since the last commit "
            "again. Poll more often, or raise max.poll.interval.ms.",
        )

    async def leave(self, deadline: Deadline, reason: str) -> None:
        """Send LeaveGroup, so that the group does not wait for the session timeout; a member that is still joining
        leaves, too. Static members do not leave."""
        await self._stop_heartbeats()
        # The coordinator takes no other request on a connection while a JoinGroup waits there.
        purpose = Purpose.CONTROL if await self._stop_joining() else Purpose.GROUP
        if self.member_id and self._instance_id is None:
            member = {"member_id": self.member_id, "group_instance_id": None, "reason": reason}
            fields = {"group_id": self.group_id, "member_id": self.member_id, "members": [member]}
            try:
                await ask_coordinator(
                    self._cluster, self.group_id, ApiKey.LEAVE_GROUP, fields, deadline, purpose=purpose
                )
            except (PeerError, OperatorError) as error:
                _log.info("group %s: LeaveGroup failed: %s", self.group_id, error)
        self._reset_identity()
        self._needs_join = True

    async def close(self) -> None:
        await self._stop_heartbeats()
        await self._stop_joining()

    async def _stop_joining(self) -> bool:
        """Cancel a join in progress; whether there was one."""
        joining, self._joining = self._joining, None
        if joining is None:
            return False
        was_running = not joining.done()
        joining.cancel()
        await asyncio.gather(joining, return_exceptions=True)
        return was_running

    # -- joining

    async def _begin_join(self) -> None:
        if self._is_cooperative:
            unsubscribed = [tp for tp in self.assignment if tp.topic not in self.topics]
            if unsubscribed:
                await self._revoke(unsubscribed)
        elif self.assignment:
            await self._revoke(list(self.assignment))
        # A join that is requested from here on is another one.
        self._needs_join = False
        self._joining = asyncio.ensure_future(self._join_and_sync())
        self._joining.add_done_callback(lambda _: self._on_change())

    async def _join_and_sync(self) -> tuple[TopicPartition, ...]:
        """JoinGroup and SyncGroup; returns the assignment, without calling the consumer."""
        response = await self._join()
        self.generation_id, self.member_id = int(response.generation_id), response.member_id
        protocol = response.protocol_name or ""
        assignor = next((a for a in self._assignors if a.name == protocol), None)
        if assignor is None:
            raise OperatorError(
                f"group {self.group_id} chose the assignor {protocol!r}, which this member did not offer",
                "Give all members the same partition.assignment.strategy.",
            )
        self._is_leader = response.leader == response.member_id
        assignments: dict[str, list[TopicPartition]] = {}
        if self._is_leader and not getattr(response, "skip_assignment", False):
            assignments = await self._assign_partitions(assignor, response.members)
        assignment = await self._sync(protocol, assignments)
        self._start_heartbeats()
        return assignment

    async def _join(self) -> Any:
        deadline = Deadline(self._config["default.api.timeout.ms"])
        rebalance_ms = self._config["max.poll.interval.ms"]
        for _ in range(2):
            fields = {
                "group_id": self.group_id,
                "session_timeout": self._config["session.timeout.ms"],
                "rebalance_timeout": rebalance_ms,
                "member_id": self.member_id,
                "group_instance_id": self._instance_id,
                "protocol_type": "consumer",
                "protocols": [{"name": a.name, "metadata": self._metadata_for(a)} for a in self._assignors],
                "reason": None,
            }
            response = await ask_coordinator(
                self._cluster,
                self.group_id,
                ApiKey.JOIN_GROUP,
                fields,
                deadline,
                purpose=Purpose.GROUP,
                extra_ms=rebalance_ms + _JOIN_SLACK_MS,
            )
            code = error_code(response.error_code)
            if code is not ErrorCode.MEMBER_ID_REQUIRED:
                raise_group_error(self._cluster, self.group_id, code, f"joining group {self.group_id}")
                return response
            # The coordinator assigns the member id first, so that failed joins leave no members behind (KIP-394).
            self.member_id = response.member_id
        raise broker_error(ErrorCode.MEMBER_ID_REQUIRED, f"joining group {self.group_id}")

    def _metadata_for(self, assignor: Assignor) -> bytes:
        owned = tuple(self.assignment) if self._is_cooperative else ()
        user_data = assignor.user_data(self.assignment or self._before_join, self.generation_id)
        return encode_subscription(
            ClassicSubscription(
                tuple(self.topics), owned, self.generation_id, user_data, self._config["client.rack"] or None
            )
        )

    async def _assign_partitions(self, assignor: Assignor, members: Any) -> dict[str, list[TopicPartition]]:
        subscriptions = {m.member_id: decode_subscription(bytes(m.metadata)) for m in members}
        topics = {topic for s in subscriptions.values() for topic in s.topics}
        deadline = Deadline(self._config["default.api.timeout.ms"])
        if self._cluster.tracked is not None:
            self._cluster.tracked |= topics
        if topics - self._cluster.metadata.topics.keys():
            await self._cluster.fetch_metadata(sorted(topics), deadline)
        self._assigned_counts = self._partition_counts(dict.fromkeys(topics, 0))
        if not all(self._assigned_counts.values()):
            # A topic that is not in the metadata yet: when it is, `metadata_changed` starts another rebalance.
            self._cluster.request_refresh()
        return assignor.assign(subscriptions, self._assigned_counts)

    def _partition_counts(self, topics: Mapping[str, int]) -> dict[str, int]:
        known = self._cluster.metadata.topics
        return {topic: len(known[topic].partitions) if topic in known else 0 for topic in topics}

    async def _sync(self, protocol: str, assignments: dict[str, list[TopicPartition]]) -> tuple[TopicPartition, ...]:
        fields = {
            "group_id": self.group_id,
            "generation_id": self.generation_id,
            "member_id": self.member_id,
            "group_instance_id": self._instance_id,
            "protocol_type": "consumer",
            "protocol_name": protocol,
            "assignments": [
                {"member_id": member, "assignment": encode_assignment(partitions)}
                for member, partitions in assignments.items()
            ],
        }
        deadline = Deadline(self._config["default.api.timeout.ms"])
        response = await ask_coordinator(
            self._cluster,
            self.group_id,
            ApiKey.SYNC_GROUP,
            fields,
            deadline,
            purpose=Purpose.GROUP,
            extra_ms=self._config["max.poll.interval.ms"],
        )
        raise_group_error(
            self._cluster, self.group_id, error_code(response.error_code), f"syncing with group {self.group_id}"
        )
        return decode_assignment(bytes(response.assignment))

    async def _apply_assignment(self, assignment: tuple[TopicPartition, ...]) -> None:
        before = set(self.assignment)
        wanted = sorted(assignment)
        revoked = sorted(before - set(wanted))
        if self._is_cooperative and revoked:
            # Revoke first, then join again, so that the new owners get these partitions (KIP-429).
            await self._revoke(revoked)
            self._needs_join = True
        self.assignment = self._before_join = tuple(wanted)
        added = sorted(set(wanted) - before)
        _log.info("group %s: generation %d, assigned %s", self.group_id, self.generation_id, wanted)
        await self._callbacks.partitions_assigned(wanted, added)

    async def _revoke(self, partitions: list[TopicPartition]) -> None:
        await self._callbacks.partitions_revoked(partitions)
        self.assignment = tuple(tp for tp in self.assignment if tp not in set(partitions))

    async def _drop_lost(self) -> None:
        self._was_lost = False
        lost, self.assignment, self._before_join = list(self.assignment), (), ()
        if lost:
            await self._callbacks.partitions_lost(lost)

    # -- errors

    def _handle_join_error(self, error: PeerError) -> None:
        """Prepare the retry of a failed join or sync; raises the error if it is not retriable."""
        if error.code in _LOST:
            self._lose_membership(error.code, self.generation_id)
        if error.code in COORDINATOR_MOVED or isinstance(error, ConnectionLost | TimedOut):
            self._cluster.forget_coordinator(self.group_id)
        if error.code is ErrorCode.FENCED_INSTANCE_ID or error.code not in RETRIABLE | _REJOIN:
            raise error

    def _lose_membership(self, code: ErrorCode, asked_generation_id: int) -> None:
        """The group has rebalanced without this member: its partitions may have another owner already.

        Ignored if the request carried an older generation than the member's: brokers answer in order, so a request that
        was sent while a JoinGroup waited is checked against the new generation.
        """
        if code is ErrorCode.ILLEGAL_GENERATION and asked_generation_id != self.generation_id:
            return
        self._was_lost = True
        self._needs_join = True
        self.generation_id = -1
        if code is not ErrorCode.ILLEGAL_GENERATION:
            self.member_id = ""

    def _reset_identity(self) -> None:
        self.generation_id, self.member_id, self._is_leader = -1, "", False

    # -- heartbeats

    def _start_heartbeats(self) -> None:
        if self._heartbeats is None or self._heartbeats.done():
            self._heartbeats = asyncio.ensure_future(self._run_heartbeats())

    async def _stop_heartbeats(self) -> None:
        task, self._heartbeats = self._heartbeats, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run_heartbeats(self) -> None:
        failures = 0
        while True:
            interval_ms = self._config["heartbeat.interval.ms"]
            if failures:
                interval_ms = min(
                    interval_ms,
                    backoff_ms(failures, self._config["retry.backoff.ms"], self._config["retry.backoff.max.ms"]),
                )
            await asyncio.sleep(interval_ms / 1000)
            if self.generation_id < 0:
                continue
            idle_ms = (asyncio.get_running_loop().time() - self._last_poll_s) * 1000
            if idle_ms > self._config["max.poll.interval.ms"]:
                await self._leave_after_idle()
                return
            asked = self.generation_id
            try:
                await self._send_heartbeat()
                failures = 0
            except (PeerError, OperatorError) as error:
                failures += 1
                if isinstance(error, PeerError):
                    self._handle_heartbeat_error(error, asked)

    async def _send_heartbeat(self) -> None:
        fields = {
            "group_id": self.group_id,
            "generation_id": self.generation_id,
            "member_id": self.member_id,
            "group_instance_id": self._instance_id,
        }
        deadline = Deadline(self._config["session.timeout.ms"])
        response = await ask_coordinator(
            self._cluster, self.group_id, ApiKey.HEARTBEAT, fields, deadline, purpose=Purpose.GROUP
        )
        raise_group_error(
            self._cluster, self.group_id, error_code(response.error_code), f"heartbeat to group {self.group_id}"
        )

    def _handle_heartbeat_error(self, error: PeerError, asked_generation_id: int) -> None:
        match error.code:
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self._needs_join = True
                self._on_change()
            case ErrorCode.ILLEGAL_GENERATION | ErrorCode.UNKNOWN_MEMBER_ID:
                self._lose_membership(error.code, asked_generation_id)
                self._on_change()
            case ErrorCode.FENCED_INSTANCE_ID | ErrorCode.GROUP_AUTHORIZATION_FAILED:
                self._fatal = error
                self._was_lost = True
                self._on_change()
            case _:
                _log.info("group %s: %s", self.group_id, error)

    async def _leave_after_idle(self) -> None:
        _log.warning(
            "group %s: no poll within max.poll.interval.ms=%d, leaving the group. Process records faster, lower "
            "max.poll.records, or raise max.poll.interval.ms.",
            self.group_id,
            self._config["max.poll.interval.ms"],
        )
        self._was_lost = True
        self._heartbeats = None
        deadline = Deadline(self._config["request.timeout.ms"])
        await self.leave(deadline, "the consumer did not poll in time")
