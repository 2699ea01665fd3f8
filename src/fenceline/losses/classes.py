"""What the records of a cut were worth, and how that is known. Owns the rules; reads nothing.

| what is known                                                                    | class              |
|----------------------------------------------------------------------------------|--------------------|
| the range, or its beginning, lies below a high watermark that the replica knew   | committed          |
| the leader's log starts behind the whole range, all of it was committed, and     | expired            |
| the leader had it (no leader since its newest epoch was elected uncleanly, all   |                    |
| changes were seen), or all of it is older than retention.ms                      |                    |
| recovery found nothing but records below the log start of the checkpoint          | expired            |
| the replica itself led when the records came, all their producers got errors,    | never_acknowledged |
| and the next leader's log shows that it does not have them (it does not start    |                    |
| behind them); or there is nothing but control batches                            |                    |
| none of this: acks=1 may have been answered, the high watermark may have been    | maybe_acknowledged |
| higher than this replica had heard                                               |                    |
"""

from __future__ import annotations

from typing import NamedTuple

from fenceline.log.lost_batches import LostBatches
from fenceline.losses.receipt import LossClass


class Classified(NamedTuple):
    loss_class: LossClass
    known_by: str


class LaterStart(NamedTuple):
    """Of a leader's log that starts at the end of the lost range or behind it; the range is all that the follower had.

    `clean_since`: no leader of a later epoch than this one was elected uncleanly. `expired_below_ms`: records with an
    older timestamp are deleted by retention.ms; -1 where it is not set.
    """

    offset: int
    clean_since: int
    expired_below_ms: int


def of_cut(lost: LostBatches, high_watermark: int, *, leader: LaterStart | None = None) -> Classified:
    """A follower's cut. `high_watermark`: what the replica knew before; `leader`: where the log was emptied as the
    leader's starts later."""
    if high_watermark > lost.start_offset:
        whole = high_watermark >= lost.end_offset_exclusive
        known = f"this replica knew a high watermark of {high_watermark}"
        if whole and leader is not None and leader.offset >= lost.end_offset_exclusive:
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
                f"{known}: it may have deleted them before; or it never had them, as this node did not see each"
                f" election since their leader's, or one of them was unclean",
            )
        rest = "" if whole else "; what lies above it may have been acknowledged"
        return Classified(LossClass.COMMITTED, known + rest)
    if lost.only_unanswered and lost.records and leader is not None:
        return Classified(
            LossClass.MAYBE_ACKNOWLEDGED,
            f"this replica led when they were written, and told all who wrote them that they are not committed; but the"
            f" leader's log starts at {leader.offset}: it may have had them, and acknowledged them when they were sent"
            " again",
        )
    if lost.only_unanswered and lost.records:
        return Classified(
            LossClass.NEVER_ACKNOWLEDGED,
            "this replica led when they were written; all who wrote them with acks=all were told that they are not"
            " committed, and no other producer wrote any",
        )
    return Classified(
        LossClass.MAYBE_ACKNOWLEDGED,
        f"the high watermark that this replica knew, {high_watermark}, lies below them; it may have been higher, and"
        " acks=1 is answered without it",
    )


def of_recovery(lost: LostBatches, high_watermark: int, *, torn: bool) -> Classified:
    """A cut by recovery after a crash. `high_watermark`: of the last checkpoint."""
    if high_watermark > lost.start_offset:
        return Classified(
            LossClass.COMMITTED,
            f"the last checkpoint has a high watermark of {high_watermark}; other replicas may have them still",
        )
    what = "the end of a write was torn off" if torn else "they were written, and damaged or missing after the crash"
    return Classified(
        LossClass.MAYBE_ACKNOWLEDGED,
        f"{what}; the last checkpoint has a high watermark of {high_watermark}, and a machine that lost its power may"
        " have acknowledged what its disk had not kept",
    )


def of_deleted(log_start_offset: int) -> Classified:
    """Recovery found a log that ends below its log start: nothing of it had been readable any more."""
    return Classified(
        LossClass.EXPIRED,
        f"the last checkpoint has a log start of {log_start_offset}: DeleteRecords or retention had deleted them",
    )
