"""Several data directories: which partitions each holds, and which are online."""

from __future__ import annotations

from uuid import UUID

import pytest

from fenceline.ids import TopicPartition, encode_uuid
from fenceline.log.core.disk import replace_file
from fenceline.log.core.meta_properties import META_FILE
from fenceline.log.directories.log_dir import CLEAN_FILE, LogDir
from fenceline.log.directories.log_dirs import LogDirs
from fenceline.testing.sim_disk import SimDisk

RAIN = TopicPartition("rain", 0)


def made(disk: SimDisk, path: str, number: int, epoch: int | None = None) -> LogDir:
    disk.mkdir(path)
    meta = f"version=1\ncluster.id=c\nnode.id=1\ndirectory.id={encode_uuid(UUID(int=number))}\n"
    replace_file(disk, f"{path}/{META_FILE}", meta.encode())
    if epoch is not None:
        replace_file(disk, f"{path}/{CLEAN_FILE}", b'{"version":0,"brokerEpoch":%d}' % epoch)
    return LogDir.open(path, disk, node_id=1)


def three(*epochs: int | None) -> LogDirs:
    disk = SimDisk()
    epochs = epochs or (None,) * 3
    return LogDirs([made(disk, f"/d{number}", number, epochs[number - 1]) for number in (1, 2, 3)])


def test_directory_with_the_fewest_partitions_is_chosen() -> None:
    dirs = three()
    for index in range(7):
        least_loaded = dirs.least_loaded()
        assert least_loaded is not None
        dirs.put(TopicPartition("rain", index), least_loaded)
    held = [[each for each in range(7) if dirs.holder(TopicPartition("rain", each)) is d] for d in dirs]
    assert held == [[0, 3, 6], [1, 4], [2, 5]]
    for index in (1, 4):
        dirs.forget(TopicPartition("rain", index))
    assert dirs.least_loaded() is dirs.opened[1]
    assert dirs.holder(TopicPartition("rain", 1)) is None


def test_partition_of_a_failed_directory_keeps_its_location() -> None:
    dirs = three()
    first, second, third = dirs.opened
    dirs.put(RAIN, second)
    dirs.fail(second, "broken")
    assert list(dirs) == [first, third]
    assert dirs.offline == {"/d2": "broken"}
    assert dirs.holder(RAIN) is second
    assert not dirs.is_online(second)
    assert dirs.by_id(UUID(int=2)) is None
    assert dirs.by_id(UUID(int=3)) is third
    assert dirs.at("/d2") is second
    assert dirs.directory_ids == (UUID(int=1), UUID(int=3))
    for each in (first, third):
        dirs.fail(each, "broken, too")
    assert dirs.least_loaded() is None


def test_single_directory_holds_every_partition() -> None:
    only = made(SimDisk(), "/d", 1)
    dirs = LogDirs([only])
    assert dirs.holder(RAIN) is only
    dirs.put(RAIN, only)
    dirs.forget(RAIN)
    assert dirs.holder(RAIN) is only
    assert not LogDirs([only], offline={"/e": "broken"}).is_single, "the offline directory may hold partitions"


@pytest.mark.parametrize(("epochs", "reported"), [((7, 7, 7), 7), ((7, 7, 8), -1), ((7, None, 7), -1), ((), -1)])
def test_shutdown_was_clean_if_all_directories_agree(epochs: tuple[int | None, ...], reported: int) -> None:
    assert three(*epochs).previous_broker_epoch == reported


def test_shutdown_was_not_clean_if_a_directory_is_offline() -> None:
    opened = three(7, 7, 7).opened
    assert LogDirs(opened, offline={"/d4": "broken"}).previous_broker_epoch == -1
