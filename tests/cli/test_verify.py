"""`fenceline verify`: output and exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from fenceline.cli.app import app
from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.core.disk import OsDisk
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.records.build import build_batch


@pytest.fixture
def data(tmp_path: Path) -> Path:
    log = PartitionLog.open(
        OsDisk(),
        str(tmp_path / "data" / "orders-0"),
        topic_partition=TopicPartition("orders", 0),
        topic_id=None,
        config=LogConfig(segment_bytes=1_000),
        now_ms=1_000,
    )
    for number in range(20):
        made = build_batch([(1_000 + number, b"k", b"v" * 20, ())] * 2)
        log.append_as_leader(memoryview(made), leader_epoch=number // 10, now_ms=1_000)
    log.close()
    return tmp_path / "data"


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["verify", *map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_an_intact_log_has_no_findings(data: Path) -> None:
    output = run(data).stdout
    assert "nothing found." in output
    assert "0..1" in output
    (document,) = json.loads(run(data, "--json", "--deep", "--sequences").stdout)
    wanted: dict[str, Any] = {
        "topic": "orders", "partition": 0, "batches": 20, "records": 40, "start_offset": 0,
        "end_offset_exclusive": 40, "leader_epochs": [[0, 0], [1, 20]], "errors": 0, "notes": 0, "findings": [],
    }  # fmt: skip
    assert {name: document[name] for name in wanted} == wanted


def test_damage_is_reported_with_its_position_and_advice(data: Path) -> None:
    path = sorted((data / "orders-0").glob("*.log"))[1]
    flip(path, 70)
    output = run(data, code=1).stdout
    assert f"ERROR crc: {path} at byte 0: the checksum of the batch at offset" in output
    assert "Other replicas may have it intact" in output
    assert "1 error, 0 notes." in output
    (document,) = json.loads(run(data, "--json", code=1).stdout)
    (finding,) = document["findings"]
    assert (finding["kind"], finding["severity"], finding["position"]) == ("crc", "error", 0)
    assert finding["advice"]


def test_replicas_are_compared_unless_disabled(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(data, other)
    run(data, other)
    path = sorted((other / "orders-0").glob("*.log"))[-1]
    content = bytearray(path.read_bytes())
    content[12:16] = (7).to_bytes(4, "big")
    path.write_bytes(content)
    output = run(data, other, code=1).stdout
    assert "ERROR divergence" in output
    assert "divergence" not in run(data, other, "--no-compare", code=1).stdout


def test_a_note_does_not_fail_the_command(data: Path) -> None:
    (data / "orders-0" / "00000000000000000000.log.deleted").write_bytes(b"x")
    assert "NOTE leftover" in run(data).stdout


def test_a_path_without_a_log_is_bad_usage(tmp_path: Path) -> None:
    assert "contains no log" in run(tmp_path, code=2).stderr
    assert "does not exist" in run(tmp_path / "nothing", code=2).stderr
    run(code=2)


def test_a_data_directory_without_partitions_has_no_findings(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").touch()
    assert "nothing found." in run(tmp_path).stdout
    assert json.loads(run(tmp_path, "--json").stdout) == []


def test_a_long_table_is_shortened(data: Path) -> None:
    """The table omits partitions without findings; the JSON contains every one."""
    for number in range(1, 45):
        shutil.copytree(data / "orders-0", data / f"orders-{number}")
    output = run(data).stdout
    assert "45 more partitions and files without findings." in output
    flip(sorted((data / "orders-7").glob("*.log"))[0], 70)
    output = run(data, code=1).stdout
    assert "44 more partitions" in output
    assert len(json.loads(run(data, "--json", code=1).stdout)) == 45


def test_verify_writes_nothing(data: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in data.rglob("*")}
    run(data, "--deep")
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in data.rglob("*")} == before
