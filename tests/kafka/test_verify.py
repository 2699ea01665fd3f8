"""`fenceline verify` over directories that Apache Kafka wrote, beside what Kafka's own tool says of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fenceline.log.disk import OsDisk
from fenceline.log.verify import Report, Settings, Severity, find_places, verify_places
from fenceline.testing.apache_kafka import ApacheKafka, run_tool, small_kafka
from tests.log.test_kafka_files import produce

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

DUMP = "org.apache.kafka.tools.DumpLogSegments"


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    with small_kafka(data_dir=tmp_path_factory.mktemp("kafka"), overrides={"log.index.interval.bytes": "500"}) as kafka:
        produce(kafka.bootstrap)
        yield kafka


def verified(path: Path) -> dict[str, Report]:
    disk = OsDisk()
    reports = verify_places(disk, find_places(disk, [str(path)]), Settings(deep=True, sequences=True))
    return {Path(report.path).name: report for report in reports}


def said(reports: dict[str, Report], severity: Severity) -> list[str]:
    return [str(f) for report in reports.values() for f in report.findings.kept if f.severity is severity]


def test_a_kafka_that_runs_is_whole(kafka: ApacheKafka) -> None:
    reports = verified(kafka.log_dir)
    assert said(reports, Severity.ERROR) == []
    assert (reports["plain-0"].end_offset, reports["plain-0"].records) == (5040, 5040)
    assert reports["plain-0"].segments >= 3
    assert {"__cluster_metadata-0", "__transaction_state-0", "paid-0"} <= set(reports)


def test_a_kafka_that_was_stopped_is_whole_and_damage_is_found_where_kafka_finds_it(
    kafka: ApacheKafka, tmp_path: Path
) -> None:
    kafka.stop()
    reports = verified(kafka.log_dir)
    assert said(reports, Severity.ERROR) == []
    assert said(reports, Severity.NOTE) == []
    shutil.copytree(kafka.log_dir / "plain-0", tmp_path / "plain-0")
    path = tmp_path / "plain-0" / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[8:12], "big") + 12
    content[size + 70] ^= 1
    path.write_bytes(content)
    (finding,) = verified(tmp_path / "plain-0")["plain-0"].findings.kept
    assert (finding.kind.value, finding.position) == ("crc", size)
    dump = run_tool(DUMP, "--files", str(path))
    assert f"position: {size} " in dump
    (line,) = [line for line in dump.splitlines() if f"position: {size} " in line]
    assert "isvalid: false" in line


def test_kafkas_index_tool_agrees_with_ours(kafka: ApacheKafka) -> None:
    kafka.stop()
    index = kafka.log_dir / "plain-0" / "00000000000000000000.index"
    assert "Found 0" not in run_tool(DUMP, "--files", str(index), "--verify-index-only")
    assert not [f for f in verified(kafka.log_dir)["plain-0"].findings.kept if "index" in f.kind]
