"""Missing, swapped or stray partition directories at a start: reported, set aside, never deleted.

Each story stops the broker of a desk, changes its disk, and starts its logs again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from immutables import Map

from fenceline.errors import ErrorCode
from fenceline.log.core.checkpoints import encode_partition_metadata
from fenceline.log.core.disk import replace_file
from fenceline.log.directories.log_dir import LogDir
from fenceline.log.directories.log_dirs import LogDirs
from fenceline.node.replication import replica_directories, replicas
from fenceline.node.replication.replicas import Replicas
from tests.node.api.handlers.fakes import partition, topic_image
from tests.node.desk import ME, TOPIC, Desk, run_story, where

STORAGE_ERROR, NOT_LEADER = ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_LEADER_OR_FOLLOWER
OTHER = "snow"
Line = tuple[str, dict[str, Any]]


@pytest.fixture(autouse=True)
def lines(monkeypatch: pytest.MonkeyPatch) -> list[Line]:
    written: list[Line] = []

    def write(event: str, **more: Any) -> None:
        written.append((event, more))

    for module in (replica_directories, replicas):
        monkeypatch.setattr(module, "log", SimpleNamespace(error=write, warning=write, info=write))
    return written


def stop(desk: Desk, *, clean: bool = True) -> None:
    for log_dir in desk.log_dirs.opened:
        log_dir.broker_epoch = 77
        log_dir.close(clean)


def start(desk: Desk) -> LogDirs:
    """As `recover_logs` does, and apply the roles."""
    opened = [LogDir.open(each.path, desk.disk, node_id=ME) for each in desk.log_dirs.opened]
    for log_dir, before in zip(opened, desk.log_dirs.opened, strict=True):
        log_dir.directory_id = before.directory_id
    desk.log_dirs = dirs = LogDirs(opened, metadata=opened[0])
    desk.partitions = Replicas(
        ME,
        dirs,
        lambda: desk.image,
        lambda _: desk.topic_settings,
        desk.clock,
        lambda *_: None,
        roles=desk.replication,
        rules=desk.replication.rules,
        broker_epoch=lambda: desk.broker_epoch,
    )
    desk.fetching.reads.replicas = desk.partitions
    desk.producing.replicas = desk.partitions
    for log_dir in opened:
        log_dir.begin()
        found = desk.partitions.directories.scan(log_dir)
        if not log_dir.clean:
            desk.partitions.recover(found)
    desk.partitions.apply_roles()
    return dirs


def path_of(desk: Desk, name: str) -> str:
    return f"{desk.log_dirs.first.path}/{name}"


def remove(desk: Desk, name: str) -> None:
    for child in desk.disk.listdir(path_of(desk, name)):
        desk.disk.unlink(f"{path_of(desk, name)}/{child}")
    desk.disk.rmdir(path_of(desk, name))


def swap(desk: Desk, one: str, other: str) -> None:
    desk.disk.rename(path_of(desk, one), path_of(desk, "for-a-moment"))
    desk.disk.rename(path_of(desk, other), path_of(desk, one))
    desk.disk.rename(path_of(desk, "for-a-moment"), path_of(desk, other))


def code(desk: Desk, index: int = 0) -> int:
    return int(desk.fetched(0, index=index).error_code)


def names(desk: Desk) -> list[str]:
    return [name for name in desk.disk.listdir(desk.log_dirs.first.path) if name[:4] in (TOPIC, OTHER)]


def play_story(story: Callable[[Desk], None], **given: Any) -> None:
    async def whole(desk: Desk) -> None:
        story(desk)

    run_story(whole, **given)


# --- missing ----------------------------------------------------------------------------------------------------------


def test_leader_without_its_directory_does_not_lead(lines: list[Line]) -> None:
    """All other replicas would truncate to an empty log in its place; Kafka leads with one."""

    def story(desk: Desk) -> None:
        for index in (0, 1):
            desk.lead(5, index=index)
            desk.append(3, index=index)
        stop(desk)
        remove(desk, f"{TOPIC}-0")
        dirs = start(desk)
        assert dirs.missing == {where(0): (path_of(desk, f"{TOPIC}-0"), 3)}
        assert dirs.previous_broker_epoch == -1, (
            "another replica leads if there is one: the controller must not elect this one"
        )
        assert (code(desk, 0), code(desk, 1)) == (STORAGE_ERROR, 0)
        ((event, more),) = lines
        assert event == "partition offline"
        assert "is missing; at shutdown it had records up to offset 2" in more["reason"]
        produced = desk.produced(index=0).responses[0].partition_responses[0]
        assert produced.error_code == STORAGE_ERROR
        assert path_of(desk, f"{TOPIC}-0") not in names(desk)

        stop(desk)
        lines.clear()
        assert start(desk).missing, "the next start reports the same"
        assert code(desk, 0) == STORAGE_ERROR
        stop(desk)
        desk.disk.mkdir(path_of(desk, f"{TOPIC}-0"))
        assert start(desk).missing == {}
        assert code(desk, 0) == 0, "the directory was created again"
        assert desk.replica(0).log.log_end_offset == 0

    play_story(story, partitions=2)


def test_follower_without_its_directory_starts_empty(lines: list[Line]) -> None:
    def story(desk: Desk) -> None:
        desk.lead(5)
        desk.append(3)
        stop(desk)
        remove(desk, f"{TOPIC}-0")
        desk.image = replace(desk.image)
        desk.partitions = SimpleNamespace(apply=lambda delta: None)  # type: ignore[assignment]
        desk.tell(leader=2, leader_epoch=6, isr=(2,))
        dirs = start(desk)
        ((event, more),) = lines
        assert event == "partition directory missing"
        assert (more["partition"], more["log_end_offset"]) == (f"{TOPIC}-0", 3)
        assert desk.replica().log.log_end_offset == 0
        assert dirs.missing == {}
        desk.copied(2, epoch=6)
        desk.lead(7)
        assert code(desk) == 0, "by now it is an ordinary replica"

    play_story(story)


@pytest.mark.parametrize("why", ["nothing was lost", "never written", "crashed", "in the other directory"])
def test_missing_directory_that_is_not_an_error(why: str, lines: list[Line]) -> None:
    def story(desk: Desk) -> None:
        first = desk.log_dirs.first.directory_id
        desk.lead(5, directories=(first, UUID(int=990), UUID(int=991)))
        if why != "never written":
            desk.append(3)
        if why == "nothing was lost":
            desk.replica().log.advance_log_start(3)
        stop(desk, clean=why != "crashed")
        if why == "in the other directory":
            one, other = (each.path for each in desk.log_dirs.opened)
            source, target = (one, other) if f"{TOPIC}-0" in desk.disk.listdir(one) else (other, one)
            desk.disk.rename(f"{source}/{TOPIC}-0", f"{target}/{TOPIC}-0")
        elif why != "never written":
            remove(desk, f"{TOPIC}-0")
        dirs = start(desk)
        assert dirs.missing == {}
        assert dirs.previous_broker_epoch == (-1 if why == "crashed" else 77)
        assert code(desk) in (0, ErrorCode.OFFSET_OUT_OF_RANGE)
        assert lines == []

    play_story(story, directories=2 if why == "in the other directory" else 1)


# --- swapped ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
def test_swapped_directories_of_two_topics(clean: bool, lines: list[Line]) -> None:
    """Neither is set aside, emptied or served under the other's name; swapped back, both are unchanged."""

    def story(desk: Desk) -> None:
        other = topic_image(OTHER, partition((1, 2, 3), leader=ME, leader_epoch=5, isr=(ME,)), number=4712)
        desk.lead(5, index=0)
        desk.lead(5, index=1)
        by_name = desk.image.topics_by_name.set(OTHER, other)
        desk.image = replace(
            desk.image, topics_by_name=by_name, topics_by_id=desk.image.topics_by_id.set(other.id, other)
        )
        desk.append(3, index=0)
        desk.append(1, index=1)
        snow = desk.partitions.hosted(OTHER, None, 0)
        snow.log.append_as_leader(_batch(), leader_epoch=5, now_ms=0)
        stop(desk, clean=clean)
        swap(desk, f"{TOPIC}-0", f"{OTHER}-0")
        start(desk)
        assert names(desk) == [f"{TOPIC}-0", f"{TOPIC}-1", f"{OTHER}-0"]
        assert (code(desk, 0), code(desk, 1)) == (STORAGE_ERROR, 0)
        said = {
            more["partition"]: more["topic"] for event, more in lines if event == "partition directory of another topic"
        }
        assert said == {f"{TOPIC}-0": OTHER, f"{OTHER}-0": TOPIC}
        offline = [more for event, more in lines if event == "partition offline"]
        assert any("the directory belongs to topic id" in more["reason"] for more in offline)

        stop(desk, clean=clean)
        swap(desk, f"{TOPIC}-0", f"{OTHER}-0")
        start(desk)
        assert (code(desk, 0), code(desk, 1)) == (0, 0)
        assert desk.replica(0).log.log_end_offset == 3
        assert desk.partitions.hosted(OTHER, None, 0).log.log_end_offset == 1

    play_story(story, partitions=2)


def _batch() -> memoryview:
    from fenceline.records.build import build_batch

    return memoryview(build_batch([(0, b"k", b"v", ())]))


# --- unknown or stray -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [None, b"", b"\0" * 40, b"version: 7\ntopic_id: x\n", b"version: 0\n", b"\xff\xfe"])
def test_partition_metadata_without_topic_id(content: bytes | None, lines: list[Line]) -> None:
    """The topic id of the records is unknown: they are set aside, as in Kafka, as evidence of a receipt. Other
    partitions are served."""

    def story(desk: Desk) -> None:
        for index in (0, 1):
            desk.lead(5, index=index)
            desk.append(3, index=index)
        stop(desk)
        path = path_of(desk, f"{TOPIC}-0/partition.metadata")
        if content is None:
            desk.disk.unlink(path)
        else:
            replace_file(desk.disk, path, content)
        start(desk)
        assert [event for event, _ in lines] == ["stray partition set aside"]
        (aside,) = (name for name in names(desk) if name.endswith("-stray"))
        assert any(".log" in name for name in desk.disk.listdir(path_of(desk, f"{aside}/lost+found")))
        assert code(desk, 1) == 0

    play_story(story, partitions=2)


@pytest.mark.parametrize("whose", ["of an older topic", "of a partition that moved away", "of no partition of it"])
def test_stray_partition_directories_are_set_aside(whose: str, lines: list[Line]) -> None:
    """Kafka's LogManager.isStrayKraftReplica; nothing is deleted."""

    def story(desk: Desk) -> None:
        desk.lead(5)
        desk.append(3)
        stop(desk)
        name = f"{TOPIC}-0"
        if whose == "of an older topic":
            path = path_of(desk, f"{name}/partition.metadata")
            replace_file(desk.disk, path, encode_partition_metadata(UUID(int=99)))
        elif whose == "of no partition of it":
            name = f"{TOPIC}-7"
            desk.disk.rename(path_of(desk, f"{TOPIC}-0"), path_of(desk, name))
        else:
            topic = desk.image.topics_by_name[TOPIC]
            moved = replace(topic, partitions=(topic.partitions[0]._replace(replicas=(2, 3), leader=2, isr=(2,)),))
            desk.image = replace(desk.image, topics_by_name=Map({TOPIC: moved}), topics_by_id=Map({topic.id: moved}))
        start(desk)
        stray = [more for event, more in lines if event == "stray partition set aside"]
        assert [more["partition"] for more in stray] == [name]
        expected = (
            "know a topic with this name and id" if whose == "of an older topic" else "no longer has a replica of it"
        )
        assert expected in stray[0]["reason"]
        (aside,) = (each for each in names(desk) if each.endswith("-stray"))
        assert any(each.endswith(".log") for each in desk.disk.listdir(path_of(desk, aside)))
        assert name not in names(desk)

    play_story(story)
