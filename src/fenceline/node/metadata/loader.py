"""From the committed metadata log to this node's image.

Owns the committed image and its listeners. Works in slices, so that catching up never blocks the loop for long; disk
reads run in a thread. Never reads past the high watermark.

While this node is the active controller, it passes complete images (`adopt`), so each record is applied only once.

Rules: controller.md C6, C8, C10; snapshots.md N40-N42; raft.md Q33.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Final

from fenceline.errors import InternalError, OperatorError, PeerError
from fenceline.metadata.changes import Delta, difference
from fenceline.metadata.delta import MetadataDelta
from fenceline.metadata.features import LATEST_METADATA_VERSION
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.metadata.records import BeginTransactionRecord, encode_record
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.node.metadata.replay import MetadataTransactions
from fenceline.records.batch import BatchHeader, check_crc, iter_headers
from fenceline.records.decode import decode_batch

Listener = Callable[[MetadataImage, Delta], None]

_SLICE_BYTES: Final = 10 << 10
"""Some 150 changes of partitions: what a broker with many replicas applies without a long pause."""
_BEGIN_TRANSACTION: Final = encode_record(BeginTransactionRecord(), LATEST_METADATA_VERSION)


class MetadataLoader:
    """See the module. All methods belong to the loop."""

    def __init__(
        self,
        log: MetadataLog,
        *,
        executor: Executor | None,
        failed: Callable[[BaseException], None],
        applied: Callable[[int], None] = lambda size_bytes: None,
    ) -> None:
        """`failed` is called with an error that stops the node: a record that does not fit, a log that cannot be
        read. `applied` is called after each step with its size in bytes of the log."""
        self._log = log
        self._executor = executor
        self._failed = failed
        self._applied = applied
        self._listeners: list[Listener] = []
        self._transactions = MetadataTransactions()
        self._committed_offset = 0
        self._is_busy = False
        self._generation = 0
        """Incremented when a snapshot replaces everything: results of earlier threads are then ignored."""
        self.image: MetadataImage = EMPTY_IMAGE
        """The newest committed image."""
        self.applied_offset = 0
        """All records before this offset are in the image."""
        self.partition_count = 0
        """Partitions of all topics in the image."""

    @property
    def transaction_is_open(self) -> bool:
        """Whether a metadata transaction is open: then the image does not contain all records up to its offset."""
        return self._transactions.is_open

    def subscribe(self, listener: Listener) -> None:
        """Call `listener` on the loop for each committed change from now on, in order. It must not block or raise."""
        self._listeners.append(listener)

    @property
    def is_behind(self) -> bool:
        """Whether the image lags behind the committed log."""
        return self._is_busy or self.applied_offset < self._committed_offset

    def begin(self, image: MetadataImage, applied_offset: int, *, transaction_is_open: bool = False) -> None:
        """Set the image that was read at the start; a transaction that is open there has lost its writer (C6)."""
        if transaction_is_open:
            self._transactions.apply(_BEGIN_TRANSACTION, lambda value: None)
        self.applied_offset = applied_offset
        self._committed_offset = max(self._committed_offset, applied_offset)
        self._publish(image, difference(EMPTY_IMAGE, image))

    def committed(self, offset: int) -> None:
        """Everything below `offset` is committed: apply it, at once if it is little."""
        self._committed_offset = max(self._committed_offset, offset)
        self._continue()

    def adopt(self, image: MetadataImage, delta: Delta) -> None:
        """Publish the active controller's next image, which is committed and outside of any transaction."""
        self._transactions.drop()
        self.applied_offset = image.offset + 1
        self._committed_offset = max(self._committed_offset, self.applied_offset)
        self._publish(image, delta)

    def load(self, image: MetadataImage, end_offset: int, in_force: Callable[[], None] = lambda: None) -> None:
        """A snapshot has replaced the log and the image (N41). `in_force` is called when every listener has the
        image."""
        self._generation += 1
        self._transactions.drop()
        before, generation = self.image, self._generation
        self.applied_offset = end_offset
        self._committed_offset = end_offset
        self._is_busy = True

        def loaded(done: asyncio.Future[Delta]) -> None:
            if generation != self._generation:
                return
            self._is_busy = False
            try:
                self._publish(image, done.result())
            except BaseException as error:
                self._failed(error)
                return
            in_force()
            self._applied(0)
            self._continue()

        work = asyncio.get_running_loop().run_in_executor(self._executor, difference, before, image)
        work.add_done_callback(loaded)

    # -- internals -----------------------------------------------------------------------------------------------------

    def _continue(self) -> None:
        if self._is_busy or self.applied_offset >= self._committed_offset or self._log.is_changing:
            return
        generation = self._generation
        try:
            read = self._log.partition_log.read(
                self.applied_offset, _SLICE_BYTES, end_offset_exclusive=self._committed_offset
            )
            if read.resident:
                self._apply(read.records)
                if self.applied_offset < self._committed_offset and not self._is_busy:
                    self._is_busy = True
                    asyncio.get_running_loop().call_soon(self._resume, generation)
                return
        except Exception as error:
            self._failed(error)
            return
        self._is_busy = True

        def loaded(done: asyncio.Future[memoryview]) -> None:
            if generation != self._generation:
                return
            self._is_busy = False
            try:
                self._apply(done.result())
            except BaseException as error:
                self._failed(error)
                return
            self._continue()

        asyncio.get_running_loop().run_in_executor(self._executor, read.load).add_done_callback(loaded)

    def _resume(self, generation: int) -> None:
        if generation == self._generation:
            self._is_busy = False
            self._continue()

    def _apply(self, records: memoryview) -> None:
        """Apply complete batches from `applied_offset` on. Raises InternalError for records that do not fit (C10)."""
        delta = MetadataDelta(self.image)
        last_offset, epoch, size_bytes = self.applied_offset - 1, self.image.epoch, 0
        epochs = self._log.partition_log.epochs
        for header in _checked(records):
            if header.next_offset <= self.applied_offset:
                continue
            # The CRC does not cover a batch's offset and epoch.
            if header.base_offset != last_offset + 1 or header.next_offset > self._committed_offset:
                raise _unreadable(
                    f"a batch from offset {header.base_offset} to {header.last_offset}, expected one from"
                    f" {last_offset + 1} to at most {self._committed_offset - 1}."
                )
            if header.leader_epoch != (known := epochs.epoch_for_offset(header.base_offset)):
                raise _unreadable(
                    f"the batch at offset {header.base_offset} has epoch {header.leader_epoch} instead of {known}."
                )
            if not header.is_control:
                for one in decode_batch(records, header):
                    if one.value is None:
                        raise InternalError(f"the metadata log has a record without a value at offset {one.offset}")
                    self._transactions.apply(one.value, delta.replay_value)
            last_offset, epoch = header.last_offset, header.leader_epoch
            size_bytes += header.size_bytes
        if last_offset < self.applied_offset:
            raise _unreadable(f"no batch at offset {self.applied_offset}.")
        self.applied_offset = last_offset + 1
        self._publish(*delta.build(last_offset, epoch))
        self._applied(size_bytes)

    def _publish(self, image: MetadataImage, delta: Delta) -> None:
        self.image = image
        self.partition_count += delta.partitions_gained
        for listener in self._listeners:
            listener(image, delta)


def _checked(records: memoryview) -> Iterator[BatchHeader]:
    """Complete, valid batches. Raises OperatorError: the log was valid when it was written."""
    try:
        for header in iter_headers(records):
            check_crc(records, header)
            yield header
    except PeerError as error:
        raise _unreadable(error.message) from error


def _unreadable(reason: str) -> OperatorError:
    return OperatorError(
        f"Could not read the committed metadata log: {reason}",
        "Check the disk, then restart the node.",
    )
