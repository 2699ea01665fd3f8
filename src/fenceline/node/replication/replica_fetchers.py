"""Fetches this broker's followed partitions from their leaders: assigns each partition to a leader's link.

Owns the links (`leader_link`), one per leader, and their shared settings. Decides nothing about the protocol.

Rules: `epochs.md E23`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from fenceline.node.clock import Clock
from fenceline.node.net.peer_connection import LARGEST_ANSWER_BYTES, Dial, dial
from fenceline.node.replication.absent_brokers import AbsentBrokers
from fenceline.node.replication.leader_link import LeaderLink
from fenceline.node.replication.link_work import Host, SharedFetching
from fenceline.node.replication.silent_brokers import NO_BROKERS, SilentBrokers
from fenceline.replica.fetcher import FetchLimits, Key
from fenceline.replica.follower import FollowerPhase, FollowerState
from fenceline.replica.throttle import ReplicationQuota

if TYPE_CHECKING:
    from fenceline.node.replication.replica import Replica


class ReplicaFetchers:
    """All leaders that this broker follows. All methods run on the event loop."""

    def __init__(
        self,
        host: Host,
        clock: Clock,
        executor: Executor | None,
        limits: FetchLimits,
        *,
        answer_timeout_ms: int,
        connect: Dial = dial,
        quota: ReplicationQuota | None = None,
        absent: AbsentBrokers | None = None,
        silent: SilentBrokers = NO_BROKERS,
        largest_answer: Callable[[], int] = lambda: LARGEST_ANSWER_BYTES,
    ) -> None:
        """`quota`: for throttled partitions. `absent` records which brokers disconnected and connected, `silent` which
        do not answer. `largest_answer`: size limit of a leader's response in bytes.
        """
        self.absent = absent or AbsentBrokers(clock, session_ms=0)
        self._shared = SharedFetching(
            host,
            clock,
            executor,
            limits,
            answer_timeout_ms / 1000,
            connect,
            quota or ReplicationQuota(),
            self.absent,
            silent,
            largest_answer,
        )
        self._links: dict[int, LeaderLink] = {}
        self._link_of: dict[Key, LeaderLink] = {}
        """By partition. With numbers as values the garbage collector would walk all of it again and again
        (`node.garbage`)."""

    @property
    def appended_bytes(self) -> int:
        """Bytes fetched from leaders since the start."""
        return self._shared.appended_bytes

    def phases(self) -> list[FollowerPhase]:
        """The phase of each followed partition."""
        return [phase for link in list(self._links.values()) for phase in link.phases()]

    def phase_of(self, replica: Replica) -> FollowerPhase | None:
        """The follower phase of one partition; None if it is not followed."""
        key = (replica.topic_id_bytes, replica.topic_partition.partition)
        link = self._link_of.get(key)
        return link.phase_of(key) if link is not None else None

    @property
    def far_behind(self) -> int:
        """The number of partitions that lack committed records."""
        return sum(link.far_behind for link in list(self._links.values()))

    def follow(self, replica: Replica, leader_id: int, leader_epoch: int) -> None:
        """Fetch a partition from its leader, in this epoch (E23)."""
        link = self._link_to(leader_id, (replica.topic_id_bytes, replica.topic_partition.partition))
        if link is not None:
            link.follow(replica, leader_epoch)

    def follow_unused(self, topic: str, key: Key, leader_id: int, leader_epoch: int) -> None:
        """Fetch a partition of which this node has no files, without an object for it, until there is a record."""
        if self.unused_epoch(key) == leader_epoch:
            return
        link = self._link_to(leader_id, key)
        if link is not None:
            link.follow_unused(topic, key, leader_epoch)

    def _link_to(self, leader_id: int, key: Key) -> LeaderLink | None:
        """The link over which a partition is fetched from now on; None once all are closed."""
        before = self._link_of.get(key)
        if before is not None and before is not self._links.get(leader_id):
            self.leave_unused(key)
        if self._shared.is_closed:
            return None
        link = self._links.get(leader_id)
        if link is None:
            link = self._links[leader_id] = LeaderLink(self._shared, leader_id)
        self._link_of[key] = link
        return link

    def unused(self) -> list[FollowerState]:
        """Of the partitions that are followed without an object."""
        return [state for link in self._links.values() for state in link.fetcher.states.values() if state.is_unused]

    def unused_epoch(self, key: Key) -> int | None:
        """The leader epoch in which a partition is followed without an object; None if it is not."""
        link = self._link_of.get(key)
        state = link.fetcher.states.get(key) if link is not None else None
        return state.leader_epoch if state is not None and state.is_unused else None

    def leave(self, replica: Replica) -> None:
        """Stop following a partition."""
        self.leave_unused((replica.topic_id_bytes, replica.topic_partition.partition))

    def leave_unused(self, key: Key) -> None:
        """Stop following a partition, with or without an object."""
        link = self._link_of.pop(key, None)
        if link is None:
            return
        link.leave(key)
        if link.is_empty:
            del self._links[link.leader_id]
            link.close()
            self.absent.reconnected(link.leader_id)

    def check_connections(self) -> None:
        """Report closed connections to `absent` at once: their tasks notice some iterations of the event loop later,
        and a client that has lost the same leader asks about it in between."""
        for link in self._links.values():
            link.check_connection()

    def on_leader_address_changed(self, node_id: int) -> None:
        """A broker has registered again: its address may have changed."""
        link = self._links.get(node_id)
        if link is not None:
            link.on_leader_address_changed()

    async def close(self) -> None:
        self._shared.is_closed = True
        links, self._links = list(self._links.values()), {}
        self._link_of.clear()
        for link in links:
            link.close()
        await asyncio.gather(*(link.ended() for link in links))
