"""The consumer's reports are joined to the receipts of the same records only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fenceline.client.core.errors import LogTruncationError
from fenceline.demo.watcher import ReportedTruncation, lost_ranges
from tests.support.receipts import a_receipt

RECEIPT = a_receipt(
    topic="flights",
    partition=1,
    start_offset=100,
    end_offset_exclusive=150,
    leader_epochs=(0, 2),
    records=50,
    size_bytes=5_000,
    known_by="high watermark",
    replica=2,
    leader=3,
    leader_epoch=3,
    time_ms=0,
    id="d106e4a2718a55aa11bb22cc",
)


def truncation(partition: int, divergent: int, position: int, at_s: float = 9.0) -> ReportedTruncation:
    return ReportedTruncation(at_s, LogTruncationError("flights", partition, position, 2, divergent_offset=divergent))


def test_a_loss_has_the_first_report_of_the_consumer() -> None:
    (lost,) = lost_ranges(
        [RECEIPT], [truncation(0, 100, 150), truncation(1, 100, 150), truncation(1, 100, 120, at_s=12.0)]
    )
    assert (lost.start_offset, lost.end_offset, lost.records, lost.epoch) == (100, 150, 50, 2)
    assert (lost.receipt, lost.loss_class, lost.cause, lost.replica) == ("d106e4a2718a", "committed", "divergence", 2)
    assert lost.reported_s == 9.0
    assert "flights-1: the log was truncated below offset 150" in lost.consumer_message


@pytest.mark.parametrize("other", [truncation(0, 100, 150), truncation(1, 150, 160), truncation(1, 50, 100)])
def test_reports_of_other_records_do_not_match(other: ReportedTruncation) -> None:
    (lost,) = lost_ranges([RECEIPT], [other])
    assert (lost.reported_s, lost.consumer_message) == (None, "")
    assert not other.covers(replace(RECEIPT, topic="trains"))


def test_an_unknown_divergence_covers_all_records_before() -> None:
    (lost,) = lost_ranges([RECEIPT], [truncation(1, -1, 150)])
    assert lost.reported_s == 9.0
