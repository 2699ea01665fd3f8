"""The timeline: order, marks, and changes that every broker reports."""

from __future__ import annotations

from fenceline.testing.lab import timeline
from fenceline.testing.lab.timeline import ClusterTimeline


def test_a_change_that_every_broker_reports_is_one_event() -> None:
    made = ClusterTimeline()
    for node in (1, 2, 3):
        made.add("leader elected", node, topic="t", partition=0, leader=2, epoch=5, was=1)
        made.add("ISR changed", node, topic="t", partition=0, isr=[1, 2])
    made.add("ISR changed", 1, topic="t", partition=0, isr=[2])
    assert [(event.kind, event.node) for event in made] == [
        ("leader elected", None),
        ("ISR changed", None),
        ("ISR changed", None),
    ]


def test_the_events_since_a_mark() -> None:
    made = ClusterTimeline()
    made.add("killed", 1)
    mark = made.mark()
    made.add("started", 1, reason=None)
    assert [event.kind for event in made.since(mark)] == ["started"]
    assert made.text(mark).endswith(" s  node 1: started")


def test_old_events_are_dropped_and_marks_hold() -> None:
    made = ClusterTimeline()
    for number in range(timeline.MOST_EVENTS + 1):
        made.add("event", number=number)
    mark = made.mark()
    made.add("last")
    assert len(made.since()) <= timeline.MOST_EVENTS
    assert [event.kind for event in made.since(mark)] == ["last"]
