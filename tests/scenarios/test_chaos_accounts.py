"""How the chaos of operations accounts for acknowledged records: an unexplained loss is detected."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import UUID

import pytest

from fenceline.losses.receipt import LossCause, LossClass, Receipt
from tests.support.chaos_model import Acknowledged, LogOfPartition, Topic, ghosts, moved_starts, unaccounted

LOST = Acknowledged(0, 5, b"k", b"t/0/5", 10.0, 11.0)


def _topic(**changes: Any) -> Topic:
    topic = Topic("t", 1, {}, **changes)
    topic.note(LOST)
    return topic


def _log(start: int = 0, **records: tuple[bytes, bytes]) -> dict[int, LogOfPartition]:
    return {0: LogOfPartition(start, 9, {int(offset[1:]): record for offset, record in records.items()})}


def _receipt(start: int, end: int, loss_class: LossClass = LossClass.COMMITTED) -> Receipt:
    return Receipt(
        topic="t",
        topic_id=UUID(int=1),
        partition=0,
        start_offset=start,
        end_offset_exclusive=end,
        leader_epochs=(1,),
        records=end - start,
        size_bytes=100,
        loss_class=loss_class,
        known_by="",
        cause=LossCause.DIVERGENCE,
        reason="",
        replica=1,
        leader=2,
        leader_epoch=2,
        time_ms=0,
    )


def _account(topic: Topic, logs: dict[int, LogOfPartition], *receipts: Receipt) -> str:
    counts: Counter[str] = Counter()
    missing = unaccounted(topic, logs, receipts, counts)
    assert counts.total() + len(missing) == 1
    return "" if missing else next(iter(counts))


@pytest.mark.parametrize(
    ("topic", "logs", "receipts", "account"),
    [
        ({}, _log(_5=(b"k", b"t/0/5")), (), "readable"),
        ({}, {}, (), ""),
        ({}, _log(), (), ""),
        ({}, _log(_5=(b"k", b"t/0/6")), (), ""),
        ({}, _log(_7=(b"k", b"t/0/5")), (), ""),
        ({"deletions": [12.0], "born_s": 13.0}, _log(), (), "topic deleted"),
        ({"deletions": [8.0], "born_s": 9.0}, _log(), (), ""),
        ({"deleted_below": {0: 6}}, _log(6), (), "deleted by request"),
        ({"deleted_below": {0: 5}}, _log(6), (), ""),
        ({"has_retention": True}, _log(6), (), "retention"),
        ({"has_retention": True}, _log(5), (), ""),
        ({"is_compacted": True}, _log(_6=(b"k", b"t/0/6")), (), "compacted"),
        ({"is_compacted": True}, _log(_4=(b"k", b"t/0/4")), (), ""),
        ({"is_compacted": True}, _log(_6=(b"other", b"t/0/6")), (), ""),
        ({"may_lose": True}, _log(), (_receipt(5, 6),), "receipt"),
        ({"may_lose": True}, _log(), (_receipt(6, 7), _receipt(0, 5)), ""),
        ({"may_lose": True}, _log(), (_receipt(5, 6, LossClass.NEVER_ACKNOWLEDGED),), ""),
        ({}, _log(), (_receipt(5, 6),), ""),
    ],
)
def test_each_acknowledged_record_is_accounted_for(
    topic: dict[str, Any], logs: dict[int, LogOfPartition], receipts: tuple[Receipt, ...], account: str
) -> None:
    assert _account(_topic(**topic), logs, *receipts) == account


def test_a_record_of_a_deleted_topic_is_a_ghost() -> None:
    there = _log(_5=(b"k", b"t/0/5"))
    assert ghosts(_topic(), there) == []
    assert ghosts(_topic(deletions=[10.5]), there) == [], "it was acknowledged after the deletion was requested"
    assert ghosts(_topic(deletions=[12.0]), there) == ["t-0 offset 5: b't/0/5'"]


def test_a_log_start_moved_without_a_cause_is_reported() -> None:
    assert moved_starts(_topic(deleted_below={0: 3}), _log(3)) == []
    assert moved_starts(_topic(has_retention=True), _log(3)) == []
    assert moved_starts(_topic(deleted_below={0: 3}), _log(4)) == ["t-0 starts at 4, asked for 3"]
    assert moved_starts(_topic(), _log(1)) == ["t-0 starts at 1, asked for 0"]
