"""A compacted log compared with a plain model: the written records, and a dict of the last value of each key.

Invariants after every compaction, and after every crash during one: log start, log end and epochs are unchanged;
every remaining record was written, with its offset, timestamp and leader epoch; a reader of committed records ends
with the same dict; in the range that a pass covered, only the newest record of each key remains, and tombstones
remain until `delete.retention.ms` has passed; every offset can be read; producers continue without errors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import NamedTuple
from uuid import UUID

from fenceline.log.compaction import compaction
from fenceline.log.compaction import swap as compaction_swap
from fenceline.log.compaction.compaction import Compaction, Limits
from fenceline.log.compaction.kernel import SLOT_BYTES
from fenceline.log.compaction.plan import Due
from fenceline.log.compaction.swap import Replacement
from fenceline.log.core.config import LogConfig
from fenceline.log.core.errors import EpochStartUnknown
from fenceline.log.core.producer_state import Origin
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.batch import BatchHeader, Codec, TimestampType, iter_headers
from fenceline.records.build import Row, build_batch
from fenceline.records.decode import decode_batch
from fenceline.replica.follower import FollowerState
from fenceline.testing.sim_disk import SimDisk
from tests.log.helpers import DIRECTORY, open_log, read_all

DELETE_RETENTION_MS = 500
CODECS = [Codec.NONE, Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.ZSTD]


class Written(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    epoch: int


class Open(NamedTuple):
    """A transaction that is neither committed nor aborted."""

    first_offset: int
    records: list[Written]


def marker(producer_id: int, timestamp: int, *, commit: bool) -> bytearray:
    key, value = bytes((0, 0, 0, commit)), bytes(6)
    return build_batch(
        [(timestamp, key, value, ())], producer_id=producer_id, producer_epoch=0, transactional=True, control=True
    )


def run(log: PartitionLog, work: Compaction) -> list[Replacement]:
    """Run a whole compaction synchronously."""
    found = []
    for step in work.steps():
        if isinstance(step, Replacement):
            assert compaction_swap.commit(log, step)
            found.append(step)
    return found


def compact_all(log: PartitionLog, now_ms: int, limits: Limits) -> None:
    """Flush everything, then compact all sealed segments, including those compacted before."""
    if (work := log.flush_work(now_ms)) is not None:
        work.run()
    due = Due(log.log_start_offset, log.segments[-1].base_offset, 1, 1.0)
    run(log, compaction.begin(log, due, now_ms=now_ms, limits=limits))


def fetch(leading: PartitionLog, following: PartitionLog, leader_epoch: int, max_bytes: int) -> None:
    """Fetch a follower's next batches, with the epoch look-ups it needs before it appends them (`epoch_search.py`)."""
    read = leading.read(following.log_end_offset, max_bytes, end_offset_exclusive=leading.log_end_offset)
    records = memoryview(bytes(read.load()))
    state = FollowerState("topic", bytes(16), 0, leader_epoch, following)
    try:
        info = following.append_as_follower(records, leader_epoch=leader_epoch)
    except EpochStartUnknown as unknown:
        question = state.on_unknown_epoch(unknown.epoch, unknown.first_offset)
        while question is not None:
            question = state.on_epoch_end(*leading.end_offset_for_epoch(question.epoch))
        info = following.append_as_follower(records, leader_epoch=leader_epoch, epoch_starts=state.epoch_starts)
    assert info.base_offset >= 0


OURS = UUID(int=7)
"""An incarnation: no other program compacts these logs, and `compaction_bound` is exact."""


class Story:
    def __init__(self, rng: Random, disk: SimDisk | None = None) -> None:
        self.rng = rng
        self.disk = disk or SimDisk(rng.randrange(1 << 30))
        self.disk.mkdir("/data")
        self.config = LogConfig(
            segment_bytes=rng.choice([400, 1500, 6000]),
            index_interval_bytes=rng.choice([0, 150, 4096]),
            cleanup_policy=frozenset({"compact"}),
            delete_retention_ms=DELETE_RETENTION_MS,
            timestamp_type=rng.choice([*[TimestampType.CREATE_TIME] * 3, TimestampType.LOG_APPEND_TIME]),
        )
        self.log = open_log(self.disk, config=self.config, incarnation=OURS)
        self.now_ms = 10_000
        self.epoch = 0
        self.written: dict[int, Written] = {}
        """All records, by offset; those of aborted transactions, too."""
        self.committed: list[Written] = []
        """In the order in which readers of committed records get them: by offset when all transactions are complete."""
        self.open: dict[int, Open] = {}
        self.sequences: dict[int, int] = {}
        self.checkpoint = 0
        """The offset up to which the log was compacted."""
        self.recovery_point = 0
        self.tombstones_until_ms: dict[int, int] = {}
        """By offset, the time until which tombstones seen by a pass must remain."""
        self.keys = [b"%d" % number for number in range(rng.choice([1, 3, 12]))]

    # -- operations --------------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        rng = self.rng
        rows: list[Row] = []
        for _ in range(rng.choice([1, 1, 2, 7])):
            value = None if rng.random() < 0.25 else b"v%d" % rng.randrange(1 << 16)
            headers = (("h", b"x"),) if rng.random() < 0.1 else ()
            rows.append((self.now_ms - rng.choice([0, 0, 3, 70_000]), rng.choice(self.keys), value, headers))
        return rows

    def _append(self, rows: list[Row], origin: Origin = Origin.CLIENT, **fields: int | bool) -> list[Written]:
        made = memoryview(build_batch(rows, codec=self.rng.choice(CODECS), **fields))  # type: ignore[arg-type]
        if len(made) > self.config.segment_bytes:
            return []
        info = self.log.append_as_leader(made, leader_epoch=self.epoch, now_ms=self.now_ms, origin=origin)
        assert not info.duplicate
        stamp = info.log_append_time_ms
        found = [
            Written(info.base_offset + number, stamp if stamp >= 0 else row[0], row[1], row[2], self.epoch)
            for number, row in enumerate(rows)
        ]
        self.written.update({each.offset: each for each in found})
        return found

    def append(self) -> None:
        self.now_ms += self.rng.choice([0, 1, 40])
        producer = self.rng.choice([-1, -1, 7, 8])
        if producer in self.open:
            producer = -1
        rows = self.rows()
        if producer < 0:
            self.committed += self._append(rows)
            return
        sequence = self.sequences.get(producer, 0)
        found = self._append(rows, producer_id=producer, producer_epoch=0, base_sequence=sequence)
        self.sequences[producer] = sequence + len(found)
        self.committed += found

    def append_without_key(self) -> None:
        """A record from before the topic was compacted."""
        self.committed += self._append([(self.now_ms, None, b"no key", ())], Origin.COORDINATOR)

    def append_in_transaction(self) -> None:
        producer = self.rng.choice([21, 22])
        sequence = self.sequences.get(producer, 0)
        found = self._append(
            self.rows(), producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        if found:
            self.sequences[producer] = sequence + len(found)
            self.open.setdefault(producer, Open(found[0].offset, [])).records.extend(found)

    def decide(self) -> None:
        if not self.open:
            return
        producer = self.rng.choice(sorted(self.open))
        records = self.open.pop(producer).records
        commit = self.rng.random() < 0.5
        made = memoryview(marker(producer, self.now_ms, commit=commit))
        self.log.append_as_leader(made, leader_epoch=self.epoch, now_ms=self.now_ms, origin=Origin.COORDINATOR)
        if commit:
            self.committed = sorted([*self.committed, *records])

    def lead_again(self) -> None:
        self.epoch += self.rng.randint(1, 3)

    def roll(self) -> None:
        self.log.roll(self.now_ms)

    def wait(self) -> None:
        self.now_ms += self.rng.choice([100, DELETE_RETENTION_MS, 5 * DELETE_RETENTION_MS])

    def flush(self) -> None:
        self.log.advance_high_watermark(self.log.log_end_offset)
        work = self.log.flush_work(self.now_ms)
        if work is not None:
            work.run()
        self.recovery_point = self.log.recovery_point

    def due(self) -> Due | None:
        """Whole segments below the committed, stable and flushed offsets."""
        limit = min(self.log.last_stable_offset, self.recovery_point)
        bases = [segment.base_offset for segment in self.log.segments]
        ends = [base for base in bases[1:] if base <= limit and base > self.checkpoint]
        if not ends:
            return None
        end = self.rng.choice(ends)
        return Due(max(self.checkpoint, self.log.log_start_offset), end, 1, 1.0)

    def begin(self, due: Due) -> Compaction:
        limits = Limits(
            memory_bytes=self.rng.choice([1 << 20, SLOT_BYTES * 9]), buffer_bytes=self.rng.choice([61, 300, 1 << 16])
        )
        return compaction.begin(self.log, due, now_ms=self.now_ms, limits=limits)

    def compact(self) -> None:
        self.flush()
        due = self.due()
        if due is None:
            return
        work = self.begin(due)
        before = (self.log.log_start_offset, self.log.log_end_offset, self.log.epochs.entries)
        replaced = run(self.log, work)
        for each in replaced:
            compaction_swap.delete_old(self.disk, each)
        assert before == (self.log.log_start_offset, self.log.log_end_offset, self.log.epochs.entries)
        self.log.config = self.config
        self.compacted(work.end)
        self.same()

    def compacted(self, end: int) -> None:
        """A pass has ended: no unneeded record remains in its range."""
        self.checkpoint = end
        last = self.newest(end)
        left = self.raw()
        visible = self.visible(left)
        for each in visible:
            assert each.offset >= end or last.get(each.key) == each, (
                f"{each} remains, but {last.get(each.key)} is newer"
            )
        there = {each.offset for each in visible}
        for header, records in left:
            if not header.is_control and header.last_offset < end:
                assert all(each.offset in there for each in records), f"{header} was aborted, but remains"
        for each in last.values():
            # Some keys of the batch that did not fit into the map may be in it.
            is_newer = any(other.key == each.key and other.offset > each.offset for other in visible)
            if each.value is None:
                until = self.tombstones_until_ms.setdefault(each.offset, self.now_ms + DELETE_RETENTION_MS)
                assert each.offset in there or is_newer or self.now_ms >= until, f"{each} was removed before {until}"
            else:
                assert each.offset in there or is_newer, f"{each} is missing"

    def reopen(self) -> None:
        self.flush()
        self.log.close()
        if self.rng.random() < 0.5:
            self.forget_producers()
        self.log = open_log(
            self.disk, config=self.config, clean=True, recovery_point=self.log.log_end_offset, incarnation=OURS
        )
        self.log.advance_high_watermark(self.log.log_end_offset)
        self.same()

    def forget_producers(self) -> None:
        """Without snapshots, producers are rebuilt from the batches."""
        for name in list(self.disk.listdir(DIRECTORY)) if self.disk.stat(DIRECTORY) is not None else ():
            if name.endswith(".snapshot"):
                self.disk.unlink(f"{DIRECTORY}/{name}")

    # -- invariants ------------------------------------------------------------------------------------------

    def newest(self, end: int) -> dict[bytes | None, Written]:
        return {each.key: each for each in self.committed if each.offset < end and each.key is not None}

    def raw(self) -> list[tuple[BatchHeader, list[Written]]]:
        found = []
        for header, content in self.batches():
            records = [
                Written(each.offset, each.timestamp, each.key, each.value, header.leader_epoch)
                for each in decode_batch(content, header._replace(position=0))
            ]
            found.append((header, records))
        return found

    def batches(self) -> list[tuple[BatchHeader, bytes]]:
        log = self.log
        if log.log_start_offset == log.log_end_offset:
            return []
        return read_all(log, max_bytes=self.rng.choice([1, 500, 1 << 20]))

    def visible(self, raw: list[tuple[BatchHeader, list[Written]]]) -> list[Written]:
        """What a reader of committed records gets, by the log's own list of aborted transactions."""
        log = self.log
        stable = log.last_stable_offset
        coming = sorted(
            (entry.first_offset, entry.producer_id)
            for entry in log.aborted_transactions(log.log_start_offset, log.log_end_offset)
        )
        aborted: set[int] = set()
        found: list[Written] = []
        for header, records in raw:
            while coming and coming[0][0] <= header.last_offset:
                aborted.add(coming.pop(0)[1])
            if header.is_control:
                if records and records[0].key is not None and records[0].key[3] == 0:
                    aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted) and header.base_offset < stable:
                found += records
        return found

    def segments_do_not_overlap(self) -> None:
        """Checks the files, not reads through them: each offset is looked up in one file."""
        segments = self.log.segments
        for segment, behind in itertools.pairwise(segments):
            for header in iter_headers(bytes(self.disk.peek(segment.path) or b"")):
                assert segment.base_offset <= header.base_offset <= header.last_offset < behind.base_offset

    def same(self) -> None:
        self.segments_do_not_overlap()
        raw = self.raw()
        for header, records in raw:
            if not header.is_control:
                for each in records:
                    assert self.written[each.offset] == each
        stable = self.log.last_stable_offset
        state = {each.key: each.value for each in self.visible(raw) if each.key is not None}
        expected = {each.key: each.value for each in self.committed if each.key is not None and each.offset < stable}
        assert {key: value for key, value in state.items() if value is not None} == {
            key: value for key, value in expected.items() if value is not None
        }
        for producer, following in self.sequences.items():
            known = self.log.producers.get(producer)
            if known is None:
                assert following == 0
            else:
                assert known.last_sequence == following - 1
        self.check_every_offset([header for header, _ in raw])

    def check_follower(self) -> None:
        """A follower that fetches the log from its start in pieces gets the same bytes, end, epochs and producers.

        A crash may lose what it has not flushed; then no epoch may appear longer than it was.
        """
        rng, log, disk = self.rng, self.log, SimDisk(self.rng.randrange(1 << 30))
        disk.mkdir("/data")
        follower = open_log(disk, config=self.config, incarnation=OURS)
        follower.truncate_fully_and_start_at(log.log_start_offset)
        crash_at = rng.randrange(log.log_start_offset, 2 * log.log_end_offset + 1)
        was_flushed, points = True, [follower.recovery_point]
        while follower.log_end_offset < log.log_end_offset:
            fetch(log, follower, self.epoch, rng.choice([1, 300, 5000]))
            if rng.random() < 0.2 and (work := follower.flush_work(self.now_ms)) is not None:
                work.run()
                points.append(follower.recovery_point)
            if follower.log_end_offset >= crash_at:
                crash_at = log.log_end_offset + 1
                was_flushed = not follower.epochs.changed
                follower.close(clean=False)
                # The checkpoint of the directory lags.
                follower = open_log(disk, config=self.config, recovery_point=rng.choice(points), incarnation=OURS)
        for epoch in range(self.epoch + 1):
            of_leader, of_follower = log.end_offset_for_epoch(epoch), follower.end_offset_for_epoch(epoch)
            assert of_follower[1] <= of_leader[1], epoch
            if was_flushed:
                assert of_follower == of_leader, epoch
        fetched = [content for _, content in read_all(follower)] if follower.log_end_offset else []
        assert fetched == [content for _, content in self.batches()]
        for producer in self.sequences:
            known, copied = log.producers.get(producer), follower.producers.get(producer)
            if known is not None:
                assert copied is not None
                assert copied.last_sequence == known.last_sequence
        follower.close(clean=False)

    def check_every_offset(self, headers: list[BatchHeader]) -> None:
        log = self.log
        for _ in range(5 if headers else 0):
            offset = self.rng.randrange(log.log_start_offset, log.log_end_offset)
            expected = next((header for header in headers if header.last_offset >= offset), None)
            read = log.read(offset, 1, end_offset_exclusive=log.log_end_offset).load()
            found = int.from_bytes(read[:8], "big") if read else None
            assert found == (expected.base_offset if expected is not None else None)

    def live(self, steps: int) -> None:
        kinds: list[Callable[[], None]] = [self.append] * 12 + [self.append_in_transaction] * 4 + [self.decide] * 4
        kinds += [self.append_without_key, self.lead_again, self.roll, self.roll, self.wait, self.reopen]
        kinds += [self.compact] * 4
        for _ in range(steps):
            self.rng.choice(kinds)()
        while self.open:
            self.decide()
        self.roll()
        self.append()
        for _ in range(3):
            self.compact()
        self.reopen()
        self.check_follower()
