"""The driver of a quorum: which steps wait for the disk, and how it handles a disk that fails or returns wrong data."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.metadata.image import MetadataImage
from fenceline.node.quorum import driver as quorum_driver
from fenceline.node.quorum.driver import QuorumDriver
from fenceline.node.quorum.log import QuorumLog
from fenceline.node.storage.storage_trouble import StorageTrouble
from fenceline.quorum.duties import Send
from fenceline.quorum.election_state import FILE_NAME
from fenceline.quorum.log_view import QuorumEpochEnd, QuorumLogEnd, SnapshotId
from fenceline.quorum.messages import (
    BeginQuorumEpochRequest,
    DescribeQuorumRequest,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    RequestMessage,
    ResponseMessage,
    VoteRequest,
)
from fenceline.quorum.quorum import Quorum
from fenceline.quorum.settings import QuorumSettings
from fenceline.quorum.voter_set import VoterHistory
from fenceline.testing.sim_disk import SimDisk
from tests.kip.snapshot_directory import DATA, DIRECTORY, EPOCH, History, image_after, snapshot_of
from tests.node.controller_helpers import Held, StillClock
from tests.quorum.memory_log import voter


class Peers:
    """Node 2 leads; the test answers for it."""

    def __init__(self, answered: Callable[[int, ResponseMessage], None]) -> None:
        self.answered = answered
        self.sent: list[Send] = []

    def send(self, duty: Send) -> None:
        self.sent.append(duty)

    async def close(self) -> None:
        self.sent.clear()

    def take(self, kind: type[RequestMessage]) -> Send:
        """The newest request of this kind to the leader."""
        return next(
            one for one in reversed(self.sent) if isinstance(one.message, kind) and one.destination.node_id == 2
        )


class Node:
    """Voter 1 of three, with the history of `tests/kip` and threads that the test releases."""

    def __init__(self, batches: int = 3) -> None:
        self.disk = SimDisk(7)
        self.disk.mkdir(DATA)
        history = History(self.disk)
        history.begin()
        history.grow(batches)
        self.log = history.log
        self.threads = Held()
        self.clock = StillClock()
        self.committed_offset = 0
        self.loaded_images: list[MetadataImage] = []
        self.errors: list[BaseException] = []
        settings = QuorumSettings("c", static_voters=(voter(1), voter(2), voter(3)))
        view = QuorumLog(self.log, VoterHistory(), 0)
        self.driver = QuorumDriver(
            disk=self.disk,
            log=self.log,
            view=view,
            quorum=Quorum(voter(1), view, settings, Random(3)),
            clock=self.clock,
            executor=self.threads,
            events=self,
            trouble=StorageTrouble(self.clock),
            peers=self._connect,
        )

    def _connect(
        self, answered: Callable[[int, ResponseMessage], None], unanswered: Callable[[int, bool], None]
    ) -> Any:
        self.peers = Peers(answered)
        return self.peers

    def start(self) -> None:
        self.driver.start(self.log.read_election())
        self.driver.started()

    async def work(self) -> None:
        """Run threads and loop until both are idle."""
        for _ in range(20):
            await asyncio.sleep(0)
            self.threads.let_go()

    async def follow(self, epoch: int = EPOCH + 1) -> None:
        """Node 2 leads."""
        endpoints = voter(2).endpoints
        begins = BeginQuorumEpochRequest("c", 2, epoch, 1, voter(1).voter_directory_id, endpoints)
        asked = self.driver.ask(begins)
        await self.work()
        assert asked.result().leader_id == 2  # type: ignore[union-attr]

    def reply(self, **fields: Any) -> None:
        fetch = self.peers.take(QuorumFetchRequest)
        self.peers.answered(fetch.request_id, QuorumFetchResponse(leader_id=2, leader_epoch=EPOCH + 1, **fields))

    # -- QuorumEvents --------------------------------------------------------------------------------------------------

    def committed(self, offset: int) -> None:
        self.committed_offset = offset

    def loaded(self, snapshot_id: SnapshotId, image: MetadataImage) -> None:
        self.loaded_images.append(image)

    def became_leader(self, epoch: int, start_offset: int) -> None: ...

    def lost_leadership(self, epoch: int) -> None: ...

    def driver_failed(self, error: BaseException) -> None:
        self.errors.append(error)


def _vote(epoch: int) -> VoteRequest:
    return VoteRequest("c", epoch, 2, EPOCH, 1000, voter(2).voter_directory_id, 1, voter(1).voter_directory_id)


def _written(node: Node) -> dict[str, Any]:
    content = node.disk.peek(f"{DIRECTORY}/{FILE_NAME}")
    return {} if content is None else json.loads(content)


def test_a_vote_is_durable_before_it_is_sent_and_the_loop_does_not_wait() -> None:
    """Q2, Q17: neither the response nor any later one is sent before."""

    async def story() -> None:
        node = Node()
        node.start()
        vote = node.driver.ask(_vote(9))
        described = node.driver.ask(DescribeQuorumRequest())
        for _ in range(5):
            await asyncio.sleep(0)
        assert node.driver.is_waiting
        assert node.driver.is_persisting
        assert not vote.done()
        assert not described.done()
        assert _written(node)["votedId"] == -1
        node.threads.let_go()
        await asyncio.sleep(0)
        assert (_written(node)["leaderEpoch"], _written(node)["votedId"]) == (9, 2)
        await node.work()
        assert not node.driver.is_persisting
        assert vote.result().vote_granted  # type: ignore[union-attr]
        assert described.result().partition_error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER  # type: ignore[union-attr]
        await node.driver.stop(timeout_ms=0)

    asyncio.run(story())


def test_a_vote_that_cannot_be_written_stops_the_node_and_is_not_sent() -> None:
    """Q2, Q12."""

    async def story() -> None:
        node = Node()
        node.start()
        node.disk.fail("fsync", f"{FILE_NAME}.tmp")
        vote = node.driver.ask(_vote(9))
        await node.work()
        assert len(node.errors) == 1
        assert not vote.done()
        await node.driver.stop(timeout_ms=0)
        assert vote.exception() is not None

    asyncio.run(story())


async def _voting_on_a_full_disk() -> tuple[Node, asyncio.Future[ResponseMessage]]:
    """A node that was asked for its vote, and cannot write it."""
    node = Node()
    node.start()
    node.disk.fail("write", f"{FILE_NAME}.tmp", errno.ENOSPC)
    vote = node.driver.ask(_vote(9))
    await node.work()
    return node, vote


def test_a_vote_waits_for_space_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q2: until it is written it is not sent, and the node continues."""
    monkeypatch.setattr(quorum_driver, "_ROOM_PAUSE_S", 0.0)

    async def story() -> None:
        node, vote = await _voting_on_a_full_disk()
        assert (node.errors, vote.done(), node.driver.is_persisting) == ([], False, True)
        node.disk.heal()
        await node.work()
        assert (_written(node)["leaderEpoch"], _written(node)["votedId"]) == (9, 2)
        assert vote.result().vote_granted  # type: ignore[union-attr]
        await node.driver.stop(timeout_ms=0)

    asyncio.run(story())


def test_a_node_that_waits_for_disk_space_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quorum_driver, "_ROOM_PAUSE_S", 0.0)

    async def story() -> None:
        node, vote = await _voting_on_a_full_disk()
        stopping = asyncio.ensure_future(node.driver.stop(timeout_ms=60_000))
        while not stopping.done():
            await node.work()
        assert vote.exception() is not None
        assert node.errors == []
        assert _written(node)["votedId"] == -1

    asyncio.run(story())


def test_a_truncation_waits_for_the_disk_and_blocks_reads() -> None:
    """Q29."""

    async def story() -> None:
        node = Node()
        node.start()
        await node.follow()
        end = node.log.end_offset
        node.reply(diverging_epoch=QuorumEpochEnd(EPOCH, end - 4))
        for _ in range(5):
            await asyncio.sleep(0)
        assert node.driver.is_waiting
        assert not node.driver.is_persisting
        assert node.log.is_changing
        assert node.log.end_offset == end
        before = len(node.peers.sent)
        await node.work()
        assert not node.log.is_changing
        assert node.log.end_offset == end - 4
        assert node.driver.quorum.epoch == EPOCH + 1
        assert len(node.peers.sent) > before
        assert node.peers.take(QuorumFetchRequest).message.fetch_offset == end - 4
        await node.driver.stop(timeout_ms=0)

    asyncio.run(story())


def test_a_stop_waits_for_the_disk_operation_in_progress() -> None:
    async def story() -> None:
        node = Node()
        node.start()
        node.driver.ask(_vote(9)).add_done_callback(lambda done: done.exception())
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(node.driver.stop(timeout_ms=0))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not stopping.done()
        while not stopping.done():
            node.clock.ms += 1000
            node.threads.let_go()
            await asyncio.sleep(0.001)
        assert _written(node)["votedId"] == 2

    asyncio.run(story())


THEIRS = SnapshotId(200, EPOCH + 1)


def _content() -> bytes:
    return b"".join(snapshot_of(image_after(9, THEIRS.end_offset, THEIRS.epoch), 77))


def _freeze(node: Node, content: bytes) -> None:
    """A download was completed, and the node then looked for another leader before it was loaded."""
    fd = node.disk.open_append(f"{DIRECTORY}/{THEIRS.file_name}")
    node.disk.write(fd, content)
    node.disk.fsync(fd)
    node.disk.close(fd)
    assert node.log.snapshot_written(THEIRS)


def test_a_local_snapshot_is_loaded_in_a_thread() -> None:
    """N33, N35, N36."""

    async def story() -> None:
        node = Node()
        node.start()
        await node.follow()
        _freeze(node, _content())
        node.reply(snapshot_id=THEIRS)
        for _ in range(5):
            await asyncio.sleep(0)
        assert node.log.is_changing
        assert node.loaded_images == []
        await node.work()
        assert node.loaded_images == [image_after(9, THEIRS.end_offset, THEIRS.epoch)]
        assert (node.log.start_offset, node.log.end) == (200, QuorumLogEnd(THEIRS.epoch, 200))
        assert node.driver.quorum.high_watermark == node.log.partition_log.high_watermark == 200, "one source (G38)"
        assert node.peers.take(QuorumFetchRequest).message.fetch_offset == 200
        await node.driver.stop(timeout_ms=0)

    asyncio.run(story())


@pytest.mark.parametrize("damage", ["a bit", "the end", "all of it"])
def test_a_snapshot_found_damaged_at_loading_is_fetched_again(damage: str) -> None:
    """G24: never loaded, never fatal; the log is unchanged until the intact snapshot is here."""

    async def story() -> None:
        node = Node()
        node.start()
        await node.follow()
        end = node.log.end
        content = bytearray(_content())
        if damage == "a bit":
            content[300] ^= 4
        else:
            del content[len(content) // 2 if damage == "the end" else 0 :]
        _freeze(node, bytes(content))
        node.reply(snapshot_id=THEIRS)
        await node.work()
        assert node.errors == []
        assert node.loaded_images == []
        assert THEIRS not in node.log.snapshots
        assert node.log.end == end
        names = node.disk.listdir(DIRECTORY)
        assert THEIRS.file_name not in names
        assert f"{THEIRS.file_name}.damaged" in names

        node.clock.ms += 1000
        node.driver.call(lambda quorum, now: quorum.tick(now))
        node.reply(snapshot_id=THEIRS)
        await node.work()
        ask = node.peers.take(FetchSnapshotRequest)
        assert (ask.message.snapshot_id, ask.message.position) == (THEIRS, 0)
        whole = _content()
        answer = FetchSnapshotResponse(
            leader_id=2, leader_epoch=EPOCH + 1, snapshot_id=THEIRS, size=len(whole), unaligned_records=whole
        )
        node.peers.answered(ask.request_id, answer)
        await node.work()
        assert node.loaded_images == [image_after(9, THEIRS.end_offset, THEIRS.epoch)]
        await node.driver.stop(timeout_ms=0)

    asyncio.run(story())
