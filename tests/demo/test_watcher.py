"""What the consumer was told is joined to the receipts of the same records, and to no others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fenceline.client.errors import LogTruncationError
from fenceline.demo.watcher import Told, lost_as_told
from fenceline.losses.receipt import Cause, LossClass, Receipt

RECEIPT = Receipt(
    id="d106e4a2718a55aa11bb22cc",
    topic="flights",
    topic_id=None,
    partition=1,
    start_offset=100,
    end_offset_exclusive=150,
    leader_epochs=(0, 2),
    records=50,
    size_bytes=5_000,
    loss_class=LossClass.COMMITTED,
    known_by="high watermark",
    cause=Cause.DIVERGENCE,
    reason="",
    replica=2,
    leader=3,
    leader_epoch=3,
    time_ms=0,
)


def told(partition: int, divergent: int, position: int, at_s: float = 9.0) -> Told:
    return Told(at_s, LogTruncationError("flights", partition, position, 2, divergent_offset=divergent))


def test_a_loss_with_what_the_consumer_said() -> None:
    (lost,) = lost_as_told([RECEIPT], [told(0, 100, 150), told(1, 100, 150), told(1, 100, 120, at_s=12.0)])
    assert (lost.start_offset, lost.end_offset, lost.records, lost.epoch) == (100, 150, 50, 2)
    assert (lost.receipt, lost.loss_class, lost.cause, lost.replica) == ("d106e4a2718a", "committed", "divergence", 2)
    assert lost.told_s == 9.0
    assert "flights-1: the log was truncated below offset 150" in lost.consumer_words


@pytest.mark.parametrize("other", [told(0, 100, 150), told(1, 150, 160), told(1, 50, 100)])
def test_other_records_are_not_these(other: Told) -> None:
    (lost,) = lost_as_told([RECEIPT], [other])
    assert (lost.told_s, lost.consumer_words) == (None, "")
    assert not other.is_about(replace(RECEIPT, topic="trains"))


def test_a_divergence_that_nobody_can_tell_is_about_all_before() -> None:
    (lost,) = lost_as_told([RECEIPT], [told(1, -1, 150)])
    assert lost.told_s == 9.0
