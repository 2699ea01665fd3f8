"""One node of the quorum at work: its duties done on the disk, the clock and the network.

Owns the order of duties (`fenceline.quorum.duties`): all of one call before the next call, in their order. Flushes and
work on snapshot files run in a thread. Decides nothing: what the quorum says is handed on as `QuorumEvents`.

Everything that is not this process comes in by constructor: the log with its disk, the clock, the executor, and `Dial`
for connections; a simulation gives its own and runs this driver as it is.

A failed flush leaves the disk in an unknown state, and a log that lacks what was committed can not be mended here:
then `failed` is told, and the node ends. A disk that is full when a flush is to begin is tried again.

Rules: raft.md Q2, Q10, Q28, Q29, Q36; snapshots.md N24-N36; since_4_0.md K14; gaps.md G24, G35.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Final, Protocol

from fenceline.errors import ErrorCode, InternalError, PeerError
from fenceline.log.disk import Disk
from fenceline.log.errors import StorageError
from fenceline.metadata.image import MetadataImage
from fenceline.node.clock import Clock
from fenceline.node.fetched_batches import whole_batches
from fenceline.node.logs import Logger
from fenceline.node.metadata_batches import control_batch
from fenceline.node.metadata_log import METADATA_PARTITION, MetadataLog
from fenceline.node.quorum_log import QuorumLog
from fenceline.node.quorum_serving import QuorumServing
from fenceline.node.storage_trouble import StorageTrouble
from fenceline.quorum.control_records import ControlRecord
from fenceline.quorum.duties import (
    AdvanceHighWatermark,
    Answer,
    AppendControlBatch,
    AppendFetched,
    BeginDownload,
    DropDownload,
    Duty,
    Lead,
    Level,
    LoadSnapshot,
    Log,
    PersistElection,
    Send,
    ServePiece,
    ServeRecords,
    StopLeading,
    Truncate,
    VerifyAndFreeze,
    WritePiece,
)
from fenceline.quorum.election_state import ElectionState
from fenceline.quorum.log_view import SnapshotId
from fenceline.quorum.messages import RequestMessage, ResponseMessage
from fenceline.quorum.quorum import Quorum

if TYPE_CHECKING:
    from fenceline.node.quorum_peers import QuorumPeers
    from fenceline.node.snapshot_downloads import SnapshotDownloads

log = Logger("quorum")

_RETRY_S: Final = 0.1
"""Between two attempts to begin a flush."""
_REPEAT_MS: Final = 10_000
"""Between two lines that say the same."""
_CLOSE_CHECK_S: Final = 0.01


class QuorumEvents(Protocol):
    """What the node hears of its quorum. All are called on the loop, in the midst of duties; none may block."""

    def committed(self, offset: int) -> None:
        """Everything below `offset` is committed."""
        ...

    def loaded(self, snapshot_id: SnapshotId, image: MetadataImage) -> None:
        """The log begins anew at the end of a snapshot that holds `image`."""
        ...

    def leads(self, epoch: int, start_offset: int) -> None:
        """This node leads; it may act once it has applied everything before `start_offset`."""
        ...

    def leads_no_more(self, epoch: int) -> None:
        """What was appended and not committed may get lost. Comes also where `leads` never came."""
        ...

    def gave_up(self, error: BaseException) -> None:
        """The node can not go on."""
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
        executor: Callable[[], Executor | None],
        events: QuorumEvents,
        trouble: StorageTrouble,
    ) -> None:
        self._disk = disk
        self._log = log
        self._view = view
        self._quorum = quorum
        self._clock = clock
        self._executor = executor
        self._events = events
        self._trouble = trouble
        self._peers: QuorumPeers | None = None
        self._downloads: SnapshotDownloads | None = None
        self._calls: list[Callable[[Quorum, int], list[Duty]]] = []
        self._is_calling = False
        self._is_starting = False
        """Until the node runs there is nobody to wait for: what is appended is flushed here and now."""
        self._has_ended = False
        self._tick: asyncio.TimerHandle | None = None
        self._serving = QuorumServing(disk, log, executor, self._end)
        self._generation = 0
        """Changes when the log is cut: a flush that began before says nothing of what was written after."""
        self._flush_is_running = False
        self._said: dict[str, int] = {}
        """What the quorum said lately, and when."""
        self._is_behind = False
        """A full disk has put off the indexes of the log; the operator knows."""

    @property
    def quorum(self) -> Quorum:
        """To look at; its state changes only here."""
        return self._quorum

    @property
    def peers(self) -> QuorumPeers | None:
        """None before `connect`."""
        return self._peers

    # -- life ----------------------------------------------------------------------------------------------------------

    def connect(
        self, make: Callable[[Callable[[int, ResponseMessage], None], Callable[[int, bool], None]], QuorumPeers]
    ) -> None:
        """Let the quorum talk to others, before `start`. `make` gets who hears answers, and who hears of none."""
        self._peers = make(
            lambda request_id, message: self.call(lambda quorum, now: quorum.response(now, request_id, message)),
            lambda request_id, refused: self.call(lambda quorum, now: quorum.no_response(now, request_id, refused)),
        )

    def start(self, recorded: ElectionState | None) -> None:
        """Boot the quorum (Q10); the only voter leads when this returns. Until `started`, what is appended is flushed
        at once (blocks). Raises StorageError, OSError."""
        self._is_starting = True
        self.call(lambda quorum, now: quorum.start(now, recorded))

    def started(self) -> None:
        """From here on nothing waits for the disk."""
        self._is_starting = False

    @property
    def is_starting(self) -> bool:
        """Whether what is appended is flushed before anything else happens."""
        return self._is_starting

    def end(self) -> None:
        """The node can not go on, and its quorum neither."""
        self._has_ended = True
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None

    async def stop(self, *, timeout_ms: int) -> None:
        """Hand over where this node leads (Q23), then fall silent. What is flushed stays flushed."""
        if not self._has_ended:
            self.call(lambda quorum, now: quorum.shutdown(now, timeout_ms))
            while not self._quorum.has_closed and not self._has_ended:
                await asyncio.sleep(_CLOSE_CHECK_S)
                self.call(lambda quorum, now: quorum.tick(now))
        self._has_ended = True
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        self._serving.close(_stops())
        if self._peers is not None:
            await self._peers.close()
        if self._downloads is not None:
            await self._downloads.finish()
        while self._flush_is_running:  # noqa: ASYNC110
            await asyncio.sleep(_CLOSE_CHECK_S)

    # -- for the node --------------------------------------------------------------------------------------------------

    def ask(self, message: RequestMessage) -> asyncio.Future[ResponseMessage]:
        """The quorum's answer to somebody's request. Fails with PeerError(6) when the node stops (Q14)."""
        if self._has_ended:
            stopped: asyncio.Future[ResponseMessage] = asyncio.get_running_loop().create_future()
            stopped.set_exception(_stops())
            return stopped
        token, answer = self._serving.expect()
        self.call(lambda quorum, now: quorum.request(now, token, message))
        return answer

    def append(self, batches: bytearray, epoch: int) -> int:
        """Append what the controller of this leader has decided, and begin to make it durable; its first offset.

        Raises PeerError(6) when this node does not lead `epoch` (Q35), StorageError with the log unchanged.
        """
        self._quorum.check_leads(epoch)
        base_offset = self._log.append(batches, epoch, self._clock.now_ms())
        self.flush()
        self.call(lambda quorum, now: quorum.appended(now))
        return base_offset

    def finalize_kraft_version(self, version: int) -> None:
        """UpdateFeatures of kraft.version (K15). Raises PeerError."""
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
        """The controller can not go on leading: others may."""
        self.call(lambda quorum, now: quorum.resign(now))

    def call(self, do: Callable[[Quorum, int], list[Duty]]) -> None:
        """One call of the quorum and its duties, then the calls that report them."""
        if self._has_ended:
            return
        self._calls.append(do)
        if self._is_calling:
            return
        self._is_calling = True
        try:
            while self._calls:
                duties = self._calls.pop(0)(self._quorum, self._clock.monotonic_ms())
                for position, duty in enumerate(duties):
                    if isinstance(duty, PersistElection) and isinstance(
                        duties[position + 1] if position + 1 < len(duties) else None, PersistElection
                    ):
                        continue  # nobody has seen what this one says
                    self._perform(duty)
        except Exception as error:
            self._calls.clear()
            if self._is_starting:
                raise
            self._end(error)
        finally:
            self._is_calling = False
        self._arm()

    # -- duties --------------------------------------------------------------------------------------------------------

    def _perform(self, duty: Duty) -> None:
        match duty:
            case PersistElection(state):
                voters = tuple(voter.voter_id for voter in self._quorum.voters)
                self._log.write_election(state, self._quorum.kraft_version, voters)
            case AppendControlBatch(epoch, records):
                self._append_control(epoch, records)
            case AppendFetched():
                self._append_fetched(duty)
            case Truncate(end_offset):
                self._generation += 1
                self._log.partition_log.truncate_to(end_offset)
                self._view.truncated(end_offset)
                self.call(lambda quorum, now: quorum.truncated(now))
            case Send():
                if self._peers is None:
                    raise InternalError(f"a quorum of one has nobody for {duty}")
                self._peers.send(duty)
            case Answer(token, message):
                self._serving.answer(token, message)
            case ServeRecords():
                self._serving.records(duty)
            case ServePiece():
                self._serving.piece(duty)
            case AdvanceHighWatermark(offset):
                self._log.advance_high_watermark(offset)
                self._events.committed(offset)
            case Lead(epoch, start_offset):
                self._events.leads(epoch, start_offset)
            case StopLeading(epoch):
                self._events.leads_no_more(epoch)
            case BeginDownload() | WritePiece() | VerifyAndFreeze() | DropDownload():
                self._download().perform(duty)
            case LoadSnapshot(snapshot_id):
                self._load(snapshot_id)
            case Log(level, text, advice):
                self._say(level, text, advice)

    def _say(self, level: Level, text: str, advice: str) -> None:
        """Trouble that lasts is tried again many times a second, and told now and then."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._said.get(text, -_REPEAT_MS) < _REPEAT_MS:
            return
        self._said = {each: at_ms for each, at_ms in self._said.items() if now_ms - at_ms < _REPEAT_MS}
        self._said[text] = now_ms
        fields: dict[str, Any] = {"advice": advice} if advice else {}
        match level:
            case Level.ERROR:
                log.error(text, **fields)
            case Level.WARNING:
                log.warning(text, **fields)
            case Level.INFO:
                log.info(text, **fields)

    def _arm(self) -> None:
        """A timer that is early stays: most deadlines move on before they come, and it is set anew then."""
        deadline_ms = self._quorum.next_deadline_ms
        if deadline_ms is None or self._has_ended:
            return
        loop, tick = asyncio.get_running_loop(), self._tick
        at_s = loop.time() + max(deadline_ms - self._clock.monotonic_ms(), 0) / 1000 + 0.001
        if tick is not None:
            if tick.when() <= at_s:
                return
            tick.cancel()
        self._tick = loop.call_at(at_s, self._time_passes)

    def _time_passes(self) -> None:
        self._tick = None
        deadline_ms = self._quorum.next_deadline_ms
        if deadline_ms is not None and deadline_ms > self._clock.monotonic_ms():
            self._arm()
        else:
            self.call(lambda quorum, now: quorum.tick(now))

    def _end(self, error: BaseException) -> None:
        """Nothing more is done or said: what the disk holds is not certain, or this node contradicts the others."""
        if self._has_ended:
            return
        self._has_ended = True
        self._events.gave_up(error)

    # -- the log -------------------------------------------------------------------------------------------------------

    def _append_control(self, epoch: int, records: tuple[ControlRecord, ...]) -> None:
        now_ms = self._clock.now_ms()
        try:
            base_offset = self._log.append(control_batch(records, now_ms), epoch, now_ms)
        except StorageError as error:
            if self._is_starting:
                raise
            self._trouble.refused(METADATA_PARTITION, self._log.end_offset, error)
            reason = error.message
            self.call(lambda quorum, now: quorum.append_failed(now, reason))
            return
        self._view.control_appended(base_offset, records)
        self.flush()
        self.call(lambda quorum, now: quorum.appended(now))

    def _append_fetched(self, duty: AppendFetched) -> None:
        records = memoryview(bytearray(memoryview(duty.records)))  # type: ignore[arg-type]
        good, controls, reason = whole_batches(records, duty.base_offset, self._view.end.epoch, duty.leader_epoch)
        if good:
            try:
                self._log.partition_log.append_as_follower(records[:good], now_ms=self._clock.now_ms())
            except StorageError as error:
                self._trouble.refused(METADATA_PARTITION, self._log.end_offset, error)
                good, reason = 0, error.message
        if not good:
            self.call(lambda quorum, now: quorum.append_failed(now, reason))
            return
        for base_offset, found in controls:
            self._view.control_appended(base_offset, found)
        if duty.flush:
            self.flush()
        self.call(lambda quorum, now: quorum.appended(now))

    def flush(self) -> None:
        """Make durable what was appended, in a thread; one flush at a time, and none is forgotten."""
        if self._flush_is_running:
            return
        end_offset, generation = self._log.end_offset, self._generation
        try:
            flush = self._log.begin_flush()
            if flush is not None and self._is_starting:
                try:
                    flush()
                except StorageError as error:
                    flush.end(error)
                    raise
                self._tell_put_off(flush.end(None))
        except StorageError as error:
            if self._is_starting:
                raise
            # Nothing was asked of the disk yet, so nothing is uncertain: those who wait go on waiting.
            self._trouble.refused(METADATA_PARTITION, end_offset, error)
            self._flush_is_running = True
            asyncio.get_running_loop().call_later(_RETRY_S, self._flush_again)
            return
        if flush is None or self._is_starting:
            self._flushed(end_offset)
            return
        self._flush_is_running = True

        def ended(done: asyncio.Future[None]) -> None:
            self._flush_is_running = False
            error = done.exception()
            if error is None or isinstance(error, StorageError):
                self._tell_put_off(flush.end(error))
            if error is not None:
                self._end(error)
                return
            if generation == self._generation:
                self._flushed(end_offset)
            if self._log.end_offset > self._view.flushed.offset and not self._has_ended:
                self.flush()

        asyncio.get_running_loop().run_in_executor(self._executor(), flush).add_done_callback(ended)

    def _flush_again(self) -> None:
        self._flush_is_running = False
        if not self._has_ended:
            self.flush()

    def _flushed(self, end_offset: int) -> None:
        self._view.flushed_to(end_offset)
        self.call(lambda quorum, now: quorum.flushed(now))

    def _tell_put_off(self, error: StorageError | None) -> None:
        if error is not None and not self._is_behind:
            log.warning(
                "metadata log without its indexes",
                reason=error.message,
                advice="Make room on the disk. Nothing is lost: they are written as soon as there is room.",
            )
        self._is_behind = error is not None

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def _download(self) -> SnapshotDownloads:
        if self._downloads is None:
            from fenceline.node.snapshot_downloads import SnapshotDownloads

            self._downloads = SnapshotDownloads(self._disk, self._log, self._executor, self.call)
        return self._downloads

    def _load(self, snapshot_id: SnapshotId) -> None:
        """N35, N36. The image was read while the file was looked through."""
        replayed = self._download().take(snapshot_id)
        self._generation += 1
        self._log.partition_log.truncate_fully_and_start_at(snapshot_id.end_offset)
        gone = [each for each in self._log.snapshots if each.end_offset < snapshot_id.end_offset]
        self._log.snapshots[:] = [each for each in self._log.snapshots if each not in gone]
        self._view.snapshot_loaded(snapshot_id, replayed.kraft_version, replayed.voters)
        self._events.loaded(snapshot_id, replayed.image)
        paths = [f"{self._log.directory}/{each.file_name}" for each in gone]
        if paths:
            asyncio.get_running_loop().run_in_executor(self._executor(), self._unlink, paths)
        self.call(lambda quorum, now: quorum.snapshot_loaded(now))

    def _unlink(self, paths: list[str]) -> None:
        for path in paths:
            try:
                self._disk.unlink(path)
            except OSError as error:
                log.warning(
                    "old metadata not deleted", path=path, reason=str(error), advice="It may be deleted by hand."
                )


def _stops() -> PeerError:
    return PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node stops.")
