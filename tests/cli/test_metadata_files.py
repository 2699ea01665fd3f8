"""`fenceline snapshot` and `fenceline metadata` on directories created by the test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.ids import encode_uuid
from fenceline.metadata.delta import MetadataDelta
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.metadata.node_records import RegisterBrokerRecord, RegisterControllerRecord
from fenceline.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    encode_record,
)
from fenceline.metadata.security_records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    QuotaEntityPart,
    UserScramCredentialRecord,
)
from fenceline.node.metadata.batches import SnapshotBatches, control_batch
from fenceline.quorum.control_records import KRaftVersion, KRaftVoters, Voter, leader_change
from fenceline.quorum.log_view import SnapshotId
from fenceline.records.build import build_batch

ALPHA, BETA = UUID(int=0xA1), UUID(int=0xB2)
VOTER = Voter(1, UUID(int=500))
UNKNOWN = bytes((1, 99, 0, 7))

RECORDS: tuple[MetadataRecord, ...] = (
    FeatureLevelRecord("metadata.version", 30),  # 3
    FeatureLevelRecord("group.version", 1),
    RegisterControllerRecord(controller_id=1),
    RegisterBrokerRecord(broker_id=1, broker_epoch=6),
    RegisterBrokerRecord(broker_id=10, broker_epoch=7),
    RegisterBrokerRecord(broker_id=2, broker_epoch=8),
    TopicRecord("alpha", ALPHA),  # 9
    PartitionRecord(0, ALPHA, (1,), (1,), leader=1, leader_epoch=0, partition_epoch=0),
    ConfigRecord(2, "alpha", "retention.ms", "1000"),
    ConfigRecord(4, "", "ssl.key.password", "hush"),
    ClientQuotaRecord((QuotaEntityPart("user", None),), "consumer_byte_rate", 1.5),
    ProducerIdsRecord(1, 6, 1000),
    AccessControlEntryRecord(id=UUID(int=7), principal="User:a"),
    UserScramCredentialRecord("ann", 1, b"salt!", b"stored!", b"server!", 4096),
    DelegationTokenRecord(owner="User:ann", token_id="t1"),  # 17
)
LATER: tuple[MetadataRecord, ...] = (
    TopicRecord("beta", BETA),  # 18
    PartitionRecord(0, BETA, (1,), (1,), leader=1, leader_epoch=0, partition_epoch=0),
    PartitionChangeRecord(0, ALPHA, isr=(), leader=-1),  # 20
    ConfigRecord(4, "", "ssl.key.password", "another"),
    ConfigRecord(2, "alpha", "retention.ms", None),
    ProducerIdsRecord(1, 6, 2000),  # 23
)


def _batch(records: tuple[MetadataRecord | bytes, ...], offset: int, epoch: int = 1) -> bytes:
    values = [one if isinstance(one, bytes) else encode_record(one, 30) for one in records]
    return bytes(
        build_batch([(5000 + offset, None, one, ()) for one in values], base_offset=offset, leader_epoch=epoch)
    )


def _image(records: tuple[MetadataRecord, ...], offset: int, epoch: int = 1) -> MetadataImage:
    delta = MetadataDelta(EMPTY_IMAGE)
    for record in records:
        delta.replay(record)
    return delta.build(offset, epoch)[0]


def _snapshot(directory: Path, image: MetadataImage) -> Path:
    path = directory / SnapshotId(image.offset + 1, image.epoch).file_name
    batches = SnapshotBatches(image, now_ms=9, last_log_timestamp_ms=8, kraft_version=1, voters=(VOTER,))
    path.write_bytes(b"".join(batches))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    opening = control_batch(
        [leader_change(1, [1], [1]), KRaftVersion(0, 1), KRaftVoters(0, (VOTER,))], 5000, base_offset=0, epoch=1
    )
    log = bytes(opening) + _batch(RECORDS, 3) + _batch(LATER, 18)
    (directory / "00000000000000000000.log").write_bytes(log)
    _snapshot(directory, _image(RECORDS, 17))
    return tmp_path


@pytest.fixture
def directory(data: Path) -> Path:
    return data / "__cluster_metadata-0"


def run(*arguments: object, code: int = 0, stdin: str | None = None) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments], input=stdin)
    assert result.exit_code == code, (result.output, result.exception)
    return str(result.output)


def run_json(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == code, (result.output, result.exception)
    return json.loads(result.stdout)


# -- snapshot ---------------------------------------------------------------------------------------------------------


def test_snapshots_are_listed(data: Path, directory: Path) -> None:
    for path in (data, directory):
        (row,) = run_json("snapshot", "list", path)
        assert (row["end_offset"], row["epoch"], row["last_timestamp_ms"]) == (18, 1, 8)
        assert row["size_bytes"] == (directory / row["file"]).stat().st_size


def test_snapshots_are_verified(data: Path, directory: Path) -> None:
    (row,) = run_json("snapshot", "verify", data)
    assert (row["state"], row["records"], row["voters"], row["kraft_version"]) == ("ok", len(RECORDS), [1], 1)
    whole = (directory / row["file"]).read_bytes()
    (directory / row["file"]).write_bytes(whole[:-1])
    (row,) = run_json("snapshot", "verify", directory / row["file"], code=1)
    assert row["state"] == "DAMAGED"
    assert "in the middle of a batch" in row["reason"]
    (directory / row["file"]).write_bytes(whole[:-75])
    assert "no footer" in run_json("snapshot", "verify", data, code=1)[0]["reason"]


def test_a_dump_of_a_snapshot_contains_no_secrets(directory: Path) -> None:
    file = directory / "00000000000000000018-0000000001.checkpoint"
    rows = run_json("snapshot", "dump", file)
    assert rows[0]["type"] == "SNAPSHOT_HEADER"
    assert rows[-1]["type"] == "SNAPSHOT_FOOTER"
    assert [row["offset"] for row in rows] == list(range(len(rows)))
    assert len(rows) == len(RECORDS) + 4
    text = json.dumps(rows)
    assert "hush" not in text
    assert b"stored!".hex() not in text
    file.write_bytes(file.read_bytes()[:-75])
    assert len(run_json("snapshot", "dump", file, code=1)) == len(rows) - 1


def test_diff_of_a_snapshot_and_an_offset(data: Path, directory: Path) -> None:
    rows = run_json("snapshot", "diff", directory / "00000000000000000018-0000000001.checkpoint", 23, "--dir", data)
    reported = {(row["kind"], row["name"], row["change"]): row["fields"] for row in rows}
    assert set(reported) == {
        ("topic", f"beta ({encode_uuid(BETA)})", "added"),
        ("partition", "alpha-0", "changed"),
        ("config", "TOPIC:alpha", "removed"),
        ("config", "BROKER", "changed"),
        ("producer ids", "next", "changed"),
    }
    assert reported["partition", "alpha-0", "changed"]["leader"] == [1, -1]
    assert reported["producer ids", "next", "changed"] == {"next_producer_id": [1000, 2000]}
    assert "another" not in json.dumps(rows)
    assert run_json("snapshot", "diff", 20, 20, "-d", data) == []
    back = run_json("snapshot", "diff", 23, 17, "-d", data)
    assert {(row["kind"], row["change"]) for row in back} >= {("topic", "removed"), ("config", "added")}
    assert "No changes" in run("snapshot", "diff", 20, 20, "-d", data)


# -- metadata ---------------------------------------------------------------------------------------------------------


def test_a_dump_of_a_log_names_unknown_records(data: Path, directory: Path) -> None:
    with (directory / "00000000000000000000.log").open("ab") as log:
        log.write(_batch((UNKNOWN, bytes((1, 3, 77)), b"", bytes((2, 3, 0)), TopicRecord("gamma", UUID(int=3))), 24))
        log.write(_batch((TopicRecord("torn", UUID(int=4)),), 29)[:-3])
    rows = run_json("metadata", "dump", data)
    assert [row["offset"] for row in rows] == list(range(29))
    assert rows[0]["type"] == "LEADER_CHANGE"
    assert [(row["type"], row["version"]) for row in rows[24:]] == [
        ("unknown record type 99", 0),
        ("PartitionRecord", 77),
        ("unknown record", -1),
        ("unknown record", -1),
        ("TopicRecord", 0),
    ]
    assert rows[24]["record"]["bytes"] == UNKNOWN.hex()
    assert run_json("metadata", "dump", data, "--from", 20, "--limit", 2) == rows[20:22]
    assert "unknown record type 99" in run("metadata", "dump", data)
    facts = run_json("metadata", "at-offset", 28, data)
    assert "gamma" in facts["image"]["topics"]["byName"]
    assert "unknown record type 99" in run("metadata", "at-offset", 28, data)


def test_records_before_damage_in_the_log_are_dumped(data: Path, directory: Path) -> None:
    log = directory / "00000000000000000000.log"
    content = bytearray(log.read_bytes())
    content[-3] ^= 1
    log.write_bytes(content)
    assert len(run_json("metadata", "dump", data, code=1)) == 18


@pytest.mark.parametrize("offset", [2, 8, 9, 17, 19, 20, 23])
def test_the_image_at_an_offset_is_shown(data: Path, offset: int) -> None:
    everything = (*RECORDS, *LATER)
    image = _image(everything[: max(offset - 2, 0)], offset)
    found = run_json("metadata", "at-offset", offset, data)
    assert sorted(found["image"]["topics"]["byName"]) == sorted(image.topics_by_name)
    assert found["image"]["provenance"] == {"offset": offset, "epoch": 1}
    assert list(found["image"]["cluster"]["brokers"]) == [str(each) for each in sorted(image.brokers)]
    assert found["image"]["producerIds"]["nextProducerId"] == image.next_producer_id
    assert list(found["quorum"]["voters"]) == ["1"]


def test_offsets_outside_of_the_files_are_rejected(data: Path, directory: Path) -> None:
    assert "ends at offset 23" in run("metadata", "at-offset", 24, data, code=1)
    (directory / "00000000000000000000.log").rename(directory / "00000000000000000018.log")
    (directory / "00000000000000000018.log").write_bytes(_batch(LATER, 18))
    assert len(run_json("metadata", "at-offset", 20, data)["image"]["topics"]["byName"]) == 2
    assert "starts at offset 18" in run("metadata", "at-offset", 10, data, code=1)
    (directory / "00000000000000000018-0000000001.checkpoint").write_bytes(b"")
    assert "no valid snapshot" in run("metadata", "at-offset", 20, data, code=1)


def test_a_damaged_snapshot_is_skipped(data: Path, directory: Path) -> None:
    (directory / "00000000000000000018-0000000001.checkpoint").write_bytes(b"")
    result = CliRunner().invoke(app, ["metadata", "at-offset", "20", str(data), "--json"])
    assert "alpha" in json.loads(result.stdout)["image"]["topics"]["byName"]
    assert "is damaged" in result.output


def test_metadata_transactions_are_applied_when_they_end(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    records = (
        FeatureLevelRecord("metadata.version", 30),
        BeginTransactionRecord("a"),
        TopicRecord("dropped", UUID(int=1)),
        AbortTransactionRecord("no"),
        BeginTransactionRecord("b"),
        TopicRecord("kept", UUID(int=2)),
        EndTransactionRecord(),
        BeginTransactionRecord("c"),
        TopicRecord("open", UUID(int=3)),
    )
    (directory / "00000000000000000000.log").write_bytes(_batch(records, 0))
    result = CliRunner().invoke(app, ["metadata", "at-offset", "8", str(tmp_path), "--json"])
    assert list(json.loads(result.stdout)["image"]["topics"]["byName"]) == ["kept"]
    assert "open metadata transaction" in result.output
    assert run_json("metadata", "at-offset", 5, tmp_path)["image"]["topics"]["byName"] == {}


# -- shell ------------------------------------------------------------------------------------------------------------


def _paths(node: Any, path: str = "") -> Iterator[str]:
    yield path
    for name, child in node.items() if isinstance(node, dict) else ():
        yield from _paths(child, f"{path}/{name}")


def test_a_single_shell_command(data: Path) -> None:
    assert run_json("metadata", "shell", data, "ls", "/") == ["image", "quorum"]
    assert run_json("metadata", "shell", data, "ls", "/topics") == ["alpha", "beta"]
    assert run_json("metadata", "shell", data, "ls", "/brokers") == ["1", "2", "10"]
    assert run_json("metadata", "shell", data, "ls", "/topics/byId") == sorted([encode_uuid(ALPHA), encode_uuid(BETA)])
    assert run("metadata", "shell", data, "ls", "/image/topics/byName").split() == ["alpha", "beta"]
    assert run("metadata", "shell", data, "--at", 17, "ls", "/topics").split() == ["alpha"]
    assert run_json("metadata", "shell", data, "cat", "/topics/alpha/0")["leader"] == -1
    assert run("metadata", "shell", data, "cat", "/topics/alpha/id").strip() == encode_uuid(ALPHA)
    assert run_json("metadata", "shell", data, "cat", f"/topicIds/{encode_uuid(BETA)}/name") == "beta"
    assert run("metadata", "shell", data, "cat", "/image/features/finalized_group.version").strip() == "1"
    assert run_json("metadata", "shell", data, "cat", "/features/metadataVersion") == {"level": 30, "name": "4.3-IV0"}
    assert run_json("metadata", "shell", data, "cat", "/voters/1")["voter_id"] == 1
    assert run("metadata", "shell", data, "cat", "/configs/BROKER/ssl.key.password").strip() == "[redacted]"
    assert run("metadata", "shell", data, "cat", "/clientQuotas/user()/consumer_byte_rate").strip() == "1.5"
    assert run_json("metadata", "shell", data, "ls", "/topics/*/0") == {
        "/image/topics/byName/alpha/0": ["/image/topics/byName/alpha/0"],
        "/image/topics/byName/beta/0": ["/image/topics/byName/beta/0"],
    }
    found = run_json("metadata", "shell", data, "find", "/")
    tree = run_json("metadata", "shell", data, "tree", "/")
    assert set(found) <= {path or "/" for path in _paths(tree)}
    for path in (
        f"/image/acls/byId/{encode_uuid(UUID(int=7))}",
        "/image/scram/SCRAM-SHA-256/ann",
        "/image/delegationToken/t1",
        "/image/cluster/controllers/1",
        "/image/producerIds/nextProducerId",
        "/quorum/kraftVersion",
    ):
        assert path in found
    assert "    alpha:" in run("metadata", "shell", data, "tree", "/image/topics")
    assert "find [PATH...]" in run("metadata", "shell", data, "help")


@pytest.mark.parametrize(
    "command",
    [("ls", "/nix"), ("cat", "/topics"), ("cat",), ("cd", "/topics/alpha/0"), ("fly",), ("cat", "/topics/alpha/9")],
)
def test_a_single_shell_command_that_fails(data: Path, command: tuple[str, ...]) -> None:
    run("metadata", "shell", data, *command, code=1)


def test_an_interactive_shell_session(data: Path) -> None:
    typed = "pwd\ncd topics\ncd /topics\nls\ncd alpha\ncat ../beta/name\npwd\ncd\npwd\n'\nnix\nexit\nls\n"
    reported = run("metadata", "shell", data, stdin=typed)
    assert "cd: topics: no such path" in reported
    assert "alpha\nbeta" in reported
    assert "/image/topics/byName/alpha> beta" in reported
    assert "nix: unknown command" in reported
    assert reported.rstrip().endswith("/>")


def test_a_directory_without_a_log_is_rejected(tmp_path: Path) -> None:
    assert "has no metadata log" in run("metadata", "shell", tmp_path, "ls", code=1)
    assert "does not exist" in run("snapshot", "verify", tmp_path / "x.checkpoint", code=1)
    assert "--dir" in run("snapshot", "diff", "1", "2", code=1)


def test_records_that_cannot_be_applied_are_skipped_and_reported(tmp_path: Path) -> None:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    records = (FeatureLevelRecord("metadata.version", 30), RemoveTopicRecord(ALPHA), TopicRecord("there", BETA))
    (directory / "00000000000000000000.log").write_bytes(_batch(records, 0))
    result = CliRunner().invoke(app, ["metadata", "shell", str(tmp_path), "ls", "/topics"])
    assert "there" in result.stdout
    assert "offset 1: RemoveTopicRecord" in result.output


def test_secrets_of_a_listener_are_redacted() -> None:
    from fenceline.cli.metadata import show_config

    for key in (
        "ssl.keystore.password",
        "ssl.key.password",
        "ssl.keystore.key",
        "ssl.truststore.certificates",
        "plain.sasl.jaas.config",
        "who.knows",
    ):
        assert show_config(f"listener.name.internal.{key}", "hush") == "[redacted]"
    assert show_config("listener.name.internal.ssl.keystore.location", "/x") == "/x"
