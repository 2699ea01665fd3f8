"""Finds records that were deleted before a group had read them: by retention, by DeleteRecords, with their topic.

Owns the comparison of committed offsets of the groups that are coordinated here with the start offsets of their logs:
soon after a log start moved on this node, and periodically for logs that are led elsewhere. The coordinator knows the
group; the leader of the log is asked if this node has no replica. Each loss is reported once while this node
coordinates the group; another coordinator may report the same range again, with the same receipt id.

Where the logs of a deleted topic began and ended is kept for some minutes: the coordinator deletes the offsets of its
groups in slices, and each is compared when it goes, also by the next coordinator if the first one ends meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from fenceline.errors import PeerError
from fenceline.groups.messages import CommittedPosition
from fenceline.groups.offsets.offsets import OffsetSlot, StoredOffset
from fenceline.ids import NO_LEADER, ZERO_UUID, TopicPartition
from fenceline.losses.receipt import NO_NODE, LossCause, LossClass, Receipt, receipt_id
from fenceline.node.logs import Logger
from fenceline.node.losses.keeper import LossKeeper
from fenceline.node.net.peer_connection import NoSuchVersion, PeerConnection
from fenceline.wire.apis import ApiKey
from fenceline.wire.errors import MalformedRequest

if TYPE_CHECKING:
    from uuid import UUID

    from fenceline.metadata.image import MetadataImage, TopicImage
    from fenceline.node.clock import Clock
    from fenceline.node.replication.open_replicas import OpenReplicas
    from fenceline.node.replication.peers import Peers

log = Logger("losses")

PERIOD_S: Final = 30.0
_DELAY_S: Final = 0.2
"""Delay of the check after a log start moved: DeleteRecords and retention change many partitions at once."""
_PAUSE_FACTOR: Final = 20
"""The pause between checks is at least this many times the duration of the last one."""
_IN_A_TURN: Final = 10_000
"""Partitions that are looked at before others have their turn."""
_KEEP_DELETED_S: Final = 1_200.0
"""How long the bounds of a deleted topic are kept: longer than transactions, which may hold up an offset's deletion."""
_MAX_BATCH: Final = 1_000
_TIMEOUT_S: Final = 10.0
_EARLIEST: Final = -2
_LATEST: Final = -1
_READ_UNCOMMITTED: Final = 0

_Bounds = tuple[int, int]
"""Start and end of the readable offsets of a log."""


class _Deleted(NamedTuple):
    """A deleted topic, as it was."""

    topic: TopicImage
    bounds: dict[int, _Bounds]
    """By partition; not of those whose log was unknown here."""
    at_s: float
    """Time of the loop."""


class CommittedPositions(Protocol):
    """The committed offsets of the groups that are coordinated here (`GroupCoordinator`)."""

    def committed_topics(self) -> Collection[str]: ...
    def committed(self, topics: Collection[str]) -> Iterable[Iterable[tuple[OffsetSlot, StoredOffset]]]: ...


class LossExpiry:
    """The expiry checks of one broker. All methods run on the event loop."""

    def __init__(
        self,
        node_id: int,
        keeper: LossKeeper,
        positions: CommittedPositions,
        in_service: OpenReplicas,
        image: Callable[[], MetadataImage],
        peers: Peers,
        clock: Clock,
        executor: Executor,
    ) -> None:
        self._node_id = node_id
        self._keeper = keeper
        self._positions = positions
        self._in_service = in_service
        self._image = image
        self._peers = peers
        self._clock = clock
        self._executor = executor
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._bounds: dict[TopicPartition, _Bounds] = {}
        """As of the last check."""
        self._deleted: dict[str, dict[UUID, _Deleted]] = {}
        """By name and id, oldest first."""
        self._unwritten: list[Receipt] = []
        self._writing: asyncio.Future[None] | None = None

    def start(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            writing = () if self._writing is None else (self._writing,)
            await asyncio.gather(task, *writing, return_exceptions=True)

    def log_start_moved(self) -> None:
        """The start of a log on this node moved: check soon."""
        self._moved.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        took_s = 0.0
        while True:
            try:
                async with asyncio.timeout(PERIOD_S):
                    await self._moved.wait()
                await asyncio.sleep(max(_DELAY_S, took_s * _PAUSE_FACTOR))
            except TimeoutError:
                pass
            self._moved.clear()
            began_s = loop.time()
            try:
                await self.check()
            except Exception:
                # Our bug; the next check may well succeed.
                log.exception("check for expired records of groups failed")
            took_s = loop.time() - began_s

    async def check(self) -> None:
        """Compare committed offsets with log starts that moved; others have their turn in between."""
        self._forget_deleted()
        before, self._bounds = self._bounds, await self._find_bounds(self._read_partitions())
        moved = {
            where: (before.get(where, (0, 0))[0], start)
            for where, (start, _) in self._bounds.items()
            if start > before.get(where, (0, 0))[0]
        }
        if not moved:
            return
        receipts = []
        for positions in self._positions.committed(sorted({where.topic for where in moved})):
            for slot, committed in positions:
                topic = self._image().topics_by_name.get(slot.topic)
                if topic is None or (starts := moved.get(TopicPartition(slot.topic, slot.partition))) is None:
                    continue
                seen, start = starts
                first = max(committed.offset, seen)
                if first < start and committed.belongs_to(topic.id):
                    reason = "retention or DeleteRecords moved the log start past the group's committed offset"
                    position = CommittedPosition(*slot, committed.offset, committed.leader_epoch, committed.topic_id)
                    receipts.append(self._receipt(topic, position, first, start, LossCause.LOG_START, reason))
            await asyncio.sleep(0)
        await self._keep(receipts)

    def _read_partitions(self) -> list[TopicPartition]:
        """All of the topics that groups read."""
        topics = self._image().topics_by_name
        found = [
            topic for name in sorted(self._positions.committed_topics()) if (topic := topics.get(name)) is not None
        ]
        return [TopicPartition(topic.name, index) for topic in found for index in range(len(topic.partitions))]

    def topics_deleted(self, topics: Iterable[TopicImage]) -> None:
        """Must be called before the logs are deleted, and before the groups' offsets are (`positions_dropped`)."""
        at_s = asyncio.get_running_loop().time()
        for topic in topics:
            found: dict[int, _Bounds] = {}
            for index in range(len(topic.partitions)):
                where = TopicPartition(topic.name, index)
                last = self._bounds.pop(where, None)
                if (bounds := self._local_bounds(where) or last) is not None:
                    found[index] = bounds
            self._forget_deleted()
            self._deleted.setdefault(topic.name, {})[topic.id] = _Deleted(topic, found, at_s)

    def _forget_deleted(self) -> None:
        """Of topics that were deleted long ago."""
        before_s = asyncio.get_running_loop().time() - _KEEP_DELETED_S
        for name, by_id in list(self._deleted.items()):
            for topic_id in [each for each, deleted in by_id.items() if deleted.at_s < before_s]:
                del by_id[topic_id]
            if not by_id:
                del self._deleted[name]

    def positions_dropped(self, positions: Iterable[CommittedPosition]) -> None:
        """These offsets were committed for deleted topics, and are deleted now."""
        unknown: set[tuple[str, str]] = set()
        for position in positions:
            by_id = self._deleted.get(position.topic, {})
            topic_id = position.topic_id if position.topic_id != ZERO_UUID else next(reversed(by_id), ZERO_UUID)
            deleted = by_id.get(topic_id)
            bounds = deleted.bounds.get(position.partition) if deleted is not None else None
            if deleted is None or bounds is None:
                unknown.add((position.group_id, position.topic))
            elif (first := max(position.offset, bounds[0])) < bounds[1]:
                reason = "the topic was deleted with records that the group had not read"
                cause = LossCause.TOPIC_DELETED
                self._unwritten.append(self._receipt(deleted.topic, position, first, bounds[1], cause, reason))
        for group_id, topic in sorted(unknown):
            log.info("unread records of a deleted topic unknown", group=group_id, topic=topic)
        if self._unwritten and self._writing is None:
            self._writing = asyncio.ensure_future(self._write())

    async def _write(self) -> None:
        """One batch after the other: flushes and reads need the threads, too."""
        try:
            while self._unwritten:
                receipts, self._unwritten = self._unwritten, []
                await self._keep(receipts)
        finally:
            self._writing = None

    async def _keep(self, receipts: Sequence[Receipt]) -> None:
        if not receipts:
            return
        try:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._keeper.expired, receipts)
        except OSError as error:
            log.error(
                "writing receipts of expired records failed",
                receipts=len(receipts),
                losses=[f"{receipt.group}: {receipt}" for receipt in receipts[:20]],
                reason=str(error),
                advice="Free disk space. These losses are recorded in this log message only.",
            )

    def _receipt(
        self,
        topic: TopicImage,
        position: CommittedPosition,
        start_offset: int,
        end_offset_exclusive: int,
        cause: LossCause,
        reason: str,
    ) -> Receipt:
        partition = topic.partitions[position.partition]
        return Receipt(
            id=receipt_id(
                topic=topic.name,
                topic_id=topic.id,
                partition=position.partition,
                start_offset=start_offset,
                end_offset_exclusive=end_offset_exclusive,
                cause=cause,
                replica=NO_NODE,  # another coordinator may report it as well
                group=position.group_id,
            ),
            topic=topic.name,
            topic_id=topic.id,
            partition=position.partition,
            start_offset=start_offset,
            end_offset_exclusive=end_offset_exclusive,
            leader_epochs=(position.leader_epoch,) if position.leader_epoch >= 0 else (),
            records=end_offset_exclusive - start_offset,
            size_bytes=0,
            loss_class=LossClass.EXPIRED,
            known_by=f"group {position.group_id} had committed offset {position.offset}; counted by offsets, the"
            " records were not read",
            cause=cause,
            reason=reason,
            replica=self._node_id,
            leader=partition.leader,
            leader_epoch=partition.leader_epoch,
            time_ms=self._clock.now_ms(),
            evidence_note="Records that are deleted on purpose are not kept.",
            group=position.group_id,
        )

    # -- log start and end offsets -------------------------------------------------------------------------------------

    def _local_bounds(self, where: TopicPartition) -> _Bounds | None:
        replica = self._in_service.by_name.get(where)
        if replica is None or replica.is_being_cut:
            return None
        return replica.log.log_start_offset, replica.high_watermark

    async def _find_bounds(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, _Bounds]:
        """Of all logs whose offsets are known; a log that this node leads and has not opened has not moved."""
        # Unknown now means unchanged; a move is found by the next check.
        found = {each: self._bounds[each] for each in wanted if each in self._bounds}
        elsewhere: dict[int, list[TopicPartition]] = defaultdict(list)
        for position, topic_partition in enumerate(wanted):
            if position % _IN_A_TURN == _IN_A_TURN - 1:
                await asyncio.sleep(0)
            here = self._local_bounds(topic_partition)
            if here is not None:
                found[topic_partition] = here
                continue
            topic = self._image().topics_by_name.get(topic_partition.topic)
            if topic is None or topic_partition.partition >= len(topic.partitions):
                continue
            leader = topic.partitions[topic_partition.partition].leader
            if leader not in (NO_LEADER, self._node_id):
                elsewhere[leader].append(topic_partition)
        for leader, partitions in elsewhere.items():
            try:
                found |= await self._ask(leader, partitions)
            except (PeerError, ConnectionError, NoSuchVersion, MalformedRequest, TimeoutError) as error:
                log.debug("log start offsets not available", leader=leader, reason=str(error))
        return found

    async def _ask(self, leader: int, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, _Bounds]:
        if self._peers.endpoint(leader) is None:
            return {}
        connection = await self._peers.open(leader, f"losses-{self._node_id}")
        found: dict[TopicPartition, _Bounds] = {}
        try:
            for position in range(0, len(partitions), _MAX_BATCH):
                some = partitions[position : position + _MAX_BATCH]
                starts = await _offsets(connection, some, _EARLIEST)
                ends = await _offsets(connection, some, _LATEST)
                found |= {each: (starts[each], ends[each]) for each in some if each in starts and each in ends}
        finally:
            connection.close()
        return found


async def _offsets(
    connection: PeerConnection, partitions: Sequence[TopicPartition], timestamp: int
) -> Mapping[TopicPartition, int]:
    by_topic: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for topic, index in partitions:
        by_topic[topic].append({"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp})
    fields = {
        "replica_id": -1,
        "isolation_level": _READ_UNCOMMITTED,
        "topics": [{"name": topic, "partitions": asked} for topic, asked in by_topic.items()],
    }
    version = connection.version_for(ApiKey.LIST_OFFSETS, 5, 9)
    answer = await connection.call(ApiKey.LIST_OFFSETS, version, fields, _TIMEOUT_S)
    return {
        TopicPartition(topic.name, each.partition_index): int(each.offset)
        for topic in answer.topics
        for each in topic.partitions
        if not each.error_code
    }
