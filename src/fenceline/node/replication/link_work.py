"""What the parts of one leader's link share: the settings of the fetchers, the link's own port, its work under way.

Owns the tasks of a link (truncations, flushes), and what a failure of one partition means: it backs off, and the others
of the same leader are fetched. Never accesses a log, decides nothing about the protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from fenceline.errors import PeerError
    from fenceline.log.core.errors import StorageError
    from fenceline.losses.cutting import LogCut
    from fenceline.metadata.image import Endpoint
    from fenceline.node.clock import Clock
    from fenceline.node.net.peer_connection import Dial
    from fenceline.node.replication.absent_brokers import AbsentBrokers
    from fenceline.node.replication.replica import Replica
    from fenceline.node.replication.silent_brokers import SilentBrokers
    from fenceline.replica.fetcher import FetchLimits, ReplicaFetcher
    from fenceline.replica.follower import FollowerState
    from fenceline.replica.throttle import ReplicationQuota

log = Logger("replication")


class Host(Protocol):
    """The broker's interface for fetchers."""

    @property
    def node_id(self) -> int: ...
    @property
    def broker_epoch(self) -> int: ...
    def replication_endpoint(self, node_id: int) -> Endpoint | None:
        """The listener address of a broker for other brokers; None while it is not registered."""

    def storage_failed(self, replica: Replica, error: StorageError) -> None: ...
    def open_unused(self, topic: str, index: int) -> Replica | None:
        """Open a replica that was followed without an object; it is followed as the metadata says from then on. None if
        it cannot be opened, or is not here any more."""

    def cut_log(self, replica: Replica, cut: LogCut) -> None:
        """In a thread: truncate the log, with receipts of the lost records. Raises StorageError."""

    def flushed(self, replica: Replica, end_offset: int) -> Awaitable[PeerError | None]:
        """Awaits until a followed log is flushed up to `end_offset`; returns the error if it cannot be."""

    def checkpoint(self) -> Awaitable[None]:
        """Write the recovery points to disk. Raises StorageError."""

    def cut_ended(self, replica: Replica) -> None:
        """On the event loop: the thread that truncated the log has finished."""


@dataclass(slots=True)
class SharedFetching:
    """What all links of one broker share."""

    host: Host
    clock: Clock
    executor: Executor | None
    limits: FetchLimits
    answer_timeout_s: float
    connect: Dial
    quota: ReplicationQuota
    absent: AbsentBrokers
    silent: SilentBrokers
    largest_answer: Callable[[], int]
    is_closed: bool = False
    appended_bytes: int = 0


class ReplicationLink(Protocol):
    """What the work of a link needs of it."""

    fetcher: ReplicaFetcher

    @property
    def is_for_far_behind(self) -> bool: ...
    def replica_of(self, state: FollowerState) -> Replica | None:
        """The replica of this state; None if it has no object, is followed in a new epoch, elsewhere, or not at all."""

    def sort(self, replica: Replica, state: FollowerState) -> None:
        """The high watermark or the log end has changed: choose the connection to fetch the partition over."""

    def interrupt(self) -> None: ...
    def reschedule(self) -> None:
        """A partition is backing off: recompute how long the link may sleep."""


class LinkWork:
    """The work of one link. `under_way`: truncations and flushes, which continue when the link is closed."""

    def __init__(
        self, link: ReplicationLink, shared: SharedFetching, leader_id: int, under_way: set[asyncio.Task[None]]
    ) -> None:
        self.link = link
        self.shared = shared
        self.leader_id = leader_id
        self.under_way = under_way

    def begin(self, replica: Replica, state: FollowerState, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(self._run_guarded(replica, state, work))
        self.under_way.add(task)
        task.add_done_callback(self.under_way.discard)

    async def _run_guarded(self, replica: Replica, state: FollowerState, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            self.failed(replica, state)
            self.link.reschedule()

    def failed(self, replica: Replica, state: FollowerState) -> None:
        """A bug of ours; neither this partition nor the leader's other partitions must stop because of it."""
        log.exception("replication of a partition failed", partition=str(replica.topic_partition))
        self.back_off(state)

    def storage_failed(self, replica: Replica, state: FollowerState, error: StorageError) -> None:
        """A disk operation failed."""
        self.back_off(state)
        self.shared.host.storage_failed(replica, error)

    def reject(self, replica: Replica, state: FollowerState, reason: str) -> None:
        """The leader sent invalid records. Logged the 1st, 2nd, 4th, 8th time and so on."""
        if is_power_of_two(state.failures + 1):
            log.error(
                "records from the leader rejected",
                partition=str(replica.topic_partition),
                leader=self.leader_id,
                offset=state.log.log_end_offset,
                times=state.failures + 1,
                reason=reason,
                advice="They are fetched again. If this continues, check the leader's disk: its copy may be damaged.",
            )
        self.back_off(state)

    def back_off(self, state: FollowerState) -> None:
        self.link.fetcher.failed(state, self.shared.clock.monotonic_ms())


def is_power_of_two(number: int) -> bool:
    return not number & (number - 1)
