"""ListOffsets v1-11, OffsetForLeaderEpoch v2-4 and DeleteRecords v0-2.

Rules: `list_offsets.md L2-L24` (order of checks, KIP-207), `epochs.md E21` (an epoch's end), `since_4_0.md K29`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import INTERNAL_TOPICS, METADATA_TOPIC
from fenceline.node.context import Api, RequestContext
from fenceline.node.replication.replica import Replica
from fenceline.replica.fencing import (
    CONSUMER_REPLICA_ID,
    DEBUG_REPLICA_ID,
    NO_EPOCH,
    IsolationLevel,
    check_leader_epoch,
    read_bound,
)
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import millis, request_field

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from fenceline.log.partition.partition_log import PartitionLog
    from fenceline.node.replication.deletions import RecordDeletions
    from fenceline.node.replication.replicas import Replicas
    from fenceline.wire.requests import (
        DeleteRecordsRequest,
        ListOffsetsPartition,
        ListOffsetsRequest,
        OffsetForLeaderEpochRequest,
    )

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6

_FIRST_VERSION_OF: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_FIRST_WITH_LEADER_EPOCH: Final = 4
_FIRST_WITH_OFFSET_NOT_AVAILABLE: Final = 5
_HIGH_WATERMARK: Final = -1
"""DeleteRecords: the offset that means the high watermark."""


_Found = tuple[int, int, int]
"""Offset, timestamp and leader epoch: a tuple for each of thousands of partitions costs less than an object."""
_NOTHING: Final[_Found] = (-1, -1, -1)
_AT_START: Final = (EARLIEST, EARLIEST_LOCAL)
_NEVER_HERE: Final = (LATEST_TIERED, EARLIEST_PENDING_UPLOAD)
"""Nothing is tiered."""


class _Asked(NamedTuple):
    """What a request says about all of its partitions."""

    replicas: Replicas
    version: int
    replica_id: int
    isolation: int


class _ByTime(NamedTuple):
    """A lookup that reads the disk, and the place of its answer."""

    topic: str
    partition: ListOffsetsPartition
    answers: list[dict[str, Any]]
    position: int


def list_offsets(
    replicas: Replicas, threads: Executor, context: RequestContext, request: ListOffsetsRequest
) -> dict[str, Any] | Awaitable[dict[str, Any]]:
    """Each partition succeeds or fails alone.

    Lookups by time read the disk: a request with one of them is answered asynchronously.
    """
    asked = _Asked(replicas, context.api_version, request.replica_id, request_field(request, "isolation_level", 0))
    doubled = _doubled(request)
    rejected: set[tuple[str, int]] = set()
    topics: list[dict[str, Any]] = []
    by_time: list[_ByTime] = []
    for topic in request.topics:
        name = topic.name
        answers: list[dict[str, Any]] = []
        for partition in topic.partitions:
            index = partition.partition_index
            try:
                if doubled and (name, index) in doubled:
                    # One result for all mentions, as in Kafka (`L2`).
                    if (name, index) in rejected:
                        continue
                    rejected.add((name, index))
                    raise PeerError(ErrorCode.INVALID_REQUEST)
                timestamp = partition.timestamp
                _check_timestamp(timestamp, asked.version)
                replica = _asked_replica(asked, name, partition)
                if timestamp == LATEST:
                    _require_visible_end(replica, asked)
                    found = (_read_bound(replica, asked), -1, replica.leader_epoch)
                elif timestamp in _AT_START:
                    found = _start_of(replica.log)
                elif timestamp in _NEVER_HERE:
                    found = _NOTHING
                else:
                    by_time.append(_ByTime(name, partition, answers, len(answers)))
                    found = _NOTHING
                answers.append(_offset_answer(index, ErrorCode.NONE, found))
            except PeerError as error:
                answers.append(_offset_answer(index, error.code, _NOTHING))
        topics.append({"name": name, "partitions": answers})
    answer = {"topics": topics}
    return _look_up_times(asked, threads, by_time, answer) if by_time else answer


def _doubled(request: ListOffsetsRequest) -> set[tuple[str, int]]:
    """Partitions that are mentioned more than once."""
    mentioned = [(topic.name, partition.partition_index) for topic in request.topics for partition in topic.partitions]
    if len(set(mentioned)) == len(mentioned):
        return set()
    return {each for each, count in Counter(mentioned).items() if count > 1}


def _offset_answer(index: int, code: ErrorCode, found: _Found) -> dict[str, Any]:
    offset, timestamp, leader_epoch = found
    return {
        "partition_index": index,
        "error_code": code,
        "timestamp": timestamp,
        "offset": offset,
        "leader_epoch": leader_epoch,
    }


def _check_timestamp(timestamp: int, version: int) -> None:
    if timestamp < 0 and version < _FIRST_VERSION_OF.get(timestamp, 2**15):
        raise PeerError(ErrorCode.UNSUPPORTED_VERSION)


def _start_of(partition_log: PartitionLog) -> _Found:
    """The epoch is returned only if it is known to cover the log start (`L18`)."""
    start, first = partition_log.log_start_offset, partition_log.epochs.earliest
    return start, -1, first[0] if first is not None and first[1] <= start else -1


async def _look_up_times(
    asked: _Asked, threads: Executor, by_time: Sequence[_ByTime], answer: dict[str, Any]
) -> dict[str, Any]:
    """Complete the answer."""
    for topic, partition, answers, position in by_time:
        code, found = ErrorCode.NONE, _NOTHING
        try:
            found = await _look_up_time(asked, threads, topic, partition)
        except PeerError as error:
            code = error.code
        answers[position] = _offset_answer(partition.partition_index, code, found)
    return answer


async def _look_up_time(asked: _Asked, threads: Executor, topic: str, partition: ListOffsetsPartition) -> _Found:
    replica = _asked_replica(asked, topic, partition)
    bound = _read_bound(replica, asked)
    if partition.timestamp == MAX_TIMESTAMP:
        look_up = partial(replica.log.offset_of_max_timestamp, end_offset_exclusive=bound)
    else:
        look_up = partial(replica.log.offset_for_timestamp, partition.timestamp, end_offset_exclusive=bound)
    looking = asyncio.get_running_loop().run_in_executor(threads, look_up)
    await asyncio.wait((looking,))
    # The role, the epoch and the log may have changed meanwhile (`epochs.md E7`).
    if _asked_replica(asked, topic, partition) is not replica:
        raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    found = looking.result()
    bound = min(bound, _read_bound(replica, asked))
    if found is None or found.offset >= bound:
        _require_visible_end(replica, asked)
        return _NOTHING
    return found.offset, found.timestamp, found.leader_epoch


def _asked_replica(asked: _Asked, topic: str, partition: ListOffsetsPartition) -> Replica:
    epoch = partition.current_leader_epoch if asked.version >= _FIRST_WITH_LEADER_EPOCH else NO_EPOCH
    by_any_replica = asked.replica_id == DEBUG_REPLICA_ID
    return _checked(asked.replicas, topic, partition.partition_index, epoch, by_any_replica=by_any_replica)


def _read_bound(replica: Replica, asked: _Asked) -> int:
    partition_log = replica.log
    if asked.replica_id == CONSUMER_REPLICA_ID and asked.isolation == IsolationLevel.READ_UNCOMMITTED:
        return partition_log.high_watermark
    return read_bound(
        replica_id=asked.replica_id,
        isolation=asked.isolation,
        log_end_offset=partition_log.log_end_offset,
        high_watermark=partition_log.high_watermark,
        last_stable_offset=partition_log.last_stable_offset,
    )


def _require_visible_end(replica: Replica, asked: _Asked) -> None:
    if replica.leader is not None and replica.leader.hides_end_offset(asked.replica_id):
        raise PeerError(
            ErrorCode.OFFSET_NOT_AVAILABLE
            if asked.version >= _FIRST_WITH_OFFSET_NOT_AVAILABLE
            else ErrorCode.LEADER_NOT_AVAILABLE
        )


def _checked(
    replicas: Replicas, topic: str, index: int, requested_epoch: int, *, by_any_replica: bool = False
) -> Replica:
    """The partition's replica after resolution, epoch check and leadership check, in that order (`E1-E4`, V37)."""
    replica = replicas.hosted(topic, None, index)
    code = check_leader_epoch(requested_epoch, replica.leader_epoch)
    if code is not ErrorCode.NONE:
        raise PeerError(code)
    if (replica.leader is None and not by_any_replica) or replica.is_recovering or replica.is_being_cut:
        raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return replica


def offset_for_leader_epoch(
    replicas: Replicas, context: RequestContext, request: OffsetForLeaderEpochRequest
) -> dict[str, Any]:
    """The end offset of an epoch in this leader's log (`epochs.md E13`, `E21`)."""
    topics = []
    for topic in request.topics:
        answers = []
        for partition in topic.partitions:
            index = partition.partition
            code, epoch, end_offset = ErrorCode.NONE, -1, -1
            try:
                replica = _checked(replicas, topic.topic, index, partition.current_leader_epoch)
                epoch, end_offset = replica.log.end_offset_for_epoch(partition.leader_epoch)
            except PeerError as error:
                code = error.code
            answers.append({"error_code": code, "partition": index, "leader_epoch": epoch, "end_offset": end_offset})
        topics.append({"topic": topic.topic, "partitions": answers})
    return {"topics": topics}


class _Deletion(NamedTuple):
    """The result of one partition. `replica` None: nothing was deleted, because of `code`."""

    replica: Replica | None
    offset: int
    low_watermark: int
    code: ErrorCode


def delete_records(
    replicas: Replicas,
    waiting: RecordDeletions,
    log_start_moved: Callable[[], None],
    context: RequestContext,
    request: DeleteRecordsRequest,
) -> dict[str, Any] | Awaitable[dict[str, Any]]:
    """Advance the log start of each partition; segments completely below it are left to retention.

    Answered when all live replicas have done so. A partition fails with 7 if that takes longer than the request's
    timeout, and with 6 if the leader changes meanwhile.
    """
    delete = partial(_delete, replicas, waiting, log_start_moved)
    deletions = [
        [delete(topic.name, partition.partition_index, partition.offset) for partition in topic.partitions]
        for topic in request.topics
    ]
    if all(each.low_watermark >= each.offset for of_topic in deletions for each in of_topic):
        return _deletion_answer(request, deletions)
    return _wait_for_replicas(waiting, request, deletions)


def _deletion_answer(request: DeleteRecordsRequest, deletions: list[list[_Deletion]]) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "low_watermark": deleted.low_watermark,
                        "error_code": deleted.code,
                    }
                    for partition, deleted in zip(topic.partitions, of_topic, strict=True)
                ],
            }
            for topic, of_topic in zip(request.topics, deletions, strict=True)
        ]
    }


async def _wait_for_replicas(
    waiting: RecordDeletions, request: DeleteRecordsRequest, deletions: list[list[_Deletion]]
) -> dict[str, Any]:
    promised = {
        (of_topic, position): waiting.wait_for(each.replica, each.offset)
        for of_topic, each_of in enumerate(deletions)
        for position, each in enumerate(each_of)
        if each.replica is not None and each.low_watermark < each.offset
    }
    try:
        await asyncio.wait(promised.values(), timeout=max(millis(request.timeout), 0) / 1000)
        for (of_topic, position), reached in promised.items():
            deletions[of_topic][position] = _waited(deletions[of_topic][position], reached)
    finally:
        for reached in promised.values():
            reached.cancel()
    return _deletion_answer(request, deletions)


def _waited(before: _Deletion, reached: asyncio.Future[int]) -> _Deletion:
    if not reached.done():
        return before._replace(code=ErrorCode.REQUEST_TIMED_OUT)
    try:
        return before._replace(low_watermark=reached.result())
    except PeerError as error:
        return before._replace(code=error.code, low_watermark=-1)


def _delete(
    replicas: Replicas,
    waiting: RecordDeletions,
    log_start_moved: Callable[[], None],
    topic: str,
    index: int,
    offset: int,
) -> _Deletion:
    try:
        replica, target = _delete_before(replicas, log_start_moved, topic, index, offset)
        return _Deletion(replica, target, waiting.low_watermark(replica), ErrorCode.NONE)
    except PeerError as error:
        return _Deletion(None, -1, -1, error.code)


def _delete_before(
    replicas: Replicas, log_start_moved: Callable[[], None], topic: str, index: int, offset: int
) -> tuple[Replica, int]:
    """The replica, and the log start that it now has at least."""
    if topic == METADATA_TOPIC:
        raise PeerError(ErrorCode.POLICY_VIOLATION)  # N23, KIP-630: its log starts at snapshots only
    replica = replicas.leader(topic, None, index)
    if topic in INTERNAL_TOPICS:
        raise PeerError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    if not replica.config.deletes:
        raise PeerError(ErrorCode.POLICY_VIOLATION)
    target = replica.high_watermark if offset == _HIGH_WATERMARK else offset
    if target < 0 or target > replica.high_watermark:
        raise PeerError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if replica.log.advance_log_start(target):
        log_start_moved()
    replica.wake()
    return replica, target


def apis(
    replicas: Replicas, deletions: RecordDeletions, log_start_moved: Callable[[], None], threads: Executor
) -> tuple[Api, ...]:
    delete = partial(delete_records, replicas, deletions, log_start_moved)
    return (
        Api(ApiKey.LIST_OFFSETS, 1, 11, partial(list_offsets, replicas, threads)),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, partial(offset_for_leader_epoch, replicas)),
        Api(ApiKey.DELETE_RECORDS, 0, 2, delete),
    )
