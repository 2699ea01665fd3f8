"""Kafka's metadata shell on our snapshots, and `fenceline metadata shell` on Kafka's: the same paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.cli.metadata_files import load_snapshot
from fenceline.metadata.delta import apply
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.metadata.security_records import ClientQuotaRecord, DelegationTokenRecord, QuotaEntityPart
from fenceline.node.metadata.batches import SnapshotBatches
from fenceline.node.metadata.metadata_log import DIRECTORY_NAME
from fenceline.testing.apache_kafka import small_kafka
from tests.cli.test_metadata_files import LATER, RECORDS
from tests.support.same_metadata import kafkas_entries, kafkas_tree

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]


def _ours(*arguments: object) -> Any:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


def _one_batch(image: MetadataImage) -> SnapshotBatches:
    """A file that Kafka's shell reads completely before it runs a command: it starts at the first offset above 0, which
    the control batch has as soon as it includes voters."""
    return SnapshotBatches(image, now_ms=9, last_log_timestamp_ms=8, kraft_version=0, voters=())


def _same_paths(path: Path) -> None:
    ours = set(_ours("metadata", "shell", path, "find", "/image"))
    assert kafkas_tree(path, ours) == ours


def test_kafkas_shell_reads_our_snapshot(tmp_path: Path) -> None:
    # Kafka's shell fails on quotas of a default entity, and shows no token without renewers.
    fitting = [each for each in RECORDS if not isinstance(each, ClientQuotaRecord | DelegationTokenRecord)]
    entity = (QuotaEntityPart("client-id", "a(1)\\"), QuotaEntityPart("user", "ann"))
    image, _ = apply(EMPTY_IMAGE, (*fitting, ClientQuotaRecord(entity, "consumer_byte_rate", 1.5), *LATER), 99, 3)
    path = tmp_path / "00000000000000000100-0000000003.checkpoint"
    path.write_bytes(b"".join(_one_batch(image)))
    _same_paths(path)
    partition = kafkas_entries(path, ["/image/topics/byName/alpha/0"])
    assert "replicas=[1]" in partition
    assert "leader=-1" in partition
    assert "leaderEpoch=1" in partition


def test_our_shell_reads_kafkas_snapshots_and_log(tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    overrides = {"metadata.log.max.record.bytes.between.snapshots": "1500"}
    with small_kafka(data_dir=tmp_path, overrides=overrides) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        names = [f"topic.{number}" for number in range(20)]
        for name in names:
            made = admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "86400000"})])
            made[name].result(60)
        broker.stop()
        data = broker.log_dir
    verified = _ours("snapshot", "verify", data)
    assert {row["state"] for row in verified} == {"ok"}
    newest = data / DIRECTORY_NAME / verified[-1]["file"]
    assert int(newest.name[:20]) > 0
    # The same state in Kafka's shell, from a file that it reads completely.
    loaded = load_snapshot(newest)
    copy = tmp_path / newest.name
    copy.write_bytes(b"".join(_one_batch(loaded.image)))
    _same_paths(copy)
    assert _ours("metadata", "shell", newest, "find", "/image") == _ours("metadata", "shell", copy, "find", "/image")
    assert _ours("metadata", "shell", data, "ls", "/topics") == sorted(names)
    dumped = _ours("metadata", "dump", data)
    assert [row["offset"] for row in dumped] == list(range(len(dumped)))
    assert not [row for row in dumped if row["type"].startswith("unknown")]
    at = [row["offset"] for row in dumped if row["type"] == "TopicRecord"][3]
    assert len(_ours("metadata", "at-offset", at, data)["image"]["topics"]["byName"]) == 4
    changes = _ours("snapshot", "diff", at, verified[-1]["file"], "--dir", data)
    assert {row["name"].split(" ")[0] for row in changes if row["kind"] == "topic"} <= set(names)
