"""The way to one leader: a connection and a task, and up to two more while some of its partitions are far behind.

Owns the connections and what is fetched over which: sends the fetches that `fenceline.replica` decides on, and hands on
what comes (`leader_duties`). Never touches a log. Decides nothing about the protocol.

A partition that is new at a leader does not wait for the fetch that is parked there: the connection is opened anew,
with everything in the first request.

Far behind is who lacks what is committed already. It is not in sync, and no producer waits for it, but producers would
wait for the megabytes that it fetches together with what is in sync. So it moves to a link for those far behind with
the answer that shows it, and back with the one that brings everything that is committed. There are two of these, so
that the leader sends over one while what came over the other is written.

An answer that is larger than this node takes is one partition's trouble: that partition backs off for long, with a
warning that names the setting, and the others are fetched at once over a new connection.

Rules: `epochs.md E23-E29`; `gaps.md G3`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, Protocol

from fenceline.node.leader_duties import Duties
from fenceline.node.logs import Logger
from fenceline.node.peer_connection import AnswerTooLarge, ConnectionLost, NoSuchVersion, PeerConnection, open_peer
from fenceline.replica.fetcher import Fetcher
from fenceline.replica.follower import BeginAnew, CutTo, FollowerState, Phase, Question
from fenceline.wire.apis import ApiKey
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.fetch import encode_request, largest_of_begun, parse_response

if TYPE_CHECKING:
    from fenceline.errors import PeerError
    from fenceline.log.errors import StorageError
    from fenceline.metadata.image import Endpoint
    from fenceline.node.replica import Replica
    from fenceline.node.replica_fetchers import ReplicaFetchers

log = Logger("replication")

FIRST_FETCH_VERSION: Final = 13
LAST_FETCH_VERSION: Final = 17
FAR_LINKS: Final = 2
"""For what is far behind."""
_ARRIVAL_S: Final = 0.02
"""How long a partition that has caught up waits for the round that is out."""
_TROUBLE = (ConnectionError, MalformedRequest, NoSuchVersion)


class Host(Protocol):
    """What fetchers need of their broker."""

    @property
    def node_id(self) -> int: ...
    @property
    def broker_epoch(self) -> int: ...
    def replication_endpoint(self, node_id: int) -> Endpoint | None:
        """Where other brokers reach a broker; None while it is not registered."""

    def storage_failed(self, replica: Replica, error: StorageError) -> None: ...
    def cut_log(self, replica: Replica, duty: CutTo | BeginAnew, leader_id: int) -> None:
        """In a thread: cut it, with a receipt of what is lost by that. Raises StorageError."""

    def flushed(self, replica: Replica, end_offset: int) -> Awaitable[PeerError | None]:
        """When a followed log is durable up to there; why it never will be."""

    async def checkpoint(self) -> None:
        """Write down how far logs are safe on the disk. Raises StorageError."""

    def cut_ended(self, replica: Replica) -> None:
        """On the loop: the log is nobody else's again."""


class LeaderLink:
    """One leader. `near`: None, or the link whose partitions come here while they are far behind."""

    def __init__(self, fetchers: ReplicaFetchers, leader_id: int, near: LeaderLink | None = None) -> None:
        self._near = near
        self._far: list[LeaderLink] = []
        self._fetchers = fetchers
        self._host = fetchers.host
        self._clock = fetchers.clock
        self._leader_id = leader_id
        self.fetcher = Fetcher(
            replica_id=self._host.node_id, broker_epoch=self._host.broker_epoch, limits=fetchers.limits
        )
        self._replicas: dict[tuple[bytes, int], Replica] = {}
        self._connection: PeerConnection | None = None
        self._news = asyncio.Event()
        self._awaited: asyncio.Future[memoryview] | None = None
        self._overdue_s = 0.0
        """When the answer that is out has taken too long, by the loop's clock."""
        self._received_bytes = 0
        """Of the large answer that is out, when the watchdog looked last."""
        self._watchdog: asyncio.TimerHandle | None = None
        self._arrivals: asyncio.TimerHandle | None = None
        """When what came from far behind has waited for long enough."""
        under_way: set[asyncio.Task[None]] = set() if near is None else near.duties.under_way
        self.duties: Duties = Duties(self, fetchers, leader_id, under_way)
        self._is_unreachable = False
        self._was_left = False
        """It closed the connection while its answer was awaited."""
        self._left_lately = False
        """It ended a connection, and has answered no fetch since. Where it ends the next one, too, it is there all the
        same, since it took that."""
        self._refusals = 0
        """Answers in a row that were an error as a whole."""
        self._task = asyncio.ensure_future(self._run())

    @property
    def is_for_far_behind(self) -> bool:
        return self._near is not None

    def replica_of(self, state: FollowerState) -> Replica | None:
        key = (state.topic_id, state.index)
        return self._replicas.get(key) if self.fetcher.states.get(key) is state else None

    def follow(self, replica: Replica, leader_epoch: int) -> None:
        key = (replica.topic_id_bytes, replica.topic_partition.partition)
        self._leave_far(key)
        self._replicas[key] = replica
        state = FollowerState(
            replica.topic_partition.topic, key[0], key[1], leader_epoch, replica.log, may_lead=replica.may_lead
        )
        self.fetcher.follow(state)
        rest = state.on_follow(replica.clean_since)
        if rest is not None:
            self.duties.do(rest, [])
        else:
            self.duties.flush_first(replica, state)
        self.interrupt()

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

    def phases(self) -> list[Phase]:
        here = [state.phase for state in list(self.fetcher.states.values())]
        return here + [phase for far in self._far for phase in far.phases()]

    def phase_of(self, key: tuple[bytes, int]) -> Phase | None:
        """Of the partition with this topic id and index; None where it is not followed here."""
        for link in (self, *self._far):
            state = link.fetcher.states.get(key)
            if state is not None:
                return state.phase
        return None

    def interrupt(self) -> None:
        """Do not wait for the answer that is out: there is something new to ask for."""
        self._news.set()
        if self._awaited is not None and not self._awaited.done():
            self._lost()

    def look_again(self) -> None:
        """Somebody backs off who was not asked for: know until when. The answer that is out is awaited."""
        self._news.set()

    def leader_moved(self) -> None:
        self.interrupt()
        for far in self._far:
            far.interrupt()

    def close(self) -> None:
        """Fetch nothing any more. Flushes and cuts that are under way end, and nothing follows from them."""
        for far in self._far:
            far.close()
        self._replicas.clear()
        self._task.cancel()
        for timer in (self._watchdog, self._arrivals):
            if timer is not None:
                timer.cancel()
        # Cuts go on: their threads could not be stopped, and until they end the log is theirs.
        if self._connection is not None:
            self._connection.close()

    async def ended(self) -> None:
        for far in self._far:
            await far.ended()
        await asyncio.gather(self._task, *self.duties.under_way, return_exceptions=True)

    # -- far behind ----------------------------------------------------------------------------------------------------

    def sort(self, replica: Replica, state: FollowerState) -> None:
        """Over which connection a partition is fetched from now on."""
        is_far = state.leader_high_watermark > state.log.log_end_offset
        near, key = self._near, (state.topic_id, state.index)
        if near is None and is_far:
            self._move(key, replica, state, self._far_link())
        elif near is not None and not is_far:
            self._move(key, replica, state, near)

    def _far_link(self) -> LeaderLink:
        """The one with the fewest partitions: while what came over one is written, the leader sends over the other."""
        if len(self._far) < FAR_LINKS:
            self._far.append(LeaderLink(self._fetchers, self._leader_id, self))
            return self._far[-1]
        return min(self._far, key=lambda far: len(far.fetcher))

    def _move(self, key: tuple[bytes, int], replica: Replica, state: FollowerState, to: LeaderLink) -> None:
        del self._replicas[key]
        self.duties.forget(key)
        self.fetcher.leave(key)
        to._arrive(key, replica, state)

    def _arrive(self, key: tuple[bytes, int], replica: Replica, state: FollowerState) -> None:
        """From the other link: asked for with the next round. What is in sync by then is waited for: it comes soon."""
        self._replicas[key] = replica
        self.fetcher.follow(state)
        if self._awaited is None:
            self._news.set()
        elif self._near is None and self._arrivals is None:
            self._arrivals = asyncio.get_running_loop().call_later(_ARRIVAL_S, self.interrupt)
        self._end_far()

    def _leave_far(self, key: tuple[bytes, int]) -> None:
        for far in self._far:
            far.leave(key)
        self._end_far()

    def _end_far(self) -> None:
        """Of links over which nobody is fetched any more."""
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
                self._lost()
                failures += 1
                if self._was_left or isinstance(error, ConnectionRefusedError):
                    self._fetchers.absent.disconnected(self._leader_id)
                self._left_lately = self._left_lately or self._was_left
                self._was_left = False
                self._tell_unreachable(error)
                await self._pause(min(20 << min(failures, 10), self._fetchers.limits.backoff_ms))
            except Exception:
                # Our bug; the partitions of this leader must not stand still for ever because of it.
                log.exception("replication failed", leader=self._leader_id)
                self._lost()
                await self._pause(self._fetchers.limits.backoff_ms)

    async def _round(self) -> None:
        """One fetch, and what follows from its answer. Raises one of _TROUBLE."""
        self._news.clear()
        if self._arrivals is not None:
            self._arrivals.cancel()
            self._arrivals = None
        now_ms = self._clock.monotonic_ms()
        self._hold_back(now_ms)
        # A controller that had forgotten this broker has given it another.
        self.fetcher.broker_epoch = self._host.broker_epoch
        if self.fetcher.compares_first(now_ms):
            connection = await self._connected()
            first: list[Question] = [state.first_question() for state in self.fetcher.compares_first(now_ms)]
            await self.duties.ask_all(connection, first)
        request = self.fetcher.next_request(now_ms)
        if request is None:
            ready_ms = self.fetcher.next_ready_ms()
            await self._pause(None if ready_ms is None else max(1, ready_ms - now_ms))
            return
        connection = await self._connected()
        version = connection.version_for(ApiKey.FETCH, FIRST_FETCH_VERSION, LAST_FETCH_VERSION)
        if self._news.is_set():
            self._lost()
            return
        try:
            body = await self._answer(connection.post(ApiKey.FETCH, version, encode_request(version, request)))
        except AnswerTooLarge as error:
            self._lost()
            culprit = largest_of_begun(version, error.begun)
            state = None if culprit is None else self.fetcher.states.get(culprit)
            if state is None:
                raise
            self.duties.answer_too_large(state, error)
            return
        if body is None:
            self._lost()
            return
        response = parse_response(version, body)
        self._left_lately = False
        self._refusals = self._refusals + 1 if response.error_code else 0
        if self._refusals > 1:
            # A session that was forgotten is opened anew at once; what is refused again waits.
            raise ConnectionLost(f"it refuses fetches with error {int(response.error_code)}")
        self._is_unreachable = False
        questions: list[Question] = []
        for duty in self.fetcher.on_answer(response, self._clock.monotonic_ms()):
            self.duties.do(duty, questions)
            if self._near is not None:
                # Of a megabyte each, and what is in sync with other leaders shall not wait for all of them.
                await asyncio.sleep(0)
        await self.duties.ask_all(connection, questions)

    def _hold_back(self, now_ms: int) -> None:
        """More has come than may: throttled partitions that are not in sync wait (Kafka's shouldFollowerThrottle)."""
        quota = self._fetchers.quota
        pause_ms = quota.pause_ms(now_ms) if quota.is_active else 0
        if pause_ms:
            for state in self.fetcher.states.values():
                if state.may_be_held_back and quota.covers(state.topic, state.index):
                    self.fetcher.hold_back(state, pause_ms, now_ms)

    async def _answer(self, answer: asyncio.Future[memoryview]) -> memoryview | None:
        """None: something new is to be asked for, and the answer is not awaited any more."""
        self._overdue_s = asyncio.get_running_loop().time() + self._fetchers.answer_timeout_s
        self._received_bytes = 0
        if self._watchdog is None:
            self._watch()
        self._awaited = answer
        try:
            return await answer
        except ConnectionLost:
            if self._news.is_set():
                return None
            self._was_left = self._closed_by_leader(self._connection)
            raise
        finally:
            self._awaited = None

    def look(self) -> None:
        """Tell that the leader has left where that is to be seen and not heard yet."""
        if self._closed_by_leader(self._connection):
            self._fetchers.absent.disconnected(self._leader_id)
        for far in self._far:
            far.look()

    def _closed_by_leader(self, connection: PeerConnection | None) -> bool:
        """And neither by this node, nor after it was idle for long."""
        was_left = connection is not None and connection.was_left and not self._left_lately
        return was_left and asyncio.get_running_loop().time() < self._overdue_s

    def _watch(self) -> None:
        """One timer for all answers, which looks again when the one that is out would be overdue. An answer that still
        comes in is not."""
        loop = asyncio.get_running_loop()
        self._watchdog = None
        awaited = self._awaited
        received = self._connection.received_bytes if self._connection is not None else 0
        if awaited is not None and received > self._received_bytes and loop.time() >= self._overdue_s:
            self._received_bytes = received
            self._overdue_s = loop.time() + self._fetchers.answer_timeout_s
        if loop.time() < self._overdue_s:
            self._watchdog = loop.call_at(self._overdue_s, self._watch)
        elif awaited is not None and self._connection is not None:
            self._connection.close(f"no answer within {self._fetchers.answer_timeout_s} s")

    async def _pause(self, pause_ms: int | None) -> None:
        """Until something is new, or for so long."""
        try:
            async with asyncio.timeout(None if pause_ms is None else pause_ms / 1000):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _connected(self) -> PeerConnection:
        connection = self._connection
        if connection is not None and connection.is_open:
            return connection
        endpoint = self._host.replication_endpoint(self._leader_id)
        if endpoint is None:
            raise ConnectionLost("it is not registered")
        self.fetcher.on_connection_lost()
        self._connection = connection = await open_peer(
            endpoint.host,
            endpoint.port,
            client_id=f"replica-{self._host.node_id}",
            connect=self._fetchers.connect,
            # Every duty of an answer is done before the next request, and cuts in threads need none of its bytes.
            lends_answers=True,
            largest_answer=self._fetchers.largest_answer,
        )
        self._fetchers.absent.reconnected(self._leader_id)
        return connection

    def _lost(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self.fetcher.on_connection_lost()

    def _tell_unreachable(self, error: Exception) -> None:
        if not self._is_unreachable:
            self._is_unreachable = True
            log.info(
                "leader not reached",
                leader=self._leader_id,
                partitions=len(self.fetcher),
                reason=str(error),
                advice="It is tried again until it answers or another broker leads.",
            )
