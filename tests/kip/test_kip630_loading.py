"""KIP-630, sentence by sentence, loading: § Loading Snapshots, § Interaction with the Finalized Feature.

Sections and rules are named as in `test_kip630.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import pytest

from fenceline.errors import OperatorError
from fenceline.metadata.changes import difference
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.metadata.records import FeatureLevelRecord, MetadataRecord
from fenceline.metadata.snapshot import image_of, image_records
from fenceline.node.metadata import snapshot_files
from fenceline.node.metadata.batches import control_batch, record_batch
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.node.metadata.snapshot_files import SnapshotDamaged
from fenceline.quorum.control_records import SnapshotFooter
from fenceline.quorum.log_view import SnapshotId
from fenceline.records.batch import iter_headers
from fenceline.testing.sim_disk import SimDisk
from tests.kip.snapshot_directory import (
    DATA,
    DIRECTORY,
    EPOCH,
    VOTERS,
    History,
    content_of,
    image_after,
    snapshot_of,
    with_snapshots,
)


def test_state_is_the_newest_snapshot_and_the_log_after_it(disk: SimDisk, history: History) -> None:
    """§ When to Load Snapshots 1, at boot; N40."""
    snapshot = history.snapshot()
    history.grow(2)
    replayed = MetadataLog.open(disk, DATA, now_ms=0).replay()
    assert (replayed.snapshot, replayed.image) == (snapshot, history.image)
    assert replayed.log_record_count == history.log.end_offset - snapshot.end_offset
    assert replayed.voters == VOTERS


@pytest.mark.parametrize(
    "break_it",
    [
        lambda content: content[:-1],
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: content[:100] + bytes((content[100] ^ 1,)) + content[101:],
        lambda content: content + bytes(control_batch([SnapshotFooter()], 1, base_offset=99, epoch=EPOCH)),
        lambda content: content[list(iter_headers(content))[1].position :],
        lambda content: content[: list(iter_headers(content))[-1].position],
        lambda content: b"".join(snapshot_of(image_after(4, 17, EPOCH + 1))),
        lambda content: bytes(record_batch([FeatureLevelRecord("metadata.version", 30)], 30, 1, epoch=EPOCH)),
    ],
    ids=["cut", "half", "empty", "bit", "longer", "headless", "footless", "another epoch", "no snapshot"],
)
def test_damaged_snapshot_is_never_loaded(disk: SimDisk, history: History, break_it: Callable[[bytes], bytes]) -> None:
    """§ Loading; N9, G24: it is quarantined, and the older one plus the log after it gives the same state."""
    older = history.snapshot()
    history.grow(2)
    broken = history.snapshot()
    history.grow(1)
    path = history.log.path_of(broken)
    content = break_it(content_of(history, broken))
    disk.unlink(path)
    disk.write(disk.open_append(path), content)
    with pytest.raises(SnapshotDamaged):
        snapshot_files.verify_snapshot(disk, path, broken)
    log = MetadataLog.open(disk, DATA, now_ms=0)
    replayed = log.replay()
    assert (replayed.snapshot, replayed.image) == (older, history.image)
    assert log.snapshots == [older]
    assert disk.stat(path) is None
    assert disk.stat(path + ".damaged") is not None
    assert MetadataLog.open(disk, DATA, now_ms=0).replay().image == history.image


def test_log_from_0_is_sufficient_without_an_intact_snapshot(disk: SimDisk, history: History) -> None:
    """G24."""
    path = history.log.path_of(history.snapshot())
    disk.truncate(disk.open_append(path), 10)
    assert MetadataLog.open(disk, DATA, now_ms=0).replay().image == history.image


def test_start_fails_when_only_a_damaged_snapshot_has_the_state(disk: SimDisk) -> None:
    """G24: the file is left in place."""
    log = with_snapshots(disk, 2).log
    for delete in log.forget_oldest({}, 0, 0):
        delete()
    path = log.path_of(log.newest_snapshot)
    disk.truncate(disk.open_append(path), 10)
    with pytest.raises(SnapshotDamaged, match="damaged"):
        MetadataLog.open(disk, DATA, now_ms=0).replay()
    assert disk.stat(path) is not None


def test_damaged_snapshot_never_truncates_the_log(disk: SimDisk, history: History) -> None:
    """G24, N45: a snapshot past the log end is verified before the log is truncated for it."""
    ahead = SnapshotId(500, EPOCH + 1)
    content = b"".join(snapshot_of(image_after(9, 500, EPOCH + 1)))
    disk.write(disk.open_append(f"{DIRECTORY}/{ahead.file_name}"), content[:-75])
    log = MetadataLog.open(disk, DATA, now_ms=0)
    assert log.end_offset == history.log.end_offset
    assert log.replay().image == history.image


def test_log_of_an_older_epoch_is_truncated_for_a_snapshot(disk: SimDisk, history: History) -> None:
    """N35, N45: a snapshot of a newer epoch is past the log, even if the log is longer."""
    ahead = SnapshotId(5, EPOCH + 1)
    image = image_after(1, 5, EPOCH + 1)
    disk.write(disk.open_append(f"{DIRECTORY}/{ahead.file_name}"), b"".join(snapshot_of(image)))
    log = MetadataLog.open(disk, DATA, now_ms=0)
    assert (log.start_offset, log.end_offset, log.end.epoch) == (5, 5, EPOCH + 1)
    assert log.replay().image == image


def test_start_fails_without_the_snapshot_at_the_log_start(disk: SimDisk) -> None:
    """N44: nothing is deleted before the error is reported."""
    log = with_snapshots(disk, 3).log
    for delete in log.forget_oldest({}, 0, 0):
        delete()
    disk.unlink(log.path_of(log.newest_snapshot))
    disk.open_append(f"{DIRECTORY}/x.checkpoint.part")
    with pytest.raises(OperatorError, match="no snapshot contains the records before it"):
        MetadataLog.open(disk, DATA, now_ms=0)
    assert "x.checkpoint.part" in disk.listdir(DIRECTORY)


def test_leftovers_are_removed_at_boot(disk: SimDisk, history: History) -> None:
    """N43; G29: except a resumable download."""
    kept = snapshot_files.download_name(SnapshotId(900, 9), 2)
    names = [
        "00000000000000000005-0000000003.checkpoint.part",
        "00000000000000000005-0000000003-8237498723.checkpoint.part",
        "00000000000000000005-0000000003.checkpoint.deleted",
        snapshot_files.download_name(SnapshotId(1, 1), 2),
        snapshot_files.download_name(SnapshotId(800, 9), 3),
        kept,
    ]
    history.snapshot()
    for name in names:
        disk.open_append(f"{DIRECTORY}/{name}")
    MetadataLog.open(disk, DATA, now_ms=0)
    assert [name for name in disk.listdir(DIRECTORY) if name in names] == [kept]


def test_snapshots_below_the_start_are_removed_at_boot(disk: SimDisk) -> None:
    """N43."""
    history = with_snapshots(disk, 3)
    oldest = history.log.snapshots[0]
    content = content_of(history, oldest)
    for delete in history.log.forget_oldest({}, 0, 0):
        delete()
    disk.write(disk.open_append(history.log.path_of(oldest)), content)
    log = MetadataLog.open(disk, DATA, now_ms=0)
    assert (oldest in log.snapshots) == (oldest.end_offset >= log.start_offset)
    assert all(each.end_offset >= log.start_offset for each in log.snapshots)


def _everything(seed: int) -> MetadataImage:
    from fenceline.metadata.delta import apply
    from fenceline.metadata.node_records import RegisterBrokerRecord, RegisterControllerRecord
    from fenceline.metadata.records import ConfigRecord, ProducerIdsRecord
    from fenceline.metadata.security_records import (
        AccessControlEntryRecord,
        ClientQuotaRecord,
        DelegationTokenRecord,
        QuotaEntityPart,
        UserScramCredentialRecord,
    )

    image = image_after(4, 50, EPOCH)
    records: list[MetadataRecord] = [
        FeatureLevelRecord("group.version", 1),
        RegisterBrokerRecord(broker_id=seed, broker_epoch=seed),
        RegisterControllerRecord(controller_id=seed),
        ConfigRecord(4, str(seed), "log.cleaner.threads", "2"),
        ProducerIdsRecord(1, 4, 1_000_000 + seed),
        ClientQuotaRecord((QuotaEntityPart("user", str(seed)),), "producer_byte_rate", 1.0),
        AccessControlEntryRecord(id=UUID(int=seed)),
        UserScramCredentialRecord(str(seed), 1),
        DelegationTokenRecord(token_id=str(seed)),
    ]
    return apply(image, records, 60, EPOCH)[0]


def test_load_replaces_the_whole_image_in_one_delta() -> None:
    """§ When to Load Snapshots, at run time; N41: anything of any kind that is not in the snapshot is removed."""
    before, after = _everything(10), image_after(2, 100, EPOCH + 1)
    loaded = image_of(image_records(after), 99, EPOCH + 1)
    delta = difference(before, loaded)
    assert {topic.name for topic in delta.deleted_topics} == {"topic-2", "topic-3"}
    assert 10 in delta.changed_brokers
    assert delta.changed_controllers == (10,)
    assert delta.changed_features == ("group.version",)
    assert {resource.name for resource in delta.changed_configs} == {"topic-2", "topic-3", "10"}
    assert delta.producer_ids_changed
    assert delta.partitions_gained == -2
    for kind in ("client_quotas", "acls", "scram", "delegation_tokens"):
        assert set(getattr(delta, f"changed_{kind}")) == set(getattr(before, kind)) != set()
        assert not getattr(loaded, kind)


@pytest.mark.parametrize("kind", ["client_quotas", "acls", "scram", "delegation_tokens"])
def test_security_change_of_each_kind_is_detected(kind: str) -> None:
    """N41."""
    from dataclasses import replace

    before = _everything(10)
    delta = difference(before, replace(before, **{kind: getattr(EMPTY_IMAGE, kind)}))
    assert getattr(delta, f"changed_{kind}") == tuple(getattr(before, kind))
    assert difference(before, before).is_empty


def test_snapshots_of_equal_state_have_equal_content(history: History) -> None:
    """N50, G33: independent of the writer and of the order of changes."""
    from fenceline.metadata.delta import MetadataDelta

    other = MetadataDelta(EMPTY_IMAGE)
    for record in reversed(list(image_records(image_after(1, 17, EPOCH)))):
        other.replay(record)
    first = image_after(1, 17, EPOCH)
    second, _ = other.build(16, EPOCH)
    assert b"".join(snapshot_of(first)) == b"".join(snapshot_of(second))


def test_empty_log_after_a_snapshot_ends_in_the_snapshots_epoch(disk: SimDisk, history: History) -> None:
    """§ Fetch, LastFetchedEpoch; N36, N47."""
    snapshot = history.snapshot()
    history.log.partition_log.truncate_fully_and_start_at(snapshot.end_offset)
    for log in (history.log, MetadataLog.open(disk, DATA, now_ms=0)):
        assert log.end == (EPOCH, snapshot.end_offset)
