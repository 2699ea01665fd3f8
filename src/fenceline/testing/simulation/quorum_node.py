"""A thin driver of the quorum for simulated clusters: the real `Quorum`, `MetadataLog` and files, without a controller.

Owns the duties: each is done as `fenceline.quorum.duties` says, with files, a network and threads that are simulated.
Applies what is committed to an image, writes snapshots of it, and appends what clients propose while it leads.

Messages travel as they are, immutable objects: how they look on the wire is not this subject's business. Nothing here
is a coroutine but the end of a life, so that a simulated second costs little.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.log.errors import StorageError
from fenceline.metadata.image import EMPTY_IMAGE, ConfigResourceType, MetadataImage
from fenceline.metadata.records import ConfigRecord
from fenceline.node.metadata_batches import control_batch, image_batches, record_batch
from fenceline.node.metadata_log import MetadataLog
from fenceline.quorum.control_records import ControlRecord, KRaftVersionFeature, Voter, VoterEndpoint
from fenceline.quorum.duties import (
    AdvanceHighWatermark,
    Answer,
    AppendControlBatch,
    AppendFetched,
    BeginDownload,
    DropDownload,
    Duty,
    Lead,
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
from fenceline.quorum.log_view import SnapshotId
from fenceline.quorum.messages import ApiVersionsRequest, ApiVersionsResponse, ResponseMessage
from fenceline.quorum.quorum import Quorum
from fenceline.quorum.settings import QuorumSettings
from fenceline.testing.simulation.batches import applied, whole_batches
from fenceline.testing.simulation.checks import image_of_snapshot
from fenceline.testing.simulation.cluster_log import ClusterLog
from fenceline.testing.simulation.controller_of_one import directory_id
from fenceline.testing.simulation.downloads import Call, Downloads
from fenceline.testing.simulation.log_reader import StoredBatches
from fenceline.testing.simulation.loop import SimExecutor
from fenceline.testing.simulation.network import Frame, Lost, Network, Reply
from fenceline.testing.simulation.peers import SimPeers
from fenceline.testing.simulation.world import DATA_DIR, NodeState, Process, StoredBatch

LEVELS: Final = KRaftVersionFeature(0, 1)
_METADATA_VERSION: Final = 25


def voter_of(node_id: int) -> Voter:
    """A node as it stands in a voter set. Its port is its id."""
    return Voter(node_id, directory_id(node_id), (VoterEndpoint("CONTROLLER", f"n{node_id}", node_id),), LEVELS)


class QuorumNode:
    """One life of one node. Implements `NodeView`."""

    def __init__(self, process: Process, network: Network, settings: QuorumSettings) -> None:
        self._process = process
        self._settings = settings
        self._disk = process.files
        self._clock = process.clock
        self._executor = SimExecutor(1)
        self._peers = SimPeers(network, process.node_id, self._answered, self._unanswered)
        self._answers: dict[int, Reply] = {}
        self._next_token = 0
        self._tick: asyncio.TimerHandle | None = None
        self._reports: list[Call] = []
        self._is_calling = False
        self._generation = 0
        """Changes when the log is cut: a flush that began before says nothing of what was written after."""
        self._is_flushing = False
        self._download = Downloads(self._disk, lambda: self.log, self._job, self._clock, self.call)
        self._image: MetadataImage = EMPTY_IMAGE
        self._applied = 0
        self._bytes_since_snapshot = 0
        self._is_writing_snapshot = False
        self._leads = -1
        self._proposed: list[tuple[int, Reply]] = []
        """(end offset, who waits), ascending."""
        self._was_touched = True
        self._read = StoredBatches(process.disk)
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self.log: MetadataLog
        self.view: ClusterLog
        self.quorum: Quorum

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the log and boot the quorum. Raises OperatorError, StorageError, OSError."""
        options = self._process.world.options
        self.log = MetadataLog.open(
            self._disk, DATA_DIR, now_ms=self._clock.now_ms(), segment_bytes=1 << 20, segment_ms=options.segment_ms
        )
        replayed = self.log.replay()
        self.view = ClusterLog(self.log, replayed.voter_history, replayed.kraft_version)
        self._load_image()
        rng = self._process.world.rng(f"{self._process.name} quorum {self._process.life}")
        self.quorum = Quorum(voter_of(self._process.node_id), self.view, self._settings, rng)
        self._process.view = self
        election = self.log.read_election()
        self.call(lambda quorum: quorum.start(self._clock.monotonic_ms(), election))

    async def stop(self) -> None:
        """Resign, and let others take over (Q23)."""
        self.call(lambda quorum: quorum.shutdown(self._clock.monotonic_ms(), 2000))
        waited = 0
        while not self.quorum.has_closed and waited < 20:
            await asyncio.sleep(0.1)
            waited += 1
        while self._is_flushing or self._is_writing_snapshot:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        self.log.close()

    def _load_image(self) -> None:
        """The image of the newest snapshot; what is committed behind it is applied when that is known."""
        self._image, self._applied = EMPTY_IMAGE, 0
        newest = self.log.snapshots[-1] if self.log.snapshots else None
        if newest is not None and newest.end_offset > 0:
            content = self._content(newest)
            if content is None:
                raise OperatorError(f"snapshot {newest} has vanished")
            self._image = image_of_snapshot(content, newest.end_offset, newest.epoch)
            self._applied = newest.end_offset

    # -- calls of the quorum -------------------------------------------------------------------------------------------

    def call(self, do: Call) -> None:
        """One call, its duties, then the calls that report them."""
        self._reports.append(do)
        self._was_touched = True
        if self._is_calling or self.failed.done():
            return
        self._is_calling = True
        try:
            while self._reports:
                for duty in self._reports.pop(0)(self.quorum):
                    self._perform(duty)
        except (OperatorError, PeerError, OSError) as error:
            self.failed.set_exception(error)
        finally:
            self._is_calling = False
        self._arm()

    def _arm(self) -> None:
        """A timer that is early does no harm: it is set anew."""
        deadline_ms = self.quorum.next_deadline_ms
        if deadline_ms is None:
            return
        loop, tick = self._loop, self._tick
        delay_s = max(deadline_ms - self._clock.monotonic_ms(), 0) / 1000 + 0.001
        if tick is not None:
            if tick.when() <= loop.time() + delay_s:
                return
            tick.cancel()
        self._tick = loop.call_later(delay_s, self._time_passes)

    def _time_passes(self) -> None:
        self._tick = None
        deadline_ms = self.quorum.next_deadline_ms
        if deadline_ms is not None and deadline_ms <= self._clock.monotonic_ms():
            self.call(lambda quorum: quorum.tick(self._clock.monotonic_ms()))
        else:
            self._arm()

    def _perform(self, duty: Duty) -> None:
        match duty:
            case PersistElection(state):
                ids = tuple(voter.voter_id for voter in self.quorum.voters)
                self.log.write_election(state, self.quorum.kraft_version, ids)
            case AppendControlBatch(epoch, records):
                self._append_control(epoch, records)
            case AppendFetched():
                self._append_fetched(duty)
            case Truncate(end_offset):
                self._truncate(end_offset)
            case Send():
                self._peers.send(duty)
            case Answer(token, message):
                self._answer(token, message)
            case ServeRecords():
                self._serve_records(duty)
            case ServePiece():
                self._serve_piece(duty)
            case AdvanceHighWatermark(offset):
                self._committed(offset)
            case Lead(epoch, _):
                self._leads = epoch
            case StopLeading():
                self._leads = -1
                self._give_up_proposals()
            case BeginDownload() | WritePiece() | VerifyAndFreeze() | DropDownload():
                self._download.perform(duty)
            case LoadSnapshot(snapshot_id):
                self._load(snapshot_id)
            case Log(level, text, _):
                self._process.tell(f"says {level.value}: {text}")

    # -- the log -------------------------------------------------------------------------------------------------------

    def _append_control(self, epoch: int, records: tuple[ControlRecord, ...]) -> None:
        now_ms = self._clock.now_ms()
        try:
            base = self.log.append(control_batch(records, now_ms), epoch, now_ms)
        except StorageError as error:
            reason = error.message
            self.call(lambda quorum: quorum.append_failed(self._clock.monotonic_ms(), reason))
            return
        self.view.control_appended(base, records)
        self._flush()
        self.call(lambda quorum: quorum.appended(self._clock.monotonic_ms()))

    def _append_fetched(self, duty: AppendFetched) -> None:
        records = memoryview(bytearray(bytes(duty.records)))  # type: ignore[call-overload]
        good, controls, reason = whole_batches(records, duty.base_offset, self.view.end.epoch, duty.leader_epoch)
        if good:
            try:
                self.log.partition_log.append_as_follower(records[:good], now_ms=self._clock.now_ms())
            except StorageError as error:
                good, reason = 0, error.message
        if not good:
            self.call(lambda quorum: quorum.append_failed(self._clock.monotonic_ms(), reason))
            return
        for base, control in controls:
            self.view.control_appended(base, control)
        self._flush()
        self.call(lambda quorum: quorum.appended(self._clock.monotonic_ms()))

    def _flush(self) -> None:
        if self._is_flushing:
            return
        end, generation = self.log.end_offset, self._generation
        flush = self.log.begin_flush()
        if flush is None:
            return
        self._is_flushing = True

        def done(outcome: asyncio.Future[None]) -> None:
            self._is_flushing = False
            error = outcome.exception()
            if isinstance(error, StorageError):
                flush.end(error)
                if not self.failed.done():
                    self.failed.set_exception(error)
                return
            if error is not None:
                raise error
            flush.end(None)
            if generation == self._generation:
                self.view.flushed_to(end)
                self.call(lambda quorum: quorum.flushed(self._clock.monotonic_ms()))
            if self.log.end_offset > self.view.flushed.offset:
                self._flush()

        self._loop.run_in_executor(self._executor, flush).add_done_callback(done)

    def _truncate(self, end_offset: int) -> None:
        self._generation += 1
        self.log.partition_log.truncate_to(end_offset)
        self.view.truncated(end_offset)
        self.call(lambda quorum: quorum.truncated(self._clock.monotonic_ms()))

    def _committed(self, offset: int) -> None:
        """Apply, answer those who wait, and see whether a snapshot is due."""
        self.log.advance_high_watermark(offset)
        batches = self._read.between(self.log.partition_log.segments, self._applied, offset)
        ready = [each for each in batches if each.base_offset >= self._applied and each.next_offset <= offset]
        if ready:
            self._image = applied(self._image, ready)
            self._applied = ready[-1].next_offset
            self._bytes_since_snapshot += sum(len(batch.content) for batch in ready)
        while self._proposed and self._proposed[0][0] <= offset:
            end_offset, reply = self._proposed.pop(0)
            reply((0, end_offset - 1), None)
        if self._bytes_since_snapshot >= self._process.world.options.snapshot_bytes and not self._is_writing_snapshot:
            self._write_snapshot()

    # -- clients -------------------------------------------------------------------------------------------------------

    def _propose(self, name: str, value: str, reply: Reply) -> None:
        """Answers (0, offset) when it is committed, or (6, -1) when this node does not lead, or no longer."""
        if self._leads != self.quorum.epoch or not self.quorum.is_leader:
            reply((int(ErrorCode.NOT_LEADER_OR_FOLLOWER), -1), None)
            return
        now_ms = self._clock.now_ms()
        record = ConfigRecord(int(ConfigResourceType.BROKER), "", name, value)
        self.log.append(record_batch([record], _METADATA_VERSION, now_ms), self._leads, now_ms)
        self._proposed.append((self.log.end_offset, reply))
        self._flush()
        self.call(lambda quorum: quorum.appended(self._clock.monotonic_ms()))

    def _give_up_proposals(self) -> None:
        """In doubt."""
        proposed, self._proposed = self._proposed, []
        for _, reply in proposed:
            reply((int(ErrorCode.NOT_LEADER_OR_FOLLOWER), -1), None)

    # -- the network ---------------------------------------------------------------------------------------------------

    def take(self, source: int, message: Frame, reply: Reply) -> None:
        """A request of another node, or of a client: a tuple of name and value."""
        self._was_touched = True
        if isinstance(message, ApiVersionsRequest):
            reply(ApiVersionsResponse(ErrorCode.NONE, LEVELS), None)
        elif isinstance(message, tuple):
            try:
                name, value = message
                self._propose(name, value, reply)
            except StorageError as error:
                reply(None, Lost(error.message))
        else:
            self._next_token += 1
            token = self._next_token
            self._answers[token] = reply
            self.call(lambda quorum: quorum.request(self._clock.monotonic_ms(), token, message))

    def _answered(self, request_id: int, message: ResponseMessage) -> None:
        self.call(lambda quorum: quorum.response(self._clock.monotonic_ms(), request_id, message))

    def _unanswered(self, request_id: int, refused: bool) -> None:
        self.call(lambda quorum: quorum.no_response(self._clock.monotonic_ms(), request_id, refused))

    def _answer(self, token: int, message: object) -> None:
        self._answers.pop(token)(message, None)

    def _serve_records(self, duty: ServeRecords) -> None:
        records = b""
        if duty.offset < duty.end_offset:
            read = self.log.partition_log.read(duty.offset, duty.max_bytes, end_offset_exclusive=duty.end_offset)
            records = bytes(read.records if read.resident else read.load())
        self._answer(duty.token, replace(duty.answer, records=records))

    def _serve_piece(self, duty: ServePiece) -> None:
        content = self._content(duty.snapshot_id)
        if content is None:
            answer = replace(duty.answer, partition_error_code=ErrorCode.SNAPSHOT_NOT_FOUND, size=0, position=0)
        else:
            piece = content[duty.position : duty.position + duty.max_bytes]
            answer = replace(duty.answer, unaligned_records=piece)
        self._answer(duty.token, answer)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def _content(self, snapshot_id: SnapshotId) -> bytes | None:
        try:
            fd = self._disk.open_read(f"{self.log.directory}/{snapshot_id.file_name}")
        except FileNotFoundError:
            return None
        try:
            return self._disk.pread(fd, 1 << 30, 0)
        finally:
            self._disk.close(fd)

    def _job(self, work: Callable[[], object], done: Callable[[BaseException | None], None]) -> None:
        future = self._loop.run_in_executor(self._executor, work)
        future.add_done_callback(lambda outcome: done(outcome.exception()))

    def _write_snapshot(self) -> None:
        snapshot_id = SnapshotId(self._applied, self._image.epoch)
        self._bytes_since_snapshot = 0
        if snapshot_id in self.log.snapshots:
            return
        now_ms = self._clock.now_ms()
        voters = self.view.voters_before(snapshot_id.end_offset)
        batches = image_batches(
            self._image,
            now_ms=now_ms,
            last_log_timestamp_ms=now_ms,
            kraft_version=voters.kraft_version if voters is not None else 0,
            voters=voters.voters if voters is not None else (),
        )
        self._is_writing_snapshot = True

        def written(error: BaseException | None) -> None:
            self._was_touched = True
            self._is_writing_snapshot = False
            if isinstance(error, OSError):
                return
            if error is not None:
                raise error
            newest = self.log.snapshots[-1] if self.log.snapshots else None
            if snapshot_id in self.log.snapshots or (newest is not None and newest.end_offset > snapshot_id.end_offset):
                return
            self.log.snapshot_written(snapshot_id)
            with suppress(StorageError):
                sizes = self.log.snapshot_sizes(self.log.snapshots)
                retention = self._process.world.options.retention_bytes
                deletions = self.log.forget_oldest(sizes, retention, self._clock.now_ms())
                self.view.forget_voters_before(self.log.start_offset)
                for delete in deletions:
                    self._job(delete, lambda error: None)

        self._job(lambda: self.log.write_snapshot(snapshot_id, batches), written)

    def _load(self, snapshot_id: SnapshotId) -> None:
        """N35, N36."""
        self._generation += 1
        self.log.partition_log.truncate_fully_and_start_at(snapshot_id.end_offset)
        gone = [each for each in self.log.snapshots if each.end_offset < snapshot_id.end_offset]
        self.log.snapshots[:] = [each for each in self.log.snapshots if each.end_offset >= snapshot_id.end_offset]
        for each in gone:
            path = f"{self.log.directory}/{each.file_name}"
            self._job(lambda path=path: self._disk.unlink(path), lambda error: None)  # type: ignore[misc]
        self._load_image()
        self.view.loaded(self._disk, f"{self.log.directory}/{snapshot_id.file_name}", snapshot_id)
        self.call(lambda quorum: quorum.snapshot_loaded(self._clock.monotonic_ms()))

    # -- NodeView ------------------------------------------------------------------------------------------------------

    @property
    def has_failed(self) -> bool:
        return self.failed.done()

    def has_changed(self) -> bool:
        touched, self._was_touched = self._was_touched, False
        return touched

    def state(self) -> NodeState:
        quorum, log = self.quorum, self.log
        return NodeState(
            quorum.epoch,
            quorum.leader_id,
            quorum.is_leader,
            quorum.high_watermark or 0,
            log.start_offset,
            log.end_offset,
            tuple(log.snapshots),
            self.view.voter_keys,
            self._image.offset,
            quorum.in_touch,
        )

    def batches(self, start: int, end: int) -> list[StoredBatch]:
        return self._read.between(self.log.partition_log.segments, start, end)

    def image(self) -> MetadataImage | None:
        return self._image

    @property
    def log_directory(self) -> str:
        return self.log.directory

    def read_snapshot(self, end_offset: int, epoch: int) -> bytes | None:
        return self._process.disk.peek(f"{self.log.directory}/{SnapshotId(end_offset, epoch).file_name}")
