"""Writes of group coordinators complete when every replica that must acknowledge them has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import OsDisk
from fenceline.log.core.open_files import OpenFiles
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.log.partition.reading import LogRead
from fenceline.metadata.image import LeaderRecoveryState, PartitionImage
from fenceline.node.coordination.placement import CoordinatorPlacement
from fenceline.node.coordination.topic_creation import TopicCreation
from fenceline.node.coordination.topic_log import CoordinatorTopicLog
from fenceline.node.replication.replica import Replica
from fenceline.replica.leader import InSyncRules, LeaderState

WHERE = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)
RECORDS: list[tuple[bytes | None, bytes | None]] = [(b"key", b"value")]


class Stage:
    """A partition led by broker 1, with the given in-sync set."""

    def __init__(self, root: Path, isr: set[int], min_insync_replicas: int = 1) -> None:
        clock: Any = SimpleNamespace(now_ms=lambda: 0, monotonic_ms=lambda: 0)
        config = LogConfig.from_mapping({"min.insync.replicas": str(min_insync_replicas)})
        disk, topic_id = OsDisk(), UUID(int=7)
        log = PartitionLog(
            disk, str(root / "log"), topic_partition=WHERE, topic_id=topic_id, config=config, files=OpenFiles(disk)
        )
        log.assign_epoch(5)
        self.replica = Replica(WHERE, topic_id, log, config, clock)
        self.leader = self.replica.leader = LeaderState(
            node_id=1,
            broker_epoch=1,
            leader_epoch=5,
            partition_epoch=0,
            replicas=(1, 2, 3),
            isr=frozenset(isr),
            epoch_start_offset=0,
            rules=InSyncRules(lambda _: 9, 30_000),
        )
        self.replica.leader_epoch = 5
        replicas: Any = SimpleNamespace(leader=lambda *_: self.replica)
        trouble: Any = SimpleNamespace(rejected=lambda *_: None)
        self.topic = CoordinatorTopicLog(replicas, clock, trouble)

    def fetched(self, replica_id: int, offset: int) -> None:
        moved = self.leader.on_fetch(
            replica_id, offset, log_start_offset=0, broker_epoch=9, min_insync_replicas=1, now_ms=0
        )
        if moved:
            self.replica.commit()


def run(scenario: Callable[[], None]) -> None:
    async def inside() -> None:
        scenario()

    asyncio.run(inside())


def test_a_write_completes_when_all_in_sync_replicas_have_it(tmp_path: Path) -> None:
    def scenario() -> None:
        stage = Stage(tmp_path, {1, 2, 3})
        reported = stage.topic.append(WHERE, 5, RECORDS)
        assert isinstance(reported, asyncio.Future)
        stage.fetched(2, 1)
        assert not reported.done()
        stage.fetched(3, 1)
        assert reported.result() == 0

    run(scenario)


def test_a_write_completes_at_once_without_other_replicas(tmp_path: Path) -> None:
    run(lambda: _assert_equal(Stage(tmp_path, {1}).topic.append(WHERE, 5, RECORDS), 0))


def _assert_equal(one: object, other: object) -> None:
    assert one == other


def test_leadership_lost_before_the_commit_fails_the_write(tmp_path: Path) -> None:
    def scenario() -> None:
        stage = Stage(tmp_path, {1, 2})
        reported = stage.topic.append(WHERE, 5, RECORDS)
        assert isinstance(reported, asyncio.Future)
        stage.replica.end_leadership()
        error = reported.exception()
        assert isinstance(error, PeerError)
        assert error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(scenario)


def test_too_few_in_sync_replicas_fail_the_write(tmp_path: Path) -> None:
    def scenario() -> None:
        stage = Stage(tmp_path, {1}, min_insync_replicas=2)
        with pytest.raises(PeerError) as caught:
            stage.topic.append(WHERE, 5, RECORDS)
        assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert stage.replica.log.log_end_offset == 0

    run(scenario)


def test_nothing_is_appended_in_another_epoch(tmp_path: Path) -> None:
    def scenario() -> None:
        stage = Stage(tmp_path, {1})
        with pytest.raises(PeerError) as caught:
            stage.topic.append(WHERE, 4, RECORDS)
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert stage.replica.log.log_end_offset == 0
        with pytest.raises(PeerError):
            list(stage.topic.read(WHERE, 6))

    run(scenario)


def test_the_log_is_committed_when_all_in_sync_replicas_have_it(tmp_path: Path) -> None:
    async def inside() -> None:
        stage = Stage(tmp_path, {1, 2, 3})
        assert stage.topic.when_committed(WHERE, 5) is None, "the log is empty"
        stage.topic.append(WHERE, 5, RECORDS)
        settled = stage.topic.when_committed(WHERE, 5)
        assert settled is not None
        stage.fetched(2, 1)
        stage.fetched(3, 0)
        assert not settled.done()
        stage.fetched(3, 1)
        await settled
        await asyncio.sleep(0)
        assert not stage.replica.waiters

    asyncio.run(inside())


def test_loading_does_not_wait_when_too_few_replicas_are_in_sync(tmp_path: Path) -> None:
    """It would wait until they return; acknowledged writes are in the log in any case."""

    async def inside() -> None:
        stage = Stage(tmp_path, {1, 2}, min_insync_replicas=2)
        stage.topic.append(WHERE, 5, RECORDS)
        settled = stage.topic.when_committed(WHERE, 5)
        assert settled is not None
        stage.leader.isr = frozenset({1})
        stage.replica.wake()
        await settled
        assert stage.topic.when_committed(WHERE, 5) is None
        assert not stage.replica.waiters

    asyncio.run(inside())


def test_a_log_without_records_before_its_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction may leave such a log."""
    stage = Stage(tmp_path, {1})
    run(lambda: _assert_equal([stage.topic.append(WHERE, 5, RECORDS) for _ in range(2)], [0, 1]))
    real = PartitionLog.read

    def read(self: PartitionLog, offset: int, max_bytes: int, *, end_offset_exclusive: int) -> LogRead:
        return real(self, offset, max_bytes, end_offset_exclusive=1)

    monkeypatch.setattr(PartitionLog, "read", read)
    batches = [header.base_offset for header, _ in (each for each in stage.topic.read(WHERE, 5) if type(each) is tuple)]
    assert batches == [0]


def test_waiting_ends_when_another_broker_leads(tmp_path: Path) -> None:
    async def inside() -> None:
        stage = Stage(tmp_path, {1, 2})
        stage.topic.append(WHERE, 5, RECORDS)
        settled = stage.topic.when_committed(WHERE, 5)
        assert settled is not None
        stage.replica.end_leadership()
        with pytest.raises(PeerError):
            await settled

    asyncio.run(inside())


def test_coordinators_follow_leader_changes_including_recovery() -> None:
    """KIP-704: the log is not read until it has recovered; then the leader is reported again, also to waiting
    requests.
    """
    calls: list[tuple[str, int]] = []
    groups: Any = SimpleNamespace(
        on_leader=lambda index, epoch: calls.append(("leader", epoch)),
        on_resigned=lambda index: calls.append(("resigned", -1)),
        set_partition_count=lambda count: None,
    )
    placement = CoordinatorPlacement(CONSUMER_OFFSETS_TOPIC, 1, groups)

    def follow(leader: int, state: LeaderRecoveryState) -> None:
        after = PartitionImage((1, 2, 3), (1,), leader, leader_epoch=6, leader_recovery_state=state)
        changed = SimpleNamespace(topic=CONSUMER_OFFSETS_TOPIC, index=0, after=after)
        delta: Any = SimpleNamespace(deleted_topics=(), created_topics=(), changed_partitions=(changed,))
        topic = SimpleNamespace(partitions=(after,))
        image: Any = SimpleNamespace(offset=1, topics_by_name={CONSUMER_OFFSETS_TOPIC: topic})
        placement.follow(image, delta)
        placement.load_all(image)

    follow(1, LeaderRecoveryState.RECOVERING)
    follow(1, LeaderRecoveryState.RECOVERED)
    assert calls == [("leader", 6)] * 4
    calls.clear()
    follow(2, LeaderRecoveryState.RECOVERED)
    assert calls == [("resigned", -1)]


def test_a_recreated_topic_has_no_groups_of_the_old_one() -> None:
    """It starts with the same epochs as the old one."""
    calls: list[str] = []
    groups: Any = SimpleNamespace(
        on_leader=lambda index, epoch: calls.append(f"leader of {index}"),
        on_resigned=lambda index: calls.append(f"resigned {index}"),
        set_partition_count=lambda count: None,
    )
    topic = SimpleNamespace(name=CONSUMER_OFFSETS_TOPIC, partitions=(PartitionImage((1,), (1,), 1),) * 2)
    delta: Any = SimpleNamespace(deleted_topics=(topic,), created_topics=(topic,), changed_partitions=())
    image: Any = SimpleNamespace(offset=1, topics_by_name={CONSUMER_OFFSETS_TOPIC: topic})
    CoordinatorPlacement(CONSUMER_OFFSETS_TOPIC, 1, groups).follow(image, delta)
    assert calls == ["resigned 0", "resigned 1", "leader of 0", "leader of 1"]


def test_concurrent_lookups_share_one_topic_creation() -> None:
    async def inside() -> None:
        tries = 0
        went_on = asyncio.Event()

        async def create(names: Sequence[str]) -> None:
            nonlocal tries
            assert names == [CONSUMER_OFFSETS_TOPIC]
            tries += 1
            await went_on.wait()
            if tries == 1:
                raise PeerError(ErrorCode.REQUEST_TIMED_OUT)

        creation = TopicCreation(CONSUMER_OFFSETS_TOPIC, create)
        asking = [asyncio.ensure_future(creation.create()) for _ in range(5)]
        await asyncio.sleep(0)
        asking[0].cancel()
        went_on.set()
        await asyncio.wait(asking)
        assert tries == 1
        assert [each.exception() for each in asking[1:]] == [None] * 4, "they find no coordinator, and retry"
        await creation.create()
        assert tries == 2

    asyncio.run(inside())
