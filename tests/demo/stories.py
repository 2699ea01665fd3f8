"""A made-up story for the page: three brokers, four partitions, one unclean election."""

from __future__ import annotations

from fenceline.demo.checks import Check
from fenceline.demo.story import Connector, Lost, Moment, Reign, Rows, Sample, Span, Story, TableState

LOST_FROM, LOST_TO, END = 31_000, 38_500, 84_000


def cut_off() -> Story:
    """flights-1 loses 7,500 records of node 2."""
    others = [
        Reign(partition, 0, 1 + partition % 3, 1.0, None, 0, 60_000 + 4_000 * partition) for partition in (0, 2, 3)
    ]
    return Story(
        topic="flights",
        brokers=3,
        reigns=[
            *others,
            Reign(1, 0, 2, 1.0, 58.5, 0, LOST_FROM),
            Reign(1, 1, 3, 58.5, 90.0, LOST_FROM, 70_000, unclean=True),
            Reign(1, 2, 2, 90.0, None, 70_000, END),
        ],
        lost=[
            Lost(
                1, LOST_FROM, LOST_TO, 0, 7_500, "d106e4a2718a", "committed", "divergence", 2, 61.25,
                "flights-1 was truncated: offset 38500 <read> in epoch 0",
            )
        ],
        moments=[
            Moment(58.5, "node 3 is elected uncleanly for flights-1, without them"),
            Moment(45.0, "node 2 is cut off from the other brokers"),
            Moment(47.0, "node 2 alone takes 7,500 records with acks=1"),
            Moment(61.25, "the consumer reports the truncation"),
            Moment(66.0, "node 2 is back, cuts them off and writes a receipt"),
            Moment(68.0, "the stream goes back to 31,000"),
        ],
        isolated=(45.0, 66.0),
        before=TableState(
            "before",
            [
                Span(0, 0, 60_000, 0, Rows.RIGHT),
                Span(1, 0, LOST_FROM, 0, Rows.RIGHT),
                Span(1, LOST_FROM, LOST_TO, 0, Rows.STALE),
                Span(1, LOST_FROM, 40_000, 1, Rows.MISSING),
            ],
        ),
        after=TableState(
            "after",
            [
                Span(0, 0, 60_000, 0, Rows.RIGHT),
                Span(1, 0, LOST_FROM, 0, Rows.RIGHT),
                Span(1, LOST_FROM, 70_000, 1, Rows.RIGHT),
                Span(1, 70_000, END, 2, Rows.RIGHT),
            ],
        ),
        repair_words="7,500 stale rows of flights-1 went with batch 12.",
        samples=[
            Sample(at, int(at * 4_000), int(max(at - 6, 0) * 4_000), int(max(at - 9, 0) * 4_000))
            for at in (0.0, 20.0, 40.0, 60.0, 80.0, 100.0)
        ],
        produced=336_776,
        producing_s=12.0,
        streaming_s=97.0,
        total_s=131.0,
        connector=Connector(rows=275_500, stale_rows=7_500, missing_rows=9_000),
        checks=[Check("audit of the raw table", "equal", "equal"), Check("rows that are there twice", "0", "0")],
    )  # fmt: skip
