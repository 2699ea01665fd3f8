"""Moves of a replica between directories of its broker: copy, truncations, reports, swap, cancellation.

Real replicas and handlers on a simulated disk; the test is the controller. KIP-113, KIP-858.
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

from fenceline.controller.partition_requests import AssignReplicasToDirs
from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.checkpoints import encode_partition_metadata
from fenceline.log.core.disk import replace_file
from fenceline.log.directories import future_log
from fenceline.log.directories.log_dir import LogDir
from fenceline.losses.cutting import cut_log
from fenceline.losses.folder import ReceiptFolder, is_receipt_file
from fenceline.losses.removed_partitions import move_receipts_to_outbox
from fenceline.metadata.image import LOST_DIRECTORY, UNASSIGNED_DIRECTORY, ConfigResource, ConfigResourceType
from fenceline.node.storage import directory_move, directory_moves
from fenceline.records.build import build_batch
from fenceline.wire.apis import ApiKey
from tests.losses.helpers import cut
from tests.node.desk import OTHERS, TOPIC, Desk, run_story, turns, where
from tests.node.test_several_directories import (
    ELSEWHERE,
    assigned,
    break_second,
    lead,
    mine,
    produced,
    takes_all,
    until,
)

FIRST, SECOND = "/data", "/data2"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy a few records in several chunks, without pauses."""
    monkeypatch.setattr(future_log, "CHUNK_BYTES", 200)
    monkeypatch.setattr(directory_move, "REST_BYTES", 400)
    monkeypatch.setattr(directory_move, "_CHECK_S", 0.001)
    monkeypatch.setattr(directory_moves, "_RETRY_S", 0.001)
    room = os.statvfs("/")
    monkeypatch.setattr(os, "statvfs", lambda _: room)


class Controller:
    """Applies reported directories to the image, unless `is_deaf`."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.is_deaf = False

    def __call__(self, request: AssignReplicasToDirs) -> Any:
        if not self.is_deaf:
            for directory, topics in request.directories:
                for _, indexes in topics:
                    for index in indexes:
                        self.desk.loop.call_soon(self._record, index, directory)
        return takes_all(request)

    def _record(self, index: int, directory: UUID) -> None:
        self.desk.tell(index, directories=(directory, ELSEWHERE, ELSEWHERE))


def moves_of(partitions: int, story: Callable[[Desk, Controller], Any], **given: Any) -> None:
    async def whole(desk: Desk) -> None:
        desk.image = replace(desk.image, features=Map({"metadata.version": 30}))
        controller = Controller(desk)
        desk.controller.answer = controller
        await story(desk, controller)

    run_story(whole, partitions=partitions, directories=given.pop("directories", 2), **given)


async def alter(desk: Desk, path: str, *indexes: int, topic: str = TOPIC) -> list[int]:
    dirs = [{"path": path, "topics": [{"name": topic, "partitions": list(indexes or (0,))}]}]
    (result,) = (await desk.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, 2, dirs=dirs)).results
    assert result.topic_name == topic
    return [each.error_code for each in result.partitions]


def values(desk: Desk, index: int = 0) -> bytes:
    log = desk.replica(index).log
    return b"".join(desk.disk.peek(segment.path) or b"" for segment in log.segments)


def names(desk: Desk, path: str) -> list[str]:
    """Names of the partition directories, without their unique part."""
    found = [name for name in desk.disk.listdir(path) if name.startswith(TOPIC)]
    return sorted(name.partition(".")[0] + name[name.rindex("-") :] if "." in name else name for name in found)


async def described(desk: Desk) -> dict[str, list[tuple[int, bool, int]]]:
    results = (await desk.ask(ApiKey.DESCRIBE_LOG_DIRS, 5, topics=None)).results
    return {
        each.log_dir: [(p.partition_index, p.is_future_key, p.offset_lag) for t in each.topics for p in t.partitions]
        for each in results
    }


def throttle(desk: Desk, rate: int) -> None:
    resource = ConfigResource(ConfigResourceType.BROKER, "1")
    after = replace(desk.image, configs=desk.image.configs.set(resource, Map({directory_moves.RATE: str(rate)})))
    desk._apply(desk.image, after)


async def moved(desk: Desk, count: int = 1) -> None:
    await until(lambda: desk.moves.moved == count and not desk.moves._tasks)


async def copied(desk: Desk, controller: Controller) -> None:
    """Copy the replica to the second directory; the controller does not apply the report."""
    controller.is_deaf = True
    await alter(desk, SECOND)
    await until(lambda: assigned(desk) == {0: mine(desk, 1)})


async def take_over(desk: Desk) -> None:
    """The controller applies the report, and the copy replaces the log."""
    desk.tell(directories=(mine(desk, 1), ELSEWHERE, ELSEWHERE))
    await moved(desk)


def test_leader_moves_with_all_records_and_continues() -> None:
    async def story(desk: Desk, _: Controller) -> None:
        lead(desk, 0, mine(desk, 0), isr=(1,))
        desk.append(30)
        desk.replica().log.advance_log_start(3)
        before = values(desk)
        epochs = desk.replica().log.epochs.entries
        assert await alter(desk, SECOND) == [0]
        await moved(desk)
        replica = desk.replica()
        assert replica.log.directory == f"{SECOND}/{TOPIC}-0"
        assert values(desk) == before[len(before) // 10 :], "deleted records are not copied"
        assert (replica.log.log_start_offset, replica.log.high_watermark) == (3, 30)
        assert replica.log.epochs.entries == epochs
        assert replica.log.recovery_point == 30, "the copy was flushed before it replaced the log"
        assert assigned(desk) == {0: mine(desk, 1)}
        assert (names(desk, FIRST), names(desk, SECOND)) == ([f"{TOPIC}-0-delete"], [f"{TOPIC}-0"])
        ((delete, delay_ms),) = desk.deleted
        assert delay_ms == replica.config.file_delete_delay_ms
        delete()
        assert names(desk, FIRST) == []
        assert produced(desk, 0) == 0
        assert replica.log.log_end_offset == 31
        assert desk.fetched(30).error_code == 0
        assert await desk.flushes.up_to(replica, 31) is None

    moves_of(1, story)


def test_records_appended_during_the_copy_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(desk: Desk, controller: Controller) -> None:
        lead(desk, 0, mine(desk, 0), isr=(1,))
        desk.append(30)
        await copied(desk, controller)
        assert desk.replica().log.directory.startswith(FIRST + "/"), "the controller has not confirmed"
        desk.append(20)
        assert (await described(desk))[SECOND] == [(0, True, 20)]
        controller.is_deaf = False
        await take_over(desk)
        assert desk.replica().log.log_end_offset == 50
        assert await described(desk) == {FIRST: [], SECOND: [(0, False, 0)]}
        assert assigned(desk) == {0: mine(desk, 1)}, "not reported again"

    moves_of(1, story)


def test_copy_follows_a_truncation_of_its_replica() -> None:
    async def story(desk: Desk, controller: Controller) -> None:
        desk.follow(1, directories=(mine(desk, 0), ELSEWHERE, ELSEWHERE))
        desk.copied(30, epoch=1)
        await copied(desk, controller)
        replica = desk.replica()
        replica.is_being_cut = True
        replica.log.truncate_to(12)
        replica.is_being_cut = False
        desk.follow(2, leader=3)
        desk.copied(25, epoch=2)
        expected = values(desk)
        await take_over(desk)
        assert values(desk) == expected
        assert replica.log.epochs.entries == ((1, 0), (2, 12))
        assert replica.leader_epoch == 2

    moves_of(1, story)


def test_copy_follows_a_full_truncation() -> None:
    async def story(desk: Desk, controller: Controller) -> None:
        desk.follow(1, directories=(mine(desk, 0), ELSEWHERE, ELSEWHERE))
        desk.copied(30, epoch=1)
        await copied(desk, controller)
        desk.replica().log.truncate_fully_and_start_at(100)
        await take_over(desk)
        log = desk.replica().log
        assert (log.log_start_offset, log.log_end_offset) == (100, 100)
        assert log.directory == f"{SECOND}/{TOPIC}-0"
        desk.copied(1, epoch=1)
        assert log.log_end_offset == 101

    moves_of(1, story)


def test_a_replica_without_files_moves_at_once() -> None:
    async def story(desk: Desk, _: Controller) -> None:
        lead(desk, 0, mine(desk, 0), isr=(1,))
        await alter(desk, SECOND)
        await moved(desk)
        assert assigned(desk) == {0: mine(desk, 1)}
        desk.append()
        assert (names(desk, FIRST), names(desk, SECOND)) == ([], [f"{TOPIC}-0"])

    moves_of(1, story)


def test_copy_is_throttled() -> None:
    """On a stopped clock, nothing is copied after the initial burst."""

    async def story(desk: Desk, _: Controller) -> None:
        lead(desk, 0, mine(desk, 0), isr=(1,))
        desk.append(60)
        throttle(desk, 1000)
        await alter(desk, SECOND)
        await until(lambda: any(each.size_bytes > 1000 for each in desk.moves))
        size = next(iter(desk.moves)).size_bytes
        await turns(50)
        (moving,) = desk.moves
        assert moving.size_bytes == size < desk.replica().log.size_bytes - 1000
        throttle(desk, 1 << 40)
        desk.clock.ms += 60_000
        await moved(desk)

    moves_of(1, story)


# --- errors and ends --------------------------------------------------------------------------------------------------


def test_errors_match_kafka() -> None:
    async def story(desk: Desk, _: Controller) -> None:
        lead(desk, 0, mine(desk, 0), isr=(1,))
        lead(desk, 1, mine(desk, 0), isr=(1,))
        assert await alter(desk, "/nowhere") == [ErrorCode.LOG_DIR_NOT_FOUND]
        assert await alter(desk, SECOND, 7) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await alter(desk, SECOND, topic="unknown") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await alter(desk, SECOND, topic="t" * 240) == [ErrorCode.INVALID_TOPIC_EXCEPTION]
        desk.partitions.set_offline(where(1), "damaged")
        assert await alter(desk, SECOND, 1, 0) == [ErrorCode.KAFKA_STORAGE_ERROR, 0]
        assert await alter(desk, FIRST) == [0], "the current directory: nothing to do, and a move there ends"
        assert not len(desk.moves)
        desk.log_dirs.cordoned = frozenset((SECOND,))
        assert await alter(desk, SECOND) == [ErrorCode.INVALID_REPLICA_ASSIGNMENT]
        desk.log_dirs.offline["/data3"] = "broken at start"
        assert await alter(desk, "/data3") == [ErrorCode.KAFKA_STORAGE_ERROR]
        desk.log_dirs.cordoned = frozenset()
        assert await alter(desk, SECOND) == [ErrorCode.KAFKA_STORAGE_ERROR], "the offline directory may have a copy"

    moves_of(2, story)


def test_future_replica_is_created_in_the_requested_directory() -> None:
    async def story(desk: Desk, _: Controller) -> None:
        desk.tell(replicas=OTHERS, leader=2, leader_epoch=1, isr=OTHERS)
        assert await alter(desk, SECOND) == [ErrorCode.REPLICA_NOT_AVAILABLE]
        desk.tell(
            replicas=(1, *OTHERS),
            leader=2,
            leader_epoch=2,
            isr=OTHERS,
            directories=(UNASSIGNED_DIRECTORY, ELSEWHERE, ELSEWHERE),
        )
        await turns()
        assert desk.replica().log.directory == f"{SECOND}/{TOPIC}-0"
        assert assigned(desk) == {0: mine(desk, 1)}

    moves_of(1, story)


def test_new_target_cancels_the_previous_move() -> None:
    async def story(desk: Desk, controller: Controller) -> None:
        lead(desk, 0, mine(desk, 0), isr=(1,))
        desk.append(30)
        await copied(desk, controller)
        controller.is_deaf = False
        assert await alter(desk, "/data3") == [0]
        await moved(desk)
        assert desk.replica().log.directory == f"/data3/{TOPIC}-0"
        assert names(desk, SECOND) == [f"{TOPIC}-0-delete"]
        assert assigned(desk) == {0: mine(desk, 2)}

    moves_of(1, story, directories=3)


def test_move_back_to_the_source_cancels_the_move() -> None:
    async def story(desk: Desk, controller: Controller) -> None:
        lead(desk, 0, mine(desk, 0), isr=(1,))
        desk.append(30)
        await copied(desk, controller)
        assert await alter(desk, FIRST) == [0]
        await until(lambda: not desk.moves._tasks)
        await turns()
        assert assigned(desk) == {0: mine(desk, 0)}
        assert names(desk, SECOND) == [f"{TOPIC}-0-delete"]
        assert desk.replica().log.directory == f"{FIRST}/{TOPIC}-0"

    moves_of(1, story)


def test_deleting_a_topic_deletes_the_copy() -> None:
    async def story(desk: Desk, controller: Controller) -> None:
        lead(desk, 0, mine(desk, 0), isr=(1,))
        desk.append(30)
        await copied(desk, controller)
        desk.delete_topic()
        await until(lambda: not desk.moves._tasks)
        assert names(desk, SECOND) == [f"{TOPIC}-0-delete"]

    moves_of(1, story)


def test_failed_target_keeps_the_replica_in_its_source() -> None:
    async def story(desk: Desk, controller: Controller) -> None:
        lead(desk, 0, mine(desk, 0), isr=(1,))
        desk.append(30)
        await copied(desk, controller)
        break_second(desk)
        desk.append(30)
        await until(lambda: desk.lifecycle.failed)
        await until(lambda: not desk.moves._tasks)
        await turns()
        assert desk.lifecycle.failed == [mine(desk, 1)]
        assert produced(desk, 0) == 0
        assert assigned(desk) == {0: mine(desk, 0)}, "the replica is not in the failed directory"

    moves_of(1, story)


def test_failed_source_keeps_the_copy() -> None:
    async def story(desk: Desk, controller: Controller) -> None:
        desk.log_dirs.metadata = None
        lead(desk, 0, mine(desk, 0), isr=(1,))
        desk.append(30)
        await copied(desk, controller)
        for call in ("write", "fsync", "open", "read"):
            desk.disk.fail(call, under=f"{FIRST}/")
        assert produced(desk, 0) == ErrorCode.KAFKA_STORAGE_ERROR
        await until(lambda: desk.lifecycle.failed)
        await until(lambda: not desk.moves._tasks)
        assert names(desk, SECOND) == [f"{TOPIC}-0-future"]
        assert assigned(desk) == {0: mine(desk, 0)}, "the controller treats it as offline"

    moves_of(1, story)


def test_copy_resumes_after_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_moves, "_FULL_S", 0.001)

    async def story(desk: Desk, _: Controller) -> None:
        lead(desk, 0, mine(desk, 0), isr=(1,))
        desk.append(30)
        desk.disk.fail("write", number=errno.ENOSPC, under=SECOND)
        await alter(desk, SECOND)
        await until(lambda: any(move.is_full for move in desk.moves._moves.values()))
        desk.disk.heal()
        await moved(desk)
        assert desk.replica().log.log_end_offset == 30

    moves_of(1, story)


def test_corrupt_batch_cancels_the_move_only() -> None:
    async def story(desk: Desk, _: Controller) -> None:
        lead(desk, 0, mine(desk, 0), isr=(1,))
        desk.append(30)
        path = desk.replica().log.segments[0].path
        directory, _, file = path.rpartition("/")
        desk.disk._entries[directory][file].content[300] ^= 1
        await alter(desk, SECOND)
        await until(lambda: not len(desk.moves) and not desk.moves._tasks)
        assert desk.moves.moved == 0
        assert names(desk, SECOND) == [f"{TOPIC}-0-delete"]
        assert produced(desk, 0) == 0

    moves_of(1, story)


def test_flushes_during_the_swap_use_the_new_log() -> None:
    async def story(desk: Desk, controller: Controller) -> None:
        lead(desk, 0, mine(desk, 0), isr=(1,))
        desk.append(10)
        await copied(desk, controller)
        desk.tell(directories=(mine(desk, 1), ELSEWHERE, ELSEWHERE))
        replica = desk.replica()
        while not desk.moves.moved:
            desk.append()
            assert await desk.flushes.up_to(replica, replica.log.log_end_offset) is None
        end = replica.log.log_end_offset
        assert replica.log.recovery_point >= end - 1
        desk.append()
        assert await desk.flushes.up_to(replica, end + 1) is None
        assert replica.log.recovery_point == end + 1

    moves_of(1, story)


def test_held_flush_runs_after_release() -> None:
    async def story(desk: Desk, _: Controller) -> None:
        lead(desk, 0, mine(desk, 0), isr=(1,))
        desk.append(10)
        replica = desk.replica()
        desk.flushes.hold(replica)
        waiting = desk.flushes.up_to(replica, 10)
        await desk.flushes.flush(replica)
        await turns()
        assert not desk.flushes.is_flushing(replica)
        assert not waiting.done()
        assert replica.log.recovery_point == 0
        desk.flushes.release(replica)
        assert await waiting is None
        assert replica.log.recovery_point == 10

    moves_of(1, story)


# --- evidence and receipts --------------------------------------------------------------------------------------------


def test_evidence_and_receipts_move_and_name_the_new_path() -> None:
    async def story(desk: Desk, controller: Controller) -> None:
        desk.follow(1, directories=(mine(desk, 0), ELSEWHERE, ELSEWHERE))
        desk.copied(30, epoch=1)
        replica = desk.replica()
        (first,) = cut_log(desk.disk, replica.log, cut(20))
        await copied(desk, controller)
        (second,) = cut_log(desk.disk, replica.log, cut(10, time_ms=8_000))
        ReceiptFolder(desk.disk, replica.log.directory).mark_reported(first)
        evidence = {path.rpartition("/")[2]: desk.disk.peek(path) for path in (*first.evidence, *second.evidence)}
        old = replica.log.directory
        await take_over(desk)
        assert replica.log.log_end_offset == 10
        new = f"{SECOND}/{TOPIC}-0/lost+found"
        assert {path.rpartition("/")[2]: desk.disk.peek(path) for path in _evidence(desk, new)} == evidence
        due = {each.id: each for each in ReceiptFolder(desk.disk, f"{SECOND}/{TOPIC}-0").due()}
        assert set(due) == {first.id, second.id}, "the ledger must learn the new path, also of reported receipts"
        assert due[first.id] == replace(
            first, evidence=tuple(p.replace(old, f"{SECOND}/{TOPIC}-0") for p in first.evidence)
        )
        assert {each.id: each for each in desk.losses.next_due(9)} == due
        # Deletions after a crash lose no evidence: it is kept with the moved replica.
        (pending_deletions,) = desk.log_dirs.opened[0].pending_deletions()
        is_kept = desk.losses._is_kept
        assert move_receipts_to_outbox(pending_deletions, FIRST, with_evidence=False, is_kept=is_kept) == []
        assert len(move_receipts_to_outbox(pending_deletions, FIRST, with_evidence=False)) == 2

    moves_of(1, story)


def _evidence(desk: Desk, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in desk.disk.listdir(folder) if not is_receipt_file(name)]


# --- the next start ---------------------------------------------------------------------------------------------------


def test_copy_found_at_the_start_resumes() -> None:
    async def story(desk: Desk, controller: Controller) -> None:
        lead(desk, 0, mine(desk, 0), isr=(1,))
        desk.append(30)
        await copied(desk, controller)
        await desk.moves.close()
        target: LogDir = desk.log_dirs.opened[1]
        (copy,) = target.existing_futures()
        assert desk.disk.stat(copy.path) is not None
        target.future_logs.pop(where()).close(clean=True)
        desk.append(5)

        desk.moves = directory_moves.DirectoryMoves(
            desk.moves._ports, desk.config, suspect=lambda *_: None, evidence_moved=desk.losses.moved
        )
        controller.is_deaf = False
        assert desk.partitions.directories.resolve_copies(target) == [copy]
        desk.moves.resume([(target, copy)])
        await moved(desk)
        assert desk.replica().log.log_end_offset == 35
        assert desk.replica().log.directory == f"{SECOND}/{TOPIC}-0"

    moves_of(1, story)


def test_copy_of_an_absent_replica_is_deleted() -> None:
    async def story(desk: Desk, _: Controller) -> None:
        target = desk.log_dirs.opened[1]
        desk.disk.mkdir(f"{SECOND}/{TOPIC}-0.abc-future")
        (copy,) = desk.partitions.directories.resolve_copies(target)
        desk.moves.resume([(target, copy)])
        assert names(desk, SECOND) == [f"{TOPIC}-0-delete"]

    moves_of(1, story)


@pytest.mark.parametrize("is_of", ["it", "another topic", "no topic", "no partition", "what is not here"])
@pytest.mark.parametrize("unique", ["abc", "xyz"])
def test_copy_replaces_a_log_already_renamed_for_deletion(is_of: str, unique: str) -> None:
    """The node was killed between the two renames of a move. Copies of replicas that this node lacks are deleted."""

    async def story(desk: Desk, _: Controller) -> None:
        name = f"{TOPIC}-{7 if is_of == 'no partition' else 0}"
        target, path = desk.log_dirs.opened[1], f"{SECOND}/{name}.abc-future"
        desk.disk.mkdir(f"{FIRST}/{name}.{unique}-delete")
        desk.disk.mkdir(path)
        topic_id = UUID(int=99) if is_of == "another topic" else desk.topic_id
        replace_file(desk.disk, f"{path}/partition.metadata", encode_partition_metadata(topic_id))
        if is_of == "no topic":
            desk.delete_topic()
        else:
            replicas = (4, *OTHERS) if is_of == "what is not here" else (1, *OTHERS)
            desk.tell(replicas=replicas, directories=(mine(desk, 0), ELSEWHERE, ELSEWHERE))
        desk.log_dirs.forget(where())
        is_the_log = is_of == "it" and unique == "abc"
        copies = desk.partitions.directories.resolve_copies(target)
        assert names(desk, SECOND) == [name if is_the_log else f"{name}-future"]
        assert [copy.path for copy in copies] == ([] if is_the_log else [path])
        desk.moves.resume([(target, copy) for copy in copies])
        assert names(desk, SECOND) == [name if is_the_log else f"{name}-future" if is_of == "it" else f"{name}-delete"]

    moves_of(1, story)


@pytest.mark.parametrize("is_offline", [True, False], ids=["offline", "removed from log.dirs"])
@pytest.mark.parametrize("isr", [(1,), (2, 3)], ids=["in sync", "out of sync"])
def test_copy_does_not_replace_a_missing_log(is_offline: bool, isr: tuple[int, ...]) -> None:
    """The controller knows the directory of a copy before the copy is complete. Then the directory of the log fails,
    and the node starts with the copy alone (operations, seed 21002976): as a leader it would lose records."""

    async def story(desk: Desk, controller: Controller) -> None:
        lead(desk, 0, mine(desk, 0), isr=(1,))
        desk.append(30)
        await copied(desk, controller)
        await desk.moves.close()
        target = desk.log_dirs.opened[1]
        target.future_logs.pop(where()).close(clean=True)
        desk.partitions.set_offline(where(), "the next start")
        desk.log_dirs.forget(where())
        desk.partitions.offline.clear()
        if is_offline:
            desk.log_dirs.offline[FIRST] = "broken at start"
        (copy,) = desk.partitions.directories.resolve_copies(target)
        desk.moves.resume([(target, copy)])
        await turns()
        desk.controller.asked.clear()
        desk.tell(leader=2, leader_epoch=7, isr=isr, directories=(mine(desk, 1), ELSEWHERE, ELSEWHERE))
        await turns()
        if is_offline or isr == (1,):
            with pytest.raises(PeerError) as refused:
                desk.replica()
            assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            assert copy.path in refused.value.message
            assert ("is offline: " + FIRST if is_offline else "not in log.dirs") in refused.value.message
        else:
            assert desk.replica().log.log_end_offset == 0
        await turns()
        assert assigned(desk) == ({0: LOST_DIRECTORY} if is_offline else {})
        assert desk.disk.stat(copy.path) is not None

    moves_of(1, story)


def test_move_of_several_segments_and_epochs() -> None:
    async def story(desk: Desk, _: Controller) -> None:
        desk.topic_settings["segment.bytes"] = "300"
        desk.partitions.reload_config()
        for epoch in range(1, 5):
            desk.lead(epoch, directories=(mine(desk, 0), ELSEWHERE, ELSEWHERE))
            desk.append(8)
        big = build_batch([(0, b"k", b"v" * 200, ())])
        desk.replica().log.append_as_leader(memoryview(big), leader_epoch=4, now_ms=0)
        desk.topic_settings["segment.bytes"] = "150"
        desk.partitions.reload_config()
        desk.lead(9)
        before, epochs = values(desk), desk.replica().log.epochs.entries
        assert epochs[-1] == (9, 33), "no batch has this epoch"
        await alter(desk, SECOND)
        await moved(desk)
        log = desk.replica().log
        assert values(desk) == before
        assert log.epochs.entries == epochs
        assert log.config.segment_bytes == 150
        assert len(log.segments) > 5

    moves_of(1, story)
