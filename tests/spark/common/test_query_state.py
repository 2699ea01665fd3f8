"""Whether a query keeps state, and how a stream handles a truncation then. No Spark session, no broker."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from pyspark_fenceline.common.query_state import (
    FIRST_BATCH,
    NotKnown,
    Stateful,
    StateHint,
    Stateless,
    query_state,
    why_no_rewind,
)
from pyspark_fenceline.errors import DataLossError, LossKind
from pyspark_fenceline.source import stream
from pyspark_fenceline.source.tasks import RangesPartition
from tests.spark.checkpoints import entry, write_entry
from tests.spark.fakes import FakeCluster
from tests.spark.streams import ALL, cluster_with, ends, make, planned, reads

pytestmark = pytest.mark.usefixtures("no_idle_wait")
OFFSET = {"query": "one", "topics": {}, "version": 1}


def make_checkpoint(folder: Path, offset: dict[str, Any], *, state: bool) -> str:
    write_entry(folder, "q", 0, entry(offset))
    if state:
        (folder / "state" / "0" / "0").mkdir(parents=True, exist_ok=True)
        (folder / "state" / "0" / "0" / "1.delta").write_bytes(b"")
    return str(folder)


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_the_checkpoint_shows_state(tmp_path: Path, form: str) -> None:
    with_state = make_checkpoint(tmp_path / "a", OFFSET, state=True)
    without = make_checkpoint(tmp_path / "b", OFFSET, state=False)
    found = query_state(StateHint(checkpoint=form.format(with_state)), OFFSET)
    assert isinstance(found, Stateful)
    assert with_state in found.because
    assert query_state(StateHint(checkpoint=form.format(without)), OFFSET) == Stateless()


def test_an_empty_state_folder_is_no_state(tmp_path: Path) -> None:
    place = make_checkpoint(tmp_path, OFFSET, state=False)
    (tmp_path / "state").mkdir()
    assert query_state(StateHint(checkpoint=place), OFFSET) == Stateless()


def test_state_in_the_checkpoint_overrides_the_option(tmp_path: Path) -> None:
    place = make_checkpoint(tmp_path, OFFSET, state=True)
    assert isinstance(query_state(StateHint(is_stateful=False, checkpoint=place), OFFSET), Stateful)


@pytest.mark.parametrize("kind", ["missing", "another query's", "its twin's", "of another format", "behind"])
def test_a_checkpoint_without_evidence_of_state(tmp_path: Path, kind: str) -> None:
    place = make_checkpoint(tmp_path / "checkpoint", OFFSET, state=False)
    match kind:
        case "missing":
            place = str(tmp_path / "other")
        case "of another format":
            write_entry(tmp_path / "checkpoint", "q", 0, entry(OFFSET, version="v2"))
        case "behind":
            write_entry(tmp_path / "checkpoint", "q", 1, entry({**OFFSET, "cluster": "c"}))
        case "its twin's":
            # Another query at the same offset.
            write_entry(tmp_path / "checkpoint", "q", 0, entry({**OFFSET, "query": "another"}))
        case _:
            write_entry(tmp_path / "checkpoint", "q", 0, entry({"t": {"0": 5}}))
    found = query_state(StateHint(checkpoint=place), OFFSET)
    assert isinstance(found, NotKnown)
    assert place in found.because
    # In that case the option decides.
    assert query_state(StateHint(False, place), OFFSET) == Stateless()
    assert isinstance(query_state(StateHint(True, place), OFFSET), Stateful)


def test_an_offset_without_an_id_may_belong_to_another_query(tmp_path: Path) -> None:
    bare = {"topics": {}, "version": 1}
    found = query_state(StateHint(checkpoint=make_checkpoint(tmp_path, bare, state=False)), bare)
    assert isinstance(found, NotKnown)


def test_the_state_of_a_query_without_an_id_is_detected(tmp_path: Path) -> None:
    """Evidence of state takes precedence over missing ids: the checkpoint is most likely the query's."""
    bare = {"topics": {}, "version": 1}
    place = make_checkpoint(tmp_path, bare, state=True)
    assert isinstance(query_state(StateHint(False, place), bare), Stateful)


def test_two_queries_at_the_same_offset_are_distinguished() -> None:
    cluster = cluster_with(150)
    (_, one), (_, other) = planned(cluster), planned(cluster)
    assert one["topics"] == other["topics"]
    assert one["query"] != other["query"]
    cluster.log("t").append(10)
    assert planned(cluster, one)[1]["query"] == one["query"]
    # A checkpoint of an older release, or of Spark's own source, gets one with its next batch.
    assert make(cluster, onUnproven="accept").latestOffset({"t": {"0": 150}}, ALL)["query"]


def test_without_the_option_state_is_unknown() -> None:
    assert isinstance(query_state(StateHint(), OFFSET), NotKnown)


@pytest.mark.parametrize("state", [Stateful("It keeps state"), NotKnown("It is not known")])
def test_a_rejection_lists_the_remedies(state: Stateful | NotKnown) -> None:
    text = why_no_rewind(state)
    assert text is not None
    assert text.startswith(state.because)
    assert len(text) < 500
    assert all(word in text for word in ("new checkpointLocation", "includeRetractions", "changes", "docs/spark.md"))
    assert ("statefulQuery" in text) is isinstance(state, NotKnown)
    assert why_no_rewind(Stateless()) is None


# At a truncation ------------------------------------------------------------------------------------------------------


def cut_at_100() -> tuple[FakeCluster, dict[str, Any]]:
    """A query has read 150 records; 100 of them are left, followed by 100 others."""
    cluster = cluster_with(150)
    _, end = planned(cluster)
    cluster.log("t").elect(2, keep=100)
    cluster.log("t").append(100)
    return cluster, end


@pytest.mark.parametrize("lenient", [{"onTruncation": "rewind"}, {"failOnDataLoss": "false"}])
def test_a_stateful_query_does_not_rewind(tmp_path: Path, lenient: dict[str, str]) -> None:
    cluster, end = cut_at_100()
    place = make_checkpoint(tmp_path, end, state=True)
    for hint in ({"checkpointLocation": place}, {"statefulQuery": "true"}):
        with pytest.raises(DataLossError, match="keeps state") as caught:
            make(cluster, **lenient, **hint).latestOffset(end, ALL)
        (loss,) = caught.value.losses
        assert (loss.kind, loss.divergent_offset, loss.offset) == (LossKind.LOG_TRUNCATED, 100, 150)
        assert "offsets 100 to 149" in str(caught.value)


def test_a_query_with_unknown_state_does_not_rewind(caplog: pytest.LogCaptureFixture) -> None:
    cluster, end = cut_at_100()
    # An option that is set but undecided.
    hint = {"checkpointLocation": ""}
    with pytest.raises(DataLossError, match='statefulQuery="false"'):
        make(cluster, onTruncation="rewind", **hint).latestOffset(end, ALL)
    # It is logged when the first batch is planned, not only at the truncation.
    fresh = make(cluster, onTruncation="rewind", **hint)
    caplog.clear()
    begin = fresh.initialOffset()
    reads(fresh, begin, fresh.latestOffset(begin, ALL))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "will end at a truncation" in caplog.text


def test_a_query_without_state_rewinds(tmp_path: Path) -> None:
    cluster, end = cut_at_100()
    reader = make(cluster, onTruncation="rewind", checkpointLocation=make_checkpoint(tmp_path, end, state=False))
    later = reader.latestOffset(end, ALL)
    assert ends(later) == {"t-0": 200}
    write_entry(tmp_path, "q", 1, entry(later))
    assert reads(reader, end, later) == {"t-0": (100, 200)}


def test_the_rejection_begins_with_the_loss(tmp_path: Path) -> None:
    cluster, end = cut_at_100()
    place = make_checkpoint(tmp_path, end, state=True)
    with pytest.raises(DataLossError) as caught:
        make(cluster, onTruncation="rewind", checkpointLocation=place).latestOffset(end, ALL)
    text = str(caught.value)
    assert text.startswith("t-0 was truncated below position ")
    assert text.index("keeps state") < text.index("Options: ") < text.index("LOG_TRUNCATED {")


def test_the_checkpoint_is_inspected_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_with(150)
    _, first = planned(cluster)
    cluster.log("t").append(50)
    _, second = planned(cluster, first)
    place = make_checkpoint(tmp_path, second, state=False)
    reader = make(cluster, onTruncation="rewind", checkpointLocation=place)
    assert no_rewind_of(reader, first, second) == {None}
    monkeypatch.setattr(stream, "query_state", lambda *_: pytest.fail("looked again"))
    assert no_rewind_of(reader, first, second) == {None}


def test_state_written_by_the_first_batch_is_detected(tmp_path: Path) -> None:
    """No state before the first batch does not prove that there is none after it."""
    cluster = cluster_with(150)
    reader = make(cluster, onTruncation="rewind", checkpointLocation=str(tmp_path))
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ALL)
    make_checkpoint(tmp_path, end, state=False)
    reads(reader, begin, end)
    make_checkpoint(tmp_path, end, state=True)
    cluster.log("t").elect(2, keep=100)
    with pytest.raises(DataLossError, match="keeps state"):
        reader.latestOffset(end, ALL)


def test_a_replay_of_a_stateful_query_does_not_rewind(tmp_path: Path) -> None:
    cluster = cluster_with(150)
    _, first = planned(cluster)
    cluster.log("t").append(50)
    _, second = planned(cluster, first)
    cluster.log("t").elect(2, keep=180)
    cluster.log("t").append(100)
    place = make_checkpoint(tmp_path, second, state=True)
    with pytest.raises(DataLossError, match="keeps state"):
        make(cluster, onTruncation="rewind", checkpointLocation=place).partitions(first, second)


def no_rewind_of(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> set[str | None]:
    found = reader.partitions(json.loads(json.dumps(start)), json.loads(json.dumps(end)))
    assert all(isinstance(one, RangesPartition) for one in found)
    return {one.no_rewind for one in found}


def test_tasks_know_that_their_query_may_not_rewind(tmp_path: Path) -> None:
    cluster = cluster_with(150)
    begin, first = planned(cluster)
    cluster.log("t").append(50)
    _, second = planned(cluster, first)
    place = make_checkpoint(tmp_path, first, state=False)
    # Before a batch has run there is no visible state.
    reader = make(cluster, onTruncation="rewind", checkpointLocation=place)
    assert no_rewind_of(reader, begin, first) == {FIRST_BATCH}
    assert no_rewind_of(make(cluster, onTruncation="rewind", statefulQuery="false"), begin, first) == {None}
    make_checkpoint(tmp_path, second, state=True)
    (reported,) = no_rewind_of(reader, first, second)
    assert reported is not None
    assert "keeps state" in reported
    assert no_rewind_of(make(cluster), first, second) == {None}


def test_elections_cause_no_reread_where_tasks_may_not_end_early(tmp_path: Path) -> None:
    cluster = cluster_with(150)
    reader = make(cluster, onTruncation="rewind", checkpointLocation=str(tmp_path))
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, ALL)
    make_checkpoint(tmp_path, end, state=True)
    assert reads(reader, begin, end) == {"t-0": (0, 150)}
    cluster.log("t").elect(2)
    assert reader.latestOffset(end, ALL) == end
