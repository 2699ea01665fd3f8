"""Successive coordinators of one partition on a log whose end may be lost: returned offsets stay valid.

A pure model of a replicated log: a leader appends, a high watermark follows, the next leader has all records below it
and possibly some above. Commits only grow, so that a client can detect whether a returned offset was reverted.
"""

from __future__ import annotations

from random import Random

import pytest

from fenceline.errors import ErrorCode
from fenceline.groups.coordinator import GroupCoordinator
from fenceline.groups.messages import (
    AppendGroupRecords,
    CommitRequest,
    Duty,
    FetchOffsetsRequest,
    GroupAnswer,
    KeyValue,
    Now,
    OffsetToCommit,
    TopicToFetch,
)
from fenceline.groups.settings import GroupSettings
from fenceline.groups.shard import Shard
from tests.groups.helpers import GROUP, START_MS, Ticket

SLOTS = 3
NOW = Now(START_MS, 0)
NOT_NOW = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}


class Broker:
    def __init__(self) -> None:
        self.coordinator = GroupCoordinator(GroupSettings(), Random(1), 1)
        self.loading: tuple[Shard, int] | None = None
        self.under_way: list[tuple[int, AppendGroupRecords]] = []
        """End offset and write."""


class Story:
    """`waits`: whether a load ends only when all records it read are committed."""

    def __init__(self, rng: Random, *, waits: bool = True) -> None:
        self.rng, self.waits = rng, waits
        self.brokers = [Broker() for _ in range(3)]
        self.log: list[KeyValue] = []
        self.committed_end = 0
        self.leader, self.epoch = 0, 0
        self.next_offset = 1
        self.answered = dict.fromkeys(range(SLOTS), 0)
        self.reported = dict.fromkeys(range(SLOTS), 0)
        self.wrong: list[str] = []
        self.positions_told = 0
        self.waiting: list[tuple[Ticket, int, int]] = []
        self._lead()

    @property
    def _now_leading(self) -> Broker:
        return self.brokers[self.leader]

    def _lead(self) -> None:
        """The leader of a new epoch starts its load; the former leader may learn of it now or later."""
        broker = self._now_leading
        broker.under_way.clear()
        shard, duties = broker.coordinator.begin_load(0, self.epoch, NOW)
        assert shard is not None
        self._do(broker, duties)
        broker.loading = shard, 0

    def _do(self, broker: Broker, duties: list[Duty]) -> None:
        for duty in duties:
            match duty:
                case GroupAnswer(ticket, outcome):
                    assert isinstance(ticket, Ticket)
                    ticket.outcome = outcome
                case AppendGroupRecords() if broker is not self._now_leading or duty.leader_epoch != self.epoch:
                    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                    self._do(broker, broker.coordinator.append_failed(0, duty.write_id, code, NOW))
                case AppendGroupRecords():
                    self.log.extend(duty.records)
                    broker.under_way.append((len(self.log), duty))

    def step(self) -> None:
        self.rng.choice(
            (self._commit, self._commit, self._fetch, self._fetch, self._replicate, self._load, self._load, self._elect)
        )()

    def _commit(self) -> None:
        broker, slot, offset = self.rng.choice(self.brokers), self.rng.randrange(SLOTS), self.next_offset
        self.next_offset += 1
        ticket = Ticket("commit")
        request = CommitRequest(GROUP, -1, "", None, (OffsetToCommit("t", slot, offset),))
        self._do(broker, broker.coordinator.commit(ticket, request, NOW))
        self._note(ticket, slot, offset)
        if ticket.outcome is None:
            self.waiting.append((ticket, slot, offset))

    def _note(self, ticket: Ticket, slot: int, offset: int) -> None:
        if ticket.outcome is not None and ticket.outcome.errors == (ErrorCode.NONE,):
            self.answered[slot] = max(self.answered[slot], offset)

    def _replicate(self) -> None:
        """The high watermark advances; writes below it are acknowledged."""
        self.committed_end = self.rng.randint(self.committed_end, len(self.log))
        broker = self._now_leading
        while broker.under_way and broker.under_way[0][0] <= self.committed_end:
            _, duty = broker.under_way.pop(0)
            self._do(broker, broker.coordinator.appended(0, duty.write_id, NOW))
        for ticket, slot, offset in self.waiting:
            self._note(ticket, slot, offset)

    def _load(self) -> None:
        broker = self._now_leading
        if broker.loading is None:
            return
        shard, position = broker.loading
        end = min(position + self.rng.randint(1, 8), len(self.log))
        for key, value in self.log[position:end]:
            shard.replay(key, value, NOW)
        broker.loading = shard, end
        if end == len(self.log) and (self.committed_end >= end or not self.waits):
            broker.loading = None
            self._do(broker, broker.coordinator.finish_load(shard, NOW))

    def _elect(self) -> None:
        """A clean election: the next leader has all committed records, and some of the others."""
        before = self._now_leading
        self.leader, self.epoch = self.rng.randrange(3), self.epoch + 1
        del self.log[self.rng.randint(self.committed_end, len(self.log)) :]
        for broker in self.brokers:
            broker.loading = None
        if before is not self._now_leading:
            before.under_way.clear()
            self._do(before, before.coordinator.resign(0, NOW))
        self._lead()

    def _fetch(self) -> None:
        broker, ticket = self.rng.choice(self.brokers), Ticket("fetch")
        wanted = TopicToFetch("t", tuple(range(SLOTS)))
        self._do(broker, broker.coordinator.fetch_offsets(ticket, FetchOffsetsRequest(GROUP, (wanted,))))
        answer = ticket.outcome
        if answer.error:
            if answer.error not in NOT_NOW:
                self.wrong.append(f"told {answer.error.name}")
            return
        for each in answer.topics[0][1]:
            known = max(self.answered[each.partition], self.reported[each.partition])
            if max(each.offset, 0) < known:
                self.wrong.append(f"{each.partition}: told {each.offset}, after {known}")
            self.reported[each.partition] = max(self.reported[each.partition], each.offset)
            self.positions_told += each.offset >= 0


@pytest.mark.parametrize("seed", range(40))
def test_acknowledged_commits_and_returned_offsets_stay_valid(seed: int) -> None:
    story = Story(Random(seed))
    for _ in range(1_500):
        story.step()
    assert story.wrong == []
    assert story.positions_told > 0


def test_returned_offsets_are_reverted_without_the_wait() -> None:
    """Proves that the test above detects it."""
    found = []
    for seed in range(40):
        story = Story(Random(seed), waits=False)
        for _ in range(1_500):
            story.step()
        found.extend(story.wrong)
    assert found
