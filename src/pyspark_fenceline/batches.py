"""What one micro-batch reads between two offsets, and what it may have left out.

Owns where a batch begins (its end says so, when a loss went before it), how far it is read when its end is not in the
log any more, and the memory of that for the next plan. The end of a batch is fixed before Spark asks for its tasks
(`pyspark.md` S8), so what is lost after that is told by the next plan's offset. Pure: comparisons with the logs come
in. Never ends a query.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from fenceline.ids import TopicPartition
from pyspark_fenceline.errors import Loss, LossKind
from pyspark_fenceline.offsets import Position, SourceOffset
from pyspark_fenceline.planning import OffsetRange
from pyspark_fenceline.ranges import Comparison, Snapshot, range_between

_SKIPPED: Final = (LossKind.TOPIC_RECREATED, LossKind.PARTITIONS_GONE)
"""Losses of which a batch leaves out all that it was to read of the partition."""
_MET_BY_TASKS: Final = frozenset({LossKind.TOPIC_RECREATED, LossKind.OFFSETS_EXPIRED})
"""Losses of which a task leaves out what it had not read yet."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """What one batch was to read of a partition: from `begin` to `end`, but no further than `read_to`. `leader_epoch`:
    the leader's when it was planned."""

    begin: Position
    read_to: Position
    end: Position
    leader_epoch: int


@dataclass(slots=True)
class PlannedBatch:
    """`ranges`: what its tasks read. `losses`: what was found against its beginning or its end."""

    ranges: list[OffsetRange]
    losses: list[Loss]
    unsettled: dict[TopicPartition, _Planned]
    """Partitions of which it is not known yet that all was read."""
    end: SourceOffset
    untold: list[Loss] = field(default_factory=list)
    """Those of `losses` that the next plan would not find, or not from where they begin."""
    being_read: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    """Ranges that had not all been read, as far as is known, when the logs were looked at last."""

    def with_what_was_left_out(
        self, held: SourceOffset, comparison: Comparison, snapshot: Snapshot, *, tasks_may_go_back: bool = True
    ) -> Comparison:
        """The next plan's comparison; it goes back further where this batch was not read to its end, or may not have
        been: after two unclean elections the log may be again what it was when the batch was planned, or more of that
        than a task has met. A task that ends early says so to nobody but its log, so that two elections before the next
        plan count as reason enough, where tasks may do that at all."""
        positions = dict(comparison.positions)
        losses = {TopicPartition(loss.topic, loss.partition): loss for loss in comparison.losses}
        for tp, planned in list(self.unsettled.items()):
            end, loss = planned.end, losses.get(tp)
            if held.positions.get(tp) != end or tp not in positions:
                continue
            if loss is not None and loss.kind is not LossKind.LOG_TRUNCATED:
                continue
            is_doubtful = tasks_may_go_back and snapshot.ends[tp].leader_epoch > planned.leader_epoch + 1
            back_to = planned.begin if is_doubtful else planned.read_to
            if positions[tp].offset <= back_to.offset:
                if loss is None:
                    # All was read; later elections are the next batch's.
                    del self.unsettled[tp]
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

    def with_what_is_untold(
        self, held: SourceOffset, comparison: Comparison, snapshot: Snapshot, tolerated: frozenset[LossKind]
    ) -> Comparison:
        """The next plan's comparison and what this batch was to read and could not, which no offset tells of yet.

        A task has no way to tell the driver what it has left out. But it leaves out nothing that the log still holds at
        the first look after the batch: what has gone by then is told, as records that may have been read before.
        """
        if held != self.end:
            return comparison
        positions = dict(comparison.positions)
        found = {TopicPartition(loss.topic, loss.partition): loss for loss in comparison.losses}
        late: list[Loss] = []
        for loss in self.untold:
            tp = TopicPartition(loss.topic, loss.partition)
            newer = found.get(tp)
            if newer is not None and _is_one(loss, newer):
                found[tp] = replace(newer, offset=loss.offset, leader_epoch=loss.leader_epoch)
            elif loss.kind in _SKIPPED and tp in positions:
                # Brokers knew less of it than they do now, and nothing of it was read.
                begin = max(loss.offset, snapshot.starts[tp])
                if begin < positions[tp].offset:
                    positions[tp] = held.positions[tp].at(begin)
                late.append(replace(loss, resume_offset=positions[tp].offset))
                if newer is not None:
                    found[tp] = replace(newer, resume_offset=positions[tp].offset)
            else:
                late.append(_told_late(loss, held))
        for tp, planned in list(self.being_read.items()):
            newer = found.get(tp)
            has_expired = planned.start_offset < snapshot.starts.get(tp, 0)
            if newer is not None and newer.kind in _MET_BY_TASKS & tolerated:
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
                late.append(_told_late(loss, held))
            else:
                # What goes from now on was read before.
                del self.being_read[tp]
        return Comparison(positions, [*found.values(), *late])


def _is_one(loss: Loss, newer: Loss) -> bool:
    """Whether the next plan has found the rest of what a batch has lost."""
    if newer.kind is LossKind.OFFSETS_EXPIRED:
        return loss.kind is newer.kind and loss.log_start_offset >= newer.offset
    return loss.kind in _SKIPPED and newer.kind in _SKIPPED


def _told_late(loss: Loss, held: SourceOffset) -> Loss:
    """A loss below the position of the query, which stays where it is."""
    position = held.positions[TopicPartition(loss.topic, loss.partition)]
    return replace(loss, resume_offset=min(loss.resume_offset, position.offset))


def beginning(first: SourceOffset, last: SourceOffset) -> SourceOffset:
    """Where the batch between two offsets begins: at `first`, but for what was lost before it was planned.

    The end of the batch says which partitions go on.
    """
    kept = {tp: position for tp, position in first.positions.items() if tp in last.positions}
    ids = dict(first.topic_ids)
    for tp, offset in last.added.items():
        if tp in last.positions:
            kept.setdefault(tp, Position(offset))
            ids.setdefault(tp.topic, last.topic_ids[tp.topic])
    for loss in last.losses:
        tp = TopicPartition(loss.topic, loss.partition)
        before = first.positions.get(tp)
        is_late = loss.kind is LossKind.OFFSETS_EXPIRED and before is not None and before.offset >= loss.resume_offset
        if tp in last.positions and not is_late:
            end = last.positions[tp]
            # Where it stands still the end is the place itself.
            kept[tp] = end.at(min(loss.resume_offset, end.offset))
            ids[tp.topic] = last.topic_ids[tp.topic]
    return replace(first, positions=kept, topic_ids=ids, cluster_id=last.cluster_id or first.cluster_id)


def plan_batch(
    first: SourceOffset, last: SourceOffset, begin: Comparison, finish: Comparison, snapshot: Snapshot
) -> PlannedBatch:
    """What the batch between two offsets reads, by the comparisons of its `beginning` and of `last` with the logs.

    Where its end is not in the log any more it reads up to where the log parts from it, and the next plan goes back to
    there.
    """
    begins = beginning(first, last)
    at_start = {TopicPartition(loss.topic, loss.partition): loss for loss in begin.losses}
    at_end = {
        TopicPartition(loss.topic, loss.partition): loss
        for loss in finish.losses
        if loss.kind is not LossKind.OFFSETS_EXPIRED
    }
    # What is lost below the start as well is told once.
    losses = [*at_start.values()]
    for tp, loss in at_end.items():
        if tp not in at_start:
            place = begins.positions.get(tp, Position(0))
            is_skipped = loss.kind in _SKIPPED
            losses.append(replace(loss, offset=place.offset, leader_epoch=place.leader_epoch) if is_skipped else loss)
    # A truncation is found again by the next plan, which goes back to it.
    untold = [loss for loss in losses if loss.kind is not LossKind.LOG_TRUNCATED]
    batch = PlannedBatch([], losses, {}, last, untold)
    skipped = {TopicPartition(loss.topic, loss.partition) for loss in losses if loss.kind in _SKIPPED}
    for tp, log_end in snapshot.ends.items():
        if tp in skipped:
            continue
        end = read_to = last.positions[tp]
        # A partition that is new in this batch is read from its offset 0.
        position = begins.positions.get(tp, Position(0))
        if tp in at_start:
            position = end.at(min(at_start[tp].resume_offset, end.offset))
            if at_start[tp].kind is not LossKind.OFFSETS_EXPIRED:
                # All of the batch lies above: the next plan goes back.
                read_to = position
        if tp in at_end:
            read_to = end.at(min(at_end[tp].resume_offset, end.offset))
        if end.offset > position.offset:
            batch.unsettled[tp] = _Planned(position, read_to, end, log_end.leader_epoch)
        if read_to.offset > position.offset:
            batch.ranges.append(range_between(tp, position, read_to))
            batch.being_read[tp] = batch.ranges[-1]
    return batch
