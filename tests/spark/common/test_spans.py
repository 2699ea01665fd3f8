"""Spans are recorded only with a directory, survive incomplete lines, and never fail a query."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pyspark_fenceline.common import spans
from pyspark_fenceline.common.spans import PLANNER, SpanRecorder, recorded_spans


def test_spans_of_all_processes_by_their_begin(tmp_path: Path) -> None:
    recorder = SpanRecorder(str(tmp_path / "new"), PLANNER)
    with recorder.span("outer"), recorder.span("inner"):
        pass
    (tmp_path / "new" / "worker-1.jsonl").write_text('{"name": "read", "begin_ms": 1, "end_ms": 3.5}\n{"name": "to')
    found = recorded_spans(tmp_path / "new")
    assert [span.name for span in found] == ["read", "outer", "inner"]
    assert (found[0].process, found[0].duration_ms) == ("worker-1", 2.5)
    assert found[1].begin_ms <= found[2].begin_ms <= found[2].end_ms <= found[1].end_ms


def test_a_failed_call_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="x"), SpanRecorder(str(tmp_path), PLANNER).span("partitions"):
        raise ValueError("x")
    assert [span.name for span in recorded_spans(tmp_path)] == ["partitions"]


def test_without_a_directory_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with SpanRecorder(None, PLANNER).span("partitions"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_ends_the_recording(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    recorder = SpanRecorder(str(tmp_path / "file"), PLANNER)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            with recorder.span("partitions"):
                pass
    assert len(caplog.records) == 1


def test_a_file_does_not_grow_without_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "_MAX_FILE_BYTES", 200)
    recorder = SpanRecorder(str(tmp_path), PLANNER)
    for _ in range(50):
        recorder.add("partitions", 0.0)
    (file,) = tmp_path.iterdir()
    assert file.stat().st_size < 400
