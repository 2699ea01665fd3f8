"""The partitions and offsets that a query reads, and what the logs have lost of them.

Owns subscription, the meaning of `startingOffsets` and related options, and the comparison of a query's positions with
the current logs. Every request goes through `cluster.SourceCluster`; nothing here knows Spark.
`policy.apply_loss_policy` decides whether a loss ends the query.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.cluster import ReadableEnd, SourceCluster, TopicFacts, partitions_of
from pyspark_fenceline.common.offsets import PartitionPosition, SourceOffset
from pyspark_fenceline.common.planning import PlannedRange
from pyspark_fenceline.errors import Loss, LossKind
from pyspark_fenceline.source.bounds import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    Assign,
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Bound,
    Earliest,
    Latest,
    NoMatch,
    Subscribe,
    SubscribePattern,
    Subscription,
)
from pyspark_fenceline.source.history import Diverged, EpochHistories, Verdict


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The logs of a set of partitions at one moment. `topics`, `starts` and `ends` have the same partitions. `added`:
    start offsets of partitions that the query reads for the first time, unless 0."""

    topics: Mapping[str, TopicFacts]
    starts: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, ReadableEnd]
    cluster_id: str | None = None
    added: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def topic_ids(self) -> dict[str, str | None]:
        return {name: facts.id for name, facts in self.topics.items()}


def subscribed(cluster: SourceCluster, subscription: Subscription) -> dict[str, TopicFacts]:
    """The topics that a subscription matches now, with the selected partitions. A named topic may be missing."""
    match subscription:
        case Subscribe(names):
            return dict(cluster.topics(names))
        case SubscribePattern(pattern):
            matcher = re.compile(pattern)
            every = cluster.topics(None).items()
            return {name: facts for name, facts in every if not facts.is_internal and matcher.fullmatch(name)}
        case Assign(partitions):
            found = cluster.topics({tp.topic for tp in partitions})
            wanted: dict[str, TopicFacts] = {}
            for name, facts in found.items():
                own = tuple(tp.partition for tp in partitions if tp.topic == name and tp.partition in facts.partitions)
                wanted[name] = TopicFacts(facts.id, own, facts.is_internal)
            return wanted


def require_all(subscription: Subscription, found: Mapping[str, TopicFacts]) -> None:
    """Raises `OperatorError` if a named topic or partition does not exist."""
    match subscription:
        case Subscribe(names):
            missing = [name for name in names if name not in found]
        case Assign(partitions):
            missing = [
                str(tp) for tp in partitions if tp.topic not in found or tp.partition not in found[tp.topic].partitions
            ]
        case SubscribePattern():
            return
    if missing:
        raise OperatorError(
            f"These topics or partitions do not exist: {', '.join(missing)}", "Check the names, or create them first."
        )


def take_snapshot(cluster: SourceCluster, topics: Mapping[str, TopicFacts]) -> Snapshot:
    """Bounds of all partitions of `topics`."""
    partitions = partitions_of(topics)
    if not partitions:
        return Snapshot(topics, {}, {}, cluster.cluster_id())
    starts, ends = cluster.log_bounds(partitions)
    return Snapshot(topics, starts, ends, cluster.cluster_id())


def resolve(bound: Bound, snapshot: Snapshot, cluster: SourceCluster, *, side: str) -> dict[TopicPartition, int]:
    """Resolve `bound` in the logs of `snapshot` to an offset for each partition.

    `side` is "starting" or "ending". A timestamp after the last record resolves to the log's end; for a start it is an
    error if the option's strategy says so.
    """
    match bound:
        case Earliest():
            return dict(snapshot.starts)
        case Latest():
            return {tp: end.offset for tp, end in snapshot.ends.items()}
        case AtOffsets(offsets):
            _require_same(offsets, snapshot.ends, f"{side}Offsets", "Use -1 for latest, -2 for earliest. ")
            special = {LATEST_OFFSET: lambda tp: snapshot.ends[tp].offset, EARLIEST_OFFSET: snapshot.starts.__getitem__}
            return {tp: special[offset](tp) if offset in special else offset for tp, offset in offsets.items()}
        case AtTimestamps(timestamps, no_match):
            _require_same(timestamps, snapshot.ends, f"{side}OffsetsByTimestamp", "")
        case AtTimestamp(timestamp, no_match):
            timestamps = dict.fromkeys(snapshot.ends, timestamp)
    found = cluster.offsets_at(timestamps) if timestamps else {}
    resolved: dict[TopicPartition, int] = {}
    for tp, timestamp in timestamps.items():
        offset = found[tp]
        if offset is None and side == "starting" and no_match is NoMatch.ERROR:
            raise OperatorError(
                f"No offset matched from request of topic-partition {tp} and timestamp {timestamp}",
                "Choose an earlier time, or set startingOffsetsByTimestampStrategy to latest.",
            )
        resolved[tp] = snapshot.ends[tp].offset if offset is None else offset
    return resolved


def _require_same(
    given: Collection[TopicPartition], assigned: Collection[TopicPartition], option: str, hint: str
) -> None:
    if set(given) != set(assigned):
        raise OperatorError(
            f"If {option} contains specific offsets, you must specify all TopicPartitions. {hint}"
            f"Specified: {_listed(given)} Assigned: {_listed(assigned)}"
        )


def _listed(partitions: Collection[TopicPartition]) -> str:
    return "[" + ", ".join(str(tp) for tp in sorted(partitions)) + "]"


def range_between(tp: TopicPartition, begin: PartitionPosition, end: PartitionPosition) -> PlannedRange:
    """The records between two positions of one log."""
    return PlannedRange(tp, begin.offset, end.offset, begin.leader_epoch, end.leader_epoch, end.epochs)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Where a query continues in each partition of a snapshot, and its losses.

    `may_be_stale`: a loss may come from a broker that does not know the newest leader or partition yet.
    """

    positions: Mapping[TopicPartition, PartitionPosition]
    losses: Sequence[Loss]
    may_be_stale: bool = False


Judge = Callable[[SourceOffset, Snapshot], Mapping[TopicPartition, Verdict]]
"""Verdicts on positions without an epoch; may end the query."""


def compare(held: SourceOffset, snapshot: Snapshot, history: EpochHistories, judge: Judge | None = None) -> Comparison:
    """Compare a query's positions with the logs.

    A new partition is read from offset 0, or from `snapshot.added`. A position above the readable end is no loss if its
    epoch still matches: a new leader's high watermark may lag for a moment. After a loss the position is the one to
    continue from, with its epochs.
    """
    recreated = recreated_topics(held, snapshot)
    history.forget(tp for tp in snapshot.ends if tp.topic in recreated)
    comparable = {
        tp: position for tp, position in held.positions.items() if tp in snapshot.ends and tp.topic not in recreated
    }
    verdicts = history.check(comparable, snapshot.ends)
    if judge is not None:
        verdicts |= judge(held, snapshot)
    positions: dict[TopicPartition, PartitionPosition] = {}
    losses: list[Loss] = []
    resumed: dict[TopicPartition, int] = {}
    may_be_stale = False
    starts, added = snapshot.starts, snapshot.added
    for tp, end in snapshot.ends.items():
        position = held.positions.get(tp)
        if position is None:
            position = PartitionPosition(added.get(tp, 0))
        is_recreated = tp.topic in recreated
        verdict = verdicts.get(tp)
        if starts[tp] <= position.offset <= end.offset and not (is_recreated or isinstance(verdict, Diverged)):
            positions[tp] = position
            continue
        loss = _loss(tp, position, held, snapshot, verdict, is_recreated=is_recreated)
        if loss is None:
            positions[tp] = position
            continue
        losses.append(loss)
        resumed[tp] = loss.resume_offset
        is_behind = position.leader_epoch < 0 or position.leader_epoch > end.leader_epoch
        may_be_stale |= loss.kind is LossKind.LOG_TRUNCATED and is_behind
    positions |= history.tag(resumed, snapshot.starts, snapshot.ends)
    gone = [
        Loss(
            LossKind.PARTITIONS_GONE,
            tp.topic,
            tp.partition,
            position.offset,
            position.leader_epoch,
            topic_id=held.topic_ids.get(tp.topic),
        )
        for tp, position in held.positions.items()
        if tp not in snapshot.ends
    ]
    losses = [_with_clusters(loss, held, snapshot) for loss in (*losses, *gone)]
    return Comparison(positions, losses, may_be_stale or bool(gone))


def compare_with_retries(
    held: SourceOffset,
    take: Callable[[], Snapshot],
    history: EpochHistories,
    *,
    attempts: int,
    interval_ms: int,
    judge: Judge | None = None,
) -> tuple[Snapshot, Comparison]:
    """Snapshot and comparison. A loss that may come from a broker's stale answer is checked again first."""
    for attempt in range(1, attempts + 1):
        snapshot = take()
        comparison = compare(held, snapshot, history, judge)
        if attempt == attempts or not comparison.may_be_stale:
            break
        time.sleep(interval_ms / 1000)
    return snapshot, comparison


def recreated_topics(held: SourceOffset, snapshot: Snapshot) -> set[str]:
    """Topics of the snapshot that are not those of `held`: their ids differ or, if brokers have no topic ids, the
    cluster does."""
    is_elsewhere = _is_other_cluster(held, snapshot)
    found, found_ids = set(), snapshot.topic_ids
    for topic, held_id in held.topic_ids.items():
        if topic not in snapshot.topics:
            continue
        found_id = found_ids[topic]
        if held_id != found_id if held_id and found_id else is_elsewhere:
            found.add(topic)
    return found


def _is_other_cluster(held: SourceOffset, snapshot: Snapshot) -> bool:
    return None not in (held.cluster_id, snapshot.cluster_id) and held.cluster_id != snapshot.cluster_id


def _with_clusters(loss: Loss, held: SourceOffset, snapshot: Snapshot) -> Loss:
    """The loss with the cluster id of the position, and that of the current cluster if it differs."""
    found = snapshot.cluster_id if _is_other_cluster(held, snapshot) else None
    return replace(loss, cluster_id=held.cluster_id, found_cluster_id=found)


def _loss(
    tp: TopicPartition,
    position: PartitionPosition,
    held: SourceOffset,
    snapshot: Snapshot,
    verdict: Verdict | None,
    *,
    is_recreated: bool,
) -> Loss | None:
    start, end = snapshot.starts[tp], snapshot.ends[tp]

    def loss(kind: LossKind, resume: int, *, divergent_offset: int | None = None, log_epoch: int = -1) -> Loss:
        return Loss(
            kind=kind,
            topic=tp.topic,
            partition=tp.partition,
            offset=position.offset,
            leader_epoch=position.leader_epoch,
            divergent_offset=divergent_offset,
            log_epoch=log_epoch,
            log_start_offset=start,
            log_end_offset=end.offset,
            topic_id=held.topic_ids.get(tp.topic),
            found_topic_id=snapshot.topic_ids.get(tp.topic),
            resume_offset=max(start, resume),
            current_leader_epoch=end.leader_epoch,
        )

    if is_recreated:
        return loss(LossKind.TOPIC_RECREATED, start)
    if isinstance(verdict, Diverged):
        return loss(
            LossKind.LOG_TRUNCATED,
            verdict.resume_offset,
            divergent_offset=verdict.offset,
            log_epoch=verdict.log_epoch,
        )
    if position.leader_epoch < 0 and position.offset > end.offset:
        # The log ends before the position, but the point of divergence is unknown: S35's rows are above.
        return loss(LossKind.LOG_TRUNCATED, start, log_epoch=end.leader_epoch)
    if position.offset < start:
        return loss(LossKind.OFFSETS_EXPIRED, start)
    return None
