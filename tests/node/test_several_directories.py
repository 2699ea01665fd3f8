"""A broker with several data directories: placement of replicas, reports to the controller, directory failures.

Real replicas and handlers on a simulated disk; the test acts as the controller. `controller.md C20`, KIP-112, KIP-858.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from immutables import Map

from fenceline.controller.partition_requests import (
    AssignedReplica,
    AssignReplicasToDirs,
    AssignReplicasToDirsAnswer,
)
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.log.core.checkpoints import encode_partition_metadata
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import replace_file
from fenceline.losses.receipt import LossCause, LossClass, Receipt
from fenceline.metadata.image import LOST_DIRECTORY, UNASSIGNED_DIRECTORY
from fenceline.node.storage import directory_assignments
from fenceline.records.build import build_batch
from fenceline.wire.apis import ApiKey
from tests.node.desk import OTHERS, TOPIC, Desk, run_story, turns, where

ELSEWHERE = UUID(int=990)
GONE = UUID(int=991)
STORAGE_ERROR = ErrorCode.KAFKA_STORAGE_ERROR


def mine(desk: Desk, number: int) -> UUID:
    """The id of a directory, counted from 0."""
    found = desk.log_dirs.opened[number].directory_id
    assert found is not None
    return found


def lead(desk: Desk, index: int, directory: UUID, **changes: Any) -> None:
    changes.setdefault("isr", (1, *OTHERS))
    desk.lead(1, index=index, directories=(directory, ELSEWHERE, ELSEWHERE), **changes)


def knows_directories(desk: Desk) -> None:
    desk.image = replace(desk.image, features=Map({"metadata.version": 30}))


def takes_all(request: AssignReplicasToDirs) -> AssignReplicasToDirsAnswer:
    return AssignReplicasToDirsAnswer(
        tuple(
            (
                directory,
                tuple(
                    (topic, tuple(AssignedReplica(index, ErrorCode.NONE) for index in indexes))
                    for topic, indexes in topics
                ),
            )
            for directory, topics in request.directories
        )
    )


def assigned(desk: Desk) -> dict[int, UUID]:
    """By partition, the assignment that the controller received last."""
    return {
        index: directory
        for request in desk.controller.asked
        for directory, topics in request.directories
        for _, indexes in topics
        for index in indexes
    }


def run_with_directories(partitions: int, story: Callable[[Desk], Any], *, directories: int = 2, **given: Any) -> None:
    async def whole(desk: Desk) -> None:
        knows_directories(desk)
        desk.controller.answer = takes_all
        await story(desk)

    run_story(whole, partitions=partitions, directories=directories, **given)


async def until(condition: Callable[[], Any]) -> None:
    """Run the threads first."""
    while not condition():
        await turns(1)


# --- placement ------------------------------------------------------------------------------------------------------


def test_new_replicas_go_to_the_emptiest_directory_and_are_reported() -> None:
    async def story(desk: Desk) -> None:
        for index in range(5):
            lead(desk, index, UNASSIGNED_DIRECTORY)
            desk.append(index=index)
        await turns()
        assert assigned(desk) == {index: mine(desk, index % 3) for index in range(5)}
        assert all(request.broker_epoch == desk.broker_epoch for request in desk.controller.asked)
        for number, held in enumerate(([0, 3], [1, 4], [2])):
            names = desk.disk.listdir(desk.log_dirs.opened[number].path)
            assert [name for name in names if name.startswith(TOPIC)] == [f"{TOPIC}-{index}" for index in held]

    run_with_directories(5, story, directories=3)


def test_the_assignment_of_the_controller_decides_for_a_replica_without_files() -> None:
    async def story(desk: Desk) -> None:
        for index in range(3):
            lead(desk, index, mine(desk, 1))
            desk.append(index=index)
        await turns()
        assert desk.controller.asked == []
        assert desk.disk.stat(f"/data2/{TOPIC}-2") is not None

    run_with_directories(3, story)


def test_existing_files_override_the_assignment_of_the_controller() -> None:
    async def story(desk: Desk) -> None:
        desk.disk.mkdir(f"/data2/{TOPIC}-0")
        for log_dir in desk.log_dirs:
            desk.partitions.directories.scan(log_dir)
        lead(desk, 0, mine(desk, 0))
        await turns()
        assert desk.replica().log.directory == f"/data2/{TOPIC}-0"
        assert assigned(desk) == {0: mine(desk, 1)}

    run_with_directories(1, story)


def two_copies(desk: Desk, *epochs: tuple[int, ...], safe: bool = False) -> None:
    """The partition is in both directories, with a record of each epoch. `safe`: the checkpoints know of them."""
    for log_dir, wanted in zip(desk.log_dirs, epochs, strict=True):
        log = log_dir.partition(where(), desk.topic_id, LogConfig())
        for epoch in wanted:
            log.append_as_leader(memoryview(build_batch([(0, b"k", b"v", ())])), leader_epoch=epoch, now_ms=0)
        log.close(clean=safe)
        if safe:
            log_dir.checkpoint_work()()
        del log_dir.open_logs[where()]


def everything(desk: Desk) -> dict[str, bytes | None]:
    """The files of the partition in both directories."""
    return {
        f"{path}/{name}": desk.disk.peek(f"{path}/{name}")
        for path in (f"{log_dir.path}/{TOPIC}-0" for log_dir in desk.log_dirs.opened)
        for name in desk.disk.listdir(path)
    }


def test_a_partition_in_two_directories_is_offline_only_if_they_diverge() -> None:
    async def story(desk: Desk) -> None:
        two_copies(desk, (1, 1, 2), (1, 3, 3, 3))
        before = everything(desk)
        assert [desk.partitions.directories.scan(log_dir) for log_dir in desk.log_dirs] == [[where()], []]
        desk.partitions.recover([where()])
        reason = desk.partitions.offline[where()]
        assert f"{TOPIC}-0 is in two directories, and each has records that the other lacks: /data and /data2" in reason
        assert everything(desk) == before

    run_with_directories(1, story)


@pytest.mark.parametrize("damaged", [(0,), (1,), (0, 1)], ids=str)
def test_a_damaged_copy_of_a_partition_in_two_directories_fails_only_that_partition(
    damaged: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """The comparison raised CorruptLog, which ended the start of the node."""

    async def story(desk: Desk) -> None:
        two_copies(desk, (1, 2, 2), (1, 2, 2), safe=True)
        for number in damaged:
            path = f"{desk.log_dirs.opened[number].partition_path(where())}/{0:020d}.log"
            content = bytearray(desk.disk.peek(path) or b"")
            content[80] ^= 0x40
            replace_file(desk.disk, path, bytes(content))
        before = everything(desk)
        assert [desk.partitions.directories.scan(log_dir) for log_dir in desk.log_dirs] == [[where()], []]
        desk.partitions.recover([where()])
        await turns()
        reason = desk.partitions.offline[where()]
        assert f"{TOPIC}-0 is in two directories that cannot be compared: /data" in reason
        assert reason.count("is damaged at byte 70") == len(damaged)
        assert reason.count("has offsets 0 to 2, undamaged") == 2 - len(damaged)
        assert everything(desk) == before
        with pytest.raises(PeerError) as refused:
            lead(desk, 0, GONE)
        assert refused.value.code is STORAGE_ERROR
        await turns()
        assert assigned(desk).get(0, LOST_DIRECTORY) == LOST_DIRECTORY, "no directory of it is reported"
        lead(desk, 1, mine(desk, 1))
        desk.append(index=1)
        desk.delete_topic()
        assert [name for path in ("/data", "/data2") for name in desk.disk.listdir(path) if name == f"{TOPIC}-0"] == []

    run_with_directories(2, story)


@pytest.mark.parametrize("named", [0, 1])
def test_the_assigned_one_of_two_diverging_directories_is_used(named: int) -> None:
    """Seed 226 of the story `operations`: a directory was offline while its replica was moved away and created
    again.
    """

    async def story(desk: Desk) -> None:
        lead(desk, 0, mine(desk, named))
        two_copies(desk, (1, 1, 2), (1, 3, 3, 3))
        for log_dir in desk.log_dirs:
            desk.partitions.directories.scan(log_dir)
        assert desk.log_dirs.holder(where()) is desk.log_dirs.opened[named]
        (stray,) = desk.log_dirs.opened[1 - named].strays()
        assert stray.topic_partition == where()
        (receipt,) = recovered_receipts(desk)
        lost = (1, 3) if named else (1, 4)
        assert (receipt.start_offset, receipt.end_offset_exclusive) == lost, (
            "the records that the assigned directory lacks"
        )
        assert (receipt.topic_id, receipt.cause) == (desk.topic_id, LossCause.SET_ASIDE)
        assert all(path.startswith(f"{stray.path}/lost+found/") for path in receipt.evidence)

    run_with_directories(1, story)


def recovered_receipts(desk: Desk) -> list[Receipt]:
    """What the next step of a start adds to the ledger."""
    desk.plane.pending.recover()
    return desk.losses.next_due(9)


def without_id(desk: Desk, content: bytes = b"version: 0\ntopic") -> None:
    """Three records, of which a loss of power kept the batches and only a part of `partition.metadata`."""
    log = desk.log_dirs.first.partition(where(), desk.topic_id, LogConfig())
    for _ in range(3):
        log.append_as_leader(memoryview(build_batch([(0, b"k", b"v", ())])), leader_epoch=1, now_ms=0)
    log.close(clean=False)
    del desk.log_dirs.first.open_logs[where()]
    replace_file(desk.disk, f"/data/{TOPIC}-0/partition.metadata", content)


@pytest.mark.parametrize("directories", [1, 2])
def test_records_of_a_directory_without_a_topic_id_get_a_receipt(directories: int) -> None:
    async def story(desk: Desk) -> None:
        without_id(desk)
        for log_dir in desk.log_dirs:
            assert desk.partitions.directories.scan(log_dir) == []
        (receipt,) = recovered_receipts(desk)
        assert (receipt.start_offset, receipt.end_offset_exclusive, receipt.records) == (0, 3, 3)
        assert (receipt.topic, receipt.topic_id, receipt.cause) == (TOPIC, None, LossCause.SET_ASIDE)
        assert receipt.loss_class is LossClass.MAYBE_ACKNOWLEDGED, "no checkpoint is known to cover it"
        assert all(desk.disk.peek(path) for path in receipt.evidence)
        lead(desk, 0, mine(desk, 0), isr=(1,))
        assert desk.replica().log.log_end_offset == 0

    run_with_directories(1, story, directories=directories)


def test_a_directory_without_a_topic_id_or_records_has_no_receipt() -> None:
    async def story(desk: Desk) -> None:
        desk.disk.mkdir(f"/data/{TOPIC}-0")
        replace_file(desk.disk, f"/data/{TOPIC}-0/partition.metadata", b"")
        assert desk.partitions.directories.scan(desk.log_dirs.first) == []
        assert len(desk.log_dirs.first.strays()) == 1
        assert recovered_receipts(desk) == []

    run_with_directories(1, story, directories=1)


def test_without_space_for_the_note_the_partition_waits() -> None:
    async def story(desk: Desk) -> None:
        without_id(desk)
        desk.disk.fail("write", ".note.tmp", errno.ENOSPC)
        assert desk.partitions.directories.scan(desk.log_dirs.first) == []
        assert desk.log_dirs.first.strays() == []
        assert recovered_receipts(desk) == []
        with pytest.raises(PeerError) as refused:
            lead(desk, 0, mine(desk, 0), isr=(1,))
        assert refused.value.code is STORAGE_ERROR
        assert "receipt could not be written: No space left" in refused.value.message
        desk.disk.heal()
        desk.delete_topic()
        assert not desk.partitions.directories.pending_notes, "the next topic of this name does not wait"

    run_with_directories(1, story, directories=1)


def test_the_partition_is_served_as_soon_as_there_is_space_for_the_note() -> None:
    """Seed 3308 of the story `brokers`: it stayed offline until the next start, also as the leader."""

    async def story(desk: Desk) -> None:
        without_id(desk)
        desk.disk.fail("write", ".note.tmp", errno.ENOSPC)
        assert desk.partitions.directories.scan(desk.log_dirs.first) == []
        pending = desk.plane.pending
        pending.recover()
        with pytest.raises(PeerError):
            lead(desk, 0, mine(desk, 0), isr=(1,))
        assert len(pending)
        await pending.retry()
        assert desk.partitions.offline
        desk.disk.heal()
        await pending.retry()
        assert not len(pending)
        assert not desk.partitions.offline
        assert desk.replica().log.log_end_offset == 0
        (receipt,) = desk.losses.next_due(9)
        assert (receipt.start_offset, receipt.end_offset_exclusive) == (0, 3)

    run_with_directories(1, story, directories=1)


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [((1, 2), (1, 2, 2), 1), ((1, 2, 2), (1,), 0), ((1, 2, 3), (1, 2), 0), ((1, 1), (1, 1), 0), ((), (1,), 1)],
)
def test_the_complete_one_of_two_directories_is_used(first: tuple[int], second: tuple[int], kept: int) -> None:
    """A loss of power during a move leaves two; the other one is not deleted."""

    async def story(desk: Desk) -> None:
        two_copies(desk, first, second)
        if not first:
            desk.disk.mkdir(f"/data/{TOPIC}-0")
            replace_file(desk.disk, f"/data/{TOPIC}-0/partition.metadata", encode_partition_metadata(desk.topic_id))
        for log_dir in desk.log_dirs:
            desk.partitions.directories.scan(log_dir)
        lead(desk, 0, mine(desk, kept), isr=(1,))
        assert desk.replica().log.directory == desk.log_dirs.opened[kept].partition_path(where())
        assert desk.replica().log.log_end_offset == max(len(first), len(second))
        (dropped,) = (path for path in ("/data", "/data2") if path != desk.log_dirs.opened[kept].path)
        assert [name[-6:] for name in desk.disk.listdir(dropped) if name.startswith(TOPIC)] == ["-stray"]

    run_with_directories(1, story)


@pytest.mark.parametrize("torn", [0, 1])
def test_comparing_two_directories_truncates_neither(torn: int) -> None:
    """Seed 305 of the story `operations`: recovery truncated the copy that was then set aside, and its note became a
    receipt of records that the replica has.
    """

    async def story(desk: Desk) -> None:
        two_copies(desk, (1, 2, 2), (1, 2, 2))
        path = f"{desk.log_dirs.opened[torn].partition_path(where())}/{0:020d}.log"
        content = desk.disk.peek(path) or b""
        fd = desk.disk.open_append(path)
        desk.disk.truncate(fd, len(content) - 3)
        desk.disk.close(fd)
        for log_dir in desk.log_dirs:
            desk.partitions.directories.scan(log_dir)
        kept, dropped = desk.log_dirs.opened[1 - torn], desk.log_dirs.opened[torn]
        assert desk.log_dirs.holder(where()) is kept
        (stray,) = dropped.strays()
        assert desk.disk.peek(f"{stray.path}/{0:020d}.log") == content[:-3]
        assert desk.disk.folder(f"{stray.path}/lost+found") is None
        assert kept.partition(where(), desk.topic_id, LogConfig()).log_end_offset == 3

    run_with_directories(1, story)


def test_an_older_topic_of_the_same_name_is_no_second_copy() -> None:
    """The directory was offline while the topic was deleted and created again elsewhere."""

    async def story(desk: Desk) -> None:
        lead(desk, 0, mine(desk, 0))
        desk.append()
        desk.disk.mkdir(f"/data2/{TOPIC}-0")
        old = b"version: 0\ntopic_id: mAElyxrEQ3mw_ELWKg5Mow\n"
        replace_file(desk.disk, f"/data2/{TOPIC}-0/partition.metadata", old)
        found = [desk.partitions.directories.scan(log_dir) for log_dir in desk.log_dirs]
        assert found == [[where()], []]
        assert [name[-6:] for name in desk.disk.listdir("/data2") if name.startswith(TOPIC)] == ["-stray"]

    run_with_directories(1, story)


def test_a_replica_in_an_offline_directory_is_not_recreated_in_another() -> None:
    async def story(desk: Desk) -> None:
        desk.log_dirs.offline["/data3"] = "broken at start"
        desk.log_dirs.is_single = False
        desk.tell(leader=2, leader_epoch=1, isr=(2, 3), directories=(GONE, ELSEWHERE, ELSEWHERE))
        with pytest.raises(PeerError) as refused:
            desk.replica()
        assert refused.value.code is STORAGE_ERROR
        assert "may be in a directory that is offline: /data3" in refused.value.message
        desk.tell(1, leader=2, leader_epoch=1, isr=(2, 3), directories=(UNASSIGNED_DIRECTORY, ELSEWHERE, ELSEWHERE))
        assert desk.replica(1).log.directory == f"/data/{TOPIC}-1"

    run_with_directories(2, story)


def test_a_replica_in_a_removed_directory_is_fetched_again_unless_in_sync() -> None:
    async def story(desk: Desk) -> None:
        desk.tell(leader=2, leader_epoch=1, isr=(2, 3), directories=(GONE, ELSEWHERE, ELSEWHERE))
        assert desk.replica().log.log_end_offset == 0
        await turns()
        assert assigned(desk) == {0: mine(desk, 0)}
        desk.tell(1, leader=2, leader_epoch=1, isr=(1, 2), directories=(GONE, ELSEWHERE, ELSEWHERE))
        with pytest.raises(PeerError) as refused:
            desk.replica(1)
        assert "not in log.dirs" in refused.value.message
        # There is no leader: a broker that reports the empty replica lets it be elected.
        desk.tell(2, leader=-1, leader_epoch=1, isr=(1,), directories=(GONE, ELSEWHERE, ELSEWHERE))
        await turns()
        assert assigned(desk) == {0: mine(desk, 0)}

    run_with_directories(3, story)


def test_one_directory_does_not_report_a_replica_that_it_never_had() -> None:
    async def story(desk: Desk) -> None:
        desk.tell(leader=-1, leader_epoch=1, isr=(1,), directories=(GONE, ELSEWHERE, ELSEWHERE))
        await turns()
        assert desk.controller.asked == []
        desk.disk.mkdir(f"/data/{TOPIC}-0")
        desk.tell(leader=-1, leader_epoch=2)
        await turns()
        assert assigned(desk) == {0: mine(desk, 0)}

    run_with_directories(1, story, directories=1)


@pytest.mark.parametrize("directories", [1, 2])
@pytest.mark.parametrize(
    "counts", [{"isr": (1,)}, {"isr": (), "elr": (1,)}, {"isr": (), "last_known_elr": (1,)}], ids=str
)
def test_no_request_creates_an_empty_replica_of_one_that_could_lead(directories: int, counts: dict[str, Any]) -> None:
    """Its disk was replaced. If it were reported to the controller it would be elected at once, and others would
    truncate their logs.
    """

    async def story(desk: Desk) -> None:
        desk.tell(leader=-1, leader_epoch=1, directories=(GONE, ELSEWHERE, ELSEWHERE), **counts)
        with pytest.raises(PeerError) as refused:
            desk.replica()
        assert "not in log.dirs" in refused.value.message
        await turns()
        assert desk.controller.asked == []
        desk.tell(1, leader=2, leader_epoch=1, isr=(2,), directories=(GONE, ELSEWHERE, ELSEWHERE))
        desk.replica(1)
        await turns()
        assert list(assigned(desk)) == [1]
        desk.tell(leader=-1, leader_epoch=2)
        with pytest.raises(PeerError):
            desk.replica()
        desk.tell(leader=3, leader_epoch=3, isr=(3,), elr=(), last_known_elr=())
        assert not desk.replica().is_leader, "another was elected uncleanly, it is followed"
        await turns()
        assert sorted(assigned(desk)) == [0, 1]

    run_with_directories(2, story, directories=directories)


# --- reports to the controller --------------------------------------------------------------------------------------


def test_assignments_are_sent_together_and_retried_until_accepted() -> None:
    async def story(desk: Desk) -> None:
        answers: list[Any] = [PeerError(ErrorCode.NOT_CONTROLLER), "one refused", "all"]

        def answer(request: AssignReplicasToDirs) -> Any:
            now = answers.pop(0) if answers else "all"
            if isinstance(now, PeerError):
                return now
            taken = takes_all(request)
            if now == "all":
                return taken
            directory, ((topic, replicas),) = taken.directories[0]
            refused = replace(replicas[0], code=ErrorCode.UNKNOWN_SERVER_ERROR)
            return replace(
                taken, directories=((directory, ((topic, (refused, *replicas[1:])),)), *taken.directories[1:])
            )

        desk.controller.answer = answer
        for index in range(4):
            lead(desk, index, UNASSIGNED_DIRECTORY)
        await until(lambda: not answers)
        await turns()
        first, second, third = desk.controller.asked
        assert first == second
        assert len(first.directories) == 2, "all four in one request"
        assert assigned(desk) == {0: mine(desk, 0), 1: mine(desk, 1), 2: mine(desk, 0), 3: mine(desk, 1)}
        assert third.directories == ((mine(desk, 0), ((desk.topic_id, (0,)),)),), "the others were accepted"

    run_with_directories(4, story)


def test_an_assignment_rejected_as_unknown_is_not_retried_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_assignments, "_FIRST_PAUSE_S", 0.0)

    async def story(desk: Desk) -> None:
        def answer(request: AssignReplicasToDirs) -> Any:
            taken = takes_all(request)
            directory, ((topic, (replica,)),) = taken.directories[0]
            gone = replace(replica, code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return replace(taken, directories=((directory, ((topic, (gone,)),)),))

        desk.controller.answer = answer
        lead(desk, 0, UNASSIGNED_DIRECTORY)
        await turns(50)
        assert len(desk.controller.asked) == 1

    run_with_directories(1, story)


# --- failure --------------------------------------------------------------------------------------------------------


def break_second(desk: Desk, number: int = errno.EIO) -> None:
    for call in ("write", "fsync", "open", "read"):
        desk.disk.fail(call, number=number, under="/data2")  # type: ignore[arg-type]


def led_in_both(desk: Desk) -> None:
    """Partition 0 in the first directory, 1 and 2 in the second; 2 has no object yet."""
    for index in (0, 1):
        lead(desk, index, mine(desk, index), isr=(1,))
        desk.append(3, index=index)
    topic = desk.image.topics_by_name[TOPIC]
    places = (mine(desk, 1), ELSEWHERE, ELSEWHERE)
    partitions = (*topic.partitions[:2], topic.partitions[2]._replace(leader=1, leader_epoch=1, directories=places))
    after = replace(topic, partitions=partitions)
    desk.image = replace(
        desk.image,
        topics_by_name=desk.image.topics_by_name.set(TOPIC, after),
        topics_by_id=desk.image.topics_by_id.set(after.id, after),
    )


def produced(desk: Desk, index: int) -> int:
    return int(desk.produced(index=index).responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS])
def test_a_failed_directory_takes_down_all_its_replicas_and_no_others(number: int) -> None:
    async def story(desk: Desk) -> None:
        led_in_both(desk)
        break_second(desk, number)
        assert produced(desk, 1) == STORAGE_ERROR
        await until(lambda: desk.lifecycle.failed)
        assert desk.lifecycle.failed == [mine(desk, 1)]
        assert [produced(desk, index) for index in range(3)] == [0, STORAGE_ERROR, STORAGE_ERROR]
        assert [desk.fetched(index=index).error_code for index in range(3)] == [0, STORAGE_ERROR, STORAGE_ERROR]
        assert list(desk.log_dirs.offline) == ["/data2"]
        assert not desk.directory_failures.ended().done()
        # The directory failed, not the replica: the controller learns it from the heartbeat.
        assert LOST_DIRECTORY not in assigned(desk).values()

    run_with_directories(3, story)


def test_flush_read_and_checkpoint_detect_the_failure() -> None:
    async def flush(desk: Desk) -> None:
        error = await desk.flushes.up_to(desk.replica(1), 3)
        assert error is not None
        assert error.code is STORAGE_ERROR

    async def read(desk: Desk) -> None:
        desk.disk.resident = lambda: False
        (answered,) = (await desk.fetch(desk.wanted(index=1)).later()).partitions
        assert answered.error_code == STORAGE_ERROR

    async def checkpoint(desk: Desk) -> None:
        await desk.flushes.up_to(desk.replica(1), 3)
        break_second(desk)
        desk.loop.call_soon(lambda: None)
        with pytest.raises(PeerError):
            await desk.checkpoint()

    for way in (flush, read, checkpoint):

        async def story(desk: Desk, way: Callable[[Desk], Any] = way) -> None:
            led_in_both(desk)
            if way is not checkpoint:
                break_second(desk)
            await way(desk)
            await until(lambda: desk.lifecycle.failed)
            assert list(desk.log_dirs.offline) == ["/data2"]

        run_with_directories(3, story)


def test_a_damaged_file_does_not_fail_the_directory() -> None:
    """The partition is isolated; if it has other replicas, one of them is elected."""

    async def story(desk: Desk) -> None:
        led_in_both(desk)
        lead(desk, 2, mine(desk, 1))
        desk.append(index=2)
        desk.disk.fail("fsync", ".log", under=f"/data2/{TOPIC}-1/")
        assert await desk.flushes.up_to(desk.replica(1), 3) is not None
        await until(lambda: assigned(desk))
        await until(lambda: not desk.directory_failures._tasks)
        assert assigned(desk) == {1: LOST_DIRECTORY}
        assert [produced(desk, index) for index in range(3)] == [0, STORAGE_ERROR, 0]
        assert (desk.log_dirs.offline, desk.lifecycle.failed) == ({}, [])
        # The image now assigns another directory: it is not corrected to the one with the files, which is offline.
        desk.tell(1, directories=(LOST_DIRECTORY, ELSEWHERE, ELSEWHERE), leader=2, leader_epoch=2, isr=(2, 3))
        await turns()
        assert assigned(desk) == {1: LOST_DIRECTORY}

    run_with_directories(3, story)


def test_a_full_disk_is_not_a_failed_disk() -> None:
    async def story(desk: Desk) -> None:
        led_in_both(desk)
        desk.disk.capacity_bytes = desk.disk.used_bytes
        assert produced(desk, 1) == STORAGE_ERROR
        await turns()
        assert not desk.directory_failures._tasks
        desk.disk.heal()
        assert produced(desk, 1) == 0

    run_with_directories(3, story)


def test_the_node_stops_when_all_directories_have_failed() -> None:
    async def story(desk: Desk) -> None:
        led_in_both(desk)
        first, second = desk.log_dirs.opened
        desk.log_dirs.metadata = None  # the metadata log has its own directory
        ended = desk.directory_failures.ended()
        desk.disk.fail("write")
        for index, log_dir in ((0, first), (1, second)):
            assert produced(desk, index) == STORAGE_ERROR
            await until(lambda log_dir=log_dir: log_dir.path in desk.log_dirs.offline)  # type: ignore[misc]
        with pytest.raises(OperatorError, match="All log directories have failed: /data, /data2"):
            await ended

    run_with_directories(3, story)


def test_the_node_stops_when_the_directory_of_the_metadata_log_fails() -> None:
    async def story(desk: Desk) -> None:
        led_in_both(desk)
        desk.disk.fail("write", under="/data/")
        ended = desk.directory_failures.ended()
        assert produced(desk, 0) == STORAGE_ERROR
        with pytest.raises(OperatorError, match="The directory of the metadata log, /data, has failed"):
            await ended
        assert produced(desk, 1) == 0, "until it stops"

    servers = {"controller.quorum.bootstrap.servers": "a:1", "process.roles": "broker"}
    run_with_directories(3, story, settings=servers)


def test_the_node_stops_when_it_cannot_report_the_failure_to_a_controller() -> None:
    async def story(desk: Desk) -> None:
        led_in_both(desk)
        desk.lifecycle.answers = False
        break_second(desk)
        ended = desk.directory_failures.ended()
        assert produced(desk, 1) == STORAGE_ERROR
        with pytest.raises(OperatorError, match=r"within log\.dir\.failure\.timeout\.ms \(50 ms\)"):
            await ended

    run_with_directories(3, story, settings={"log.dir.failure.timeout.ms": "50"})


def test_a_topic_of_a_failed_directory_is_dropped_and_recreated_elsewhere() -> None:
    async def story(desk: Desk) -> None:
        led_in_both(desk)
        break_second(desk)
        assert produced(desk, 1) == STORAGE_ERROR
        await until(lambda: desk.log_dirs.offline)
        again = desk.image
        desk.delete_topic()
        assert desk.partitions.offline == {}
        desk.image = again
        desk.tell(1, leader=1, leader_epoch=9, directories=(UNASSIGNED_DIRECTORY, ELSEWHERE, ELSEWHERE))
        assert desk.replica(1).log.directory == f"/data/{TOPIC}-1"

    run_with_directories(3, story)


def test_describe_log_dirs_lists_the_content_of_each_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    room = os.statvfs("/")
    monkeypatch.setattr(os, "statvfs", lambda _: room)

    async def story(desk: Desk) -> None:
        led_in_both(desk)
        desk.partitions.get(TOPIC, 2)
        desk.log_dirs.offline["/data3"] = "broken at start"
        results = (await desk.ask(ApiKey.DESCRIBE_LOG_DIRS, 5, topics=None)).results
        assert [each.error_code for each in results] == [0, 0, STORAGE_ERROR]
        assert {
            each.log_dir: [(p.partition_index, p.partition_size > 0) for t in each.topics for p in t.partitions]
            for each in results
        } == {"/data": [(0, True)], "/data2": [(1, True), (2, False)], "/data3": []}

    run_with_directories(3, story)
