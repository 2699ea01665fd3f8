"""Checkpoints in the format of Spark's Kafka source: what is translated, copied and rejected. No session, no broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline import export_checkpoint
from pyspark_fenceline.common.offsets import PartitionPosition, SourceOffset
from pyspark_fenceline.errors import Loss, LossKind
from tests.spark.checkpoints import entry, offset_of, write_commit, write_entry

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def ours(first: int, second: int) -> dict[str, Any]:
    return offset_of({T0: (first, 3), T1: (second, -1), U0: (7, 0)}, {"t": "id", "u": None})


@pytest.fixture
def held(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    write_entry(folder, "the-query", 4, entry(ours(100, 0), planned_ms=77))
    write_entry(folder, "the-query", 5, entry(ours(150, 2), planned_ms=88))
    for batch in (4, 5):
        write_commit(folder, batch, 1000)
    (folder / "state" / "0" / "0").mkdir(parents=True)
    (folder / "state" / "0" / "0" / "6.delta").write_bytes(b"state")
    return folder


def test_offsets_are_translated_and_everything_else_is_copied(held: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    before = sorted(path.relative_to(held) for path in held.rglob("*"))
    done = export_checkpoint(held, made)
    assert (done.batch_id, dict(done.positions)) == (5, {T0: 150, T1: 2, U0: 7})
    assert sorted(path.relative_to(made) for path in made.rglob("*")) == before
    version, about, line = (made / "offsets" / "5").read_text().split("\n")
    assert (version, json.loads(about)["batchTimestampMs"]) == ("v1", 88)
    assert line == '{"t":{"0":150,"1":2},"u":{"0":7}}'
    assert (made / "offsets" / "4").read_text().endswith('{"t":{"0":100,"1":0},"u":{"0":7}}')
    for same in ("metadata", "commits/5", "state/0/0/6.delta"):
        assert (made / same).read_bytes() == (held / same).read_bytes()
    # The original is unchanged and can be exported again.
    assert (held / "offsets" / "5").read_text() == entry(ours(150, 2), planned_ms=88)
    export_checkpoint(f"file://{held}", tmp_path / "again")


def test_lines_of_other_sources_are_unchanged(tmp_path: Path) -> None:
    held = tmp_path / "held"
    write_entry(held, "q", 0, entry({"logOffset": 3}, ours(1, 1), "-", {"v": {"0": 9}}))
    write_commit(held, 0, 1)
    export_checkpoint(held, tmp_path / "made")
    lines = (tmp_path / "made" / "offsets" / "0").read_text().split("\n")[2:]
    assert lines == ['{"logOffset": 3}', '{"t":{"0":1,"1":1},"u":{"0":7}}', "-", '{"v": {"0": 9}}']


def test_a_planned_batch_stays_planned(held: Path, tmp_path: Path) -> None:
    write_entry(held, "the-query", 6, entry(ours(160, 2)))
    done = export_checkpoint(held, tmp_path / "made")
    assert (done.batch_id, done.positions[T0]) == (6, 160)
    assert not (tmp_path / "made" / "commits" / "6").exists()


@pytest.mark.parametrize("kind", ["a file", "a folder with something in it"])
def test_existing_files_are_not_overwritten(held: Path, tmp_path: Path, kind: str) -> None:
    made = tmp_path / "made"
    if kind == "a file":
        made.write_text("mine")
    else:
        made.mkdir()
        (made / "mine").write_text("mine")
    with pytest.raises(OperatorError, match="already exists"):
        export_checkpoint(held, made)
    assert "mine" in (made if kind == "a file" else made / "mine").read_text()
    # An empty folder may be written to.
    (tmp_path / "empty").mkdir()
    export_checkpoint(held, tmp_path / "empty")


def test_checkpoints_that_cannot_be_exported_are_rejected(held: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(OperatorError, match="is no checkpoint of a streaming query"):
        export_checkpoint(tmp_path / "nothing", made)
    with pytest.raises(OperatorError, match="is inside the checkpoint"):
        export_checkpoint(held, held / "made")
    with pytest.raises(OperatorError, match="is no local directory"):
        export_checkpoint("s3://lake/checkpoint", made)
    theirs = tmp_path / "theirs"
    write_entry(theirs, "q", 0, entry({"t": {"0": 1}}))
    with pytest.raises(OperatorError, match="No batch of the checkpoint"):
        export_checkpoint(theirs, made)
    write_commit(theirs, 0, 1)
    with pytest.raises(OperatorError, match="can be used unchanged"):
        export_checkpoint(theirs, made)
    loss = Loss(LossKind.LOG_TRUNCATED, "t", 0, 150, 3, 100, resume_offset=100)
    back = SourceOffset({T0: PartitionPosition(120, 4)}, {"t": "id"}, losses=(loss,)).encode()
    write_entry(held, "the-query", 6, entry(back))
    with pytest.raises(OperatorError, match="follows a loss and is not committed"):
        export_checkpoint(held, made)
    assert not made.exists()
    # Once the batch is complete, its end offset is sufficient.
    write_commit(held, 6, 1)
    assert dict(export_checkpoint(held, made).positions) == {T0: 120}
    write_entry(held, "the-query", 7, entry(back, version="v3"))
    with pytest.raises(OperatorError, match="not in the supported format v1"):
        export_checkpoint(held, tmp_path / "other")


def test_the_export_command(held: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    result = CliRunner().invoke(app, ["checkpoint", "export", str(held), str(made)])
    assert result.exit_code == 0, result.output
    assert "has the positions of 3 partitions after batch 5" in result.output
    result = CliRunner().invoke(app, ["checkpoint", "export", str(held), str(made)])
    assert result.exit_code == 1
    result = CliRunner().invoke(app, ["checkpoint", "export", str(held), str(tmp_path / "json"), "--json"])
    assert json.loads(result.output)["positions"] == {"t-0": 150, "t-1": 2, "u-0": 7}
