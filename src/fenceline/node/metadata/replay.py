"""Replays batches of the metadata log into an image and its voter sets.

Owns the meaning of batches, control records and metadata transactions for a reader; `fenceline.metadata.delta` owns the
meaning of single records. Pure bytes, no I/O, never writes: the caller passes the batches.

Batches are replayed directly into a delta: the newest snapshot, then the log from its end (N40). A metadata transaction
takes effect when it ends (C8); one interrupted by a crash is reported, and its records are ignored.

Rules: controller.md C6, C8; raft.md Q38; snapshots.md N1, N7, N8, N40, N43, N44; gaps.md G24 (a snapshot without its
footer is rejected).
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fenceline.errors import InternalError, OperatorError
from fenceline.metadata.delta import MetadataDelta
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.metadata.records import API_KEYS as RECORD_KEYS
from fenceline.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    api_key_of,
)
from fenceline.quorum.control_records import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    SnapshotFooter,
    SnapshotHeader,
    Voter,
    decode_control,
)
from fenceline.quorum.log_view import BOOTSTRAP_SNAPSHOT, SnapshotId, VotersAt
from fenceline.quorum.voter_set import VoterHistory
from fenceline.records.decode import decode_batch

if TYPE_CHECKING:
    from fenceline.records.batch import BatchHeader

_BEGIN: Final = RECORD_KEYS[BeginTransactionRecord]
_END: Final = RECORD_KEYS[EndTransactionRecord]
_ABORT: Final = RECORD_KEYS[AbortTransactionRecord]


NO_SNAPSHOT: Final = BOOTSTRAP_SNAPSHOT


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of replaying the log."""

    image: MetadataImage
    voters: tuple[Voter, ...]
    kraft_version: int
    voter_history: VoterHistory
    """Voter sets of the snapshot and the log. A set that only the format command's snapshot contains has offset -1."""
    record_count: int
    log_record_count: int
    """Number of records from the log, not from a snapshot."""
    open_transaction: bool
    """C6: the writer stopped inside a metadata transaction."""
    last_timestamp_ms: int
    snapshot: SnapshotId
    leader_change: LeaderChange | None
    """The last LEADER_CHANGE: the leader and its voters."""


@contextmanager
def _collector_at_rest() -> Iterator[None]:
    """Disable the garbage collector: searching millions of long-lived objects for cycles doubles the load time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class MetadataTransactions:
    """Metadata transactions (C8): values inside one are held back until it ends."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending: list[bytes] | None = None

    @property
    def is_open(self) -> bool:
        return self._pending is not None

    def drop(self) -> None:
        """A snapshot has replaced the log (N42)."""
        self._pending = None

    def apply(self, value: bytes, replay: Callable[[bytes], None]) -> None:
        """Pass `value` to `replay`, now or when its transaction ends. Raises InternalError."""
        key = api_key_of(value)
        if self._pending is None and key not in (_BEGIN, _END, _ABORT):
            replay(value)
        elif key == _BEGIN:
            if self._pending is not None:
                raise InternalError("a metadata transaction begins inside another one")
            self._pending = []
        elif self._pending is None:
            raise InternalError("a metadata transaction ends but never began")
        elif key == _END:
            pending, self._pending = self._pending, None
            for each in pending:
                replay(each)
        elif key == _ABORT:
            self._pending = None
        else:
            self._pending.append(value)


class MetadataReplay:
    """Batches in, image out: `replay_snapshot` at most once and first, then `replay_log`, then `finish`.

    Batches are (bytes, parsed header). All three raise InternalError for records that do not fit.
    """

    def __init__(self) -> None:
        self.snapshot = NO_SNAPSHOT
        """The snapshot that was replayed."""
        self._delta = MetadataDelta(EMPTY_IMAGE)
        self._transactions = MetadataTransactions()
        self._voters: tuple[Voter, ...] = ()
        self._history = VoterHistory()
        self._kraft_version = 0
        self._leader_change: LeaderChange | None = None
        self._is_log = False
        self._record_count = 0
        self._log_record_count = 0
        self._last_timestamp_ms = 0

    def replay_snapshot(
        self, batches: Iterable[tuple[memoryview, BatchHeader]], snapshot: SnapshotId, path: str
    ) -> None:
        """Raises OperatorError, naming `path`, if the snapshot is incomplete."""
        controls: list[ControlRecord] = []
        with _collector_at_rest():
            for records, header in batches:
                controls += self._batch(records, header)
        if not controls or not isinstance(controls[0], SnapshotHeader) or not isinstance(controls[-1], SnapshotFooter):
            raise OperatorError(
                f"{path} is not a complete snapshot: its first or last record is missing.",
                "Delete the file if the log starts at an older snapshot or at offset 0; otherwise restore it.",
            )
        self.snapshot = snapshot
        self._last_timestamp_ms = controls[0].last_contained_log_timestamp
        # The snapshot of the format command contains no records of the log: a new cluster's log must contain its
        # voters.
        if self._voters:
            self._history.load(VotersAt(snapshot.end_offset - 1, self._kraft_version, self._voters))

    def replay_log(self, batches: Iterable[tuple[memoryview, BatchHeader]], *, only_voters: bool = False) -> None:
        """`only_voters`: records not known to be committed are used only for the voter set (Q40)."""
        before = self._record_count
        self._is_log = True
        for records, header in batches:
            if only_voters and not header.is_control:
                continue
            self._batch(records, header)
            self._last_timestamp_ms = header.max_timestamp
        self._log_record_count += self._record_count - before

    def finish(self, last_offset: int, epoch: int) -> Replayed:
        """The result of everything up to the record at `last_offset`, which has epoch `epoch`."""
        image, _ = self._delta.build(last_offset, epoch)
        return Replayed(
            image,
            self._voters,
            self._kraft_version,
            self._history,
            self._record_count,
            self._log_record_count,
            self._transactions.is_open,
            self._last_timestamp_ms,
            self.snapshot,
            self._leader_change,
        )

    def _batch(self, records: memoryview, header: BatchHeader) -> list[ControlRecord]:
        """Replay one batch; returns its control records."""
        decoded = decode_batch(records, header)
        self._record_count += len(decoded)
        if header.is_control:
            controls: list[ControlRecord] = []
            for one in decoded:
                control = decode_control(one.key, one.value)
                if control is not None:
                    controls.append(control)
                    self._control(control, one.offset)
            return controls
        replay = self._delta.replay_value
        for one in decoded:
            value = one.value
            if value is None:
                raise InternalError(f"the metadata log has a record without a value at offset {one.offset}")
            self._transactions.apply(value, replay)
        return []

    def _control(self, control: ControlRecord, offset: int) -> None:
        match control:
            case LeaderChange():
                self._leader_change = control
            case KRaftVersion():
                self._kraft_version = control.k_raft_version
            case KRaftVoters():
                self._voters = control.voters
                if self._is_log:
                    self._history.add(VotersAt(offset, self._kraft_version, control.voters))
            case _:
                pass
