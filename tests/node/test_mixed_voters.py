"""Two voters of one implementation and one of the other: elections, catch-up, and identical logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.node.mixed_story import KILLS, StoryResult, has_same_file, run_mixed_story
from tests.scheduling import CLUSTERS
from tests.support.same_metadata import (
    batches_before,
    checksum,
    image_before,
    image_from_records,
    in_one_batch,
    kafkas_dumps,
    kafkas_entries,
    kafkas_tree,
    snapshot_checksum,
    snapshot_path,
    snapshots,
    write_snapshot,
)

OURS, KAFKAS = "controller", "kafka:controller"
pytestmark = [pytest.mark.long, pytest.mark.kafka, pytest.mark.together(CLUSTERS), pytest.mark.timeout(900)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((OURS, OURS, KAFKAS), id="2+1"),
        pytest.param((KAFKAS, KAFKAS, OURS), id="1+2"),
    ],
)
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> StoryResult:
    """The story of one cluster; the third voter starts late."""
    kinds: tuple[str, ...] = request.param
    return run_mixed_story(tmp_path_factory.mktemp("mixed"), list(kinds), late=3)


def test_a_voter_of_the_other_implementation_catches_up_by_a_snapshot(result: StoryResult) -> None:
    assert {result.kinds[node_id] for node_id in result.directories if node_id != result.late} != {
        result.kinds[result.late]
    }
    assert result.late_snapshot.end_offset > 0
    assert result.late_log_began == result.late_snapshot.end_offset
    assert has_same_file(result)


def test_no_acknowledged_record_is_lost_when_leaders_are_killed(result: StoryResult) -> None:
    assert sum(result.killed.values()) == KILLS
    assert result.epochs == sorted(set(result.epochs))
    assert len(result.created) > 2 * KILLS
    assert result.deleted
    assert result.created <= result.shown
    assert not result.deleted & result.shown


def test_each_implementation_elects_the_other(result: StoryResult) -> None:
    """And a node that lacks a committed record is not elected."""
    assert {("kafka", "fenceline"), ("fenceline", "kafka")} <= result.handed
    assert result.overtaken
    for killed, behind, leader in result.overtaken:
        assert leader not in (killed, behind)


def test_committed_records_are_equal_byte_for_byte(result: StoryResult) -> None:
    contents = {node_id: batches_before(path, result.high_watermark) for node_id, path in result.directories.items()}
    starts = {node_id: min(content) for node_id, content in contents.items()}
    assert starts[1] == starts[2] == 0
    assert starts[3] == result.late_log_began
    whole = contents[1]
    assert len(whole) > 10 * KILLS
    for node_id, content in contents.items():
        expected = {offset: batch for offset, batch in whole.items() if offset >= starts[node_id]}
        assert content.keys() == expected.keys()
        assert content == expected


def test_images_are_equal(result: StoryResult) -> None:
    end_offset = result.high_watermark
    images = {node_id: image_before(path, end_offset).image for node_id, path in result.directories.items()}
    assert len({checksum(image) for image in images.values()}) == 1
    assert checksum(image_from_records(result.directories[1], end_offset)) == checksum(images[1])
    for image in images.values():
        assert result.created <= set(image.topics_by_name)
        assert not result.deleted & set(image.topics_by_name)


def test_every_snapshot_matches_the_log_of_another_voter(result: StoryResult) -> None:
    for node_id, path in result.directories.items():
        other = result.directories[2 if node_id == 1 else 1]
        newest = [each for each in snapshots(path) if each.end_offset <= result.high_watermark][-3:]
        assert newest
        for snapshot in newest:
            assert snapshot_checksum(path, snapshot) == checksum(image_from_records(other, snapshot.end_offset))


def test_kafkas_tools_read_the_same_in_all_directories(result: StoryResult, tmp_path: Path) -> None:
    dumps = kafkas_dumps(result.directories.values(), result.late_log_began, result.high_watermark)
    assert len(dumps) == 3
    assert len(dumps[0]) > 10 * KILLS
    assert dumps[1] == dumps[0]
    assert dumps[2] == dumps[0]
    (ours, *_), (kafkas, *_) = (
        [path for node_id, path in result.directories.items() if result.kinds[node_id] == kind]
        for kind in ("fenceline", "kafka")
    )
    newest = [each for each in snapshots(kafkas) if each.end_offset <= result.high_watermark][-1]
    folders = [tmp_path / "written", tmp_path / "ours", tmp_path / "theirs"]
    for folder in folders:
        folder.mkdir()
    made = in_one_batch(write_snapshot(folders[0], ours, newest.end_offset), folders[1])
    theirs = in_one_batch(snapshot_path(kafkas, newest), folders[2])
    wanted = {f"/image/topics/byName/{name}/0" for name in image_before(ours, newest.end_offset).image.topics_by_name}
    assert kafkas_tree(made, wanted) == kafkas_tree(theirs, wanted)
    paths = (max(wanted), "/image/cluster/brokers/4")
    assert kafkas_entries(made, paths) == kafkas_entries(theirs, paths)
