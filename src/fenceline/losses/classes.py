"""Classifies the records of a truncation: were they acknowledged, and how is that known. Owns the rules; reads nothing.

| what is known                                                                    | class              |
|----------------------------------------------------------------------------------|--------------------|
| the range, or its beginning, lies below a high watermark that the replica knew   | committed          |
| the leader's log starts after the complete range, all of it was committed, and   | expired            |
| the leader had it (no leader since its newest epoch was elected uncleanly, all   |                    |
| changes were seen), or all of it is older than retention.ms                      |                    |
| recovery found only records below the checkpointed log start                     | expired            |
| the replica itself led when the records arrived, all their producers got errors, | never_acknowledged |
| and the next leader's log shows that it does not have them (it does not start    |                    |
| after them); or there are only control batches                                   |                    |
| none of these: acks=1 may have been answered, and the high watermark may have    | maybe_acknowledged |
| been higher than this replica knew                                               |                    |
"""

from __future__ import annotations

from typing import NamedTuple

from fenceline.log.core.lost_batches import LostBatches
from fenceline.losses.receipt import LossClass


class Classified(NamedTuple):
    loss_class: LossClass
    known_by: str


class LaterStart(NamedTuple):
    """A leader's log that starts at or after the end of the lost range; the range is everything that the follower had.

    `clean_since`: no leader of a later epoch than this one was elected uncleanly. `expired_below_ms`: retention.ms
    deletes records with an older timestamp; -1 if it is not set.
    """

    offset: int
    clean_since: int
    expired_below_ms: int


def of_cut(lost: LostBatches, high_watermark: int, *, leader: LaterStart | None = None) -> Classified:
    """A truncation by a follower. `high_watermark`: the replica's before; `leader`: if the log was emptied because the
    leader's log starts later."""
    if high_watermark > lost.start_offset:
        all_committed = high_watermark >= lost.end_offset_exclusive
        known = f"this replica knew a high watermark of {high_watermark}"
        if all_committed and leader is not None and leader.offset >= lost.end_offset_exclusive:
            known += f", and the leader's log starts at {leader.offset}"
            if lost.leader_epochs and lost.leader_epochs[-1] >= leader.clean_since:
                epoch = lost.leader_epochs[-1]
                return Classified(
                    LossClass.EXPIRED,
                    f"{known}: it deleted them before, as no leader after epoch {epoch} was elected uncleanly",
                )
            if 0 <= lost.newest_ms < leader.expired_below_ms:
                return Classified(LossClass.EXPIRED, f"{known}; all of them are older than retention.ms")
            return Classified(
                LossClass.COMMITTED,
                f"{known}: it may have deleted them before, or may never have had them, as this node did not see "
                "every election since their leader's, or one of them was unclean",
            )
        rest = "" if all_committed else "; the records above it may have been acknowledged"
        return Classified(LossClass.COMMITTED, known + rest)
    if lost.only_unanswered and lost.records and leader is not None:
        return Classified(
            LossClass.MAYBE_ACKNOWLEDGED,
            "this replica led when they were written, and answered all of their producers that they are not "
            f"committed; but the leader's log starts at {leader.offset}: it may have had them, and acknowledged them "
            "when they were sent again",
        )
    if lost.only_unanswered and lost.records:
        return Classified(
            LossClass.NEVER_ACKNOWLEDGED,
            "this replica led when they were written; all producers with acks=all were answered that they are not "
            "committed, and no other producer wrote any",
        )
    return Classified(
        LossClass.MAYBE_ACKNOWLEDGED,
        f"this replica knew a high watermark of {high_watermark}, which lies below them; it may have been higher, "
        "and acks=1 is answered without it",
    )


def of_recovery(lost: LostBatches, high_watermark: int, *, torn: bool) -> Classified:
    """A truncation by recovery after a crash. `high_watermark`: of the last checkpoint."""
    if high_watermark > lost.start_offset:
        return Classified(
            LossClass.COMMITTED,
            f"the last checkpoint has a high watermark of {high_watermark}; other replicas may still have them",
        )
    what = (
        "the end of a write was torn off" if torn else "they were written, and were damaged or missing after the crash"
    )
    return Classified(
        LossClass.MAYBE_ACKNOWLEDGED,
        f"{what}; the last checkpoint has a high watermark of {high_watermark}, and after a power loss, records that "
        "the disk did not keep may have been acknowledged",
    )


def of_deleted(log_start_offset: int) -> Classified:
    """Recovery found a log that ends below its log start: none of its records were readable before."""
    return Classified(
        LossClass.EXPIRED,
        f"the last checkpoint has a log start of {log_start_offset}: DeleteRecords or retention had deleted them",
    )
