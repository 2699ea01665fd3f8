"""What the records of a cut were worth, and how that is known. Owns the rules; reads nothing.

| what is known                                                                    | class              |
|----------------------------------------------------------------------------------|--------------------|
| the range, or its beginning, lies below a high watermark that the replica knew   | committed          |
| the leader's log starts behind the whole range, and all of it was committed      | expired            |
| recovery found nothing but records below the log start of the checkpoint          | expired            |
| the replica itself led when the records came, and all who wrote them were told   | never_acknowledged |
| that they are not written; or there is nothing but control batches               |                    |
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


def of_cut(lost: LostBatches, high_watermark: int, *, leader_starts_at: int | None = None) -> Classified:
    """A follower's cut. `high_watermark`: what the replica knew before; `leader_starts_at`: of a log emptied for it."""
    if high_watermark > lost.start_offset:
        whole = high_watermark >= lost.end_offset_exclusive
        known = f"this replica knew a high watermark of {high_watermark}"
        if whole and leader_starts_at is not None and leader_starts_at >= lost.end_offset_exclusive:
            return Classified(
                LossClass.EXPIRED, f"{known}, and the leader's log starts at {leader_starts_at}: it deleted them before"
            )
        rest = "" if whole else "; what lies above it may have been acknowledged"
        return Classified(LossClass.COMMITTED, known + rest)
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
