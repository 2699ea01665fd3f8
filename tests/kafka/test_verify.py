"""`fenceline verify` on directories written by Apache Kafka, compared with the output of Kafka's own tool."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fenceline.log.core.disk import OsDisk
from fenceline.log.verify.verify import Report, Severity, VerifySettings, find_places, verify_places
from fenceline.records.batch import iter_headers
from fenceline.testing.apache_kafka import run_tool, small_kafka
from tests.conftest import need_apache_kafka
from tests.log.test_kafka_files import produce

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

DUMP = "org.apache.kafka.tools.DumpLogSegments"


class Written(NamedTuple):
    """What Kafka left, and what was found in it while it ran."""

    log_dir: Path
    running: dict[str, Report]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    need_apache_kafka()
    root = tmp_path_factory.mktemp("kafka")
    with small_kafka(data_dir=root, overrides={"log.index.interval.bytes": "500"}) as kafka:
        produce(kafka.bootstrap)
        running = verified(kafka.log_dir)
        kafka.stop()
        yield Written(kafka.log_dir, running)
    shutil.rmtree(root, ignore_errors=True)


def verified(path: Path) -> dict[str, Report]:
    disk = OsDisk()
    reports = verify_places(disk, find_places(disk, [str(path)]), VerifySettings(deep=True, sequences=True))
    return {Path(report.path).name: report for report in reports}


def said(reports: dict[str, Report], severity: Severity) -> list[str]:
    return [str(f) for report in reports.values() for f in report.findings.kept if f.severity is severity]


def test_running_kafka_is_intact(written: Written) -> None:
    reports = written.running
    assert said(reports, Severity.ERROR) == []
    assert (reports["plain-0"].end_offset, reports["plain-0"].records) == (5040, 5040)
    assert reports["plain-0"].segments >= 3
    assert {"__cluster_metadata-0", "__transaction_state-0", "paid-0"} <= set(reports)


def test_stopped_kafka_is_intact(written: Written) -> None:
    reports = verified(written.log_dir)
    assert said(reports, Severity.ERROR) == []
    assert said(reports, Severity.NOTE) == []


def test_finds_the_same_damage_as_kafka(written: Written, tmp_path: Path) -> None:
    shutil.copytree(written.log_dir / "plain-0", tmp_path / "plain-0")
    path = tmp_path / "plain-0" / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    size = int.from_bytes(content[8:12], "big") + 12
    content[size + 70] ^= 1
    path.write_bytes(content)
    (finding,) = verified(tmp_path / "plain-0")["plain-0"].findings.kept
    assert (finding.kind.value, finding.position) == ("crc", size)
    (line,) = [line for line in run_tool(DUMP, "--files", str(path)).splitlines() if f"position: {size} " in line]
    assert "isvalid: false" in line


@pytest.mark.parametrize("name", ["plain-0", "paid-0"])
def test_changed_byte_of_any_kind_is_detected(written: Written, name: str, tmp_path: Path) -> None:
    """Each byte of the first and the last header, and some of the records."""
    shutil.copytree(written.log_dir / name, tmp_path / name)
    path = sorted((tmp_path / name).glob("*.log"))[-1]
    whole = path.read_bytes()
    starts = [header.position for header in iter_headers(whole)]
    for position in {*range(starts[0], 100), *range(starts[-1], len(whole), 1 + (len(whole) - starts[-1]) // 100)}:
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        path.write_bytes(damaged)
        assert said(verified(tmp_path / name), Severity.ERROR), position
