"""Uncleanly elected leaders without records: they recover without being opened.

Rules: `recovery.md V37-V39`.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from fenceline.controller.requests import DeleteTopics, TopicReference
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TRANSACTION_STATE_TOPIC, TopicPartition
from fenceline.metadata.image import LeaderRecoveryState
from fenceline.node.replication import unused_leaders
from fenceline.node.replication.unused_leaders import UnusedLeaders
from tests.controller.helpers import Cluster
from tests.node.desk import ME, RECOVERING, TOPIC, Desk, run_story, turns

PARTITIONS = 23
LIMIT = 2
"""Ten times as many in a request, if the broker is the only one."""


class Killed:
    """Broker 1, back after a kill: it leads all partitions of topic t, RECOVERING, and the controller is a real one."""

    def __init__(self, brokers: int = 1) -> None:
        self.cluster = Cluster(brokers)
        self.cluster.create("t", *((1,),) * PARTITIONS)
        self.asked: list[Any] = []
        self.failures: list[Any] = []
        self.opened: list[tuple[str, int]] = []
        self.held: dict[TopicPartition, frozenset[int] | None] = {}
        self.unused = UnusedLeaders(
            1,
            lambda: self.cluster.image,
            lambda: self.cluster.epochs[1],
            self.submit,
            self.fence,
            lambda topic, index: (topic, index) in self.opened,
        )

    def kill(self, incarnation: int = 2) -> None:
        self.cluster.now_ms += 10_000
        self.cluster.register(1, incarnation=incarnation)
        self.cluster.heartbeat(1)
        assert self.states() == {LeaderRecoveryState.RECOVERING}

    def states(self) -> set[LeaderRecoveryState]:
        return {each.leader_recovery_state for each in self.cluster.image.topics_by_name["t"].partitions}

    async def submit(self, request: Any) -> Any:
        self.asked.append(request)
        failure = self.failures.pop(0) if self.failures else None
        if isinstance(failure, PeerError):
            raise failure
        if failure is not None:
            failure()
        return self.cluster.ask(request)

    async def fence(self, where: TopicPartition) -> frozenset[int] | None:
        return self.held.get(where, frozenset())

    def open(self, topic: str, index: int) -> None:
        self.opened.append((topic, index))

    async def recover(self) -> None:
        topic = self.cluster.image.topics_by_name["t"]
        for index in range(PARTITIONS):
            self.unused.recover(topic, index, self.open)
        while self.unused.is_busy:
            await turns(1)

    def counts(self) -> list[int]:
        return [sum(len(changes) for _, changes in request.topics) for request in self.asked]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unused_leaders, "MAX_CHANGES", LIMIT)
    monkeypatch.setattr(unused_leaders, "_PAUSE_S", 0.0)


def _run(story: Any) -> None:
    async def run(_: Desk) -> None:
        await story()

    run_story(run)


def test_few_requests_recover_all_without_opening_any() -> None:
    async def story() -> None:
        killed = Killed()
        killed.kill()
        await killed.recover()
        assert killed.states() == {LeaderRecoveryState.RECOVERED}
        assert killed.counts() == [20, 3]
        assert killed.opened == []

    _run(story)


def test_requests_are_short_where_others_wait_for_the_controller() -> None:
    async def story() -> None:
        killed = Killed(brokers=2)
        killed.kill()
        await killed.recover()
        assert killed.states() == {LeaderRecoveryState.RECOVERED}
        assert killed.counts() == [2] * 11 + [1]

    _run(story)


def test_partition_with_transactions_to_end_is_opened() -> None:
    """The end markers come to it; it recovers as any other."""

    async def story() -> None:
        killed = Killed()
        killed.cluster.create(TRANSACTION_STATE_TOPIC, (1,))
        killed.held = {TopicPartition("t", 5): frozenset({77}), TopicPartition("t", 6): None}
        killed.kill()
        await killed.recover()
        assert killed.opened == [("t", 5)]
        assert sum(killed.counts()) == PARTITIONS - 1

    _run(story)


def test_opened_partition_is_left_to_its_own_recovery() -> None:
    async def story() -> None:
        killed = Killed()
        killed.kill()
        killed.opened = [("t", 0), ("t", 22)]
        await killed.recover()
        assert sum(killed.counts()) == PARTITIONS - 2

    _run(story)


@pytest.mark.parametrize("code", [ErrorCode.NOT_CONTROLLER, ErrorCode.KAFKA_STORAGE_ERROR])
def test_failed_request_is_sent_again(code: ErrorCode) -> None:
    async def story() -> None:
        killed = Killed()
        killed.kill()
        killed.failures = [PeerError(code), PeerError(code)]
        await killed.recover()
        assert killed.states() == {LeaderRecoveryState.RECOVERED}
        assert sum(killed.counts()) == PARTITIONS + 2 * 20

    _run(story)


def test_partition_that_changes_meanwhile_is_asked_about_again() -> None:
    """V18: the epochs in the request are outdated when it arrives."""

    async def story() -> None:
        killed = Killed()
        killed.kill()
        epochs = [each.leader_epoch for each in killed.cluster.image.topics_by_name["t"].partitions]
        killed.failures = [partial(killed.kill, incarnation=3)]  # the broker registers once more: all epochs are new
        await killed.recover()
        assert killed.states() == {LeaderRecoveryState.RECOVERED}
        assert all(
            each.leader_epoch > epoch
            for each, epoch in zip(killed.cluster.image.topics_by_name["t"].partitions, epochs, strict=True)
        )

    _run(story)


def test_deleted_topic_is_left_out() -> None:
    async def story() -> None:
        killed = Killed()
        killed.kill()
        topic = killed.cluster.image.topics_by_name["t"]
        for index in range(PARTITIONS):
            killed.unused.recover(topic, index, killed.open)
        killed.cluster.ask(DeleteTopics((TopicReference("t"),)))
        while killed.unused.is_busy:
            await turns(1)
        assert killed.asked == []

    _run(story)


# -- which partitions --------------------------------------------------------------------------------------------------


def _elected(desk: Desk, index: int, **more: Any) -> None:
    desk.tell(index, leader=ME, leader_epoch=5, isr=(ME,), leader_recovery_state=RECOVERING, **more)


def test_only_partitions_without_files_stay_closed() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1, index=1)
        desk.append(index=1)
        desk.follow(2, index=1)
        del desk.partitions.open_by_name[TOPIC, 1]  # as after a start
        for index in range(3):
            _elected(desk, index)
        await turns()
        assert set(desk.partitions.open_by_name) == {(TOPIC, 1)}
        asked = [change.index for request in desk.controller.asked for _, all in request.topics for change in all]
        assert sorted(asked) == [0, 1, 2]

    run_story(story, partitions=3)


def test_client_that_comes_meanwhile_finds_a_recovering_leader() -> None:
    """V37: nothing is served before the controller knows."""

    async def story(desk: Desk) -> None:
        _elected(desk, 0)
        replica = desk.replica()
        assert replica.is_leader
        assert replica.is_recovering
        with pytest.raises(PeerError) as refused:
            desk.partitions.leader(TOPIC, None, 0)
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run_story(story)


def test_replica_in_another_directory_is_not_taken_for_unused() -> None:
    """Its records may be in a directory that this node does not have: that is checked when it is opened."""

    async def story(desk: Desk) -> None:
        _elected(desk, 0, directories=(desk.topic_id, desk.topic_id, desk.topic_id))
        assert set(desk.partitions.open_by_name) == {(TOPIC, 0)}

    run_story(story)
