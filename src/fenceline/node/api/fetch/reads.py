"""One pass over the partitions of a fetch that may have changed: each is checked and read up to its bound.

Owns the order of the checks (rights, hosted here `E4`, epoch `E1-E2`, role `E3`, follower `E30-E31`, divergence
`E8-E10`), the size of a response, and which partitions of a session need not be read again
(`fenceline.replica.fetch_session`). Reads that miss the page cache are recorded and not waited for. Never responds,
parks or loads: `fetching.py` does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.errors import StorageError
from fenceline.log.partition.readable_log import aborted_in, is_aborted_in_memory
from fenceline.node.api.fetch.load_pace import ANSWER_BYTES, LoadPace
from fenceline.node.net.server import Buffer
from fenceline.replica.fencing import CONSUMER_REPLICA_ID, NO_EPOCH, IsolationLevel, check_leader_epoch, read_bound
from fenceline.replica.fetch_session import SessionAnswer, SessionPartition
from fenceline.replica.read_replica import NO_PREFERRED_REPLICA
from fenceline.wire.fetch import FetchedPartition, FetchPartition, FetchRequest

if TYPE_CHECKING:
    from fenceline.log.core.segment import Segment
    from fenceline.log.partition.partition_log import PartitionLog
    from fenceline.log.partition.reading import LogRead
    from fenceline.node.api.fetch.preferred_replicas import PreferredReplicas
    from fenceline.node.metrics import NodeMetrics
    from fenceline.node.replication.replica import Replica
    from fenceline.node.replication.replicas import Replicas
    from fenceline.node.replication.replication import Replication

_MISSING: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class ColdRead(NamedTuple):
    """A read of one partition that would wait for the disk."""

    position: int
    """Index of the partition in the response."""
    read: LogRead
    segments: Sequence[Segment]
    """Those that have the aborted transactions of the records, as they were when the read began: compaction removes
    aborted records together with their entries, and these records may come from before it."""
    partition_log: PartitionLog
    offset: int
    end_offset_exclusive: int

    def load(self) -> None:
        """In a thread. Raises StorageError, OSError."""
        self.read.begin_load()
        self.aborted()

    def was_removed(self) -> bool:
        """Whether something that the read needs has left the log meanwhile, by retention or compaction."""
        current = self.partition_log.segments
        known = set(map(id, current))
        return not self.read.is_from(current) or any(id(segment) not in known for segment in self.segments)

    def aborted(self) -> list[tuple[int, int]]:
        """Of the records, after the load."""
        end = self.read.end_limit(self.segments, self.end_offset_exclusive)
        return [(each.producer_id, each.first_offset) for each in aborted_in(self.segments, self.offset, end)]


class Reader(NamedTuple):
    """Who fetches, in addition to the fields of each partition."""

    takes_any_replica: bool
    """Whether followers may serve it (`epochs.md E3`, KIP-392)."""
    listener: str
    read_fault: Callable[[str | None], ErrorCode] | None = None
    """The error if it may not read a topic, or not learn that there is none (None), else NONE. None: it reads any."""
    takes_files: bool = False
    """Whether records in the page cache are sent from their files: not if every byte must be encrypted first."""


class FetchResult:
    """One pass over all partitions of a fetch."""

    __slots__ = ("cold", "fetched", "from_disk_bytes", "is_for_replica", "must_answer", "size_bytes")

    def __init__(self, is_for_replica: bool) -> None:
        self.is_for_replica = is_for_replica
        self.fetched: list[FetchedPartition] = []
        self.size_bytes = 0
        self.from_disk_bytes = 0
        """The part of `size_bytes` that is not in the page cache yet, or was loaded for this reader."""
        self.must_answer = False
        self.cold: list[ColdRead] = []


ReadPlain = Callable[["FetchReads", FetchRequest, "list[SessionPartition]", int, int, FetchResult], int]
"""Reads the partitions from a number on, within a budget of bytes, up to the first that is not plain; returns its
number."""


class FetchReads:
    """The reads of one broker's fetches. Consumers of old records share `load_pace`; replicas do not."""

    def __init__(
        self,
        replicas: Replicas,
        replication: Replication,
        metrics: NodeMetrics,
        load_pace: LoadPace,
        *,
        max_response_bytes: int,
        name_of: Callable[[bytes], str | None],
        preferred: PreferredReplicas | None = None,
        read_plain: ReadPlain | None = None,
    ) -> None:
        """`name_of`: of the topic with an id, None if it is unknown. `preferred`: None if every consumer fetches from
        the leader. `read_plain`: None if it was not built."""
        self.replicas = replicas
        self._name_of = name_of
        self._replication = replication
        self._preferred = preferred
        self._read_plain = read_plain
        self.metrics = metrics
        self.load_pace = load_pace
        self.max_response_bytes = max_response_bytes

    def is_limited(self, result: FetchResult) -> bool:
        """Whether the response has records from the disk and other requests take precedence."""
        return result.from_disk_bytes > 0 and not result.is_for_replica and self.load_pace.rate() < math.inf

    def read(
        self,
        request: FetchRequest,
        answer: SessionAnswer,
        reader: Reader,
        *,
        has_just_arrived: bool = False,
    ) -> FetchResult:
        """Check and read every partition that may have changed, within the byte limits of the request and the node.

        The follower state in a request is applied once, when the request arrives, and not when it is read again
        (`epochs.md E31`).

        Partitions that do not exist come last and do not end the wait of the others, as in Kafka: a client with
        outdated metadata must not retry in a tight loop. Followers back off, and mostly it is this node that has not
        heard of a new partition yet, for which a producer waits.
        """
        result = FetchResult(request.replica_id >= 0)
        missing: list[FetchedPartition] = []
        budget = min(request.max_bytes, self.max_response_bytes)
        to_read = answer.to_read()
        read_plain = self._plain_for(request, reader)
        number = 0
        while number < len(to_read):
            if read_plain is not None and not result.from_disk_bytes:
                number = read_plain(self, request, to_read, number, budget, result)
                if number == len(to_read):
                    break
            wanted = to_read[number]
            number += 1
            partition = wanted.asked
            left = budget - result.size_bytes
            if result.from_disk_bytes and self.is_limited(result):
                left = min(left, ANSWER_BYTES - result.from_disk_bytes)
            try:
                if result.is_for_replica and reader.read_fault is None and wanted.key not in self.replicas.open_by_id:
                    resting = self._replication.resting.read(request, wanted, has_just_arrived=has_just_arrived)
                    if resting is not None:
                        result.must_answer |= not wanted.is_idle
                        result.fetched.append(resting)
                        continue
                replica = self._checked(request, partition, reader)
                self._read_partition(request, wanted, replica, left, result, reader, has_just_arrived)
            except PeerError as error:
                code = error.code
                if code in _MISSING:
                    if code is ErrorCode.UNKNOWN_TOPIC_ID and wanted.is_known:
                        # A session remembers the name of a topic that has been deleted since.
                        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    missing.append(failed_partition(partition, code)._replace(aborted_transactions=[]))
                    continue
                if isinstance(error, StorageError):
                    self.storage_failed(partition, error)
                result.must_answer = True
                result.fetched.append(failed_partition(partition, code))
        if (missing and result.is_for_replica) or (not result.fetched and not answer.has_idle):
            result.must_answer = True
        if len(missing) > 1:
            missing.sort(key=lambda partition: partition.error_code != ErrorCode.UNKNOWN_TOPIC_ID)
        result.fetched += missing
        return result

    def _plain_for(self, request: FetchRequest, reader: Reader) -> ReadPlain | None:
        """The fast path, if its reads are those of this reader."""
        is_plain = (
            request.replica_id == CONSUMER_REPLICA_ID
            and request.isolation_level == IsolationLevel.READ_UNCOMMITTED
            and reader.read_fault is None
            and (self._preferred is None or not request.rack_id)
        )
        return self._read_plain if is_plain else None

    def _checked(self, request: FetchRequest, partition: FetchPartition, reader: Reader) -> Replica:
        """The replica that may serve this reader. Raises PeerError."""
        if reader.read_fault is not None:
            name = partition.topic if partition.topic_id is None else self._name_of(partition.topic_id)
            fault = reader.read_fault(name)
            if fault is not ErrorCode.NONE:
                raise PeerError(fault)
        replica = self.replicas.hosted(partition.topic, partition.topic_id, partition.index)
        # Fetch treats every negative epoch as no epoch (ListOffsets only -1).
        requested = max(partition.current_leader_epoch, NO_EPOCH)
        code = check_leader_epoch(requested, replica.leader_epoch)
        leader = replica.leader
        is_recovering = replica.is_recovering
        if code is ErrorCode.NONE and request.replica_id >= 0 and leader is not None and not is_recovering:
            code = leader.check_follower(request.replica_id, request.replica_epoch, knows_epoch=requested != NO_EPOCH)
        if code is not ErrorCode.NONE:
            raise PeerError(code)
        if is_recovering or replica.is_being_cut or (leader is None and not reader.takes_any_replica):
            raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return replica

    def _read_partition(
        self,
        request: FetchRequest,
        wanted: SessionPartition,
        replica: Replica,
        budget_bytes: int,
        result: FetchResult,
        reader: Reader,
        has_just_arrived: bool,
    ) -> None:
        partition = wanted.asked
        partition_log = replica.log
        if self._preferred is not None and request.replica_id == CONSUMER_REPLICA_ID and request.rack_id:
            nearest = self._preferred.of(replica, partition.fetch_offset, request.rack_id, reader.listener)
            if nearest != NO_PREFERRED_REPLICA:
                # E66: the consumer fetches from that replica; nothing is read here.
                result.must_answer = True
                empty = self._empty(replica, partition, None)
                result.fetched.append(empty._replace(preferred_read_replica=nearest))
                return
        if partition.last_fetched_epoch >= 0:
            diverging = self._divergence(replica, partition)
            if diverging is not None:
                result.must_answer = True
                result.fetched.append(self._empty(replica, partition, diverging))
                return
        offset = partition.fetch_offset
        if offset < partition_log.log_start_offset or offset > partition_log.log_end_offset:
            raise PeerError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if has_just_arrived and result.is_for_replica:
            self._replication.fetched(
                replica,
                request.replica_id,
                fetch_offset=offset,
                log_start_offset=partition.log_start_offset,
                broker_epoch=request.replica_epoch,
            )
        is_consumer = request.replica_id == CONSUMER_REPLICA_ID
        if (
            result.is_for_replica
            and self._replication.throttles.leader.is_active
            and self._is_throttled(request.replica_id, replica)
        ):
            # Respond as if there were no records: the follower waits and fetches again.
            result.fetched.append(self._empty(replica, partition, None))
            return
        bound = partition_log.log_end_offset
        if is_consumer:
            bound = read_bound(
                replica_id=request.replica_id,
                isolation=request.isolation_level,
                log_end_offset=bound,
                high_watermark=partition_log.high_watermark,
                last_stable_offset=partition_log.last_stable_offset,
            )
        if offset >= bound:
            is_committed = is_consumer and request.isolation_level == IsolationLevel.READ_COMMITTED
            result.fetched.append(self._empty(replica, partition, None, aborted=[] if is_committed else None))
            if wanted.session is not None:
                self.mark_if_idle(request, wanted, replica, result)
            return
        at_least_one = result.size_bytes == 0
        if budget_bytes <= 0 and not at_least_one:
            # The response is full. There is data, so the reader must not wait for more.
            result.must_answer = True
            result.fetched.append(self._empty(replica, partition, None))
            return
        read = partition_log.read(
            offset,
            min(partition.max_bytes, max(budget_bytes, 0)),
            end_offset_exclusive=bound,
            at_least_one=at_least_one,
            to_send=reader.takes_files,
        )
        records = cast("Buffer", read.payload)
        size = len(records)
        aborted: list[tuple[int, int]] | None = None
        segments: list[Segment] = []
        is_cold = not read.resident
        if is_consumer and request.isolation_level == IsolationLevel.READ_COMMITTED:
            aborted = []
            segments = partition_log.segments_from(offset)
            if read.resident:
                end = read.end_limit(segments, bound)
                is_cold = not is_aborted_in_memory(segments, end)
                if not is_cold:
                    aborted = [(each.producer_id, each.first_offset) for each in aborted_in(segments, offset, end)]
        if is_cold:
            result.cold.append(ColdRead(len(result.fetched), read, segments, partition_log, offset, bound))
        if not read.resident:
            result.must_answer = True
            size = min(partition.max_bytes, partition_log.readable_bytes(offset, bound))
        if read.is_from_disk:
            result.from_disk_bytes += size
        result.size_bytes += size
        result.fetched.append(
            FetchedPartition(
                partition.topic,
                partition.topic_id,
                partition.index,
                0,
                partition_log.high_watermark,
                partition_log.last_stable_offset,
                partition_log.log_start_offset,
                aborted_transactions=aborted,
                records=records,
            )
        )
        if size:
            self.metrics.fetched_partitions += 1
            self.metrics.fetched_bytes += size

    def _is_throttled(self, replica_id: int, replica: Replica) -> bool:
        """Whether a follower that is not in sync exceeds its quota and has to wait (Kafka's shouldLeaderThrottle)."""
        quota, leader = self._replication.throttles.leader, replica.leader
        return (
            leader is not None
            and replica_id not in leader.isr
            and quota.covers(*replica.topic_partition)
            and quota.pause_ms(self._replication.now_ms()) > 0
        )

    def count_throttled(self, fetched: Sequence[FetchedPartition]) -> None:
        """Count records sent to a follower against the quota, whether it is in sync or not."""
        quota = self._replication.throttles.leader
        if not quota.is_active:
            return
        size = 0
        for each in fetched:
            if each.records is not None and len(each.records):
                replica = self.replica_of(each)
                if replica is not None and quota.covers(*replica.topic_partition):
                    size += len(each.records)
        quota.passed(size, self._replication.now_ms())

    def mark_if_idle(
        self, request: FetchRequest, wanted: SessionPartition, replica: Replica, result: FetchResult
    ) -> None:
        """There are no records for this reader: the partition is idle if the reader knows everything else too."""
        partition_log, sent = replica.log, wanted.sent
        if sent != (partition_log.high_watermark, partition_log.log_start_offset):
            if result.is_for_replica and -1 < sent.log_start_offset != partition_log.log_start_offset:
                result.must_answer = True  # DeleteRecords waits until all replicas have the new log start
            return
        if request.replica_id == CONSUMER_REPLICA_ID and request.isolation_level == IsolationLevel.READ_COMMITTED:
            wanted.mark_idle(replica.stable_waiters, unheard=replica.waiters)
        elif request.replica_id == CONSUMER_REPLICA_ID:
            wanted.mark_idle(replica.waiters)
        else:
            self.mark_idle(request.replica_id, wanted, replica)

    def mark_idle(self, replica_id: int, wanted: SessionPartition, replica: Replica) -> None:
        """Mark a partition idle for a follower that is at the log's end and knows everything else."""
        partition_log, leader = replica.log, replica.leader
        if (
            leader is not None
            and replica_id in leader.maximal_isr
            and partition_log.high_watermark == partition_log.log_end_offset
            and wanted.sent == (partition_log.high_watermark, partition_log.log_start_offset)
        ):
            # Other followers are checked with each fetch: ISR changes or the high watermark may depend on them. Of one
            # that is about to join, the decision is waited for, which wakes the waiters.
            wanted.mark_idle(replica.follower_waiters, leader.followers.get(replica_id))

    def _divergence(self, replica: Replica, partition: FetchPartition) -> tuple[int, int] | None:
        """`epochs.md E8-E10`: where the reader's log diverges from ours, or None. Raises OFFSET_OUT_OF_RANGE."""
        epoch, end_offset = replica.log.end_offset_for_epoch(partition.last_fetched_epoch)
        if epoch == -1 or end_offset == -1 or partition.fetch_offset < replica.log.log_start_offset:
            raise PeerError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < partition.last_fetched_epoch or end_offset < partition.fetch_offset:
            return epoch, end_offset
        return None

    def _empty(
        self,
        replica: Replica,
        partition: FetchPartition,
        diverging: tuple[int, int] | None,
        aborted: list[tuple[int, int]] | None = None,
    ) -> FetchedPartition:
        return FetchedPartition(
            partition.topic,
            partition.topic_id,
            partition.index,
            0,
            replica.log.high_watermark,
            replica.log.last_stable_offset,
            replica.log.log_start_offset,
            diverging,
            aborted_transactions=aborted,
            records=b"",
        )

    def storage_failed(self, partition: FetchPartition | FetchedPartition, error: StorageError) -> None:
        """A read failed with a disk error: the partition goes offline on this node."""
        replica = self.replica_of(partition)
        if replica is not None:
            self.replicas.storage_failed(replica, error)

    def replica_of(self, partition: FetchPartition | FetchedPartition) -> Replica | None:
        """By topic id if the reader sent one, otherwise by name."""
        if partition.topic_id is not None:
            return self.replicas.by_id(partition.topic_id, partition.index)
        return self.replicas.get(partition.topic or "", partition.index)


def failed_partition(partition: FetchPartition | FetchedPartition, code: ErrorCode) -> FetchedPartition:
    return FetchedPartition(partition.topic, partition.topic_id, partition.index, code, records=b"")
