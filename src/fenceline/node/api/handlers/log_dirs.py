"""DescribeLogDirs v1-5 and AlterReplicaLogDirs v1-2 (KIP-113, KIP-827, KIP-858, KIP-1066).

Owns the description of directories: partition sizes, disk space, moves in progress. Sizes of partitions that are not
open are read from the directory, so the response is built in a thread. Moves are in `DirectoryMoves`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fenceline.errors import ErrorCode
from fenceline.ids import METADATA_TOPIC, TopicPartition
from fenceline.node.context import Api, NodeView, RequestContext
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from fenceline.log.directories.log_dir import LogDir
    from fenceline.log.directories.log_dirs import LogDirs
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.replication.replicas import Replicas
    from fenceline.node.storage.directory_moves import DirectoryMoves, MoveProgress
    from fenceline.wire.requests import AlterReplicaLogDirsRequest, DescribableLogDirTopic, DescribeLogDirsRequest


async def handle_describe_log_dirs(
    node: NodeView,
    replicas: Replicas,
    log_dirs: LogDirs,
    moves: DirectoryMoves,
    threads: Executor,
    context: RequestContext,
    request: DescribeLogDirsRequest,
) -> dict[str, Any]:
    """Every directory with the requested partitions (None: all) that this broker has."""
    wanted = _wanted(request.topics, node.image, node.node_id)
    offline = frozenset(replicas.offline)
    directories, failed, cordoned = tuple(log_dirs), tuple(log_dirs.offline), log_dirs.cordoned
    moving = [each for each in moves if each.where.partition in wanted.get(each.where.topic, ())]

    def describe() -> list[dict[str, Any]]:
        described = [
            _describe(
                directory,
                {
                    name: [each for each in indexes if log_dirs.holder(TopicPartition(name, each)) is directory]
                    for name, indexes in wanted.items()
                },
                offline,
                [each for each in moving if each.path == directory.path],
                is_cordoned=directory.path in cordoned,
            )
            for directory in directories
        ]
        return described + [_offline(path) for path in failed]

    results = await asyncio.get_running_loop().run_in_executor(threads, describe)
    return {"error_code": ErrorCode.NONE, "results": results}


def _wanted(
    topics: Sequence[DescribableLogDirTopic] | None, image: MetadataImage, node_id: int
) -> dict[str, list[int]]:
    if topics is None:
        asked: Mapping[str, Sequence[int] | None] = dict.fromkeys(image.topics_by_name)
    else:
        asked = {topic.topic: topic.partitions for topic in topics}
    held: dict[str, list[int]] = {}
    for name, indexes in asked.items():
        topic = image.topics_by_name.get(name)
        if topic is None or name == METADATA_TOPIC:
            continue
        found = [
            index
            for index, partition in enumerate(topic.partitions)
            if node_id in partition.replicas and (indexes is None or index in indexes)
        ]
        if found:
            held[name] = found
    return held


def _describe(
    directory: LogDir,
    wanted: Mapping[str, list[int]],
    offline: frozenset[TopicPartition],
    moving: Sequence[MoveProgress],
    *,
    is_cordoned: bool,
) -> dict[str, Any]:
    try:
        room = os.statvfs(directory.path)
    except OSError:
        return _offline(directory.path)
    topics = []
    for name, indexes in wanted.items():
        partitions = [
            {
                "partition_index": index,
                "partition_size": directory.partition_size_bytes(TopicPartition(name, index)),
                "offset_lag": 0,
                "is_future_key": False,
            }
            for index in indexes
            if TopicPartition(name, index) not in offline
        ]
        partitions += [
            {
                "partition_index": each.where.partition,
                "partition_size": each.size_bytes,
                "offset_lag": each.lag,
                "is_future_key": True,
            }
            for each in moving
            if each.where.topic == name
        ]
        if partitions:
            topics.append({"name": name, "partitions": partitions})
    return {
        "error_code": ErrorCode.NONE,
        "log_dir": directory.path,
        "topics": topics,
        "total_bytes": room.f_blocks * room.f_frsize,
        "usable_bytes": room.f_bavail * room.f_frsize,
        "is_cordoned": is_cordoned,
    }


def _offline(path: str) -> dict[str, Any]:
    return {"error_code": ErrorCode.KAFKA_STORAGE_ERROR, "log_dir": path, "topics": ()}


async def handle_alter_replica_log_dirs(
    moves: DirectoryMoves, context: RequestContext, request: AlterReplicaLogDirsRequest
) -> dict[str, Any]:
    """Start the requested moves; the response says whether each has started, not whether it has completed."""
    results: dict[str, list[dict[str, Any]]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            results.setdefault(topic.name, []).extend(
                {
                    "partition_index": index,
                    "error_code": moves.alter(TopicPartition(topic.name, index), directory.path),
                }
                for index in topic.partitions
            )
    return {"results": [{"topic_name": name, "partitions": partitions} for name, partitions in results.items()]}


def apis(
    node: NodeView, replicas: Replicas, log_dirs: LogDirs, moves: DirectoryMoves, threads: Executor
) -> tuple[Api, ...]:
    describe = partial(handle_describe_log_dirs, node, replicas, log_dirs, moves, threads)
    return (
        Api(ApiKey.ALTER_REPLICA_LOG_DIRS, 1, 2, partial(handle_alter_replica_log_dirs, moves)),
        Api(ApiKey.DESCRIBE_LOG_DIRS, 1, 5, describe),
    )
