"""Group commit: waiting for a flush of a log, when waiters are answered, and that every wait ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.log.core.errors import StorageError
from fenceline.log.directories.log_dir import LogDir
from fenceline.log.directories.log_dirs import LogDirs
from fenceline.metadata.changes import Delta
from fenceline.metadata.image import MetadataImage
from fenceline.node.metadata.format import format_directory
from fenceline.node.replication.replica import Replica
from fenceline.node.replication.replicas import Replicas
from fenceline.node.storage.flushes import LogFlushes
from fenceline.quorum.control_records import VoterEndpoint
from fenceline.records.build import build_batch
from fenceline.testing.sim_disk import SimDisk
from tests.node.api.handlers.fakes import DIRECTORY, image_of, partition, topic_image
from tests.node.controller_helpers import CLUSTER, Held, StillClock
from tests.node.replication_helpers import ALONE, NoRoles

D = "/data"


class Node:
    """The replicas of one topic `t` on a simulated disk; flushes run when the test releases them."""

    def __init__(self) -> None:
        self.disk = SimDisk(0)
        self.disk.mkdir(D)
        endpoint = VoterEndpoint("CONTROLLER", "localhost", 9093)
        format_directory([D], cluster_id=CLUSTER, node_id=1, voter_endpoint=endpoint, disk=self.disk, now_ms=0)
        self.topic = topic_image("t", partition(), partition())
        self.image: MetadataImage = image_of([self.topic])
        log_dir = LogDir.open(D, self.disk, node_id=1)
        log_dir.directory_id = DIRECTORY
        self.replicas = Replicas(
            1,
            LogDirs([log_dir]),
            lambda: self.image,
            lambda _: {},
            StillClock(),
            lambda *_: None,
            roles=NoRoles(),
            rules=ALONE,
            broker_epoch=lambda: 1,
        )
        self.threads = Held()
        self.flushes = LogFlushes(self.replicas.in_service, StillClock(), self.threads)

    def append(self, index: int = 0) -> tuple[Replica, int]:
        """Append a record; the replica and its new log end offset."""
        replica = self.replicas.leader("t", None, index)
        batch = memoryview(build_batch([(0, None, b"x", ())]))
        replica.log.append_as_leader(batch, leader_epoch=replica.leader_epoch, now_ms=0)
        replica.appended()
        return replica, replica.log.log_end_offset

    def wait(self, index: int = 0) -> asyncio.Future[PeerError | None]:
        return self.flushes.up_to(*self.append(index))

    async def let_go(self) -> None:
        self.threads.let_go()
        await turns()

    def delete_topic(self) -> None:
        self.image = image_of()
        self.replicas.apply(replace(Delta(), deleted_topics=(self.topic,)))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def run(story: Callable[[Node], Any]) -> None:
    async def whole() -> None:
        node = Node()
        await story(node)
        node.threads.let_go()
        await turns()
        assert not node.flushes._waiting, "a wait never ended"
        assert all(not replica.waiters for replica in node.replicas.in_service)

    asyncio.run(whole())


def code_of(outcome: asyncio.Future[PeerError | None]) -> ErrorCode:
    error = outcome.result()
    return ErrorCode.NONE if error is None else error.code


def test_requests_during_a_flush_share_one_more_flush() -> None:
    async def story(node: Node) -> None:
        first = node.wait()
        during = [node.wait() for _ in range(10)]
        assert len(node.threads.waiting) == 1
        await node.let_go()
        assert code_of(first) is ErrorCode.NONE
        assert not any(each.done() for each in during), "their records were appended after the flush started"
        assert len(node.threads.waiting) == 1
        replica = node.replicas.leader("t", None, 0)
        assert replica.log.recovery_point == 1
        await node.let_go()
        assert {code_of(each) for each in during} == {ErrorCode.NONE}
        assert replica.log.recovery_point == replica.log.log_end_offset
        assert not node.threads.waiting

    run(story)


def test_durable_offsets_are_acknowledged_at_once() -> None:
    async def story(node: Node) -> None:
        replica, end_offset = node.append()
        flush = asyncio.ensure_future(node.flushes.flush(replica))
        await turns()
        await node.let_go()
        assert await flush is None
        assert code_of(node.flushes.up_to(replica, end_offset)) is ErrorCode.NONE
        assert not node.threads.waiting

    run(story)


def test_partitions_flush_concurrently() -> None:
    async def story(node: Node) -> None:
        outcomes = [node.wait(0), node.wait(1)]
        assert len(node.threads.waiting) == 2
        await node.let_go()
        assert [code_of(each) for each in outcomes] == [ErrorCode.NONE] * 2

    run(story)


def test_deleted_topic_ends_the_wait_before_the_flush_completes() -> None:
    async def story(node: Node) -> None:
        outcomes = [node.wait(), node.wait()]
        replica = node.replicas.leader("t", None, 0)
        node.delete_topic()
        assert [code_of(each) for each in outcomes] == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2
        assert code_of(node.flushes.up_to(replica, 99)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await node.let_go()

    run(story)


def test_deleting_a_topic_does_not_wait_for_the_disk() -> None:
    """An error of the flush afterwards does not count as a disk failure."""

    async def story(node: Node) -> None:
        begun, go_on = threading.Event(), threading.Event()
        sync = node.disk.fsync

        def slow(fd: int) -> None:
            begun.set()
            assert go_on.wait(20), "the event loop waits for the disk"
            sync(fd)

        with ThreadPoolExecutor(1) as threads, pytest.MonkeyPatch.context() as patched:
            patched.setattr(node.disk, "fsync", slow)
            node.flushes = LogFlushes(node.replicas.in_service, StillClock(), threads)
            replica, _ = node.append()
            flush = asyncio.ensure_future(node.flushes.flush(replica))
            assert await asyncio.to_thread(begun.wait, 60)
            node.delete_topic()
            assert not flush.done()
            go_on.set()
            await flush
        assert not node.replicas.offline

    run(story)


def test_offline_partition_ends_the_wait_with_the_reason() -> None:
    async def story(node: Node) -> None:
        outcome = node.wait()
        node.replicas.set_offline(TopicPartition("t", 0), "the disk is gone")
        error = outcome.result()
        assert error is not None
        assert (error.code, error.message) == (ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")
        await node.let_go()

    run(story)


def test_lost_leadership_ends_the_wait() -> None:
    async def story(node: Node) -> None:
        outcome = node.wait()
        node.replicas.leader("t", None, 0).end_leadership()
        assert code_of(outcome) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await node.let_go()

    run(story)


def test_a_failed_flush_ends_every_wait_and_takes_the_partition_offline() -> None:
    async def story(node: Node) -> None:
        outcomes = [node.wait(), node.wait()]
        other = node.wait(1)
        broken = node.replicas.leader("t", None, 0).log
        node.disk.fail("fsync", "t-0/00000000000000000000.log")
        await node.let_go()
        assert [code_of(each) for each in outcomes] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
        assert TopicPartition("t", 0) in node.replicas.offline
        assert broken.offline is not None
        assert code_of(other) is ErrorCode.NONE

    run(story)


def test_flush_that_cannot_start_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(node: Node) -> None:
        replica, end_offset = node.append()

        def refuse(log: Any, now_ms: int) -> None:
            raise StorageError("too many open files", 24)

        monkeypatch.setattr(type(replica.log), "flush_work", refuse)
        assert code_of(node.flushes.up_to(replica, end_offset)) is ErrorCode.KAFKA_STORAGE_ERROR
        assert node.replicas.in_service.holds(replica), "the error is transient and needs no repair of the disk"

    run(story)


def test_truncated_records_end_the_wait() -> None:
    async def story(node: Node) -> None:
        outcome = node.wait()
        replica = node.replicas.leader("t", None, 0)
        late = node.flushes.up_to(replica, replica.log.log_end_offset + 5)
        await node.let_go()
        assert code_of(outcome) is ErrorCode.NONE
        assert code_of(late) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(story)


def test_a_stop_ends_every_wait() -> None:
    async def story(node: Node) -> None:
        outcome = node.wait()
        node.flushes.close()
        assert code_of(outcome) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert code_of(node.wait()) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await node.let_go()

    run(story)


def test_cancelled_wait_does_not_affect_others() -> None:
    async def story(node: Node) -> None:
        gone, stays = node.wait(), node.wait()
        gone.cancel()
        await node.let_go()
        await node.let_go()
        assert code_of(stays) is ErrorCode.NONE

    run(story)


def test_internal_error_is_raised_to_waiters() -> None:
    async def story(node: Node) -> None:
        outcome = node.wait()
        (_, future), *_ = node.threads.waiting
        node.threads.waiting.clear()
        future.set_exception(ZeroDivisionError())
        await turns()
        with pytest.raises(ZeroDivisionError):
            outcome.result()

    run(story)
