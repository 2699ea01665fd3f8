"""Offset lookups with ListOffsets and OffsetForLeaderEpoch: grouped by leader, fenced by epoch, retried.

Owns the two lookups that admin, consumer and reader share. Every request carries the leader epoch of metadata, so that
a deposed leader rejects it.

Rules: `list_offsets.md` L29-L33, `epochs.md` E46-E51.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from fenceline.client.core.cluster import Cluster
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import RETRIABLE, ConnectionLost, TimedOut, broker_error, error_code
from fenceline.client.core.leader_epochs import GUESSES
from fenceline.client.core.offsets import (
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    EpochEnd,
    OffsetAndEpoch,
    OffsetSpec,
    timestamp_of,
)
from fenceline.errors import ErrorCode
from fenceline.ids import NO_EPOCH, TopicPartition
from fenceline.wire.apis import ApiKey
from fenceline.wire.listed_offsets import read_listed_offsets

A = TypeVar("A")

FENCED_LIST_OFFSETS: Final = 4
"""The first version of ListOffsets with leader epochs: the leader rejects a request with another epoch than its own."""
_MIN_VERSION: Final[Mapping[int, int]] = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}


async def ask_offsets(
    cluster: Cluster,
    node_id: int,
    wanted: Mapping[TopicPartition, OffsetSpec],
    *,
    deadline: Deadline,
    isolation_level: int = 0,
) -> dict[TopicPartition, OffsetAndEpoch | ErrorCode]:
    """ListOffsets from one node, with the leader epochs of metadata. The result lacks partitions that the response
    lacks.

    One request, unless the node returns a log end without its leader epoch: then it guesses the epoch
    (`leader_epochs.py`), and the result has the first guess that the leader accepts.
    """
    timestamps = _timestamps(wanted)
    found: dict[TopicPartition, OffsetAndEpoch | ErrorCode] = {}
    leader = cluster.metadata.leader
    is_fenced = await cluster.max_version(node_id, ApiKey.LIST_OFFSETS, deadline) >= FENCED_LIST_OFFSETS
    for _ in range(1 + GUESSES):
        guesses = {
            tp: cluster.epoch_guesses.of(tp)
            for tp, timestamp in timestamps.items()
            if is_fenced and timestamp == LATEST and leader(tp).epoch < 0
        }
        answers = await _ask_offsets_once(cluster, node_id, timestamps, guesses, deadline, isolation_level)
        if not guesses:
            return found | answers if found else answers
        found |= {tp: _with_guess(answer, guesses.get(tp, NO_EPOCH)) for tp, answer in answers.items()}
        timestamps = {
            tp: LATEST
            for tp, guess in guesses.items()
            if tp in answers and _has_next_guess(cluster, tp, guess, found[tp])
        }
        if not timestamps:
            break
    return found


def _timestamps(wanted: Mapping[TopicPartition, OffsetSpec]) -> dict[TopicPartition, int]:
    """Of thousands of partitions, most have the same spec."""
    known = {spec: timestamp_of(spec) for spec in set(wanted.values())}
    return {tp: known[spec] for tp, spec in wanted.items()}


def _with_guess(answer: OffsetAndEpoch | ErrorCode, guess: int) -> OffsetAndEpoch | ErrorCode:
    if isinstance(answer, ErrorCode) or guess < 0 or answer.leader_epoch >= 0:
        return answer
    return answer._replace(leader_epoch=guess)


def _has_next_guess(cluster: Cluster, tp: TopicPartition, guess: int, answer: OffsetAndEpoch | ErrorCode) -> bool:
    """Whether to request the log end again, with another guess of the leader's epoch."""
    guesses, named = cluster.epoch_guesses, cluster.metadata.untrusted_epoch(tp)
    if isinstance(answer, ErrorCode):
        return guess >= 0 and guesses.rejected(tp, guess, named, answer)
    if answer.leader_epoch >= 0 or answer.offset < 0:
        return False
    guesses.epoch_omitted(tp, named)
    return guesses.of(tp) >= 0


async def _ask_offsets_once(
    cluster: Cluster,
    node_id: int,
    timestamps: Mapping[TopicPartition, int],
    guesses: Mapping[TopicPartition, int],
    deadline: Deadline,
    isolation_level: int,
) -> dict[TopicPartition, OffsetAndEpoch | ErrorCode]:
    by_topic: dict[str, list[dict[str, int]]] = {}
    leader = cluster.metadata.leader
    for tp, timestamp in timestamps.items():
        epoch = guesses.get(tp)
        by_topic.setdefault(tp.topic, []).append(
            {
                "partition_index": tp.partition,
                "current_leader_epoch": leader(tp).epoch if epoch is None else epoch,
                "timestamp": timestamp,
            }
        )
    fields = {
        "replica_id": -1,
        "isolation_level": isolation_level,
        "topics": [{"name": name, "partitions": listed} for name, listed in by_topic.items()],
        "timeout": int(deadline.left_ms),
    }
    needed = max((_MIN_VERSION.get(timestamp, 0) for timestamp in timestamps.values()), default=0)
    answers = await cluster.call(
        node_id, ApiKey.LIST_OFFSETS, fields, deadline=deadline, min_version=needed, decode=read_listed_offsets
    )
    found: dict[TopicPartition, OffsetAndEpoch | ErrorCode] = {}
    note_epoch = cluster.metadata.note_epoch
    for topic, rows in answers:
        for partition, number, timestamp, offset, epoch in rows:
            tp = TopicPartition(topic, partition)
            if not number:
                note_epoch(tp, epoch)
                found[tp] = OffsetAndEpoch(offset, epoch, timestamp)
            elif number == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
                found[tp] = OffsetAndEpoch(-1)
            else:
                found[tp] = error_code(number)
    return found


async def ask_epoch_ends(
    cluster: Cluster, node_id: int, wanted: Mapping[TopicPartition, tuple[int, int]], *, deadline: Deadline
) -> dict[TopicPartition, EpochEnd | ErrorCode]:
    """OffsetForLeaderEpoch from one node. `wanted`: partition -> (requested epoch, current leader epoch or -1)."""
    by_topic: dict[str, list[dict[str, int]]] = {}
    for tp, (epoch, current) in wanted.items():
        by_topic.setdefault(tp.topic, []).append(
            {"partition": tp.partition, "current_leader_epoch": current, "leader_epoch": epoch}
        )
    fields = {
        "replica_id": -1,
        "topics": [{"topic": name, "partitions": listed} for name, listed in by_topic.items()],
    }
    response = await cluster.call(node_id, ApiKey.OFFSET_FOR_LEADER_EPOCH, fields, deadline=deadline)
    found: dict[TopicPartition, EpochEnd | ErrorCode] = {}
    for topic in response.topics:
        for answer in topic.partitions:
            tp = TopicPartition(str(topic.topic), int(answer.partition))
            code = error_code(answer.error_code)
            # Version 0 has no epoch; clients of such brokers do not validate.
            epoch = int(getattr(answer, "leader_epoch", NO_EPOCH))
            found[tp] = EpochEnd(epoch, int(answer.end_offset)) if code is ErrorCode.NONE else code
    return found


async def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, OffsetSpec],
    *,
    deadline: Deadline,
    isolation_level: int = 0,
) -> dict[TopicPartition, OffsetAndEpoch]:
    """ListOffsets for all partitions. Raises the first error that is not retriable, or TimedOut."""
    specs = _timestamps(wanted)

    async def ask(node_id: int, partitions: list[TopicPartition]) -> dict[TopicPartition, OffsetAndEpoch | ErrorCode]:
        asked = {tp: specs[tp] for tp in partitions}
        return await ask_offsets(cluster, node_id, asked, deadline=deadline, isolation_level=isolation_level)

    found = await _ask_leaders(cluster, set(specs), "ListOffsets", ask, deadline)
    return {tp: found[tp] for tp in wanted}


async def offsets_for_leader_epoch(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, tuple[int, int]],
    *,
    deadline: Deadline,
) -> dict[TopicPartition, EpochEnd]:
    """Where epochs end on the leaders. `wanted`: partition -> (requested epoch, current leader epoch or -1 for
    metadata's).

    If the current epoch is newer than metadata's, metadata is refreshed first; if it is older, the leader rejects it.
    """
    for tp, (_, current) in wanted.items():
        if cluster.metadata.note_epoch(tp, current):
            cluster.request_refresh()

    async def ask(node_id: int, partitions: list[TopicPartition]) -> dict[TopicPartition, EpochEnd | ErrorCode]:
        asked = {}
        for tp in partitions:
            epoch, current = wanted[tp]
            asked[tp] = epoch, cluster.metadata.leader(tp).epoch if current < 0 else current
        found = await ask_epoch_ends(cluster, node_id, asked, deadline=deadline)
        for tp, end in found.items():
            if end is ErrorCode.FENCED_LEADER_EPOCH and wanted[tp][1] >= 0:
                raise broker_error(end, f"OffsetForLeaderEpoch of {tp}")
        return found

    ends = await _ask_leaders(cluster, set(wanted), "OffsetForLeaderEpoch", ask, deadline)
    return {tp: ends[tp] for tp in wanted}


async def _ask_leaders(
    cluster: Cluster,
    wanted: set[TopicPartition],
    what: str,
    ask: Callable[[int, list[TopicPartition]], Awaitable[dict[TopicPartition, A | ErrorCode]]],
    deadline: Deadline,
) -> dict[TopicPartition, A]:
    """Run `ask(node, partitions)` for each leader, and again for retriable errors, until all have a result."""
    found: dict[TopicPartition, A] = {}
    while True:
        grouped = await cluster.by_leader(sorted(wanted - found.keys()), deadline)
        outcomes = await asyncio.gather(
            *(ask(node_id, [tp for tp, _ in partitions]) for node_id, partitions in grouped.items()),
            return_exceptions=True,
        )
        moved = set(wanted)
        for outcome in outcomes:
            if isinstance(outcome, ConnectionLost | TimedOut):
                deadline.last_error = outcome
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                for tp, answer in outcome.items():
                    if not isinstance(answer, ErrorCode):
                        found[tp] = answer
                        continue
                    deadline.last_error = error = broker_error(answer, f"{what} of {tp}")
                    if answer not in RETRIABLE:
                        raise error
                    if answer is ErrorCode.OFFSET_NOT_AVAILABLE:
                        moved.discard(tp)
        if not wanted - found.keys():
            return found
        if deadline.is_over:
            raise cluster.timeout_error(deadline)
        await cluster.pause(deadline)
        # OFFSET_NOT_AVAILABLE comes from the leader: retry without a metadata refresh (gaps.md G15).
        if stale := sorted({tp.topic for tp in moved - found.keys()}):
            await cluster.fetch_metadata(stale, deadline)
