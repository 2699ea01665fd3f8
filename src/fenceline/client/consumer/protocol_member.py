"""A consumer's membership in a group of the consumer protocol (KIP-848): sends the heartbeats of `consumer_protocol`.

Owns the heartbeat task, and the steps of a reconciliation, which run inside poll as rebalances of the classic protocol
do: partitions are revoked while none of their records is being returned. Heartbeats stop if the caller does not poll
for max.poll.interval.ms.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final
from uuid import UUID

from fenceline.client.consumer.consumer_protocol import ConsumerProtocol, ProtocolPhase, new_member_id
from fenceline.client.consumer.group import GroupCallbacks
from fenceline.client.core.cluster import Cluster, Purpose
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline, backoff_ms, wait_at_most
from fenceline.client.core.errors import RETRIABLE, CommitFailedError, broker_error, error_code
from fenceline.client.core.group_requests import CommitMembership, ask_coordinator, commit_once, raise_group_error
from fenceline.client.core.offsets import CommittedOffset
from fenceline.client.core.surroundings import surroundings
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey

_log = logging.getLogger("fenceline.client")
_FENCED: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
_FIRST_INTERVAL_MS: Final = 1_000
"""Until the coordinator has named the interval."""
_ADVICE: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.UNSUPPORTED_VERSION: "The brokers do not offer the consumer protocol: use group.protocol=classic.",
    ErrorCode.UNRELEASED_INSTANCE_ID: "Another consumer uses the same group.instance.id: give each its own.",
    ErrorCode.UNSUPPORTED_ASSIGNOR: "Choose one of the brokers' group.consumer.assignors as group.remote.assignor.",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "The pattern of subscribe is an RE2 expression with this protocol.",
}


class ConsumerProtocolMember:
    """One member. Runs on the consumer's loop; `poll_group` is only called inside the consumer's poll.

    `on_change()`: the next poll has something to do."""

    def __init__(
        self, cluster: Cluster, config: ClientConfig, callbacks: GroupCallbacks, on_change: Callable[[], None]
    ) -> None:
        self.group_id: str = config["group.id"]
        self.topics: frozenset[str] = frozenset()
        self.assignment: tuple[TopicPartition, ...] = ()
        self._cluster = cluster
        self._config = config
        self._callbacks = callbacks
        self._on_change = on_change
        self._protocol = ConsumerProtocol(
            self.group_id,
            new_member_id(surroundings().rng.randbytes(16)),
            instance_id=config["group.instance.id"],
            rack_id=config["client.rack"],
            rebalance_timeout_ms=config["max.poll.interval.ms"],
            server_assignor=config["group.remote.assignor"],
        )
        self._interval_ms = _FIRST_INTERVAL_MS
        self._pattern: str | None = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._kick = asyncio.Event()
        self._fatal: Exception | None = None
        self._last_poll_s = asyncio.get_running_loop().time()

    @property
    def membership(self) -> CommitMembership:
        """The member epoch in place of a generation."""
        protocol = self._protocol
        if not protocol.is_member:
            return CommitMembership()
        return CommitMembership(protocol.epoch, protocol.member_id, protocol.instance_id, protocol.joined)

    @property
    def needs_join(self) -> bool:
        """Whether poll has something to do now."""
        if self._fatal is not None or self._protocol.phase is ProtocolPhase.FENCED:
            return True
        return self._protocol.phase is ProtocolPhase.RECONCILING and self._has_work()

    def subscribe(self, topics: Collection[str]) -> None:
        self.topics, self._pattern = frozenset(topics), None
        self._protocol.subscribe(topics)
        self._kick.set()

    def subscribe_pattern(self, pattern: str) -> None:
        """The coordinator chooses the topics whose full names match."""
        self.topics, self._pattern = frozenset(), pattern
        self._protocol.subscribe(regex=pattern)
        self._kick.set()

    def metadata_changed(self) -> None:
        """Topics of the assignment may be known by now."""
        if self.needs_join:
            self._on_change()

    async def poll_group(self, deadline: Deadline) -> None:
        """Take over what the heartbeats brought. Raises errors that are not retriable."""
        self._last_poll_s = asyncio.get_running_loop().time()
        while True:
            if self._fatal is not None or self._protocol.phase is ProtocolPhase.FENCED:
                lost, self.assignment = list(self.assignment), ()
                if lost:
                    await self._callbacks.partitions_lost(lost)
                if self._fatal is not None:
                    raise self._fatal
                if self._protocol.phase is ProtocolPhase.FENCED:
                    self._protocol.dropped()
                    self._kick.set()
            if self._protocol.phase is ProtocolPhase.UNSUBSCRIBED and (self.topics or self._pattern):
                self._protocol.subscribe(self.topics, self._pattern)
            if self._heartbeats is None or self._heartbeats.done():
                self._heartbeats = asyncio.ensure_future(self._run_heartbeats())
            if self._protocol.phase is not ProtocolPhase.RECONCILING or not self._has_work():
                return
            await self._reconcile()

    async def commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset],
        deadline: Deadline,
        *,
        membership: CommitMembership | None = None,
    ) -> None:
        """Commit with the current member epoch, if the member has not been fenced since the offsets were captured.

        Raises CommitFailedError if it has.
        """
        if not offsets:
            return
        made = self.membership if membership is None else membership

        async def attempt() -> bool:
            now = self.membership
            if not made.member_id or (now.member_id, now.joined) != (made.member_id, made.joined):
                raise self._commit_failed(ErrorCode.UNKNOWN_MEMBER_ID, "this consumer is not a member any more")
            try:
                await commit_once(
                    self._cluster, self.group_id, offsets, deadline, membership=now, purpose=Purpose.GROUP
                )
            except PeerError as error:
                if error.code is ErrorCode.STALE_MEMBER_EPOCH:
                    deadline.last_error = error
                    return False
                if error.code in _FENCED:
                    self._fence()
                    raise self._commit_failed(error.code, "the coordinator rejected the member") from error
                raise
            return True

        while not await self._cluster.retrying(deadline, attempt):
            # The next heartbeat brings the newer epoch.
            self._kick.set()
            if deadline.is_over:
                raise self._cluster.timeout_error(deadline)
            await self._cluster.pause(deadline)

    def _commit_failed(self, code: ErrorCode, what: str) -> CommitFailedError:
        return CommitFailedError(
            code,
            f"group {self.group_id}: {what}. Other members may read records since the last commit again. "
            "Poll more often, or raise max.poll.interval.ms.",
        )

    async def leave(self, deadline: Deadline, reason: str) -> None:
        """Give up the partitions; those of a static member stay its own until its session ends. A member whose join is
        not answered yet leaves, too."""
        await self._stop_heartbeats()
        was_member = self._protocol.may_be_member
        fields, self._pattern = self._protocol.leave(), None
        if not was_member:
            return
        try:
            await ask_coordinator(
                self._cluster, self.group_id, ApiKey.CONSUMER_GROUP_HEARTBEAT, fields, deadline, purpose=Purpose.GROUP
            )
        except (PeerError, OperatorError) as error:
            _log.info("group %s: leaving failed (%s): %s", self.group_id, reason, error)

    async def close(self) -> None:
        await self._stop_heartbeats()

    # -- reconciliation

    def _named(self, ids: Collection[tuple[UUID, int]]) -> dict[TopicPartition, tuple[UUID, int]]:
        """The partitions by name; those of topics that metadata does not have yet are left out."""
        names = {topic.id: name for name, topic in self._cluster.metadata.topics.items()}
        return {TopicPartition(names[each[0]], each[1]): each for each in ids if each[0] in names}

    def _has_work(self) -> bool:
        """Whether there are partitions to give up, or known ones to take."""
        named = self._named(self._protocol.target)
        if len(named) < len(self._protocol.target):
            self._cluster.request_refresh()
        return set(named.values()) != self._protocol.owned

    async def _reconcile(self) -> None:
        target = self._named(self._protocol.target)
        revoked = sorted(set(self.assignment) - target.keys())
        if revoked:
            await self._callbacks.partitions_revoked(revoked)
            self.assignment = tuple(tp for tp in self.assignment if tp not in set(revoked))
        if self._protocol.phase is not ProtocolPhase.RECONCILING:
            # The member was fenced meanwhile: what it still has is lost.
            return
        added = sorted(target.keys() - set(self.assignment))
        self.assignment = tuple(sorted(target))
        self._protocol.reconciled(target.values())
        self._kick.set()
        _log.info("group %s: member epoch %d, assigned %s", self.group_id, self._protocol.epoch, self.assignment)
        await self._callbacks.partitions_assigned(list(self.assignment), added)

    # -- heartbeats

    async def _run_heartbeats(self) -> None:
        failures = 0
        while True:
            idle_ms = (asyncio.get_running_loop().time() - self._last_poll_s) * 1000
            if idle_ms > self._config["max.poll.interval.ms"] and self._protocol.is_member:
                await self._leave_after_idle()
                return
            fields = self._protocol.heartbeat()
            if fields is not None:
                try:
                    self._take(await self._send(fields))
                    failures = 0
                except (PeerError, OperatorError) as error:
                    failures += 1
                    self._protocol.unanswered()
                    self._handle_error(error)
                    if self._fatal is not None:
                        return
            if not failures and self._protocol.is_due:
                continue
            # Not later than the caller's time to poll is over.
            pause_ms = float(self._interval_ms)
            if self._protocol.is_member:
                pause_ms = min(pause_ms, max(1.0, self._config["max.poll.interval.ms"] - idle_ms + 1))
            if failures:
                self._kick.clear()
                backoff = self._config["retry.backoff.ms"], self._config["retry.backoff.max.ms"]
                pause_ms = min(pause_ms, backoff_ms(failures, *backoff))
            await wait_at_most(self._kick, pause_ms / 1000)
            self._kick.clear()

    async def _send(self, fields: dict[str, Any]) -> Any:
        deadline = Deadline(self._config["request.timeout.ms"])
        key = ApiKey.CONSUMER_GROUP_HEARTBEAT
        response = await ask_coordinator(self._cluster, self.group_id, key, fields, deadline, purpose=Purpose.GROUP)
        code = error_code(response.error_code)
        raise_group_error(self._cluster, self.group_id, code, f"group {self.group_id}", response.error_message)
        return response

    def _take(self, response: Any) -> None:
        self._interval_ms = max(1, int(response.heartbeat_interval.total_seconds() * 1000))
        if response.member_id:
            # The coordinators of the first version choose it.
            self._protocol.member_id = response.member_id
        given = response.assignment
        assignment = None if given is None else {t.topic_id: t.partitions for t in given.topic_partitions}
        self._protocol.answered(int(response.member_epoch), assignment)
        if self.needs_join:
            self._on_change()

    def _handle_error(self, error: PeerError | OperatorError) -> None:
        code = error.code if isinstance(error, PeerError) else None
        if code in _FENCED:
            _log.warning("group %s: the member was fenced: %s", self.group_id, error)
            self._fence()
        elif code is None or code in RETRIABLE:
            _log.info("group %s: %s", self.group_id, error)
        else:
            advice = _ADVICE.get(code)
            self._fatal = error if advice is None else broker_error(code, f"{error}", advice)
            self._on_change()

    def _fence(self) -> None:
        self._protocol.fenced()
        self._on_change()

    async def _leave_after_idle(self) -> None:
        _log.warning(
            "group %s: no poll within max.poll.interval.ms=%d, leaving the group. Process records faster, lower "
            "max.poll.records, or raise max.poll.interval.ms.",
            self.group_id,
            self._config["max.poll.interval.ms"],
        )
        self._heartbeats = None
        topics, pattern = self.topics, self._pattern
        fields = self._protocol.leave()
        self._protocol.subscribe(topics, pattern)
        self._protocol.fenced()
        try:
            await self._send(fields)
        except (PeerError, OperatorError) as error:
            _log.info("group %s: leaving failed: %s", self.group_id, error)
        self._on_change()

    async def _stop_heartbeats(self) -> None:
        task, self._heartbeats = self._heartbeats, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
