"""Damaged, torn and missing files: rebuilt where possible, else one partition goes offline; always logged."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fenceline.testing.node import EmbeddedNode, NodeFailed
from tests.scenarios.faults import (
    STORAGE_ERROR,
    connection_to,
    create,
    delete,
    fetch,
    flip,
    listed,
    produce,
    segments,
    values,
)

pytestmark = pytest.mark.long

RECORDS = 60
METADATA_LOG = "__cluster_metadata-0/00000000000000000000.log"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[EmbeddedNode]:
    """Topics `bad` (of several segments) and `good`, with `RECORDS` records each."""
    with EmbeddedNode(data_dir=tmp_path, overrides={"log.flush.offset.checkpoint.interval.ms": "50"}) as running:
        with connection_to(running) as connection:
            create(connection, "bad", segment_bytes="1048576")
            create(connection, "good")
            for number in range(RECORDS):
                produce(connection, "bad", b"%d" % number + b"." * 50_000)
                produce(connection, "good", b"%d" % number)
        assert len(segments(running, "bad-0")) > 2
        yield running


def numbers(node: EmbeddedNode, topic: str) -> list[int]:
    return [int(value.rstrip(b".")) for value in values(node, topic)]


def assert_only_bad_is_offline(node: EmbeddedNode, reason: str) -> None:
    with connection_to(node) as connection:
        assert fetch(connection, "bad", {0: 0})[0][0] == STORAGE_ERROR
        assert produce(connection, "bad", b"x").error_code == STORAGE_ERROR
        assert fetch(connection, "good", {0: 0})[0][0] == 0
        assert produce(connection, "good", b"60").error_code == 0
        assert set(listed(connection)) == {"bad", "good"}
    assert numbers(node, "good") == list(range(RECORDS + 1))
    offline = [line for line in node.errors.splitlines() if "partition offline" in line]
    assert len(offline) == 1, node.errors
    assert '"partition": "bad-0"' in offline[0]
    assert reason in offline[0]
    assert '"advice": ' in offline[0]
    assert "Traceback" not in node.errors


def test_damage_in_a_closed_segment_takes_the_partition_offline_when_read(node: EmbeddedNode) -> None:
    """A batch header is damaged while the node is down; the damage is detected when the batch is read."""
    node.stop()
    log = segments(node, "bad-0")[1]
    for name in (log.with_suffix(".index"), log.with_suffix(".timeindex")):
        name.unlink()
    for position in range(8, 20):
        flip(log, position)
    node.start()
    base = int(log.stem)
    with connection_to(node) as connection:
        assert fetch(connection, "bad", {0: 0})[0][0] == 0, "batches before the damage are served"
        assert fetch(connection, "bad", {0: base + 1})[0][0] == STORAGE_ERROR
    assert_only_bad_is_offline(node, "is corrupt near offset")


def test_an_offline_partition_fails_alone_in_a_fetch(node: EmbeddedNode) -> None:
    with connection_to(node) as connection:
        create(connection, "mixed", partitions=2)
        for partition in range(2):
            produce(connection, "mixed", b"x", partition=partition)
    node.stop()
    log = segments(node, "mixed-0")[0]
    log.unlink()
    log.mkdir()
    node.start()
    with connection_to(node) as connection:
        answer = fetch(connection, "mixed", {0: 0, 1: 0})
    assert answer[0] == (STORAGE_ERROR, 0)
    assert answer[1][0] == 0
    assert answer[1][1] > 0


def test_damage_below_the_recovery_point_takes_the_partition_offline(node: EmbeddedNode) -> None:
    """These bytes had been flushed, so truncating them would lose acknowledged records."""
    node.stop()
    (node.log_dir / ".kafka_cleanshutdown").unlink()
    log = segments(node, "bad-0")[-1]
    for position in range(8, 20):
        flip(log, position)
    node.start()
    assert_only_bad_is_offline(node, "below the recovery point")


class TwoDirectories(EmbeddedNode):
    """`log.dirs` is the usual directory and `second`."""

    @property
    def second(self) -> Path:
        return self.root / "second"

    def command(self) -> list[str]:
        command = super().command()
        at = command.index("--data-dir")
        command[at : at + 2] = ["--override", f"log.dirs={self.log_dir},{self.second}"]
        return command


def test_a_partition_with_a_damaged_copy_in_two_directories_is_offline(tmp_path: Path) -> None:
    """Only this partition is offline; once the damaged copy is moved away, the intact one is served."""
    with TwoDirectories(data_dir=tmp_path) as node:
        with connection_to(node) as connection:
            for topic in ("bad", "good"):
                create(connection, topic)
                for number in range(RECORDS):
                    produce(connection, topic, b"%d" % number)
        node.stop()
        directories = (node.log_dir, node.second)
        ((home, other),) = [(a, b) for a in directories for b in directories if a != b and (a / "bad-0").exists()]
        shutil.copytree(home / "bad-0", other / "bad-0")
        (home / ".kafka_cleanshutdown").unlink()
        for position in range(8, 20):
            flip(home / "bad-0" / f"{0:020d}.log", position)
        before = {path: path.read_bytes() for path in tmp_path.glob("*/bad-0/*")}
        node.start()
        assert_only_bad_is_offline(node, "bad-0 is in two directories that cannot be compared")
        assert {path: path.read_bytes() for path in tmp_path.glob("*/bad-0/*")} == before
        node.stop()
        verified = subprocess.run(
            [sys.executable, "-m", "fenceline", "verify", str(home)], capture_output=True, text=True, check=False
        )
        assert verified.returncode != 0
        assert str(home / "bad-0") in verified.stdout
        (home / "bad-0").rename(tmp_path / "kept")
        node.start()
        assert numbers(node, "bad") == list(range(RECORDS))


@pytest.mark.parametrize("clean", [True, False])
def test_a_missing_middle_segment_takes_the_partition_offline(node: EmbeddedNode, clean: bool) -> None:
    node.stop()
    if not clean:
        (node.log_dir / ".kafka_cleanshutdown").unlink()
    for path in (node.log_dir / "bad-0").glob(f"{segments(node, 'bad-0')[1].stem}.*"):
        path.unlink()
    node.start()
    assert_only_bad_is_offline(node, "are missing, and had been safe on the disk")


def test_an_unreadable_segment_takes_the_partition_offline(node: EmbeddedNode) -> None:
    node.kill()
    log = segments(node, "bad-0")[-1]
    kept = log.rename(log.parent.parent.parent / "kept")
    log.mkdir()
    node.start()
    assert_only_bad_is_offline(node, "cannot be read: Is a directory")
    # After a repair and a restart it is served again.
    node.stop()
    log.rmdir()
    kept.rename(log)
    node.start()
    assert numbers(node, "bad") == list(range(RECORDS))


def test_an_offline_partition_can_be_deleted_and_created_again(node: EmbeddedNode) -> None:
    node.kill()
    log = segments(node, "bad-0")[-1]
    log.unlink()
    log.mkdir()
    node.start()
    with connection_to(node) as connection:
        assert produce(connection, "bad", b"x").error_code == STORAGE_ERROR
        assert delete(connection, "bad") == 0
        assert create(connection, "bad") == 0
        assert produce(connection, "bad", b"0").error_code == 0
    assert numbers(node, "bad") == [0]


@pytest.mark.parametrize("tail", [b"\0" * 5000, b"\xff" * 37, b"short"], ids=["zeros", "garbage", "a few bytes"])
def test_a_torn_tail_is_truncated_and_logged(node: EmbeddedNode, tail: bytes) -> None:
    node.kill()
    with segments(node, "bad-0")[-1].open("ab") as file:
        file.write(tail)
    node.start()
    said = [line for line in node.errors.splitlines() if "log truncated by recovery" in line]
    assert len(said) == 1, node.errors
    assert '"partition": "bad-0"' in said[0]
    assert numbers(node, "bad") == list(range(RECORDS))
    with connection_to(node) as connection:
        assert produce(connection, "bad", b"60").base_offset == RECORDS


def test_a_partial_last_batch_is_truncated(node: EmbeddedNode) -> None:
    node.kill()
    log = segments(node, "good-0")[-1]
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 10)
    node.start()
    assert '"partition": "good-0"' in node.errors
    assert f'"log_end_offset": {RECORDS - 1}' in node.errors
    assert numbers(node, "good") == list(range(RECORDS - 1))


def test_recovery_keeps_bytes_truncated_at_damage_as_evidence(tmp_path: Path) -> None:
    """A corrupt batch length looks like a torn tail; the complete batches after it show that it is not."""
    with EmbeddedNode(data_dir=tmp_path) as node:
        with connection_to(node) as connection:
            create(connection, "t")
            for number in range(10):
                produce(connection, "t", b"%d" % number)
        node.kill()
        log = segments(node, "t-0")[0]
        size = log.stat().st_size
        batch = size // 10
        flip(log, 4 * batch + 9)
        node.start()
        assert numbers(node, "t") == [0, 1, 2, 3]
        # The receipt of the loss lies beside it until it is delivered.
        evidence = [each for each in (log.parent / "lost+found").iterdir() if ".log" in each.name]
        assert [each.stat().st_size for each in evidence] == [size - 4 * batch]
        assert evidence[0].name in node.errors


def test_damaged_indexes_and_snapshots_are_rebuilt(node: EmbeddedNode) -> None:
    node.stop()
    names = [each for suffix in ("index", "timeindex") for each in (node.log_dir / "bad-0").glob(f"*.{suffix}")]
    assert len(names) >= 4
    for number, name in enumerate(names):
        if number % 3 == 0:
            name.unlink()
        else:
            name.write_bytes(b"\x01" * (800 if number % 3 == 1 else 13))
    for name in ("leader-epoch-checkpoint", *[each.name for each in (node.log_dir / "bad-0").glob("*.snapshot")]):
        (node.log_dir / "bad-0" / name).write_bytes(b"rubbish")
    node.start()
    assert numbers(node, "bad") == list(range(RECORDS))
    assert "Traceback" not in node.errors


@pytest.mark.parametrize(
    "name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint"]
)
def test_a_damaged_checkpoint_is_logged_and_ignored(node: EmbeddedNode, name: str) -> None:
    node.stop()
    (node.log_dir / name).write_bytes(b"0\n3\nhalf a li")
    node.start()
    assert "checkpoint file damaged and ignored" in node.errors
    assert name in node.errors
    assert numbers(node, "bad") == list(range(RECORDS))


def test_a_partition_of_an_unknown_topic_is_set_aside(node: EmbeddedNode) -> None:
    node.kill()
    shutil.copytree(node.log_dir / "good-0", node.log_dir / "gone-0")
    node.start()
    assert "stray partition set aside" in node.errors
    assert len(list(node.log_dir.glob("gone-0.*-stray"))) == 1


# --- the metadata log -------------------------------------------------------------------------------------------------


def test_a_torn_tail_of_the_metadata_log_is_truncated_and_logged(node: EmbeddedNode) -> None:
    node.kill()
    with (node.log_dir / METADATA_LOG).open("ab") as file:
        file.write(b"\0" * 100)
    node.start()
    assert '"partition": "__cluster_metadata-0"' in node.errors
    assert "log truncated by recovery" in node.errors
    with connection_to(node) as connection:
        assert set(listed(connection)) == {"bad", "good"}


@pytest.mark.parametrize("stop", ["clean", "kill"])
def test_a_node_does_not_start_with_a_damaged_metadata_log(node: EmbeddedNode, stop: str) -> None:
    """Truncating there would drop existing topics and their records."""
    assert node.stop() == 0 if stop == "clean" else node.kill() is None
    log = node.log_dir / METADATA_LOG
    size = log.stat().st_size
    flip(log, size // 2)
    for _ in range(2):
        with pytest.raises(NodeFailed) as caught:
            node.start()
        message = str(caught.value)
        assert "fenceline: The metadata log is damaged" in message
        assert "Restore" in message
        assert "truncate -s" in message
        assert "Traceback" not in message
        assert log.stat().st_size == size, "nothing was truncated"
    flip(log, size // 2)
    node.start()
    with connection_to(node) as connection:
        assert set(listed(connection)) == {"bad", "good"}


def test_a_node_does_not_start_with_a_damaged_quorum_state(node: EmbeddedNode) -> None:
    node.stop()
    state = node.log_dir / "__cluster_metadata-0" / "quorum-state"
    good = state.read_bytes()
    state.write_bytes(b'{"clusterId": ')
    with pytest.raises(NodeFailed, match="quorum-state") as caught:
        node.start()
    assert "Traceback" not in str(caught.value)
    state.write_bytes(good)
    node.start()


def test_a_damaged_metadata_snapshot_is_set_aside(node: EmbeddedNode) -> None:
    """G24: the log starts at offset 0 and contains the same records."""
    node.stop()
    snapshot = next((node.log_dir / "__cluster_metadata-0").glob("*.checkpoint"))
    flip(snapshot, 70)
    node.start()
    assert not snapshot.exists()
    assert snapshot.with_name(snapshot.name + ".damaged").exists()
    with connection_to(node) as connection:
        assert set(listed(connection)) == {"bad", "good"}
