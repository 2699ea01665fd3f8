"""The verdict of a log on one row: the reference for the range computations of the rule and of audits."""

from __future__ import annotations

from enum import Enum, auto

from pyspark_fenceline.common.epoch_walk import EpochWalk
from pyspark_fenceline.common.log_matching import LogEpochs, held_interval
from tests.spark.fakes import FakeLog


class RowVerdict(Enum):
    IN_LOG = auto()
    STALE = auto()
    """The log has another record there, or can never have this one: it was truncated away."""
    BEYOND = auto()
    """At or above the end of the log, and nothing proves that it was ever truncated."""
    EXPIRED = auto()
    """Below the log's start, and nothing proves it stale."""
    UNKNOWN = auto()
    """The row has no epoch, or the log does not know the epoch at that offset."""
    NEWER = auto()
    """Of an epoch that the leader does not know yet: its answer is older than the row, or of another topic."""


def judge_row(view: LogEpochs, offset: int, epoch: int) -> RowVerdict:
    if epoch > view.leader_epoch >= 0:
        return RowVerdict.NEWER
    first, end = held_interval(view, epoch)
    if not first <= offset < end:
        return RowVerdict.STALE
    if offset >= view.end_offset:
        return RowVerdict.BEYOND
    if offset < view.start_offset:
        return RowVerdict.EXPIRED
    if epoch < 0 and view.leader_epoch == 0:
        # There was only one leader.
        return RowVerdict.IN_LOG
    is_known = epoch >= 0 and bool(view.epochs) and offset >= view.epochs[0].offset
    return RowVerdict.IN_LOG if is_known else RowVerdict.UNKNOWN


def view_of(log: FakeLog) -> LogEpochs:
    """The epochs as the log's leader returns them."""
    walk = EpochWalk(log.leader_epoch)
    while (epoch := walk.next_epoch(log.start)) is not None:
        walk.add_answer(log.epoch_end(epoch))
    return LogEpochs(log.leader_epoch, log.start, len(log.epochs), walk.starts(log.start))
