"""Two voters of one implementation and one of the other: elections, catch-up, and identical logs."""

from __future__ import annotations

from pathlib import Path

import pytest

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

from .mixed_story import KILLS, Lived, has_same_file, live

OURS, KAFKAS = "controller", "kafka:controller"
pytestmark = [pytest.mark.kafka, pytest.mark.together(CLUSTERS), pytest.mark.timeout(900)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((OURS, OURS, KAFKAS), id="2+1"),
        pytest.param((KAFKAS, KAFKAS, OURS), id="1+2"),
    ],
)
def lived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lived:
    """The story of one cluster; the third voter starts late."""
    kinds: tuple[str, ...] = request.param
    return live(tmp_path_factory.mktemp("mixed"), list(kinds), late=3)


def test_a_voter_of_the_other_implementation_catches_up_by_a_snapshot(lived: Lived) -> None:
    assert {lived.kinds[node_id] for node_id in lived.directories if node_id != lived.late} != {lived.kinds[lived.late]}
    assert lived.late_snapshot.end_offset > 0
    assert lived.late_log_began == lived.late_snapshot.end_offset
    assert has_same_file(lived)


def test_no_acknowledged_record_is_lost_when_leaders_are_killed(lived: Lived) -> None:
    assert sum(lived.killed.values()) == KILLS
    assert lived.epochs == sorted(set(lived.epochs))
    assert len(lived.created) > 2 * KILLS
    assert lived.deleted
    assert lived.created <= lived.shown
    assert not lived.deleted & lived.shown


def test_each_implementation_elects_the_other(lived: Lived) -> None:
    """And a node that lacks a committed record is not elected."""
    assert {("kafka", "fenceline"), ("fenceline", "kafka")} <= lived.handed
    assert lived.overtaken
    for killed, behind, leader in lived.overtaken:
        assert leader not in (killed, behind)


def test_committed_records_are_equal_byte_for_byte(lived: Lived) -> None:
    contents = {node_id: batches_before(path, lived.high_watermark) for node_id, path in lived.directories.items()}
    starts = {node_id: min(content) for node_id, content in contents.items()}
    assert starts[1] == starts[2] == 0
    assert starts[3] == lived.late_log_began
    whole = contents[1]
    assert len(whole) > 10 * KILLS
    for node_id, content in contents.items():
        expected = {offset: batch for offset, batch in whole.items() if offset >= starts[node_id]}
        assert content.keys() == expected.keys()
        assert content == expected


def test_images_are_equal(lived: Lived) -> None:
    end_offset = lived.high_watermark
    images = {node_id: image_before(path, end_offset).image for node_id, path in lived.directories.items()}
    assert len({checksum(image) for image in images.values()}) == 1
    assert checksum(image_from_records(lived.directories[1], end_offset)) == checksum(images[1])
    for image in images.values():
        assert lived.created <= set(image.topics_by_name)
        assert not lived.deleted & set(image.topics_by_name)


def test_every_snapshot_matches_the_log_of_another_voter(lived: Lived) -> None:
    for node_id, path in lived.directories.items():
        other = lived.directories[2 if node_id == 1 else 1]
        newest = [each for each in snapshots(path) if each.end_offset <= lived.high_watermark][-3:]
        assert newest
        for snapshot in newest:
            assert snapshot_checksum(path, snapshot) == checksum(image_from_records(other, snapshot.end_offset))


def test_kafkas_tools_read_the_same_in_all_directories(lived: Lived, tmp_path: Path) -> None:
    dumps = kafkas_dumps(lived.directories.values(), lived.late_log_began, lived.high_watermark)
    assert len(dumps) == 3
    assert len(dumps[0]) > 10 * KILLS
    assert dumps[1] == dumps[0]
    assert dumps[2] == dumps[0]
    (ours, *_), (kafkas, *_) = (
        [path for node_id, path in lived.directories.items() if lived.kinds[node_id] == kind]
        for kind in ("fenceline", "kafka")
    )
    newest = [each for each in snapshots(kafkas) if each.end_offset <= lived.high_watermark][-1]
    folders = [tmp_path / "written", tmp_path / "ours", tmp_path / "theirs"]
    for folder in folders:
        folder.mkdir()
    made = in_one_batch(write_snapshot(folders[0], ours, newest.end_offset), folders[1])
    theirs = in_one_batch(snapshot_path(kafkas, newest), folders[2])
    wanted = {f"/image/topics/byName/{name}/0" for name in image_before(ours, newest.end_offset).image.topics_by_name}
    assert kafkas_tree(made, wanted) == kafkas_tree(theirs, wanted)
    paths = (max(wanted), "/image/cluster/brokers/4")
    assert kafkas_entries(made, paths) == kafkas_entries(theirs, paths)
