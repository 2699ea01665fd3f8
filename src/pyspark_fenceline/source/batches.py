"""The ranges that one micro-batch reads between two offsets, and the losses that it must report later.

Owns where a batch begins (after a loss, its end offset contains that), how far it is read if its end is no longer in
the log, and the state that the next plan needs about this. The end of a batch is fixed before Spark asks for its tasks
(`pyspark.md` S8), so a later loss is reported by the offset of the next batch. Pure: comparisons with the logs are
parameters. Never ends a query.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from fenceline.ids import TopicPartition
from pyspark_fenceline.common.offsets import PartitionPosition, SourceOffset
from pyspark_fenceline.common.planning import PlannedRange
from pyspark_fenceline.errors import Loss, LossKind
from pyspark_fenceline.source.ranges import Comparison, Snapshot, range_between

_SKIPPED: Final = (LossKind.TOPIC_RECREATED, LossKind.PARTITIONS_GONE)
"""Losses after which a batch skips the partition completely."""
_SKIPPED_BY_TASKS: Final = frozenset({LossKind.TOPIC_RECREATED, LossKind.OFFSETS_EXPIRED})
"""Losses after which a task skips the rest of what it had to read."""


class _Planned(NamedTuple):
    """A partition's part of a batch: planned from `begin` to `end`, read up to `read_to`. `leader_epoch`: of the leader
    when the batch was planned."""

    begin: PartitionPosition
    read_to: PartitionPosition
    end: PartitionPosition
    leader_epoch: int


@dataclass(slots=True)
class PlannedBatch:
    """`ranges`: what its tasks read. `losses`: found at its beginning or its end."""

    ranges: list[PlannedRange]
    losses: list[Loss]
    in_doubt: dict[TopicPartition, _Planned]
    """Partitions that may not have been read completely."""
    end: SourceOffset
    unreported: list[Loss] = field(default_factory=list)
    """Those of `losses` that the next plan would not find, or not from their beginning."""
    being_read: dict[TopicPartition, PlannedRange] = field(default_factory=dict)
    """Ranges that may not have been read completely when the logs were last checked."""

    def with_unread_ranges(
        self, held: SourceOffset, comparison: Comparison, snapshot: Snapshot, *, tasks_may_go_back: bool = True
    ) -> Comparison:
        """The next plan's comparison, moved further back for partitions that this batch may not have read to the end.

        After two unclean elections the log may again be as it was when the batch was planned, or hold more of that than
        when a task read it. A task cannot report to the driver that it ended a range early, so two elections before the
        next plan count as proof, if tasks may end ranges early at all."""
        positions = dict(comparison.positions)
        losses = {TopicPartition(loss.topic, loss.partition): loss for loss in comparison.losses}
        for tp, planned in list(self.in_doubt.items()):
            end, loss = planned.end, losses.get(tp)
            if held.positions.get(tp) != end or tp not in positions:
                continue
            if loss is not None and loss.kind is not LossKind.LOG_TRUNCATED:
                continue
            is_doubtful = tasks_may_go_back and snapshot.ends[tp].leader_epoch > planned.leader_epoch + 1
            back_to = planned.begin if is_doubtful else planned.read_to
            if positions[tp].offset <= back_to.offset:
                if loss is None:
                    # Read completely; later elections concern the next batch.
                    del self.in_doubt[tp]
                continue
            positions[tp] = back_to
            losses[tp] = replace(
                loss
                or Loss(
                    LossKind.LOG_TRUNCATED,
                    tp.topic,
                    tp.partition,
                    end.offset,
                    end.leader_epoch,
                    log_epoch=end.leader_epoch,
                    log_start_offset=snapshot.starts[tp],
                    log_end_offset=snapshot.ends[tp].offset,
                    topic_id=held.topic_ids.get(tp.topic),
                    found_topic_id=snapshot.topic_ids.get(tp.topic),
                    cluster_id=held.cluster_id,
                ),
                resume_offset=back_to.offset,
                current_leader_epoch=snapshot.ends[tp].leader_epoch,
            )
        return Comparison(positions, list(losses.values()))

    def with_unreported_losses(
        self, held: SourceOffset, comparison: Comparison, snapshot: Snapshot, tolerated: frozenset[LossKind]
    ) -> Comparison:
        """The next plan's comparison with the losses of this batch that no offset reports yet.

        A task cannot report to the driver what it skipped. But it skips nothing that the log still holds at the first
        check after the batch: what is lost by then is reported, as records that may already have been read.
        """
        if held != self.end:
            return comparison
        positions = dict(comparison.positions)
        found = {TopicPartition(loss.topic, loss.partition): loss for loss in comparison.losses}
        late: list[Loss] = []
        for loss in self.unreported:
            tp = TopicPartition(loss.topic, loss.partition)
            newer = found.get(tp)
            if newer is not None and _is_same_loss(loss, newer):
                found[tp] = replace(newer, offset=loss.offset, leader_epoch=loss.leader_epoch)
            elif loss.kind in _SKIPPED and tp in positions:
                # The brokers' metadata was stale, and nothing of the partition was read.
                begin = max(loss.offset, snapshot.starts[tp])
                if begin < positions[tp].offset:
                    positions[tp] = held.positions[tp].at(begin)
                late.append(replace(loss, resume_offset=positions[tp].offset))
                if newer is not None:
                    found[tp] = replace(newer, resume_offset=positions[tp].offset)
            else:
                late.append(_reported_late(loss, held))
        for tp, planned in list(self.being_read.items()):
            newer = found.get(tp)
            has_expired = planned.start_offset < snapshot.starts.get(tp, 0)
            if newer is not None and newer.kind in _SKIPPED_BY_TASKS & tolerated:
                found[tp] = replace(
                    newer,
                    offset=planned.start_offset,
                    leader_epoch=planned.start_epoch,
                    maybe_read_to=planned.end_offset_exclusive,
                )
            elif has_expired and LossKind.OFFSETS_EXPIRED in tolerated:
                start = snapshot.starts[tp]
                loss = Loss(
                    LossKind.OFFSETS_EXPIRED,
                    tp.topic,
                    tp.partition,
                    planned.start_offset,
                    planned.start_epoch,
                    log_start_offset=start,
                    log_end_offset=snapshot.ends[tp].offset,
                    topic_id=held.topic_ids.get(tp.topic),
                    found_topic_id=snapshot.topic_ids.get(tp.topic),
                    cluster_id=held.cluster_id,
                    resume_offset=start,
                    current_leader_epoch=snapshot.ends[tp].leader_epoch,
                    maybe_read_to=min(start, planned.end_offset_exclusive),
                )
                late.append(_reported_late(loss, held))
            else:
                # Records lost from now on were read before.
                del self.being_read[tp]
        return Comparison(positions, [*found.values(), *late])


def _is_same_loss(loss: Loss, newer: Loss) -> bool:
    """Whether `newer`, found by the next plan, is the same loss."""
    if newer.kind is LossKind.OFFSETS_EXPIRED:
        return loss.kind is newer.kind and loss.log_start_offset >= newer.offset
    return loss.kind in _SKIPPED and newer.kind in _SKIPPED


def _reported_late(loss: Loss, held: SourceOffset) -> Loss:
    """A loss below the position of the query, which does not move."""
    position = held.positions[TopicPartition(loss.topic, loss.partition)]
    return replace(loss, resume_offset=min(loss.resume_offset, position.offset))


def batch_start(first: SourceOffset, last: SourceOffset) -> SourceOffset:
    """Where the batch between two offsets begins: at `first`, moved by the losses before it was planned.

    Partitions that are not in the batch's end are dropped.
    """
    kept = {tp: position for tp, position in first.positions.items() if tp in last.positions}
    ids = dict(first.topic_ids)
    for tp, offset in last.added.items():
        if tp in last.positions:
            kept.setdefault(tp, PartitionPosition(offset))
            ids.setdefault(tp.topic, last.topic_ids[tp.topic])
    for loss in last.losses:
        tp = TopicPartition(loss.topic, loss.partition)
        before = first.positions.get(tp)
        is_late = loss.kind is LossKind.OFFSETS_EXPIRED and before is not None and before.offset >= loss.resume_offset
        if tp in last.positions and not is_late:
            end = last.positions[tp]
            # For a partition without new records this is its end.
            kept[tp] = end.at(min(loss.resume_offset, end.offset))
            ids[tp.topic] = last.topic_ids[tp.topic]
    return replace(first, positions=kept, topic_ids=ids, cluster_id=last.cluster_id or first.cluster_id)


def plan_batch(
    first: SourceOffset, last: SourceOffset, begin: Comparison, finish: Comparison, snapshot: Snapshot
) -> PlannedBatch:
    """What the batch between two offsets reads, by the comparisons of its `batch_start` and of `last` with the logs.

    If its end is no longer in the log, it reads up to the point of divergence, and the next plan goes back to it.
    """
    begins = batch_start(first, last)
    at_start = {TopicPartition(loss.topic, loss.partition): loss for loss in begin.losses}
    at_end = {
        TopicPartition(loss.topic, loss.partition): loss
        for loss in finish.losses
        if loss.kind is not LossKind.OFFSETS_EXPIRED
    }
    # A loss found at both ends is reported once.
    losses = [*at_start.values()]
    for tp, loss in at_end.items():
        if tp not in at_start:
            place = begins.positions.get(tp, PartitionPosition(0))
            is_skipped = loss.kind in _SKIPPED
            losses.append(replace(loss, offset=place.offset, leader_epoch=place.leader_epoch) if is_skipped else loss)
    # The next plan finds a truncation again and goes back to it.
    unreported = [loss for loss in losses if loss.kind is not LossKind.LOG_TRUNCATED]
    batch = PlannedBatch([], losses, {}, last, unreported)
    skipped = {TopicPartition(loss.topic, loss.partition) for loss in losses if loss.kind in _SKIPPED}
    for tp, log_end in snapshot.ends.items():
        if tp in skipped:
            continue
        end = read_to = last.positions[tp]
        # A partition that is new in this batch is read from its offset 0.
        position = begins.positions.get(tp, PartitionPosition(0))
        if tp in at_start:
            position = end.at(min(at_start[tp].resume_offset, end.offset))
            if at_start[tp].kind is not LossKind.OFFSETS_EXPIRED:
                # The complete batch lies above: the next plan goes back.
                read_to = position
        if tp in at_end:
            read_to = end.at(min(at_end[tp].resume_offset, end.offset))
        if end.offset > position.offset:
            batch.in_doubt[tp] = _Planned(position, read_to, end, log_end.leader_epoch)
        if read_to.offset > position.offset:
            batch.ranges.append(range_between(tp, position, read_to))
            batch.being_read[tp] = batch.ranges[-1]
    return batch
