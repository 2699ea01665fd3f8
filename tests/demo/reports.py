"""A sample report for the page: three brokers, four partitions, one unclean election."""

from __future__ import annotations

from fenceline.demo.checks import Check
from fenceline.demo.report import (
    ConnectorResult,
    DemoReport,
    Event,
    LeadershipPeriod,
    ReportedRange,
    ReportedSpan,
    ReportedTable,
    RowState,
    Sample,
)

LOST_FROM, LOST_TO, END = 31_000, 38_500, 84_000


def unclean_election_report() -> DemoReport:
    """flights-1 loses 7,500 records of node 2."""
    others = [
        LeadershipPeriod(partition, 0, 1 + partition % 3, 1.0, None, 0, 60_000 + 4_000 * partition)
        for partition in (0, 2, 3)
    ]
    return DemoReport(
        topic="flights",
        brokers=3,
        leadership_periods=[
            *others,
            LeadershipPeriod(1, 0, 2, 1.0, 58.5, 0, LOST_FROM),
            LeadershipPeriod(1, 1, 3, 58.5, 90.0, LOST_FROM, 70_000, unclean=True),
            LeadershipPeriod(1, 2, 2, 90.0, None, 70_000, END),
        ],
        lost=[
            ReportedRange(
                1, LOST_FROM, LOST_TO, 0, 7_500, "d106e4a2718a", "committed", "divergence", 2, 61.25,
                "flights-1 was truncated: offset 38500 <read> in epoch 0",
            )
        ],
        events=[
            Event(58.5, "Unclean election: node 3 leads flights-1 and lacks these records"),
            Event(45.0, "Node 2 is isolated from the other brokers"),
            Event(47.0, "Node 2 accepts 7,500 records with acks=1"),
            Event(61.25, "Consumer: flights-1 was truncated"),
            Event(66.0, "Node 2 rejoins, truncates these records and writes a loss receipt"),
            Event(68.0, "The stream rewinds to 31,000"),
        ],
        isolated=(45.0, 66.0),
        before=ReportedTable(
            "before",
            [
                ReportedSpan(0, 0, 60_000, 0, RowState.MATCHING),
                ReportedSpan(1, 0, LOST_FROM, 0, RowState.MATCHING),
                ReportedSpan(1, LOST_FROM, LOST_TO, 0, RowState.STALE),
                ReportedSpan(1, LOST_FROM, 40_000, 1, RowState.MISSING),
            ],
        ),
        after=ReportedTable(
            "after",
            [
                ReportedSpan(0, 0, 60_000, 0, RowState.MATCHING),
                ReportedSpan(1, 0, LOST_FROM, 0, RowState.MATCHING),
                ReportedSpan(1, LOST_FROM, 70_000, 1, RowState.MATCHING),
                ReportedSpan(1, 70_000, END, 2, RowState.MATCHING),
            ],
        ),
        repair_text="7,500 stale rows of flights-1 were deleted with batch 12.",
        samples=[
            Sample(at, int(at * 4_000), int(max(at - 6, 0) * 4_000), int(max(at - 9, 0) * 4_000))
            for at in (0.0, 20.0, 40.0, 60.0, 80.0, 100.0)
        ],
        produced=336_776,
        producing_s=12.0,
        streaming_s=97.0,
        total_s=131.0,
        connector=ConnectorResult(rows=275_500, stale_rows=7_500, missing_rows=9_000),
        checks=[Check("audit of the raw table", "equal", "equal"), Check("duplicate rows", "0", "0")],
    )  # fmt: skip
