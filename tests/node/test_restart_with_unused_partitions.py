"""What a killed node with many unused partitions does at its next start, counted: records, batches, files, objects."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fenceline.client.admin.admin import Admin, NewTopic
from fenceline.metadata.image import LeaderRecoveryState
from fenceline.metadata.records import PartitionChangeRecord, decode_record
from fenceline.records.batch import iter_headers
from fenceline.records.decode import decode_batch
from fenceline.testing.node import EmbeddedNode

PARTITIONS = 1200
USED = 3


def _batches(log_dir: Path) -> list[list[PartitionChangeRecord]]:
    """The changes of partitions in the metadata log, by batch."""
    found = []
    for path in sorted((log_dir / "__cluster_metadata-0").glob("*.log")):
        content = memoryview(path.read_bytes())
        for header in iter_headers(content):
            if not header.is_control:
                records = [decode_record(one.value or b"") for one in decode_batch(content, header)]
                if changes := [each for each in records if isinstance(each, PartitionChangeRecord)]:
                    found.append(changes)
    return found


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode() as running:
        with Admin({"bootstrap.servers": running.bootstrap}) as admin:
            admin.create_topics([NewTopic("unused", PARTITIONS, 1), NewTopic("used", USED, 1)])
        yield running


def test_killed_node(node: EmbeddedNode) -> None:
    """Each partition leaves, is elected and recovers once: three changes (K23, V11, V38), in few batches. Nothing is
    opened or created for it, and one line of the log says that all have recovered."""
    assert _batches(node.log_dir) == []
    before = psutil.Process(node.pid).num_fds()
    node.kill()
    node.start()
    batches = _batches(node.log_dir)
    changes = Counter((change.topic_id, change.partition_id) for batch in batches for change in batch)
    assert set(changes.values()) == {3}
    assert len(changes) == PARTITIONS + USED
    assert len(batches) <= 9
    states = [change.leader_recovery_state for batch in batches for change in batch]
    assert states.count(LeaderRecoveryState.RECOVERING) == states.count(LeaderRecoveryState.RECOVERED)
    assert list(node.log_dir.glob("unused-*")) == []
    assert psutil.Process(node.pid).num_fds() <= before + 10
    events = [json.loads(line)["event"] for line in node.errors.splitlines() if line.startswith("{")]
    assert sum("recovered" in event for event in events) == 1


def test_cleanly_stopped_node(node: EmbeddedNode) -> None:
    """Each partition leaves and is elected: two changes."""
    node.stop()
    node.start()
    batches = _batches(node.log_dir)
    changes = Counter((change.topic_id, change.partition_id) for batch in batches for change in batch)
    assert set(changes.values()) == {2}
    assert len(batches) <= 6
