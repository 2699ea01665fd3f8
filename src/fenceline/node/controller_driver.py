"""Ties the controller and the quorum to the loop, the clock and the metadata log.

Owns the order of things: decide, append, take into memory, flush, publish, answer. Requests that come while a flush is
under way share the next one (group commit), so one disk's latency carries any number of them. Never decides anything
itself, and never lets out an answer or an image that a crash could take back (`gaps.md G35`).

How it works: `submit` queues a request. On the loop, all queued requests are decided one after the other, each seeing
what the ones before it decided (C1); their records go to the log in one write, and the flush runs in a thread. When it
is done, the high watermark moves, listeners hear of each image in order, and the answers go out. Requests without
records are answered at the same point, since they may have seen what is not yet committed.

A disk that refuses an append (full) fails those requests with 56 and reverts the controller to what is committed (C2);
the next request tries again. A flush that can not be begun (no file descriptors left) is tried again until it can. A
failed flush leaves the disk in an unknown state: the driver stops and says so.

Rules: controller.md C1-C3, C6, C15, C30; raft.md Q2, Q31-Q36; since_4_0.md K20.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

from fenceline.config.node import NodeConfig
from fenceline.controller.controller import Controller
from fenceline.controller.requests import Request, WriteBootstrapRecords
from fenceline.errors import ErrorCode, InternalError, OperatorError, PeerError
from fenceline.log.disk import Disk
from fenceline.log.errors import StorageError
from fenceline.metadata.changes import Delta, difference
from fenceline.metadata.features import LATEST_METADATA_VERSION, METADATA_VERSION
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.metadata.records import AbortTransactionRecord, MetadataRecord
from fenceline.node.clock import Clock
from fenceline.node.controller_flight import Flight, Waiting, decide_all
from fenceline.node.controller_opening import controller_settings, open_controller
from fenceline.node.controller_timers import ControllerTimers
from fenceline.node.format import read_bootstrap_features
from fenceline.node.logs import Logger
from fenceline.node.metadata_batches import control_batch, record_batch
from fenceline.node.metadata_log import METADATA_PARTITION, MetadataLog
from fenceline.node.metadata_replay import Replayed
from fenceline.node.metadata_snapshots import Snapshots
from fenceline.node.quorum_log import QuorumLog
from fenceline.node.storage_trouble import StorageTrouble
from fenceline.quorum.duties import AdvanceHighWatermark, AppendControlBatch, Duty, Lead, PersistElection, StopLeading
from fenceline.quorum.quorum import Quorum

log = Logger("controller")

Listener = Callable[[MetadataImage, Delta], None]

_RETRY_S: Final = 0.1
"""Between two attempts to begin a flush."""


class ControllerDriver:
    """See the module. All methods belong to the loop."""

    def __init__(
        self,
        *,
        config: NodeConfig,
        disk: Disk,
        directory: str | Path,
        cluster_id: str,
        node_id: int,
        directory_id: UUID,
        clock: Clock,
        rng: Random,
        trouble: StorageTrouble,
        executor: Executor | None = None,
    ) -> None:
        """`directory` is `metadata.log.dir`; `trouble` hears what the disk refuses; `executor` runs flushes and writes
        snapshots (one of its own when left out)."""
        self._config = config
        self._disk = disk
        self._directory = str(directory)
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._directory_id = directory_id
        self._clock = clock
        self._rng = rng
        self._trouble = trouble
        self._own_executor = ThreadPoolExecutor(1, "metadata-flush") if executor is None else None
        self._executor = executor or self._own_executor
        self._controller = Controller(controller_settings(config, cluster_id))
        self._committed: MetadataImage = EMPTY_IMAGE
        self._listeners: list[Listener] = []
        self._queue: list[Waiting] = []
        self._flight: Flight | None = None
        self._scheduled = False
        self._failed: asyncio.Future[None] | None = None
        self._timers = ControllerTimers(self, self._controller.state, config, clock)
        self._landed: asyncio.Event | None = None
        self._log: MetadataLog
        self._quorum_log: QuorumLog
        self._quorum: Quorum
        self._snapshots: Snapshots | None = None
        self._is_open = False
        """The log and the quorum are there."""
        self._stopped = False
        self._is_behind = False
        """A full disk has put off the indexes of the log; the operator knows."""
        self._partition_count = 0

    # -- what others see -----------------------------------------------------------------------------------------------

    @property
    def image(self) -> MetadataImage:
        """The newest committed image."""
        return self._committed

    @property
    def finalized_features(self) -> dict[str, int]:
        """Committed feature levels; kraft.version comes from the quorum and is listed from 1 on (K1)."""
        features = dict(self._committed.features)
        if self._quorum.kraft_version:
            features["kraft.version"] = self._quorum.kraft_version
        return features

    @property
    def partition_count(self) -> int:
        """Partitions of all topics in the committed image."""
        return self._partition_count

    @property
    def epoch(self) -> int:
        """The epoch of the quorum's leader, which is this node."""
        return self._quorum.epoch

    @property
    def quorum(self) -> Quorum:
        """For those who describe it; its state changes only here."""
        return self._quorum

    @property
    def high_watermark(self) -> int:
        """End of what is committed in the metadata log."""
        return self._quorum.high_watermark or 0

    @property
    def node_id(self) -> int:
        return self._node_id

    @property
    def log(self) -> MetadataLog:
        return self._log

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` on the loop for each committed change from now on, in order. It must not block or raise."""
        self._listeners.append(listener)

    def submit(self, request: Request) -> asyncio.Future[Any]:
        """The answer, once what it says is durable.

        Fails with PeerError: what the controller says of a request that fails as a whole, 41 when it has stopped, 56
        when the disk takes no more. Cancelling the future does not take back what is decided already.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._stopped or self.has_failed:
            answer.set_exception(_stopped())
            return answer
        self._queue.append(Waiting(request, answer))
        self._schedule()
        return answer

    def failed(self) -> asyncio.Future[None]:
        """Ends, with OperatorError or InternalError, only when the controller can not go on."""
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
        return asyncio.shield(self._failed)

    # -- start and stop ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Read the log, lead the quorum, write what a new cluster needs. Raises OperatorError.

        Blocks the loop while it reads: nothing else of a node works before.
        """
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
        replayed = self._open()
        now_ms = self._clock.monotonic_ms()
        self._controller.state.kraft_version = self._quorum.kraft_version
        self._controller.activate(replayed.image, self._log.end_offset, now_ms, dead=frozenset((self._node_id,)))
        if replayed.open_transaction:
            self._write_now(AbortTransactionRecord("The controller that began the transaction has ended."))
        if not replayed.image.metadata_version:
            levels = read_bootstrap_features(self._disk, self._directory) or {METADATA_VERSION: LATEST_METADATA_VERSION}
            await self._submit_now(WriteBootstrapRecords(tuple(levels.items())))
        self._snapshots = Snapshots(self._log, self._config, self._clock, self._executor)
        self._snapshots.replayed(replayed.log_record_count, lambda: self._committed, self._quorum)
        self._timers.start()

    def _open(self) -> Replayed:
        opened = open_controller(
            self._config,
            self._disk,
            self._directory,
            node_id=self._node_id,
            cluster_id=self._cluster_id,
            directory_id=self._directory_id,
            now_ms=self._clock.now_ms(),
            rng=self._rng,
        )
        self._log, self._quorum_log, self._quorum, replayed = opened
        self._is_open = True
        self._perform(self._quorum.start(self._clock.monotonic_ms(), self._log.read_election()))
        self._publish(replayed.image, difference(EMPTY_IMAGE, replayed.image))
        return replayed

    async def stop(self) -> None:
        """Answer what is queued, stop leading, close the log."""
        if self._stopped:
            return
        self._timers.stop()
        while (self._queue or self._flight is not None) and not self.has_failed:
            self._landed = asyncio.Event()
            self._schedule()
            await self._landed.wait()
        self._stopped = True
        if self._snapshots is not None:
            await self._snapshots.finish()
        if self._is_open:
            self._perform(self._quorum.resign(self._clock.monotonic_ms()))
            await asyncio.get_running_loop().run_in_executor(self._executor, self._log.close)
        if self._own_executor is not None:
            self._own_executor.shutdown()

    @property
    def has_failed(self) -> bool:
        return self._failed is not None and self._failed.done()

    # -- the quorum's duties -------------------------------------------------------------------------------------------

    def _perform(self, duties: Sequence[Duty]) -> None:
        """Do duties in order. Of adjacent PersistElection only the last is written: nobody saw those before it."""
        for position, duty in enumerate(duties):
            match duty:
                case PersistElection(state):
                    if position + 1 < len(duties) and isinstance(duties[position + 1], PersistElection):
                        continue
                    voters = tuple(voter.voter_id for voter in self._quorum.voters)
                    self._log.write_election(state, self._quorum.kraft_version, voters)
                case AppendControlBatch(epoch, records):
                    now_ms = self._clock.now_ms()
                    base_offset = self._log.append(control_batch(records, now_ms), epoch, now_ms)
                    self._quorum_log.control_appended(base_offset, records)
                    self._tell_put_off(self._log.flush())
                    self._flushed(self._log.end_offset)
                case AdvanceHighWatermark(offset):
                    self._log.advance_high_watermark(offset)
                case Lead() | StopLeading():
                    pass  # the only voter leads from its start to its end
                case _:
                    raise InternalError(f"a quorum of one has nobody for {duty}")

    def _flushed(self, end_offset: int) -> None:
        """Everything before `end_offset` is durable."""
        self._quorum_log.flushed_to(end_offset)
        self._perform(self._quorum.flushed(self._clock.monotonic_ms()))

    # -- deciding ------------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        if not self._scheduled and self._flight is None and self._queue:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Decide all that is queued and send it off."""
        self._scheduled = False
        if self._flight is not None or self.has_failed:
            return
        queue, self._queue = self._queue, []
        try:
            flight = self._decide(queue)
        except StorageError as error:
            self._trouble.refused(METADATA_PARTITION, self._log.end_offset, error)
            self._revert(queue, error)
            return
        except Exception as error:
            self._give_up(error, [waiting.answer for waiting in queue])
            return
        self._flight = flight
        if flight.content:
            self._flush(flight)
        else:
            self._land(None)

    def _flush(self, flight: Flight) -> None:
        """Make durable what the flight has appended, in a thread."""
        loop = asyncio.get_running_loop()
        try:
            flush = self._log.begin_flush()
        except StorageError as error:
            # Nothing was asked of the disk yet, so nothing is uncertain: those who wait go on waiting.
            self._trouble.refused(METADATA_PARTITION, flight.end_offset, error)
            loop.call_later(_RETRY_S, self._flush, flight)
            return
        assert flush is not None, "what was just appended is not flushed"

        def finished(done: asyncio.Future[None]) -> None:
            error = done.exception()
            if error is None or isinstance(error, StorageError):
                self._tell_put_off(flush.end(error))
            self._land(error)

        loop.run_in_executor(self._executor, flush).add_done_callback(finished)

    def _tell_put_off(self, error: StorageError | None) -> None:
        if error is not None and not self._is_behind:
            log.warning(
                "metadata log without its indexes",
                reason=error.message,
                advice="Make room on the disk. Nothing is lost: they are written as soon as there is room.",
            )
        self._is_behind = error is not None

    def _decide(self, queue: Sequence[Waiting]) -> Flight:
        """Decide in order and append everything in one write. Raises StorageError with the log unchanged."""
        epoch, now_ms = self._quorum.epoch, self._clock.now_ms()
        flight = decide_all(
            self._controller,
            queue,
            epoch=epoch,
            now_ms=now_ms,
            monotonic_ms=self._clock.monotonic_ms(),
            rng=self._rng,
        )
        if flight.content:
            base = self._log.append(flight.content, epoch, now_ms)
            if base != flight.first_offset or self._log.end_offset != flight.end_offset:
                raise InternalError(
                    f"the metadata log is at {base}..{self._log.end_offset}, its controller at "
                    f"{flight.first_offset}..{flight.end_offset}"
                )
        return flight

    def _revert(self, queue: Sequence[Waiting], error: Exception) -> None:
        """C2: what was decided is forgotten, and those who asked are told."""
        self._controller.reset(self._committed, self._log.end_offset)
        for waiting in queue:
            _fail(waiting.answer, error)
        self._schedule()
        self._wake()

    # -- committing ----------------------------------------------------------------------------------------------------

    def _land(self, error: BaseException | None) -> None:
        """The flush has ended."""
        flight, self._flight = self._flight, None
        assert flight is not None, "only a flight lands"
        if error is not None:
            self._give_up(error, [answer for answer, _ in flight.answers])
            return
        try:
            self._commit(flight)
        except Exception as failure:
            self._give_up(failure, [answer for answer, _ in flight.answers])
            return
        self._schedule()
        self._wake()

    def _commit(self, flight: Flight) -> None:
        """What the flight carried is durable: publish it, then answer."""
        if flight.content:
            self._flushed(flight.end_offset)
        for image, delta in flight.images:
            self._publish(image, delta)
        for answer, value in flight.answers:
            if isinstance(value, Exception):
                _fail(answer, value)
            elif not answer.done():
                answer.set_result(value)
        if flight.content and self._snapshots is not None:
            self._snapshots.committed(len(flight.content), self._committed, self._quorum)

    def _publish(self, image: MetadataImage, delta: Delta) -> None:
        self._committed = image
        self._partition_count += delta.partitions_gained
        for listener in self._listeners:
            listener(image, delta)

    def _give_up(self, error: BaseException, answers: Iterable[asyncio.Future[Any]]) -> None:
        """The controller can not go on: what the disk holds, or what it decided itself, is not certain any more."""
        if isinstance(error, StorageError):
            reason: Exception = OperatorError(
                f"The metadata log could not be made durable: {error.message}",
                "What the disk holds is not certain any more. Check it, then restart the node.",
            )
        else:
            reason = error if isinstance(error, InternalError) else InternalError(f"the controller failed: {error!r}")
            reason.__cause__ = error
        for answer in [*answers, *(waiting.answer for waiting in self._queue)]:
            _fail(answer, _stopped())
        self._queue.clear()
        self._timers.stop()
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(reason)
        self._wake()

    def _wake(self) -> None:
        if self._landed is not None:
            self._landed.set()

    # -- at start, before anything else runs -------------------------------------------------------------------------

    def _write_now(self, *records: MetadataRecord) -> None:
        """Append, flush and take in records outside of any request."""
        now_ms = self._clock.now_ms()
        self._log.append(record_batch(records, self._controller.image.metadata_version, now_ms), self.epoch, now_ms)
        self._tell_put_off(self._log.flush())
        image, delta = self._controller.replay(records, self._log.end_offset - 1, self.epoch)
        self._flushed(self._log.end_offset)
        self._publish(image, delta)

    async def _submit_now(self, request: Request) -> None:
        """A request of the driver itself, flushed on the loop."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._flight = self._decide([Waiting(request, answer)])
        self._tell_put_off(self._log.flush())
        self._land(None)
        await answer


def _stopped() -> PeerError:
    return PeerError(ErrorCode.NOT_CONTROLLER, "This controller has stopped.")


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
