"""Invariants of replicated partitions, checked after every step of a broker that changed its state.

Owns the last checked state of each replica, and compares it with the one history of the partition (`data_history`) and
with the newest committed image. Reads the state of brokers from their objects, and their logs from the bytes of the
simulated disk.

From the public TLA+ models of KIP-320 and KIP-966: LeaderInIsr, WeakIsr, StrongIsr. Rules: `epochs.md E14`, `E29`,
`E40`, `E64`; `recovery.md V9`, `V35-V41`; `gaps.md G10`, `G11`, `G14b`, `G52`, `G53`; `list_offsets.md L10` (KIP-207).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Final
from uuid import UUID

from fenceline.ids import CONSUMER_OFFSETS_TOPIC, LOSSES_TOPIC, NO_LEADER
from fenceline.losses.receipt import Receipt
from fenceline.metadata.image import (
    EMPTY_IMAGE,
    ConfigResourceType,
    LeaderRecoveryState,
    MetadataImage,
    PartitionImage,
)
from fenceline.records.batch import BATCH_OVERHEAD, read_header
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.data_crashes import Crashes, Key
from fenceline.testing.simulation.data_history import BatchId, PartitionHistory, decoded, first_from
from fenceline.testing.simulation.disk_checks import ledger_is_complete
from fenceline.testing.simulation.flush_checks import FLUSH_MESSAGES, check_durable
from fenceline.testing.simulation.group_checks import CheckedPositions
from fenceline.testing.simulation.log_reader import StoredBatches
from fenceline.testing.simulation.partition_checks import check_change, shown
from fenceline.testing.simulation.receipt_checks import (
    is_of,
    of_logs_in_use,
    receipts_are_exact,
    receipts_in_directory,
    receipts_to_deliver,
)
from fenceline.testing.simulation.removed_checks import LeaderLog, RemovedChecks
from fenceline.testing.simulation.world import Process, StoredBatch

if TYPE_CHECKING:
    from fenceline.node.replication.replica import Replica
    from fenceline.replica.leader import LeaderState
    from fenceline.testing.simulation.brokers_node import SimBroker

_RECOVERING: Final = LeaderRecoveryState.RECOVERING
_bounds_of: Final = attrgetter("log_start_offset", "high_watermark", "log_end_offset")


class _Copy:
    """A replica at its last check."""

    __slots__ = (
        "end",
        "epoch",
        "high_watermark",
        "is_new",
        "isr",
        "last",
        "leader",
        "log",
        "matched",
        "reader",
        "receipts",
        "replica",
        "seen",
        "since",
        "start",
        "times_emptied",
        "was_cut",
    )

    def __init__(self, replica: Replica, reader: StoredBatches, since: int) -> None:
        self.replica = replica
        self.since = since
        """The newest partition epoch when it was opened: a leader with an older one may mean the previous replica."""
        self.reader = reader
        self.is_new = True
        self.was_cut = False
        self.end = replica.log.log_start_offset
        self.start = -1
        self.times_emptied = replica.log.times_emptied
        """Of its log: an empty log can restart and grow within one step."""
        self.high_watermark = -1
        self.seen = (-1, -1, -1)
        """Log start, high watermark and log end."""
        self.epoch = -1
        self.leader: LeaderState | None = None
        self.isr: frozenset[int] = frozenset()
        self.matched = 0
        """Up to here its log equals the committed history."""
        self.last: BatchId | None = None
        """The last batch of its log."""
        self.log: list[StoredBatch] = []
        """All batches of its log."""
        self.receipts: dict[str, Receipt] = {}
        """By id: the receipts that were checked, and all that its node had reported when the last truncation began."""

    def batches(self, start: int, end: int) -> list[StoredBatch]:
        return first_from(self.reader.between(self.replica.log.segments, start, end), start)


class _Node:
    def __init__(self, process: Process, broker: SimBroker) -> None:
        self.process = process
        self.broker = broker
        self.copies: dict[Key, _Copy] = {}
        self.receipts: dict[str, Receipt] = {}
        """By id: the receipts that it reported since its start; receipts that the ledger has may be deleted from the
        disk."""
        self.due: list[Receipt] = []
        """Its receipts that are not delivered, at the last check."""
        self.has_metadata = False
        self.removed = RemovedChecks(process.disk)

    @property
    def image(self) -> MetadataImage:
        return self.broker.controller.image


class DataChecks:
    """See the module. `check` after each step of a process."""

    def __init__(self, *, marks_records: bool = False) -> None:
        """`marks_records`: whether clients write the topic id into each record."""
        self.changes = 0
        """Changes of a replica that were checked."""
        self._marks_records = marks_records
        self.receipts: dict[str, Receipt] = {}
        """By id: the receipts of all nodes."""
        self._named: dict[str, list[PartitionHistory]] = {}
        """By topic and partition name: one history for each topic id."""
        self._deleting: dict[str, int] = {}
        """By partition: the highest offset in requests to delete records that may still be in flight."""
        self.image: MetadataImage = EMPTY_IMAGE
        """The newest committed image of any node."""
        self.positions = CheckedPositions()
        """The committed offsets of groups."""
        self.histories: dict[Key, PartitionHistory] = {}
        self._partitions: dict[Key, PartitionImage] = {}
        self._nodes: dict[int, _Node] = {}
        self._crashes: dict[int, Crashes] = {}
        self._flushes_late: set[str] = set()
        """Topics whose flush.messages was changed by a request."""
        self.on_change: Callable[[Process, str], None] = lambda process, topic: None
        """Called when the state of a replica of this topic has changed."""
        self.on_cut: Callable[[Process, str], None] = lambda process, directory: None
        """Called when a thread is about to truncate a log."""

    def life_started(self, process: Process, broker: SimBroker) -> None:
        """A broker process starts."""
        self._nodes[process.node_id] = _Node(process, broker)
        self._crashes.setdefault(process.node_id, Crashes(process.disk)).life_started()

    def life_ended(self, process: Process) -> None:
        node = self._nodes.pop(process.node_id, None)
        if node is not None:
            crashes = self._crashes[process.node_id]
            for key, copy in node.copies.items():
                if not copy.is_new:
                    # A truncation in progress may already have a receipt for batches of the last checked log.
                    known = copy.receipts if copy.was_cut else self._known_receipts(key) | copy.receipts
                    crashes.log_closed(key, copy.replica.log.directory, copy.log, known, start=copy.start)

    @property
    def lost_commits(self) -> bool:
        """Whether commits of groups may be lost: a partition of `__consumer_offsets` had an unclean leader."""
        name = f"{CONSUMER_OFFSETS_TOPIC}-"
        return any(each.name.startswith(name) and each.last_unclean >= 0 for each in self.histories.values())

    @property
    def live_keys(self) -> dict[Key, PartitionImage]:
        """The partitions of the newest image."""
        return self._partitions

    def knows(self, node_id: int, key: Key) -> bool:
        """Whether a running node knows this topic: before that, its responses are about an earlier topic of this
        name."""
        node = self._nodes.get(node_id)
        return node is not None and node.has_metadata and UUID(bytes=key[0]) in node.image.topics_by_id

    def forget(self) -> None:
        """No more checks follow."""
        self._nodes.clear()
        self._partitions = {}

    def committed_batches(self) -> int:
        return sum(len(history.batches) for history in self.histories.values())

    def check(self, process: Process) -> None:
        """Check a process after one of its steps. Raises InvariantBroken."""
        node = self._nodes.get(process.node_id)
        if node is None:
            return
        if not node.has_metadata:
            node.has_metadata = node.broker.has_metadata
            if not node.has_metadata:
                return
        image = node.image
        if image.offset > self.image.offset:
            self._image_changed(image, process)
        broker = node.broker
        broker.groups.coordinator.check()
        losses = broker.losses
        if losses.undelivered or node.due:
            due = losses.next_due(losses.undelivered)
            if due != node.due:  # a receipt is due again once its transactions are known
                node.due = due
                node.receipts.update((each.id, each) for each in due)
                self.receipts |= node.receipts
        open_by_id, copies = broker.partitions.open_by_id, node.copies
        if len(copies) > len(open_by_id):
            for key in [each for each in copies if each not in open_by_id]:
                closed = copies.pop(key)
                if not self._was_removed(key, process.node_id):
                    self._crashes[process.node_id].untraced.update((key, batch) for batch in closed.log)
                self._commit_on_close(node, key, closed)
        node.removed.check(broker, self._leader_log, self.receipts_of, process.name)
        _check_resting(node)
        for key, replica in open_by_id.items():
            copy = copies.get(key)
            if copy is None or copy.replica is not replica:
                partition = self._partitions.get(key)
                since = partition.partition_epoch if partition is not None else -1
                copy = copies[key] = _Copy(replica, StoredBatches(process.disk), since)
            if replica.is_being_cut:
                if not copy.was_cut:
                    copy.was_cut = True
                    copy.receipts |= self._known_receipts(key)
                    self.on_change(process, replica.topic_partition.topic)
                    self.on_cut(process, replica.log.directory)
                continue
            leader = replica.leader
            if (
                copy.leader is not leader
                or copy.seen != _bounds_of(replica.log)
                or (leader is not None and copy.isr is not leader.isr)
                or copy.was_cut
            ):
                self.changes += 1
                self.on_change(process, replica.topic_partition.topic)
                self._check_replica(node, key, copy)

    # -- requests of clients -------------------------------------------------------------------------------------------

    def may_delete(self, topic: str, index: int, offset: int) -> None:
        """A request is sent that may move the log start up to this offset, of whichever topic has this name on
        arrival."""
        name = f"{topic}-{index}"
        self._deleting[name] = max(offset, self._deleting.get(name, 0))
        for history in self._named.get(name, ()):
            history.deletable = max(history.deletable, offset)

    def has_deleted(self, topic: str, index: int) -> None:
        """All such requests of this partition have a response."""
        self._deleting.pop(f"{topic}-{index}", None)

    def may_flush_late(self, topic: str) -> None:
        """A request is sent that changes flush.messages: brokers may receive it at any time."""
        self._flushes_late.add(topic)
        for name, histories in self._named.items():
            if name.rpartition("-")[0] == topic:
                for history in histories:
                    history.flushes_each = False

    def producer_acknowledged(self, key: Key, node_id: int, base_offset: int, batch: bytes) -> None:
        """A producer received the acknowledgement of this leader, with acks=all or acks=1. Raises InvariantBroken if
        the leader's disk could lose the batch and the topic has flush.messages=1."""
        history, node = self.histories[key], self._nodes.get(node_id)
        copy = node.copies.get(key) if node is not None else None
        if copy is None or not _must_be_durable(history, copy) or copy.replica.leader is None:
            return
        assert node is not None, "it has a copy"
        mine = [each for each in copy.batches(base_offset, base_offset + 1) if _has_records_of(each, batch)]
        check_durable(node.process.disk, copy.replica.log, mine, f"{node.process.name} {history.name}")

    # -- the committed metadata ----------------------------------------------------------------------------------------

    def _image_changed(self, image: MetadataImage, process: Process) -> None:
        before, self.image = self.image, image
        if image.topics_by_id is not before.topics_by_id:
            self._topics_changed(image, process)
        elif image.configs is before.configs:
            return
        for topic in image.topics_by_id.values():
            own = image.config(ConfigResourceType.TOPIC, topic.name)
            policy = own.get("cleanup.policy", "delete")
            retains_all = own.get("retention.ms", "-1") == "-1" == own.get("retention.bytes", "-1")
            for index in range(len(topic.partitions)):
                history = self.histories[topic.id.bytes, index]
                history.has_retention |= "delete" in policy and not retains_all
                history.flushes_each &= own.get(FLUSH_MESSAGES) == "1" and topic.name not in self._flushes_late
                if "compact" in policy:
                    history.becomes_compacted()

    def _topics_changed(self, image: MetadataImage, process: Process) -> None:
        known = self._partitions
        self._partitions = {}
        for topic in image.topics_by_id.values():
            for index, partition in enumerate(topic.partitions):
                key = (topic.id.bytes, index)
                self._partitions[key] = partition
                if key not in self.histories:
                    mark = topic.id.hex.encode() if self._marks_records and not topic.name.startswith("__") else b""
                    history = self.histories[key] = PartitionHistory(f"{topic.name}-{index}", mark)
                    history.deletable = self._deleting.get(history.name, 0)
                    self._named.setdefault(history.name, []).append(history)
                old = known.get(key)
                if old is not partition and old != partition:
                    process.log_event(f"has {topic.name}-{index} as {shown(partition)}")
                    self._partition_changed(key, old, partition)
        for key in known.keys() - self._partitions.keys():
            # An image with the deletion may skip the end of its recovery.
            self.histories[key].recovering_epoch = -1

    def _partition_changed(self, key: Key, before: PartitionImage | None, after: PartitionImage) -> None:
        history = self.histories[key]
        history.leaders[after.leader_epoch] = after.leader
        check_change(history, before, after, self.image)
        self._check_isr(key)

    # -- replicas ------------------------------------------------------------------------------------------------------

    def _check_replica(self, node: _Node, key: Key, copy: _Copy) -> None:
        replica, history = copy.replica, self.histories.get(key)
        if history is None:
            return
        log, leader = replica.log, replica.leader
        start, end, high_watermark = log.log_start_offset, log.log_end_offset, log.high_watermark
        where = f"{node.process.name} {history.name}"
        has_work = log.is_written or (leader is not None and len(leader.isr) < len(leader.replicas))
        if has_work and replica.topic_partition not in node.broker.partitions.in_service.watched:
            raise InvariantBroken(f"{where}: periodic work does not visit it, though it has files or lagging followers")
        was_emptied = start < copy.start and log.times_emptied != copy.times_emptied
        was_cut = copy.was_cut or end < copy.end or was_emptied
        began = leader is not None and leader is not copy.leader
        copy.times_emptied = log.times_emptied
        if not start <= high_watermark <= end:
            raise InvariantBroken(f"{where}: the log is {start}..{end}, but its high watermark is {high_watermark}")
        if high_watermark < copy.high_watermark and not was_cut:
            raise InvariantBroken(
                f"{where}: the high watermark decreased from {copy.high_watermark} to {high_watermark} (G14b, E40)"
            )
        start_before = copy.start
        if start != copy.start:
            if start < copy.start and not was_cut:
                raise InvariantBroken(f"{where}: the log start decreased from {copy.start} to {start} (log start)")
            begins_segment = not log.segments or log.segments[0].base_offset == start
            history.starts_at(start, by_retention=begins_segment, where=where)
            if not was_cut:
                deleted = [batch for batch in copy.log if batch.base_offset < start]
                self._crashes[node.process.node_id].untraced.update((key, batch) for batch in deleted)
                copy.log = [batch for batch in copy.log if batch.next_offset > start]
                copy.end = max(copy.end, start)
                copy.matched = max(copy.matched, start)
                if copy.last is not None and copy.last.base_offset < start:
                    copy.last = None  # deleted batches need not match
            copy.start = start
        if was_cut:
            if leader is not None and leader is copy.leader:
                raise InvariantBroken(f"{where}: the log of a leader was truncated from {copy.end} to {end}")
            copy.reader = StoredBatches(node.process.disk)
            copy.matched = min(copy.matched, end)
            copy.end = min(copy.end, end)
            kept = copy.reader.between(log.segments, start, copy.end)
            copy.end = max(copy.end, start)
            is_complete = bool(kept) and kept[-1].base_offset >= start
            copy.last = BatchId(kept[-1].base_offset, kept[-1].epoch) if is_complete else None
            lost = [
                batch for batch in copy.log if not (start < batch.next_offset and batch.base_offset < copy.end and kept)
            ]
            copy.log = kept
            if not copy.is_new and not history.is_compacted:
                known = start_before, copy.high_watermark
                there = receipts_in_directory(node.process, replica)
                if copy.was_cut:  # the ledger may already have a receipt that the directory no longer has
                    there = of_logs_in_use(node.receipts, key) | there
                receipts_are_exact(node.process, there, copy.receipts, lost, history, *known, where)
            elif not copy.is_new and not kept:
                there = receipts_in_directory(node.process, replica) | of_logs_in_use(node.receipts, key)
                if there.keys() <= copy.receipts.keys():
                    leader_has = self._leader_has(key, replica.leader_epoch)
                    mine = [batch for batch in lost if batch.base_offset >= start_before and not leader_has(batch)]
                    if mine:
                        raise InvariantBroken(
                            f"{where}: was emptied of {_describe(mine)}, which the leader lacks, without a receipt"
                            " (receipts)"
                        )
                copy.receipts |= there
            copy.was_cut = False
        committed = high_watermark != copy.high_watermark or (leader is not None and leader.isr is not copy.isr)
        # A leader that receives a smaller in-sync set and its successor in one step commits in between.
        by = copy.leader if leader is None and high_watermark > copy.high_watermark else leader
        node.process.log_event(
            f"{history.name} epoch {replica.leader_epoch} {'leads' if leader is not None else 'follows'} log"
            f" {start}..{end} committed {high_watermark}"
        )
        if end > copy.end:
            self._appended(node, key, copy, history, where)
        if copy.is_new:
            copy.receipts = receipts_in_directory(node.process, replica)
            receipts = of_logs_in_use(node.receipts, key) | copy.receipts
            self._crashes[node.process.node_id].log_opened(
                key,
                replica.log.directory,
                copy.log,
                receipts,
                start,
                is_compacted=history.is_compacted,
                leader_has=self._leader_has(key, replica.leader_epoch),
                where=where,
            )
        copy.is_new = False
        copy.end, copy.high_watermark, copy.leader, copy.epoch = end, high_watermark, leader, replica.leader_epoch
        copy.seen = (start, high_watermark, end)
        copy.isr = leader.isr if leader is not None else copy.isr
        if began:
            self._check_new_leader(copy, history, where)
        if by is not None and committed and by.leader_epoch >= history.last_unclean and not by.is_recovering:
            batches = copy.batches(min(copy.matched, history.end), high_watermark)
            if history.flushes_each:
                self._check_followers(key, history, by.isr - {node.process.node_id}, batches)
            history.commit(batches, where)
            copy.matched = max(copy.matched, high_watermark)
            led = history.ends
            led[by.leader_epoch] = max(led.get(by.leader_epoch, 0), high_watermark)
        if committed or was_cut:
            self._check_isr(key)

    def _was_removed(self, key: Key, node_id: int) -> bool:
        """Whether the node is no longer a replica: such a replica is compared with its leader before it is deleted."""
        partition = self._partitions.get(key)
        return partition is not None and node_id not in partition.replicas

    def _leader_log(self, key: Key) -> LeaderLog | None:
        partition = self._partitions.get(key)
        copy = self._leader_of(key, partition.leader_epoch) if partition is not None else None
        if copy is None or self.histories[key].is_compacted:
            return None
        log = copy.replica.log
        start, end = log.log_start_offset, log.log_end_offset
        return LeaderLog(copy.replica.leader_epoch, start, lambda: copy.batches(start, end))

    def _leader_has(self, key: Key, epoch: int) -> Callable[[StoredBatch], bool]:
        """Whether the leader of this epoch has a batch, or had it before compaction removed it; True if none runs."""
        leader = self._leader_of(key, epoch)
        log = leader.replica.log if leader is not None else None

        def has(batch: StoredBatch) -> bool:
            offset = batch.base_offset
            if log is None or offset < log.log_start_offset:
                return True
            return offset < log.log_end_offset and log.epochs.epoch_for_offset(offset) == batch.epoch

        return has

    def _known_receipts(self, key: Key) -> dict[str, Receipt]:
        """By id: the receipts of all nodes so far. A directory that returns after a failure has old ones, too."""
        return {each.id: each for each in self.receipts_of(key)}

    def receipts_of(self, key: Key) -> list[Receipt]:
        """All that are about records of this partition."""
        return [each for each in self.receipts.values() if is_of(each, key)]

    def _commit_on_close(self, node: _Node, key: Key, copy: _Copy) -> None:
        """The replica was closed, or its directory has failed: a fetch may have committed records in the same step."""
        history, leader, high_watermark = self.histories.get(key), copy.leader, copy.replica.log.high_watermark
        if history is None or leader is None or copy.was_cut or high_watermark <= copy.high_watermark:
            return
        if leader.leader_epoch >= history.last_unclean and not leader.is_recovering:
            start = min(copy.matched, history.end)
            batches = [each for each in copy.log if start < each.next_offset and each.base_offset < high_watermark]
            where = f"{node.process.name} {history.name}"
            history.commit(first_from(batches, start), where)
            history.ends[leader.leader_epoch] = max(history.ends.get(leader.leader_epoch, 0), high_watermark)

    def _appended(self, node: _Node, key: Key, copy: _Copy, history: PartitionHistory, where: str) -> None:
        """Log matching; a follower appends what the leader of its epoch has (E64)."""
        replica = copy.replica
        leader = None if replica.leader is not None or copy.is_new else self._leader_of(key, replica.leader_epoch)
        batches = copy.batches(copy.end, replica.log.log_end_offset)
        if all(
            each.epoch >= copy.epoch and history.leaders.get(each.epoch) == node.process.node_id for each in batches
        ):
            leader = None  # it led since the last check, before it followed
        if leader is not None and not history.is_compacted:
            theirs = leader.batches(copy.end, replica.log.log_end_offset)
            kept_from = leader.replica.log.segments[0].base_offset if leader.replica.log.segments else 1 << 62
            mine = [(each.base_offset, each.epoch) for each in batches if each.base_offset >= kept_from]
            if mine != [(each.base_offset, each.epoch) for each in theirs]:
                raise InvariantBroken(
                    f"{where}: appended {_describe(batches)} in epoch {replica.leader_epoch}, whose leader has"
                    f" {_describe(theirs)} there (E64)"
                )
        for batch in batches:
            if batch.epoch > replica.leader_epoch >= 0 and not copy.is_new:
                raise InvariantBroken(
                    f"{where}: has a batch of epoch {batch.epoch} in epoch {replica.leader_epoch} (G11)"
                )
            copy.last = history.wrote(batch, copy.last, where)
        if not copy.log:  # with the batch in which the log starts
            batches = copy.reader.between(replica.log.segments, copy.start, replica.log.log_end_offset)
        copy.log += batches

    def _check_followers(
        self, key: Key, history: PartitionHistory, members: Iterable[int], batches: list[StoredBatch]
    ) -> None:
        """Records committed by the fetches of followers must be durable on their disks."""
        for node_id in members:
            other = self._nodes.get(node_id)
            copy = other.copies.get(key) if other is not None else None
            if other is not None and copy is not None and _must_be_durable(history, copy):
                check_durable(other.process.disk, copy.replica.log, batches, f"{other.process.name} {history.name}")

    def _leader_of(self, key: Key, epoch: int) -> _Copy | None:
        """The running leader of exactly this epoch."""
        for node in self._nodes.values():
            copy = node.copies.get(key)
            if copy is not None and not copy.was_cut:
                leader = copy.replica.leader
                if leader is not None and leader.leader_epoch == epoch:
                    return copy
        return None

    def _check_new_leader(self, copy: _Copy, history: PartitionHistory, where: str) -> None:
        """Leader completeness: a leader has all that was committed before, unless its election was unclean."""
        leader = copy.leader
        assert leader is not None, "it leads"
        epoch = leader.leader_epoch
        if leader.is_recovering or _recovered_unopened(copy, history, epoch):
            epoch_at = copy.replica.log.epochs.epoch_for_offset
            history.adopt_unclean_log(copy.batches(0, copy.end), copy.start, copy.end, epoch, epoch_at)
            copy.matched = min(copy.matched, history.end)
            for node in self._nodes.values():
                other = node.copies.get(self._key_of(copy))
                if other is not None:
                    other.matched = min(other.matched, history.end)
            return
        if epoch < history.last_unclean:
            return  # a stale leader that does not know its successor yet
        needed = history.committed_before(epoch)
        if copy.end < needed:
            raise InvariantBroken(
                f"{where}: leads epoch {epoch} with a log that ends at {copy.end}, but {needed} was committed"
            )
        self._match(copy, history, needed, where)

    @staticmethod
    def _key_of(copy: _Copy) -> Key:
        return copy.replica.topic_id_bytes, copy.replica.topic_partition.partition

    def _match(self, copy: _Copy, history: PartitionHistory, end: int, where: str) -> None:
        """Compare a log with the committed history up to `end`."""
        end = min(end, history.end)
        if copy.matched < end:
            for batch in copy.batches(max(copy.matched, copy.replica.log.log_start_offset), end):
                history.compare(batch, where)
            copy.matched = end

    def _check_isr(self, key: Key) -> None:
        """WeakIsr and StrongIsr: what a leader reports as committed is in the log of every running member."""
        partition, history = self._partitions.get(key), self.histories[key]
        if partition is None:
            return
        for node in self._nodes.values():
            copy = node.copies.get(key)
            if copy is None or copy.leader is None or copy.replica.leader is not copy.leader or copy.was_cut:
                continue
            leader = copy.leader
            if leader.leader_epoch < history.last_unclean or leader.is_recovering:
                continue
            for name, members in (("WeakIsr", leader.isr), ("StrongIsr", partition.isr)):
                for member in members:
                    if member != node.process.node_id:
                        self._check_member(name, node, copy, member, key, history)
        if partition.leader_recovery_state is not _RECOVERING and history.unclean_log_epoch >= history.last_unclean:
            for name, members in (("StrongIsr", partition.isr), ("ELR", partition.elr)):
                for member in members:
                    self._check_eligible(name, member, key, history)

    def _check_eligible(self, name: str, member: int, key: Key, history: PartitionHistory) -> None:
        """A replica that may be elected cleanly (in sync, or eligible as in KIP-966) has all that any leader reported
        as committed."""
        node = self._nodes.get(member)
        copy = node.copies.get(key) if node is not None else None
        if node is None or copy is None or copy.was_cut or copy.replica.is_being_cut:
            return
        known = self.image.brokers.get(member)
        if known is None or known.epoch != node.broker.broker_epoch:
            return
        where, end = f"n{member} {history.name}", copy.replica.log.log_end_offset
        if end < history.end:
            raise InvariantBroken(f"{where}: may be elected and ends at {end}, but {history.end} is committed ({name})")
        self._match(copy, history, min(history.end, copy.end), f"{where} ({name})")

    def _check_member(
        self, name: str, node: _Node, copy: _Copy, member: int, key: Key, history: PartitionHistory
    ) -> None:
        other = self._nodes.get(member)
        theirs = other.copies.get(key) if other is not None else None
        if other is None or theirs is None or theirs.was_cut or theirs.replica.is_being_cut:
            return
        if name == "WeakIsr" and copy.leader is not None and copy.leader.partition_epoch < theirs.since:
            return  # it was removed and added again meanwhile, empty
        incarnation = other.broker.broker_epoch
        image = node.image if name == "WeakIsr" else self.image
        known = image.brokers.get(member)
        if known is None or known.epoch != incarnation:
            return  # another process than the one that was in sync
        where = f"{node.process.name} {history.name} reports {copy.high_watermark} as committed in epoch {copy.epoch}"
        if theirs.replica.log.log_end_offset < copy.high_watermark:
            raise InvariantBroken(
                f"{where}: the log of the in-sync replica {member} ends at {theirs.replica.log.log_end_offset} ({name})"
            )
        self._match(theirs, history, min(copy.high_watermark, theirs.end), f"n{member} {history.name} ({name})")

    # -- when the cluster is idle --------------------------------------------------------------------------------------

    def has_converged(self) -> bool:
        """Every partition has a leader, all its replicas are in sync and equal, and removed replicas have been compared
        with it."""
        if any(node.broker.removed_replicas.waiting for node in self._nodes.values() if node.process.is_up):
            return False
        for key, partition in self._partitions.items():
            if partition.leader == NO_LEADER or set(partition.isr) != set(partition.replicas) or partition.adding:
                return False
            if partition.leader_recovery_state is _RECOVERING or partition.removing:
                return False
            ends = set()
            for replica in partition.replicas:
                node = self._nodes.get(replica)
                copy = node.copies.get(key) if node is not None else None
                if copy is None and node is not None and has_no_object(node.broker, key):
                    ends.add((0, 0))
                    continue
                if copy is None:
                    if any(key in other.copies for other in self._nodes.values()):
                        return False
                    continue
                ends.add((copy.replica.log.log_end_offset, copy.replica.log.high_watermark))
            if len(ends) > 1 or any(end != high_watermark for end, high_watermark in ends):
                return False
        return True

    def losses_have_receipts(self) -> None:
        """A batch that was acknowledged to a producer, committed, and lost in an unclean election has a receipt of some
        replica, unless no replica could know of it. Raises InvariantBroken."""
        for key in self._partitions:
            history = self.histories[key]
            receipts = self.receipts_of(key)
            for batch in history.lost_batches if not history.is_compacted else ():
                # A later unclean election may have restored it.
                is_there = history.batch_at(batch.base_offset) == batch
                if is_there or batch not in history.readable_when_lost or not history.was_acknowledged(batch):
                    continue
                has_receipt = any(
                    each.start_offset <= batch.base_offset < each.end_offset_exclusive
                    and batch.epoch in each.leader_epochs
                    for each in receipts
                )
                if not has_receipt and not any((key, batch) in each.untraced for each in self._crashes.values()):
                    raise InvariantBroken(
                        f"{history.name}: the batch at {batch.base_offset} of epoch {batch.epoch} was acknowledged"
                        " and lost without a receipt (losses)"
                    )

    def ledger_is_complete(self, disks: Iterable[SimDisk]) -> None:
        """Every receipt is in the ledger topic, or still to be delivered. Raises InvariantBroken."""
        ledgers = [each for each in self.histories.values() if each.name.startswith(f"{LOSSES_TOPIC}-")]
        ledger_is_complete(
            (batch for each in ledgers for batch in each.batches),
            self.receipts,
            (receipt.id for disk in disks for receipt in receipts_to_deliver(disk)),
            was_lost=any(each.last_unclean >= 0 for each in ledgers),
        )

    def final(self) -> None:
        """Replicas are equal byte for byte, and equal to the committed history. Raises InvariantBroken."""
        self.losses_have_receipts()
        for key, partition in self._partitions.items():
            history = self.histories[key]
            for replica in partition.replicas:
                copy, where = self._nodes[replica].copies.get(key), f"n{replica} {history.name}"
                if copy is None:
                    if has_no_object(self._nodes[replica].broker, key) and history.end > 0:
                        raise InvariantBroken(f"{where}: was not opened, but the committed end is {history.end}")
                    continue
                log = copy.replica.log
                # Retention may delete what a recovering leader restored before it counts as committed.
                is_empty = log.log_start_offset == log.log_end_offset > history.end
                if log.log_end_offset != history.end and not (is_empty and history.last_unclean >= 0):
                    raise InvariantBroken(
                        f"{where}: ends at {log.log_end_offset}, but the committed end is {history.end}"
                    )
                batches = copy.batches(log.log_start_offset, log.log_end_offset)
                for batch in batches:
                    history.compare(batch, where)
                if not history.is_compacted:
                    there = [batch.base_offset for batch in batches]
                    needed = [
                        batch.base_offset for batch in history.batches if batch.base_offset >= log.log_start_offset
                    ]
                else:
                    # The log start may lie within a batch.
                    stored = copy.batches(log.first_stored_offset, log.log_end_offset)
                    there = [record.offset for batch in stored for record in decoded(batch)]
                    needed = sorted(history.survivors(log.log_start_offset).difference(there))
                    there = []
                if there != needed:
                    raise InvariantBroken(f"{where}: has {there}, but {needed} are committed (logs)")
            seen: set[tuple[int, int, int]] = set()
            for batch in history.batches:
                header = history_header(batch)
                # End markers of a producer have no sequence, and with transaction.version below 2 the same epoch.
                has_sequence = header[0] >= 0 and header[2] >= 0
                if has_sequence and header in seen and not history.log_start:
                    raise InvariantBroken(f"{history.name}: producer {header} was written twice")
                seen.add(header)


def history_header(batch: StoredBatch) -> tuple[int, int, int]:
    header = read_header(batch.content)
    return header.producer_id, header.producer_epoch, header.base_sequence


def _describe(batches: list[StoredBatch]) -> str:
    return ", ".join(f"{each.base_offset}@{each.epoch}" for each in batches) or "nothing"


def _recovered_unopened(copy: _Copy, history: PartitionHistory, epoch: int) -> bool:
    """Whether the leader of the last unclean election had no records, so that it recovered without a replica object
    (`node.replication.unused_leaders`): now there is one, and all its records are newer."""
    return history.unclean_log_epoch < history.last_unclean <= epoch and not any(
        batch.epoch < history.last_unclean for batch in copy.batches(0, copy.end)
    )


def _must_be_durable(history: PartitionHistory, copy: _Copy) -> bool:
    """Whether all that the replica has acknowledged must be in its log, and durable on its disk."""
    is_used = not copy.was_cut and not copy.replica.is_being_cut
    return is_used and history.flushes_each and not history.is_compacted and history.last_unclean < 0


def _has_records_of(batch: StoredBatch, sent: bytes) -> bool:
    return batch.content[BATCH_OVERHEAD:] == sent[BATCH_OVERHEAD:]


def has_no_object(broker: SimBroker, key: Key) -> bool:
    """Whether a broker has a replica of a partition without records, and no object of it."""
    is_led = bool(broker.replication.resting.epochs(key))
    return is_led or broker.replication.fetchers.unused_epoch(key) is not None


def _check_resting(node: _Node) -> None:
    """Followers wait without an object of the partition only while the leader has none, and in its epoch (E5)."""
    resting, broker = node.broker.replication.resting, node.broker
    for key in list(resting):
        topic_id, index = key
        topic = broker.image.topics_by_id.get(UUID(bytes=topic_id)) if isinstance(topic_id, bytes) else None
        where = f"{node.process.name} {topic.name if topic is not None else topic_id!r}-{index}"
        if key in broker.partitions.open_by_id:
            raise InvariantBroken(f"{where}: its followers wait for records although it was opened (resting)")
        partition = topic.partitions[index] if topic is not None else None
        epochs = resting.epochs(key)
        if epochs and (partition is None or partition.leader != broker.node_id or epochs != {partition.leader_epoch}):
            raise InvariantBroken(f"{where}: followers wait in epochs {sorted(epochs)}, it is {partition} (resting)")
