"""Drives one node of the quorum: executes its duties on disk, clock and network.

Owns the order of duties (`fenceline.quorum.duties`): all of one call before the next call, in order. Disk work runs in
threads of `quorum.log_work`: if the following duties must not take effect earlier (after persisting an election, a
truncation, or a snapshot that replaces the log), they and all other calls wait while the event loop continues. Until
then nothing of them is visible to other nodes. Decides nothing: the quorum's output is passed on as `QuorumEvents`.

Everything outside this process is passed to the constructor: the log with its disk, the clock, the executor, and `Dial`
for connections; a simulation passes its own and runs this driver unchanged.

After a disk failure the disk's content is uncertain, and a log that lacks committed records cannot be repaired here:
then `driver_failed` is called, and the node stops.

Rules: raft.md Q2, Q10, Q23, Q29, Q35; snapshots.md N24-N36.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from fenceline.errors import ErrorCode, InternalError, PeerError
from fenceline.log.core.disk import Disk
from fenceline.log.core.errors import StorageError
from fenceline.metadata.image import MetadataImage
from fenceline.node.clock import Clock
from fenceline.node.metadata.metadata_log import METADATA_PARTITION, MetadataLog
from fenceline.node.metadata.replay import Replayed
from fenceline.node.quorum.log import QuorumLog
from fenceline.node.quorum.log_work import QuorumLogWork
from fenceline.node.quorum.serving import QuorumServing
from fenceline.node.rate_limited_logger import RateLimitedLogger
from fenceline.node.storage.storage_trouble import StorageTrouble
from fenceline.quorum.duties import (
    AdvanceHighWatermark,
    AppendControlBatch,
    AppendFetched,
    BeginDownload,
    DropDownload,
    Duty,
    Lead,
    LoadSnapshot,
    LogLine,
    PersistElection,
    QuorumAnswer,
    Send,
    ServePiece,
    ServeRecords,
    StopLeading,
    Truncate,
    VerifyAndFreeze,
    WritePiece,
)
from fenceline.quorum.election_state import FILE_NAME, ElectionState
from fenceline.quorum.log_view import SnapshotId
from fenceline.quorum.messages import RequestMessage, ResponseMessage
from fenceline.quorum.quorum import Quorum

if TYPE_CHECKING:
    from fenceline.node.quorum.peers import QuorumPeers
    from fenceline.node.quorum.snapshot_downloads import SnapshotDownloads

    ConnectPeers = Callable[[Callable[[int, ResponseMessage], None], Callable[[int, bool], None]], QuorumPeers]

T = TypeVar("T")


_ROOM_PAUSE_S: Final = 0.2
"""Interval between attempts to persist an election on a full disk."""


class QuorumEvents(Protocol):
    """Events of the quorum for the node. All are called on the loop while duties are executed; none may block."""

    def committed(self, offset: int) -> None:
        """Everything below `offset` is committed."""
        ...

    def loaded(self, snapshot_id: SnapshotId, image: MetadataImage) -> None:
        """The log restarts at the end of a snapshot that contains `image`."""
        ...

    def became_leader(self, epoch: int, start_offset: int) -> None:
        """This node leads; the controller may become active once everything before `start_offset` is applied."""
        ...

    def lost_leadership(self, epoch: int) -> None:
        """This node no longer leads; uncommitted records may be lost. Also called if `became_leader` was not."""
        ...

    def driver_failed(self, error: BaseException) -> None:
        """The node cannot continue."""
        ...


class QuorumDriver:
    """See the module. All methods belong to the loop."""

    def __init__(
        self,
        *,
        disk: Disk,
        log: MetadataLog,
        view: QuorumLog,
        quorum: Quorum,
        clock: Clock,
        executor: Executor | None,
        events: QuorumEvents,
        trouble: StorageTrouble,
        peers: ConnectPeers | None = None,
    ) -> None:
        """`peers` connects the quorum to the other nodes; it is given the callbacks for responses and for failed
        requests."""
        self._disk = disk
        self._log = log
        self._quorum = quorum
        self._clock = clock
        self._executor = executor
        self._events = events
        self._trouble = trouble
        self._peers = None if peers is None else peers(self._answered, self._unanswered)
        self._downloads: SnapshotDownloads | None = None
        self._calls: deque[Callable[[Quorum, int], list[Duty]]] = deque()
        self._duties: deque[Duty] = deque()
        """Duties of the last call that are not executed yet."""
        self._is_calling = False
        self._waits_for: asyncio.Future[Any] | None = None
        """A duty waits for the disk; the duties after it, and all calls, wait."""
        self.load_began_s = 0.0
        """Time, by the loop's clock, at which reading the snapshot file that is or was last loaded began."""
        self._is_persisting = False
        self._lacks_room = False
        self._has_ended = False
        self._closed: asyncio.Future[None] | None = None
        """While `stop` waits for the quorum to close."""
        self._tick: asyncio.Handle | None = None
        self._tick_at_s = 0.0
        """By the loop's clock. uvloop's `when` is wrong for a time that has passed meanwhile."""
        self._serving = QuorumServing(disk, log, executor, self._end)
        self._work = QuorumLogWork(
            disk=disk,
            log=log,
            view=view,
            clock=clock,
            executor=executor,
            trouble=trouble,
            call=self.call,
            failed=self._end,
        )
        self._log_lines = RateLimitedLogger(clock)

    @property
    def quorum(self) -> Quorum:
        """For read access; its state changes only here."""
        return self._quorum

    @property
    def peers(self) -> QuorumPeers | None:
        """None if there are no other nodes."""
        return self._peers

    # -- lifecycle -----------------------------------------------------------------------------------------------------

    def start(self, recorded: ElectionState | None) -> None:
        """Boot the quorum (Q10); a single voter leads on return. Until `started`, appends are flushed synchronously.
        Raises StorageError, OSError."""
        self._work.is_starting = True
        self.call(lambda quorum, now: quorum.start(now, recorded))

    def started(self) -> None:
        """From now on nothing blocks on the disk."""
        self._work.is_starting = False

    @property
    def is_starting(self) -> bool:
        """Whether appends are flushed synchronously."""
        return self._work.is_starting

    @property
    def is_waiting(self) -> bool:
        """Whether a disk operation must complete before the quorum's state is visible."""
        return self._waits_for is not None

    @property
    def is_persisting(self) -> bool:
        """Whether that operation persists an election: the new epoch and role are not visible to any peer yet."""
        return self._is_persisting

    def end(self) -> None:
        """Stop the quorum because the node cannot continue."""
        self._has_ended = True
        self._work.has_ended = True
        self._check_closed()
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None

    async def stop(self, *, timeout_ms: int) -> None:
        """Resign if this node leads (Q23), then stop. Flushed data stays flushed."""
        if not self._has_ended:
            self.call(lambda quorum, now: quorum.shutdown(now, timeout_ms))
            self._closed = asyncio.get_running_loop().create_future()
            self._check_closed()
            await self._closed
        self.end()
        self._serving.close(_stops())
        if self._peers is not None:
            await self._peers.close()
        if self._downloads is not None:
            await self._downloads.finish()
        await self._work.finish()
        if self._waits_for is not None:
            await asyncio.wait([self._waits_for])

    # -- for the node --------------------------------------------------------------------------------------------------

    def ask(self, message: RequestMessage) -> asyncio.Future[ResponseMessage]:
        """The quorum's response to a request. Fails with PeerError(6) when the node stops (Q14)."""
        if self._has_ended:
            stopped: asyncio.Future[ResponseMessage] = asyncio.get_running_loop().create_future()
            stopped.set_exception(_stops())
            return stopped
        token, answer = self._serving.expect()
        self.call(lambda quorum, now: quorum.request(now, token, message))
        return answer

    def append(self, batches: bytearray, epoch: int) -> int:
        """Append decisions of this leader's controller, and start to flush them; returns the first offset."""
        self._quorum.check_leads(epoch)
        assert not self.is_waiting, "a leader waits for the disk only before its leadership is visible"
        base_offset = self._log.append(batches, epoch, self._clock.now_ms())
        self._work.flush()
        self.call(lambda quorum, now: quorum.appended(now))
        return base_offset

    def finalize_kraft_version(self, version: int) -> None:
        """UpdateFeatures of kraft.version (K15). Raises PeerError."""
        if self.is_waiting:
            raise PeerError(ErrorCode.NOT_CONTROLLER, "This node is no longer the active controller.")
        refused: list[PeerError] = []

        def finalize(quorum: Quorum, now_ms: int) -> list[Duty]:
            try:
                return quorum.finalize_kraft_version(now_ms, version)
            except PeerError as error:
                refused.append(error)
                return quorum.tick(now_ms)

        self.call(finalize)
        if refused:
            raise refused[0]

    def resign(self) -> None:
        """Resign because the controller cannot continue; other voters may."""
        self.call(lambda quorum, now: quorum.resign(now))

    def call(self, do: Callable[[Quorum, int], list[Duty]]) -> None:
        """Make one call of the quorum and execute its duties, then the calls that report them; deferred while the disk
        is busy."""
        if self._has_ended:
            return
        self._calls.append(do)
        self._continue()

    def _answered(self, request_id: int, message: ResponseMessage) -> None:
        self.call(lambda quorum, now: quorum.response(now, request_id, message))

    def _unanswered(self, request_id: int, is_refused: bool) -> None:
        self.call(lambda quorum, now: quorum.no_response(now, request_id, is_refused))

    def _continue(self) -> None:
        if self._is_calling or self._waits_for is not None:
            return
        self._is_calling = True
        try:
            while self._waits_for is None and not self._has_ended and (self._duties or self._calls):
                if self._duties:
                    self._perform(self._duties.popleft())
                else:
                    self._duties.extend(self._calls.popleft()(self._quorum, self._clock.monotonic_ms()))
        except Exception as error:
            self._calls.clear()
            self._duties.clear()
            if self.is_starting:
                raise
            self._end(error)
        finally:
            self._is_calling = False
        self._check_closed()
        if self._waits_for is None:
            self._arm()

    def _check_closed(self) -> None:
        """Let `stop` continue if the quorum has closed, or cannot: the node fails, or has no space to persist."""
        waiting = self._closed
        is_over = self._has_ended or self._lacks_room or self._quorum.has_closed
        if waiting is not None and is_over and not waiting.done():
            waiting.set_result(None)

    def _wait_for(self, work: Awaitable[T], then: Callable[[T], None]) -> None:
        """Defer everything else until `work` has ended; then call `then`."""

        def ended(done: asyncio.Future[T]) -> None:
            self._waits_for = None
            if done.cancelled():
                return
            try:
                result = done.result()
                if self._has_ended:
                    return
                then(result)
            except Exception as error:
                self._end(error)
                return
            self._continue()

        self._waits_for = asyncio.ensure_future(work)
        self._waits_for.add_done_callback(ended)

    # -- duties --------------------------------------------------------------------------------------------------------

    def _perform(self, duty: Duty) -> None:
        match duty:
            case PersistElection():
                self._persist(duty.state)
            case AppendControlBatch(epoch, records):
                self._work.append_control(epoch, records)
            case AppendFetched():
                self._work.append_fetched(duty)
            case Truncate(end_offset):
                self._wait_for(
                    self._work.alone(partial(self._work.truncate, end_offset)), lambda _: self._truncated(end_offset)
                )
            case Send():
                if self._peers is None:
                    raise InternalError(f"a single voter has no peer for {duty}")
                self._peers.send(duty)
            case QuorumAnswer(token, message):
                self._serving.answer(token, message)
            case ServeRecords():
                self._serving.records(duty)
            case ServePiece():
                self._serving.piece(duty)
            case AdvanceHighWatermark(offset):
                self._log.advance_high_watermark(offset)
                self._events.committed(offset)
            case Lead(epoch, start_offset):
                self._events.became_leader(epoch, start_offset)
            case StopLeading(epoch):
                self._events.lost_leadership(epoch)
            case BeginDownload() | WritePiece() | VerifyAndFreeze() | DropDownload():
                self._download().perform(duty)
            case LoadSnapshot(snapshot_id):
                known = self._download().verified_content(snapshot_id)
                now_s = asyncio.get_running_loop().time()
                self.load_began_s = now_s if known is None else self._download().whole_at_s
                load = self._work.alone(partial(self._work.load, snapshot_id, known))
                self._wait_for(load, partial(self._loaded, snapshot_id))
            case LogLine():
                self._log_lines.log(duty)

    def _persist(self, state: ElectionState) -> None:
        """Durable before what follows (Q2)."""
        if self._duties and isinstance(self._duties[0], PersistElection):
            return  # this state was never visible to a peer
        voters = tuple(voter.voter_id for voter in self._quorum.voters)
        write = partial(self._log.write_election, state, self._quorum.kraft_version, voters)
        if self.is_starting:
            write()
            return
        self._is_persisting = True
        self._wait_for(self._written(write), self._persisted)

    async def _written(self, write: Callable[[], None]) -> None:
        """In a thread, retried until the disk has space: until then this node is silent, and the others decide."""
        while True:
            try:
                await asyncio.get_running_loop().run_in_executor(self._executor, write)
            except OSError as error:
                full = StorageError.of(f"writing {FILE_NAME}", error)
                if self._has_ended or not full.disk_full:
                    raise
                self._trouble.rejected(METADATA_PARTITION, self._log.end_offset, full)
                self._lacks_room = True
                self._check_closed()
                await asyncio.sleep(_ROOM_PAUSE_S)
            else:
                return

    def _persisted(self, _: None) -> None:
        self._is_persisting = False
        self._lacks_room = False

    def _truncated(self, end_offset: int) -> None:
        self._work.truncated(end_offset)
        self._events.committed(self._quorum.high_watermark or 0)  # readers of the log have waited

    def _loaded(self, snapshot_id: SnapshotId, loaded: Replayed | str) -> None:
        if isinstance(loaded, str):
            self._work.load_failed(snapshot_id, loaded)
            self._events.committed(self._quorum.high_watermark or 0)
            return
        self._work.loaded(snapshot_id, loaded)
        self._events.loaded(snapshot_id, loaded.image)
        self.call(lambda quorum, now: quorum.snapshot_loaded(now))

    def _download(self) -> SnapshotDownloads:
        if self._downloads is None:
            from fenceline.node.quorum.snapshot_downloads import SnapshotDownloads

            self._downloads = SnapshotDownloads(self._disk, self._log, self._executor, self.call)
        return self._downloads

    def _arm(self) -> None:
        """A timer that fires early is kept: most deadlines move before they are reached, and it is then set again."""
        deadline_ms = self._quorum.next_deadline_ms
        if deadline_ms is None or self._has_ended:
            return
        loop, tick = asyncio.get_running_loop(), self._tick
        at_s = loop.time() + max(deadline_ms - self._clock.monotonic_ms(), 0) / 1000 + 0.001
        if tick is not None:
            if self._tick_at_s <= at_s:
                return
            tick.cancel()
        self._tick_at_s = at_s
        self._tick = loop.call_at(at_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._tick = None
        deadline_ms = self._quorum.next_deadline_ms
        if deadline_ms is not None and deadline_ms > self._clock.monotonic_ms():
            self._arm()
        else:
            self.call(lambda quorum, now: quorum.tick(now))

    def _end(self, error: BaseException) -> None:
        """Stop all work and output: the disk's content is uncertain, or this node contradicts the others."""
        if self._has_ended:
            return
        self.end()
        self._events.driver_failed(error)


def _stops() -> PeerError:
    return PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node is stopping.")
