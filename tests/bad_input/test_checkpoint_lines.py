"""Invalid lines in checkpoint files, and partition directories that do not match the checkpoints: both are reported
with advice, and no record is lost. How a log handles such lines is tested in `test_log_dir_offsets.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from immutables import Map

from fenceline.config.node import NodeConfig
from fenceline.errors import ErrorCode
from fenceline.log.core.checkpoints import encode_partition_metadata, read_offsets
from fenceline.log.core.disk import OsDisk, replace_file
from fenceline.log.directories.log_dir_offsets import (
    CLEANED,
    HIGH_WATERMARKS,
    INCARNATIONS,
    LOG_STARTS,
    RECOVERY_POINTS,
)
from fenceline.node.logs import redirect
from fenceline.node.storage.directories import open_directories
from tests.bad_input.test_partition_directories import code, lines, names, path_of, play_story, remove, start, stop
from tests.node.desk import TOPIC, Desk

__all__ = ["lines"]

Line = tuple[str, dict[str, Any]]


@pytest.fixture
def log_lines() -> Iterator[list[Line]]:
    found: list[Line] = []
    before = redirect(lambda level, room, event, fields: found.append((event, fields)))
    yield found
    redirect(before)


def opened(path: Path) -> None:
    for each in open_directories(NodeConfig.load(None, {"log.dirs": str(path)}, {}), OsDisk(), Random(1)).all:
        each.give_back()


@pytest.mark.parametrize("name", [RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANED])
@pytest.mark.parametrize("bad", ["rain 0 -5", f"rain 0 {2**64}", "rain 0 1\nrain 0 2"])
def test_invalid_checkpoint_line_is_reported(tmp_path: Path, name: str, bad: str, log_lines: list[Line]) -> None:
    opened(tmp_path)
    rows = bad.split("\n")
    (tmp_path / name).write_text(f"0\n{len(rows)}\n{bad}\n")
    log_lines.clear()
    opened(tmp_path)
    (ignored,) = (fields for event, fields in log_lines if event == "checkpoint entry ignored")
    assert ignored["reason"].startswith(f"{tmp_path}/{name}: rain-0 ")
    assert "keeps all its records" in ignored["consequence"]
    assert ignored["advice"]


def test_unknown_partitions_in_checkpoint_are_reported_once(tmp_path: Path, log_lines: list[Line]) -> None:
    opened(tmp_path)
    rows = [f"gone {index} 7" for index in range(40)]
    for name in (RECOVERY_POINTS, HIGH_WATERMARKS):
        (tmp_path / name).write_text("\n".join(["0", "40", *rows, ""]))
    (tmp_path / ".kafka_cleanshutdown").unlink(missing_ok=True)
    log_lines.clear()
    opened(tmp_path)
    (dropped,) = (fields for event, fields in log_lines if event == "dropped checkpoint entries without a directory")
    assert (dropped["count"], dropped["partitions"][:2]) == (40, ["gone-0", "gone-1"])
    assert "restore them" in dropped["advice"]


def test_damaged_incarnation_checkpoint(tmp_path: Path, log_lines: list[Line]) -> None:
    opened(tmp_path)
    (tmp_path / INCARNATIONS).write_text("0\n3\nrain 0 x\n")
    log_lines.clear()
    opened(tmp_path)
    (damaged,) = (fields for event, fields in log_lines if event == "checkpoint file damaged and ignored")
    assert INCARNATIONS in damaged["reason"]
    assert "recovered from its start" in damaged["consequence"]


def test_partition_directory_with_files_of_another_topic(lines: list[Line]) -> None:
    """The files are set aside, and the new replica uses nothing from the checkpoints."""

    def story(desk: Desk) -> None:
        desk.lead(5)
        desk.append(9)
        log = desk.replica().log
        log.advance_high_watermark(9)
        log.advance_log_start(4)
        stop(desk)
        replace_file(desk.disk, path_of(desk, f"{TOPIC}-0/partition.metadata"), encode_partition_metadata(UUID(int=9)))
        start(desk)
        assert [event for event, _ in lines] == ["stray partition set aside"]
        desk.append(2)
        stop(desk, clean=False)
        start(desk)
        log = desk.replica().log
        assert (log.log_start_offset, log.log_end_offset) == (0, 2)

    play_story(story)


def test_two_directories_with_one_topic_id(lines: list[Line]) -> None:
    """A copy of a partition directory under the name of no topic is set aside; the partition is served."""

    def story(desk: Desk) -> None:
        desk.lead(5)
        desk.append(3)
        stop(desk)
        there, copy = path_of(desk, f"{TOPIC}-0"), path_of(desk, "snow-0")
        desk.disk.mkdir(copy)
        for name in desk.disk.listdir(there):
            content = desk.disk.peek(f"{there}/{name}")
            if content is not None:
                replace_file(desk.disk, f"{copy}/{name}", content)
        start(desk)
        assert [event for event, _ in lines] == ["stray partition set aside"]
        assert "does not know a topic with this name and id" in lines[0][1]["reason"]
        assert code(desk, 0) == 0
        assert desk.replica().log.log_end_offset == 3
        assert any(name.startswith("snow-0.") for name in names(desk))
        assert read_offsets(desk.disk, path_of(desk, RECOVERY_POINTS)).keys() <= {desk.replica().topic_partition}

    play_story(story)


def test_recreated_topic_ignores_directory_of_deleted_topic(lines: list[Line]) -> None:
    """Following the advice to delete the topic works: a new topic of the same name is served."""

    def story(desk: Desk) -> None:
        desk.lead(5)
        desk.append(3)
        stop(desk)
        remove(desk, f"{TOPIC}-0")
        image = desk.image
        start(desk)
        assert code(desk, 0) == ErrorCode.KAFKA_STORAGE_ERROR
        desk.delete_topic()
        topic = replace(image.topics_by_name[TOPIC], id=UUID(int=9))
        anew = replace(image, topics_by_name=Map({TOPIC: topic}), topics_by_id=Map({topic.id: topic}))
        desk._apply(desk.image, anew)
        assert desk.replica().log.log_end_offset == 0

    play_story(story)
