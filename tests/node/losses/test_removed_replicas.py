"""Reassigned replicas: which of their records the leader has, and what happens until it answers."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.errors import PeerError
from fenceline.ids import NO_LEADER, TopicPartition
from fenceline.log.core.epoch_cache import EpochCache
from fenceline.log.directories.partition_dir import RemovedPartition
from fenceline.metadata.image import LeaderRecoveryState
from fenceline.node.losses.removed_replicas import RemovedReplicas, agreed_end_with, is_below_of_leader
from fenceline.node.net.peer_connection import dial
from fenceline.node.replication.peers import Peers
from fenceline.node.replication.replicas import LogSummary, RemovedReplica
from fenceline.testing.sim_disk import SimDisk

TOPIC_ID = UUID(int=7)


def log_of(epochs: list[int], start: int = 0) -> LogSummary:
    """A log with a record of each of these epochs."""
    entries = [(epoch, offset) for offset, epoch in enumerate(epochs) if offset == 0 or epochs[offset - 1] != epoch]
    cache = EpochCache(entries)
    cache.truncate_from_start(start)
    return LogSummary(start, len(epochs), cache)


epochs_of_a_log = st.lists(st.integers(0, 3), max_size=8).map(sorted)


@given(
    common=epochs_of_a_log,
    own=epochs_of_a_log.map(lambda epochs: [4 + 2 * epoch for epoch in epochs]),
    theirs=epochs_of_a_log.map(lambda epochs: [5 + 2 * epoch for epoch in epochs]),
    own_start=st.integers(0, 4),
)
def test_the_offset_at_which_a_log_diverges_from_its_leader(
    common: list[int], own: list[int], theirs: list[int], own_start: int
) -> None:
    """Each epoch has one leader, so an epoch of one branch is not in the other one."""
    known = log_of(common + own, min(own_start, len(common + own)))
    leader = log_of(common + theirs)

    async def ask(epoch: int) -> tuple[int, int]:
        return leader.end_offset_for_epoch(epoch)

    found = max(asyncio.run(agreed_end_with(known, ask)), known.log_start_offset)
    if known.log_end_offset > known.log_start_offset:
        assert found == max(len(common), known.log_start_offset)


@given(
    common=epochs_of_a_log,
    own=epochs_of_a_log.map(lambda epochs: [4 + 2 * epoch for epoch in epochs]),
    theirs=epochs_of_a_log.map(lambda epochs: [5 + 2 * epoch for epoch in epochs]),
    own_start=st.integers(0, 4),
    their_start=st.integers(0, 16),
)
def test_records_below_the_start_of_a_leader_that_was_elected_uncleanly(
    common: list[int], own: list[int], theirs: list[int], own_start: int, their_start: int
) -> None:
    """Its retention may have deleted other records at these offsets (simulation `operations`, seed 9101397)."""
    known = log_of(common + own, min(own_start, len(common + own)))
    leader = log_of(common + theirs, min(their_start, len(common + theirs)))

    async def ask(epoch: int) -> tuple[int, int]:
        return leader.end_offset_for_epoch(epoch)

    if known.log_end_offset == known.log_start_offset:
        return
    agreed = known.log_end_offset
    if leader.log_start_offset < known.log_end_offset:
        agreed = max(asyncio.run(agreed_end_with(known, ask)), known.log_start_offset)
    was_unclean = known.latest_epoch + 1
    if is_below_of_leader(known, leader.log_start_offset, agreed, was_unclean):
        assert agreed <= max(len(common), known.log_start_offset), "no own record counts as one of the leader's"
    assert is_below_of_leader(known, leader.log_start_offset, agreed, known.latest_epoch)


class Host:
    """A broker with one partition of which it is no longer a replica."""

    def __init__(self, *, leader: int = 2, recovering: bool = False) -> None:
        self.disk = SimDisk()
        self.partition = SimpleNamespace(
            leader=leader,
            leader_epoch=4,
            leader_recovery_state=LeaderRecoveryState.RECOVERING if recovering else LeaderRecoveryState.RECOVERED,
        )
        self.image = SimpleNamespace(topics_by_id={TOPIC_ID: SimpleNamespace(name="rain", partitions=[self.partition])})
        self.disk_threads = ThreadPoolExecutor(1)
        self.online = True
        self.log_dirs = SimpleNamespace(is_online=lambda _: self.online)
        self.deleted: list[Any] = []
        self.losses = SimpleNamespace(
            compared_first=set(),
            delete_partition=self.deleted.append,
            delete_contained=lambda removed, **_: self.deleted.append(removed),
        )
        self.peers = Peers(lambda: SimpleNamespace(brokers={}), "PLAINTEXT", dial)  # type: ignore[arg-type]
        self.removed = RemovedPartition("/data/rain-0.1-stray", self.disk, TopicPartition("rain", 0), 3)

    def replica(self, *, records: int = 3, was_found: bool = False) -> RemovedReplica:
        log_dir: Any = None
        return RemovedReplica(log_dir, self.removed, TOPIC_ID, log_of([1] * records), was_found=was_found)


async def settle(host: Host, replica: RemovedReplica) -> None:
    try:
        removed = RemovedReplicas(host.losses, host.log_dirs, lambda: host.image, host.peers, host.disk_threads)
        await removed._resolve(replica)
    finally:
        host.disk_threads.shutdown()


@pytest.mark.parametrize(
    "host",
    [lambda: Host(leader=NO_LEADER), lambda: Host(recovering=True), Host],
    ids=["no leader", "recovering", "not registered"],
)
def test_nothing_is_deleted_before_the_leader_has_answered(host: Any) -> None:
    stage = host()
    with pytest.raises((PeerError, ConnectionError)):
        asyncio.run(settle(stage, stage.replica()))
    assert stage.deleted == []


def test_a_log_without_records_is_deleted_without_asking() -> None:
    host = Host(leader=NO_LEADER)
    asyncio.run(settle(host, host.replica(records=0)))
    assert host.deleted == [host.removed]


@pytest.mark.parametrize("was_found", [False, True])
def test_a_topic_deleted_while_its_replica_waits(*, was_found: bool) -> None:
    """A replica that was set aside at the start is kept, as for any deleted topic."""
    host = Host()
    host.image.topics_by_id.clear()
    asyncio.run(settle(host, host.replica(was_found=was_found)))
    assert host.deleted == ([] if was_found else [host.removed])


def test_a_failed_directory_waits_for_the_next_start() -> None:
    host = Host()
    host.online = False
    asyncio.run(settle(host, host.replica()))
    assert host.deleted == []
