"""Under any elections and truncations a consumer reports exactly the lost ones of the records that it returned.

Brokers are modelled as lists of epochs. Any broker may be elected with any log; a deposed leader may continue without
noticing; followers keep their tail until they hear from a leader. A record is its offset and the epoch in which it was
written. The consumer is `Positions`, driven as the fetcher drives it: with outdated metadata, rejected requests, and
prefetched records that were never returned.

Rules: `epochs.md` E44-E55, `gaps.md` G6-G9.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fenceline.client.consumer.positions import Position, PositionPhase, Positions, ValidationResult
from fenceline.client.core.epoch_history import EpochStart
from fenceline.client.core.metadata import LeaderAndEpoch
from fenceline.client.core.offsets import EpochEnd, OffsetAndEpoch
from fenceline.ids import TopicPartition

_TP = TopicPartition("t", 0)
_NODES = 3


@dataclass
class Broker:
    """`records[i]`: the epoch of the record at offset i; those below `log_start` are deleted."""

    records: list[int] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)
    leads_in: int | None = None
    log_start: int = 0

    def lead(self, epoch: int) -> None:
        self.leads_in = epoch
        self.epochs = [(e, start) for e, start in self.epochs if start < len(self.records)]
        self.epochs.append((epoch, len(self.records)))

    def follow(self, leader: Broker, keeps: int) -> None:
        """Truncates to the common prefix and copies part of the leader's tail."""
        same = next((o for o, (a, b) in enumerate(zip(self.records, leader.records, strict=False)) if a != b), None)
        shared = min(len(self.records), len(leader.records)) if same is None else same
        self.leads_in = None
        self.records = leader.records[: max(shared, min(keeps, len(leader.records)))]
        self.log_start = min(max(self.log_start, leader.log_start), len(self.records))
        self.epochs = []
        for offset, epoch in enumerate(self.records):
            if not self.epochs or self.epochs[-1][0] != epoch:
                self.epochs.append((epoch, offset))
        self._forget_epochs()

    def delete_to(self, offset: int) -> None:
        self.log_start = max(self.log_start, min(offset, len(self.records)))
        self._forget_epochs()

    def _forget_epochs(self) -> None:
        """E15."""
        gone = [entry for entry in self.epochs if entry[1] <= self.log_start]
        if gone:
            self.epochs = [(gone[-1][0], self.log_start), *self.epochs[len(gone) :]]

    def end_of(self, epoch: int) -> EpochEnd:
        """E13."""
        if self.epochs and self.epochs[-1][0] == epoch:
            return EpochEnd(epoch, len(self.records))
        higher = [entry for entry in self.epochs if entry[0] > epoch]
        if epoch < 0 or not higher:
            return EpochEnd(-1, -1)
        lower = [entry for entry in self.epochs if entry[0] <= epoch]
        return EpochEnd(lower[-1][0] if lower else epoch, higher[0][1])

    def serves(self, leader: LeaderAndEpoch) -> bool:
        """E2: False for another epoch or a broker that does not lead."""
        return self.leads_in is not None and self.leads_in == leader.epoch


class Story:
    """One cluster and one consumer; every step compares the consumer's reports with the logs."""

    def __init__(self, *, fetch_tells: bool) -> None:
        self.fetch_tells = fetch_tells
        self.brokers = [Broker() for _ in range(_NODES)]
        self.epoch = -1
        self.elections: list[LeaderAndEpoch] = []
        self.elect(0)
        self.seen = self.elections[0]
        self.positions = Positions()
        self.positions.assign([_TP])
        self.state = self.positions.of(_TP)
        self.given: dict[int, int] = {}
        """What was handed out since the consumer was positioned."""
        self.begun_at = 0
        self.ahead: list[tuple[int, int, int, list[EpochStart], int]] = []
        """Buffered: serial, next offset, last epoch, starts, first offset."""
        self.truncations = 0
        self.seek(0, -1)

    # -- the cluster

    def elect(self, node: int) -> None:
        self.epoch += 1
        self.brokers[node].lead(self.epoch)
        self.elections.append(LeaderAndEpoch(node, self.epoch))

    def write(self, node: int, count: int) -> None:
        broker = self.brokers[node]
        if broker.leads_in is not None:
            broker.records += [broker.leads_in] * count

    def replicate(self, node: int, count: int) -> None:
        leader = self.elections[-1].leader
        if node != leader:
            self.brokers[node].follow(self.brokers[leader], len(self.brokers[node].records) + count)

    # -- the consumer

    def seek(self, offset: int, epoch: int) -> None:
        self.positions.seek(_TP, offset, epoch)
        self.given, self.begun_at = {}, offset

    def hear(self, how_old: int) -> None:
        """Takes metadata, never older than before (E57)."""
        heard = self.elections[max(0, len(self.elections) - 1 - how_old)]
        if heard.epoch >= self.seen.epoch:
            self.seen = heard
        self.positions.check_leader(_TP, self.seen)

    @property
    def leader(self) -> Broker:
        return self.brokers[self.seen.leader]

    def validate(self) -> None:
        query, checked = self.positions.validation_query(_TP), self.state.fetch_position
        if query is None or checked is None or not self.leader.serves(checked.leader):
            return
        end = self.leader.end_of(query.epoch)
        verdict = self.positions.complete_validation(_TP, checked, query, end)
        self.after_an_answer(checked, verdict)

    def after_an_answer(self, checked: Position, verdict: ValidationResult) -> None:
        if verdict is ValidationResult.VALID:
            assert self.state.phase is PositionPhase.FETCHING
            if checked.is_exact:
                self.assert_nothing_given_is_missing()
            assert checked.offset <= max(len(self.leader.records), self.leader.log_start)
        if self.state.truncation is not None:
            self.assert_the_truncation_is_exact()
        elif self.state.position is not None and not self.given:
            self.begun_at = self.state.position.offset

    def assert_nothing_given_is_missing(self) -> None:
        for offset, epoch in self.given.items():
            if offset >= self.leader.log_start:
                assert offset < len(self.leader.records), f"{offset} was truncated"
                assert self.leader.records[offset] == epoch, f"{offset} was overwritten"

    def assert_the_truncation_is_exact(self) -> None:
        error, leader = self.state.truncation, self.leader
        assert error is not None
        assert self.state.position is not None
        assert (error.truncated_from, error.leader_epoch) == (self.state.position.offset, self.state.position.epoch)
        lost = [o for o, e in self.given.items() if o >= len(leader.records) or leader.records[o] != e]
        if self.given:
            assert lost, "no returned record is lost"
            assert lost == list(range(lost[0], error.truncated_from)), "the model: logs diverge once"
        else:
            before = error.truncated_from - 1
            assert before >= len(leader.records) or leader.records[before] != error.leader_epoch, "nothing was lost"
            lost = [error.truncated_from]
        told_from = max(error.divergent_offset, self.begun_at)
        if lost[0] >= leader.log_start:
            assert told_from == lost[0]
        else:
            # The leader cannot be asked about records that it has deleted.
            assert lost[0] <= told_from <= leader.log_start
        at = error.divergent_offset
        assert at < error.truncated_from
        if error.divergent_epoch >= 0 and at > leader.log_start:
            assert leader.records[at - 1] == error.divergent_epoch
        read_in = {self.given[o] for o in range(told_from, error.truncated_from) if o in self.given}
        assert read_in <= set(error.epochs)
        if at >= self.begun_at:
            assert read_in == set(error.epochs)
        self.truncations += 1
        # Continue as `on.truncation=rewind` does.
        self.seek(error.divergent_offset, error.divergent_epoch)

    def fetch(self, count: int) -> None:
        position, leader = self.state.fetch_position, self.leader
        if position is None or not self.state.is_readable or not leader.serves(position.leader):
            return
        last = position.record_epoch
        if self.fetch_tells and last >= 0:
            end = leader.end_of(last)
            parts = end.leader_epoch < last or end.end_offset < position.offset
            if end.leader_epoch >= 0 and position.offset >= leader.log_start and parts:
                self.after_an_answer(position, self.positions.diverged(_TP, end))
                return
        if not leader.log_start <= position.offset <= len(leader.records):
            if not self.positions.request_validation(_TP):
                self.reset("earliest")
            elif self.positions.validation_query(_TP) is not None:
                self.validate()
                if self.state.phase is PositionPhase.FETCHING and self.state.truncation is None:
                    self.reset("earliest")
            return
        starts, epoch = [], last
        records = leader.records[position.offset : position.offset + count]
        for offset, written_in in enumerate(records, position.offset):
            if written_in != epoch:
                epoch = written_in
                starts.append(EpochStart(epoch, offset))
        if records:
            next_offset = position.offset + len(records)
            self.state.fetch_position = Position(next_offset, epoch, position.leader)
            self.ahead.append((self.state.serial, next_offset, epoch, starts, position.offset))
            self.fetched[self.state.serial, position.offset] = records

    @property
    def fetched(self) -> dict[tuple[int, int], list[int]]:
        return self.__dict__.setdefault("_fetched", {})

    def poll(self) -> None:
        while self.ahead:
            serial, next_offset, epoch, starts, first = self.ahead[0]
            if serial == self.state.serial and not self.state.is_readable:
                return
            self.ahead.pop(0)
            if serial == self.state.serial:
                if not self.given:
                    self.begun_at = first
                self.given |= dict(enumerate(self.fetched[serial, first], first))
                self.positions.consumed(_TP, next_offset, epoch, starts)
                return

    def reset(self, to: str) -> None:
        self.positions.await_reset(_TP, to)
        self.given = {}
        if not self.leader.serves(self.seen):
            self.hear(0)
        leader = self.leader
        if not leader.serves(self.seen):
            return
        if to == "latest":
            found = OffsetAndEpoch(len(leader.records), self.seen.epoch)
        else:
            known = bool(leader.epochs) and leader.epochs[0][1] <= leader.log_start
            found = OffsetAndEpoch(leader.log_start, leader.epochs[0][0] if known else -1)
        self.positions.complete_reset(_TP, self.state.serial, found)
        self.begun_at = found.offset

    def restart(self) -> None:
        """Restarts from the committed offset: the position after the returned records, and its epoch."""
        position = self.state.position
        if position is not None:
            self.positions.assign([])
            self.positions.assign([_TP])
            self.state = self.positions.of(_TP)
            self.seek(position.offset, position.record_epoch)

    def step(self, what: str, a: int, b: int) -> None:
        match what:
            case "elect":
                self.elect(a % _NODES)
            case "write":
                self.write(a % _NODES, b)
            case "replicate":
                self.replicate(a % _NODES, b)
            case "delete":
                broker = self.brokers[a % _NODES]
                broker.delete_to(broker.log_start + b)
            case "hear":
                self.hear(b % 3)
            case "validate":
                self.validate()
            case "fetch":
                self.fetch(b)
            case "poll":
                self.poll()
            case "restart":
                self.restart()
            case "reset":
                self.reset("latest" if b % 2 else "earliest")
        if self.state.phase is PositionPhase.AWAIT_RESET:
            self.reset("latest" if self.state.reset_to == "latest" else "earliest")

    def settle(self) -> None:
        """Brings metadata up to date and sends every query: then all remaining returned records are in the log."""
        while not self.leader.serves(self.seen) or self.seen != self.elections[-1]:
            self.hear(0)
        for _ in range(200):
            self.hear(0)
            if self.state.phase is PositionPhase.FETCHING:
                break
            self.validate()
        assert self.state.phase is PositionPhase.FETCHING, "validation terminates"
        self.assert_nothing_given_is_missing()


_COMMON = ["write", "write", "write", "elect", "replicate", "hear", "validate", "fetch", "fetch", "poll", "poll"]
_STEPS = st.tuples(st.sampled_from([*_COMMON, "restart", "reset"]), st.integers(0, 2), st.integers(1, 5))
_STEPS_WITH_RETENTION = st.one_of(_STEPS, st.tuples(st.just("delete"), st.integers(0, 2), st.integers(1, 5)))


def _play(steps: list[tuple[str, int, int]], fetch_tells: bool) -> Story:
    story = Story(fetch_tells=fetch_tells)
    for step in steps:
        story.step(*step)
    story.settle()
    return story


_G6 = [
    ("hear", 0, 3),
    ("write", 0, 3),
    ("replicate", 1, 3),
    ("write", 0, 5),
    ("elect", 1, 1),
    ("write", 1, 4),
    ("hear", 0, 3),
    ("fetch", 0, 5),
    ("fetch", 0, 5),
    ("poll", 0, 1),
    ("poll", 0, 1),
    ("elect", 0, 1),
]
"""Broker 0 keeps offsets 3 to 7 of epoch 0; 3 to 6 are read in epoch 1; then broker 0 leads again with all it has."""


@settings(max_examples=400, deadline=None)
@given(st.lists(_STEPS, max_size=60), st.booleans())
@example(_G6, False)
@example(_G6, True)
def test_consumer_reports_exactly_the_lost_records(steps: list[tuple[str, int, int]], tells: bool) -> None:
    _play(steps, tells)


@settings(max_examples=300, deadline=None)
@given(st.lists(_STEPS_WITH_RETENTION, max_size=60), st.booleans())
def test_consumer_reports_exactly_the_lost_records_under_retention(
    steps: list[tuple[str, int, int]], tells: bool
) -> None:
    _play(steps, tells)


@pytest.mark.parametrize("tells", [False, True])
def test_model_can_truncate_read_records(tells: bool) -> None:
    """G6: the leader's epoch 0 ends at 8, behind the position 7; what was read of epoch 1 began at 3."""
    reported: list[Any] = []
    story = Story(fetch_tells=tells)
    for step in _G6:
        story.step(*step)
    assert story.given == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 1, 6: 1}
    check = story.assert_the_truncation_is_exact
    story.assert_the_truncation_is_exact = lambda: (reported.append(story.state.truncation), check())  # type: ignore[method-assign]
    story.settle()
    (error,) = reported
    assert (error.truncated_from, error.divergent_offset, error.divergent_epoch, error.epochs) == (7, 3, 0, (1,))
