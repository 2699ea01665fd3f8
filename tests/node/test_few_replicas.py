"""min.insync.replicas above the number of replicas is capped at that number, and reported once (gaps.md G50)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.node.replication import replication
from tests.node.desk import TOPIC, Desk, run_story

Line = tuple[str, dict[str, Any]]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[Line]:
    written: list[Line] = []

    def write(event: str, **more: Any) -> None:
        written.append((event, more))

    monkeypatch.setattr(replication, "log", SimpleNamespace(warning=write, info=lambda event, **more: None))
    return written


def test_excessive_min_insync_is_reported_once(lines: list[Line]) -> None:
    async def story(desk: Desk) -> None:
        desk.topic_settings["min.insync.replicas"] = "4"
        for index in (0, 1):
            desk.lead(5, isr=(1, 2, 3), index=index)
        for _ in range(3):
            desk.replication.shrink_isrs()
        ((event, more),) = lines
        assert event == "min.insync.replicas exceeds the number of replicas"
        assert (more["topics"], more["count"]) == ([f"{TOPIC}: min.insync.replicas 4, replicas 3"], 1)
        leader = desk.replica().leader
        assert leader is not None
        assert leader.has_enough_replicas(4), "all existing replicas suffice"

        desk.topic_settings["min.insync.replicas"] = "3"
        desk.partitions.reload_config(TOPIC)
        desk.replication.shrink_isrs()
        assert len(lines) == 1
        for wanted, told_of in (("9", 2), ("9", 2), ("3", 2), ("9", 3)):
            desk.topic_settings["min.insync.replicas"] = wanted
            desk.partitions.reload_config(TOPIC)
            desk.replication.shrink_isrs()
            assert len(lines) == told_of

    run_story(story, partitions=2)


def test_sufficient_replicas_are_not_reported(lines: list[Line]) -> None:
    async def story(desk: Desk) -> None:
        desk.topic_settings["min.insync.replicas"] = "3"
        desk.lead(5, isr=(1, 2, 3))
        desk.replication.shrink_isrs()
        desk.topic_settings["min.insync.replicas"] = "4"
        desk.partitions.reload_config(TOPIC)
        desk.follow(6)
        desk.replication.shrink_isrs()
        assert lines == []

    run_story(story)
