"""When a consumer commits automatically, and which offsets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fenceline.client.consumer.auto_commit import AutoCommit
from fenceline.client.consumer.consumer_offsets import PendingCommit
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.group_requests import CommitMembership
from fenceline.client.core.offsets import CommittedOffset
from fenceline.client.core.surroundings import CURRENT, MACHINE
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition

TP = TopicPartition("t", 0)
TEN_S = {"group.id": "g", "auto.commit.interval.ms": 10_000}


class Caller:
    """A consumer whose polls returned everything before `position`, with its own clock."""

    def __init__(self, fault: Exception | None = None, **settings: Any) -> None:
        self.now_s = 1000.0
        self.position = 0
        self.membership = CommitMembership(3, "m")
        self.sent: list[tuple[PendingCommit, float | None]] = []
        self.waiting: asyncio.Event | None = None
        self._fault = fault
        config = ClientConfig.parse("consumer", "h:1", {**TEN_S, **settings})
        before = CURRENT.set(replace(MACHINE, monotonic_s=lambda: self.now_s))
        self.subject = AutoCommit(config, self._make, self._send)
        CURRENT.reset(before)

    def _make(self) -> PendingCommit:
        return PendingCommit({TP: CommittedOffset(self.position)}, self.membership)

    async def _send(self, made: PendingCommit, timeout_ms: float | None) -> None:
        if self.waiting is not None:
            await self.waiting.wait()
        self.sent.append((made, timeout_ms))
        if self._fault is not None:
            raise self._fault

    def offsets(self) -> list[int]:
        return [made.offsets[TP].offset for made, _ in self.sent]


def run(work: Callable[[], None], caller: Caller) -> None:
    async def steps() -> None:
        work()
        await asyncio.gather(*caller.subject._in_flight)

    asyncio.run(steps())


def test_commit_covers_records_returned_before_the_poll_that_sends_it() -> None:
    caller = Caller()

    def polls() -> None:
        caller.subject.commit_if_due()
        caller.position = 5
        caller.now_s += 9.9
        caller.subject.commit_if_due()
        caller.now_s += 0.1
        caller.subject.commit_if_due()
        caller.position = 8

    run(polls, caller)
    assert caller.offsets() == [5]


def test_commit_uses_the_generation_at_scheduling_time() -> None:
    caller = Caller()

    def polls() -> None:
        caller.subject.commit_if_due()
        caller.position = 5
        caller.now_s += 10
        caller.subject.commit_if_due()
        caller.membership, caller.position = CommitMembership(4, "m"), 8

    run(polls, caller)
    assert [(made.offsets[TP].offset, made.membership) for made, _ in caller.sent] == [(5, CommitMembership(3, "m"))]


@pytest.mark.parametrize("is_last", [False, True])
def test_pending_commit_blocks_the_next_and_is_dropped_for_the_final_commit(is_last: bool) -> None:
    """Its retry would move the committed offset backward."""
    caller = Caller()

    async def steps() -> None:
        caller.waiting = asyncio.Event()
        caller.subject.start_interval()
        for _ in range(2):
            caller.position += 5
            caller.now_s += 10
            caller.subject.commit_if_due()
            await asyncio.sleep(0)
        caller.waiting.set()
        if is_last:
            await caller.subject.before_revocation()
        else:
            await asyncio.gather(*caller.subject._in_flight)
            caller.position = 15
            caller.subject.commit_if_due()
        await asyncio.gather(*caller.subject._in_flight, return_exceptions=True)

    asyncio.run(steps())
    assert caller.offsets() == ([10] if is_last else [5, 15])


def test_assignment_restarts_the_commit_interval() -> None:
    caller = Caller()

    def polls() -> None:
        caller.subject.commit_if_due()
        caller.now_s += 9
        caller.subject.start_interval()
        caller.now_s += 9
        caller.subject.commit_if_due()

    run(polls, caller)
    assert caller.sent == []


@pytest.mark.parametrize("settings", [{"enable.auto.commit": False}, {"group.id": ""}])
def test_no_commit_is_sent_when_auto_commit_is_disabled(settings: dict[str, Any]) -> None:
    caller = Caller(**settings)

    def polls() -> None:
        caller.subject.commit_if_due()
        caller.now_s += 11
        caller.subject.commit_if_due()

    run(polls, caller)
    asyncio.run(caller.subject.before_revocation())
    assert caller.sent == []


def test_revocation_commits_immediately_and_only_logs_a_rejection(caplog: pytest.LogCaptureFixture) -> None:
    caller = Caller(OperatorError("the group moved on", "poll"))
    caller.position = 3
    with caplog.at_level(logging.WARNING, "fenceline.client"):
        asyncio.run(caller.subject.before_revocation())
    assert caller.offsets() == [3]
    assert caller.sent[0][1] == 5_000
    assert "auto commit failed: the group moved on" in caplog.text
