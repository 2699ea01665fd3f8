"""Fetching from one leader: a connection and a task, and up to two more for partitions that are far behind.

Owns the connections and which partition is fetched over which: sends the fetches that `fenceline.replica` builds, and
passes the responses on (`leader_duties`, `follower_truncation`). Never accesses a log. Decides nothing about the
protocol.

A replica without files has no object here: it is fetched with the others, and opened for its first record, or for
anything else that is to be done with its log (`leader_duties`).

A partition that is added does not wait for the fetch that is parked at the leader: the connection is reopened, with all
partitions in the first request.

A partition is far behind if it lacks committed records. It is not in sync, so no producer waits for it; but if it
shared a fetch with partitions that are in sync, producers would wait for its megabytes. So it moves to a separate link
when a response shows that it is behind, and back when it has all committed records. There are two of these links, so
that the leader sends over one while the records of the other are written.

The link of in-sync partitions also watches whether the leader answers in time (`silent_brokers`).

A response that is larger than this node's limit affects one partition: it backs off for a long time, with a warning
that names the setting, and the others are fetched at once over a new connection.

Rules: `epochs.md E23-E29`; `gaps.md G3`.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from fenceline.node.logs import Logger
from fenceline.node.net.peer_connection import (
    AnswerTooLarge,
    NoSuchVersion,
    PeerConnection,
    PeerConnectionLost,
    open_peer,
)
from fenceline.node.replication.follower_truncation import FollowerTruncation
from fenceline.node.replication.leader_duties import Duties
from fenceline.node.replication.link_work import LinkWork, SharedFetching
from fenceline.node.replication.silent_brokers import NO_BROKERS
from fenceline.replica.fetcher import ReplicaFetcher
from fenceline.replica.follower import FollowerPhase, FollowerState, Question
from fenceline.replica.unused_log import UNUSED_LOG
from fenceline.wire.apis import ApiKey
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.fetch import encode_request, largest_partition, parse_response

if TYPE_CHECKING:
    from fenceline.node.replication.replica import Replica

log = Logger("replication")

FIRST_FETCH_VERSION: Final = 13
LAST_FETCH_VERSION: Final = 17
FAR_LINKS: Final = 2
"""Maximum number of links for partitions that are far behind."""
_ARRIVAL_S: Final = 0.02
"""How long a partition that has caught up waits for the fetch in flight."""
_REOPENING_S: Final = 100e-6
"""For each partition of a session: what it costs both sides to open it again, or less."""
_TROUBLE = (ConnectionError, MalformedRequest, NoSuchVersion)


class LeaderLink:
    """Fetching from one leader. `near`: None, or the main link of a link for partitions that are far behind."""

    def __init__(self, shared: SharedFetching, leader_id: int, near: LeaderLink | None = None) -> None:
        self._near = near
        self._far: list[LeaderLink] = []
        self._shared = shared
        self._host = shared.host
        self._clock = shared.clock
        self.leader_id = leader_id
        self.fetcher = ReplicaFetcher(
            replica_id=self._host.node_id, broker_epoch=self._host.broker_epoch, limits=shared.limits
        )
        self._replicas: dict[tuple[bytes, int], Replica] = {}
        self._connection: PeerConnection | None = None
        self._wakeup = asyncio.Event()
        self._awaited: asyncio.Future[memoryview] | None = None
        self._overdue_s = 0.0
        """When the response in flight is overdue (event loop time)."""
        self._received_bytes = 0
        """Bytes received of a large response when the watchdog last checked."""
        self._watchdog: asyncio.TimerHandle | None = None
        self._arrivals: asyncio.TimerHandle | None = None
        """Interrupts the fetch in flight for partitions that came meanwhile."""
        self._interrupted_s = -math.inf
        """When a fetch in flight was last interrupted (event loop time)."""
        self.under_way: set[asyncio.Task[None]] = set() if near is None else near.under_way
        """Truncations and flushes, which continue when the link is closed."""
        work = LinkWork(self, shared, leader_id, self.under_way)
        self.truncation: FollowerTruncation = FollowerTruncation(work)
        self.duties: Duties = Duties(work, self.truncation)
        self._is_unreachable = False
        self._was_closed_by_leader = False
        """The leader closed the connection while a response was pending."""
        self._closed_recently = False
        """The leader closed a connection and has not answered a fetch since. If it closes the next connection too, it
        is running all the same, since it accepted that connection."""
        self._refusals = 0
        """Consecutive responses with a top-level error."""
        watching = shared.silent if near is None else NO_BROKERS
        self._answers = watching.watch(leader_id, self._bytes_of_answer)
        self._task = asyncio.ensure_future(self._run())

    @property
    def is_for_far_behind(self) -> bool:
        return self._near is not None

    def replica_of(self, state: FollowerState) -> Replica | None:
        key = (state.topic_id, state.index)
        return self._replicas.get(key) if self.fetcher.states.get(key) is state else None

    def follow(self, replica: Replica, leader_epoch: int) -> None:
        key = (replica.topic_id_bytes, replica.topic_partition.partition)
        before = self.fetcher.states.get(key)
        self._leave_far(key)
        self._replicas[key] = replica
        state = FollowerState(
            replica.topic_partition.topic, key[0], key[1], leader_epoch, replica.log, may_lead=replica.may_lead
        )
        self.fetcher.follow(state)
        if before is not None and before.is_unused and before.leader_epoch == leader_epoch and _is_empty(replica):
            state.continue_from(before)  # the leader is fetching for it, or about to
            return
        rest = state.on_follow(replica.clean_since)
        if rest is not None:
            self.duties.execute(rest, [])
        else:
            self.duties.flush_first(replica, state)
        self._interrupt_for_more()

    def follow_unused(self, topic: str, key: tuple[bytes, int], leader_epoch: int) -> None:
        """Fetch a partition of which the replica here has no files, in this epoch."""
        self._leave_far(key)
        self._replicas.pop(key, None)
        self.fetcher.follow(FollowerState(topic, key[0], key[1], leader_epoch, UNUSED_LOG))
        self._interrupt_for_more()

    def leave(self, key: tuple[bytes, int]) -> None:
        self._replicas.pop(key, None)
        self.duties.forget(key)
        self.fetcher.leave(key)
        self._leave_far(key)

    @property
    def is_empty(self) -> bool:
        return not len(self.fetcher) and not self._far

    @property
    def far_behind(self) -> int:
        return sum(len(far.fetcher) for far in self._far)

    def phases(self) -> list[FollowerPhase]:
        here = [state.phase for state in list(self.fetcher.states.values())]
        return here + [phase for far in self._far for phase in far.phases()]

    def phase_of(self, key: tuple[bytes, int]) -> FollowerPhase | None:
        """The phase of the partition with this topic id and index; None if it is not followed over this link."""
        for link in (self, *self._far):
            state = link.fetcher.states.get(key)
            if state is not None:
                return state.phase
        return None

    def interrupt(self) -> None:
        """Stop waiting for the response in flight: there is something new to fetch."""
        self._wakeup.set()
        if self._awaited is not None and not self._awaited.done():
            self._interrupted_s = asyncio.get_running_loop().time()
            self._lost()

    def _interrupt_for_more(self) -> None:
        """There are further partitions to fetch. The fetch after an interrupted one names all partitions: with many of
        them that costs more than to wait for the answer in flight, and must not happen each time that some are added,
        as while a broker with many leaders is fenced."""
        loop = asyncio.get_running_loop()
        cost_s = len(self.fetcher) * _REOPENING_S
        due_s = self._interrupted_s + cost_s
        if self._awaited is None or (loop.time() >= due_s and cost_s < self._shared.limits.max_wait_ms / 1000):
            self.interrupt()
        elif self._arrivals is None and cost_s < self._shared.limits.max_wait_ms / 1000:
            self._arrivals = loop.call_at(due_s, self.interrupt)

    def reschedule(self) -> None:
        """A partition outside the fetch in flight backs off: recompute the wake-up time, without interrupting."""
        self._wakeup.set()

    def on_leader_address_changed(self) -> None:
        self.interrupt()
        for far in self._far:
            far.interrupt()

    def close(self) -> None:
        """Stop fetching. Flushes and truncations in progress finish, without further effect."""
        for far in self._far:
            far.close()
        self._replicas.clear()
        self._task.cancel()
        self._answers.close()
        for timer in (self._watchdog, self._arrivals):
            if timer is not None:
                timer.cancel()
        # Truncations continue: their threads cannot be stopped, and the log is theirs until they finish.
        if self._connection is not None:
            self._connection.close()

    async def ended(self) -> None:
        for far in self._far:
            await far.ended()
        await asyncio.gather(self._task, *self.under_way, return_exceptions=True)

    # -- partitions that are far behind --------------------------------------------------------------------------------

    def sort(self, replica: Replica, state: FollowerState) -> None:
        """Choose the connection over which a partition is fetched from now on."""
        is_far = state.leader_high_watermark > state.log.log_end_offset
        near, key = self._near, (state.topic_id, state.index)
        if near is None and is_far:
            self._move(key, replica, state, self._far_link())
        elif near is not None and not is_far:
            self._move(key, replica, state, near)

    def _far_link(self) -> LeaderLink:
        """The far-behind link with the fewest partitions; a new one up to `FAR_LINKS`."""
        if len(self._far) < FAR_LINKS:
            self._far.append(LeaderLink(self._shared, self.leader_id, self))
            return self._far[-1]
        return min(self._far, key=lambda far: len(far.fetcher))

    def _move(self, key: tuple[bytes, int], replica: Replica, state: FollowerState, to: LeaderLink) -> None:
        del self._replicas[key]
        self.duties.forget(key)
        self.fetcher.leave(key)
        to._arrive(key, replica, state)

    def _arrive(self, key: tuple[bytes, int], replica: Replica, state: FollowerState) -> None:
        """Take over a partition from the other link, to be fetched with the next request, soon if it is in sync."""
        self._replicas[key] = replica
        self.fetcher.follow(state)
        if self._awaited is None:
            self._wakeup.set()
        elif self._near is None and self._arrivals is None:
            self._arrivals = asyncio.get_running_loop().call_later(_ARRIVAL_S, self.interrupt)
        self._end_far()

    def _leave_far(self, key: tuple[bytes, int]) -> None:
        for far in self._far:
            far.leave(key)
        self._end_far()

    def _end_far(self) -> None:
        """Close links that have no partitions left."""
        for far in [far for far in self._far if not len(far.fetcher)]:
            self._far.remove(far)
            far.close()

    # -- fetching ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._round()
                failures = 0
            except _TROUBLE as error:
                if not self._is_unanswered(error):
                    self._answers.answered()
                self._lost()
                failures += 1
                if self._was_closed_by_leader or isinstance(error, ConnectionRefusedError):
                    self._shared.absent.disconnected(self.leader_id)
                self._closed_recently = self._closed_recently or self._was_closed_by_leader
                self._was_closed_by_leader = False
                self._log_unreachable(error)
                await self._pause(min(20 << min(failures, 10), self._shared.limits.backoff_ms))
            except Exception:
                # Our bug; it must not stop this leader's partitions for ever.
                log.exception("replication failed", leader=self.leader_id)
                self._lost()
                await self._pause(self._shared.limits.backoff_ms)

    async def _round(self) -> None:
        """One fetch, and the duties that follow from its response. Raises one of _TROUBLE."""
        self._wakeup.clear()
        if self._arrivals is not None:
            self._arrivals.cancel()
            self._arrivals = None
        now_ms = self._clock.monotonic_ms()
        self._hold_back(now_ms)
        # The broker may have registered again, with a new epoch.
        self.fetcher.broker_epoch = self._host.broker_epoch
        if len(self.fetcher) and (self._connection is None or not self._connection.is_open):
            await self._connected()
            self._wakeup.clear()  # what has come meanwhile is in the questions or in the request
        first: list[Question] = [state.first_question() for state in self.fetcher.to_compare(now_ms)]
        if first:
            await self.truncation.ask_all(await self._connected(), first)
        request = self.fetcher.next_request(now_ms)
        if request is None:
            ready_ms = self.fetcher.next_ready_ms()
            await self._pause(None if ready_ms is None else max(1, ready_ms - now_ms))
            return
        connection = await self._connected()
        version = connection.version_for(ApiKey.FETCH, FIRST_FETCH_VERSION, LAST_FETCH_VERSION)
        if self._wakeup.is_set():
            self._lost()
            return
        try:
            self._answers.expect(request.max_wait_ms)
            body = await self._answer(connection.post(ApiKey.FETCH, version, encode_request(version, request)))
        except AnswerTooLarge as error:
            self._lost()
            culprit = largest_partition(version, error.begun)
            state = None if culprit is None else self.fetcher.states.get(culprit)
            if state is None:
                raise
            self.duties.answer_too_large(state, error)
            return
        if body is None:
            self._lost()
            return
        self._answers.answered()
        response = parse_response(version, body)
        self._closed_recently = False
        self._refusals = self._refusals + 1 if response.error_code else 0
        if self._refusals > 1:
            # After one error the session is reopened at once; after a second one, wait.
            raise PeerConnectionLost(f"the leader rejects fetches with error {int(response.error_code)}")
        self._is_unreachable = False
        questions: list[Question] = []
        for duty in self.fetcher.on_answer(response, self._clock.monotonic_ms()):
            self.duties.execute(duty, questions)
            if self._near is not None:
                # A duty appends up to a megabyte; in-sync partitions of other leaders must not wait for all of them.
                await asyncio.sleep(0)
        await self.truncation.ask_all(connection, questions)

    def _hold_back(self, now_ms: int) -> None:
        """Delay throttled partitions that are not in sync and over quota (Kafka's shouldFollowerThrottle)."""
        quota = self._shared.quota
        pause_ms = quota.pause_ms(now_ms) if quota.is_active else 0
        if pause_ms:
            for state in self.fetcher.states.values():
                if state.may_be_held_back and quota.covers(state.topic, state.index):
                    self.fetcher.hold_back(state, pause_ms, now_ms)

    async def _answer(self, answer: asyncio.Future[memoryview]) -> memoryview | None:
        """The response body. None: the fetch was interrupted because there is something new to fetch."""
        self._overdue_s = asyncio.get_running_loop().time() + self._shared.answer_timeout_s
        self._received_bytes = 0
        if self._watchdog is None:
            self._watch()
        self._awaited = answer
        try:
            return await answer
        except PeerConnectionLost:
            if self._wakeup.is_set():
                return None
            self._was_closed_by_leader = self._closed_by_leader(self._connection)
            raise
        finally:
            self._awaited = None

    def check_connection(self) -> None:
        """Report to `absent` that the leader has closed its connection, before the link's task notices."""
        if self._closed_by_leader(self._connection):
            self._shared.absent.disconnected(self.leader_id)
        for far in self._far:
            far.check_connection()

    def _closed_by_leader(self, connection: PeerConnection | None) -> bool:
        """Whether the leader closed it, rather than this node or a long idle time."""
        was_closed_by_peer = connection is not None and connection.was_closed_by_peer and not self._closed_recently
        return was_closed_by_peer and asyncio.get_running_loop().time() < self._overdue_s

    def _is_unanswered(self, error: Exception) -> bool:
        """Whether the error shows nothing about the leader's process: no answer in time, or its host is unreachable."""
        was_closed = self._connection is not None and self._connection.was_closed_by_peer
        return isinstance(error, PeerConnectionLost) and not was_closed

    def _bytes_of_answer(self) -> int:
        """Bytes received of a large response that is incomplete."""
        return self._connection.received_bytes if self._connection is not None else 0

    def _watch(self) -> None:
        """One timer for all responses, rearmed for the deadline of the response in flight. A response of which bytes
        still arrive is not overdue."""
        loop = asyncio.get_running_loop()
        self._watchdog = None
        awaited = self._awaited
        received = self._bytes_of_answer()
        if awaited is not None and received > self._received_bytes and loop.time() >= self._overdue_s:
            self._received_bytes = received
            self._overdue_s = loop.time() + self._shared.answer_timeout_s
        if loop.time() < self._overdue_s:
            self._watchdog = loop.call_at(self._overdue_s, self._watch)
        elif awaited is not None and self._connection is not None:
            self._connection.close(f"no answer within {self._shared.answer_timeout_s} s")

    async def _pause(self, pause_ms: int | None) -> None:
        """Wait until there is something new, or for `pause_ms`."""
        try:
            async with asyncio.timeout(None if pause_ms is None else pause_ms / 1000):
                await self._wakeup.wait()
        except TimeoutError:
            pass

    async def _connected(self) -> PeerConnection:
        connection = self._connection
        if connection is not None and connection.is_open:
            return connection
        endpoint = self._host.replication_endpoint(self.leader_id)
        if endpoint is None:
            raise PeerConnectionLost("the leader is not registered")
        self.fetcher.on_connection_lost()
        self._answers.expect(0)
        self._connection = connection = await open_peer(
            endpoint.host,
            endpoint.port,
            client_id=f"replica-{self._host.node_id}",
            connect=self._shared.connect,
            # Each response is processed before the next request, and truncation threads do not use its bytes.
            lends_answers=True,
            largest_answer=self._shared.largest_answer,
        )
        self._shared.absent.reconnected(self.leader_id)
        self._answers.answered()
        return connection

    def _lost(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self.fetcher.on_connection_lost()

    def _log_unreachable(self, error: Exception) -> None:
        if not self._is_unreachable:
            self._is_unreachable = True
            log.info(
                "leader unreachable",
                leader=self.leader_id,
                partitions=len(self.fetcher),
                reason=str(error),
                advice="The connection is retried until it succeeds or another broker becomes leader.",
            )


def _is_empty(replica: Replica) -> bool:
    """Whether its log is asked for as one without files is."""
    return replica.log.log_end_offset == 0 and replica.log.latest_epoch == UNUSED_LOG.latest_epoch
