"""Which stale rows may be removed with a batch: only rows that the source will reread; idle partitions included."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from fenceline.client.core.epoch_history import EpochStart
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.log_columns import ColumnSpan
from pyspark_fenceline.common.log_matching import AFTER_ALL, BEFORE_ALL, LogEpochs
from pyspark_fenceline.delta.checkpoint_positions import SourcePosition, parse_positions, positions_after
from pyspark_fenceline.delta.options import DeltaOptions, delta_options
from pyspark_fenceline.delta.stale_rows import removable_from
from pyspark_fenceline.delta.state import read_state
from pyspark_fenceline.delta.table_files import open_table
from tests.spark.checkpoints import entry, offset_of, write_entry
from tests.spark.delta.test_plan import STEPS, Crash, Row, commit, log_rows, records, table_rows, task, write
from tests.spark.fakes import FakeCluster, FakeLog, install_fake_cluster
from tests.spark.table_readers import check_readers

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
VIEW = LogEpochs(5, 0, 20, (EpochStart(1, 0), EpochStart(3, 10), EpochStart(5, 15)), "id")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    return install_fake_cluster(monkeypatch, t=2)


def options_in(folder: Path, *, by_partition: bool = True) -> DeltaOptions:
    given = {
        "path": str(folder / "table"),
        "kafka.bootstrap.servers": "fake",
        "checkpointLocation": f"file:{folder / 'checkpoint'}",
    }
    return delta_options(given if by_partition else {**given, "partitionBy": ""})


@pytest.mark.parametrize(
    ("places", "lowest"),
    [
        # The record before the position is in the log, so everything that the source has read is.
        ([SourcePosition(20, 5, "id")], BEFORE_ALL),
        ([SourcePosition(15, 3)], BEFORE_ALL),
        ([SourcePosition(10, 1)], BEFORE_ALL),
        ([SourcePosition(0, -1)], BEFORE_ALL),
        # It is not: records after the position are read anyway.
        ([SourcePosition(15, 4)], 15),
        ([SourcePosition(12, 1)], 12),
        ([SourcePosition(18, 3)], 18),
        ([SourcePosition(9, 7)], 9),
        ([SourcePosition(9, -1)], 9),
        # The least informed position decides.
        ([SourcePosition(20, 5), SourcePosition(12, 1)], 12),
        # A position in another topic of the same name proves nothing.
        ([SourcePosition(20, 5, "another")], AFTER_ALL),
        ([SourcePosition(0, -1, "another")], AFTER_ALL),
    ],
)
def test_limit_below_which_rows_may_be_removed(places: list[SourcePosition], lowest: int) -> None:
    assert removable_from(VIEW, places, ColumnSpan("t", 0, 5, 15, 19, 5)) == lowest


@pytest.mark.parametrize("places", [None, ()])
@pytest.mark.parametrize(
    ("epoch", "last", "lowest"), [(5, 19, BEFORE_ALL), (3, 15, AFTER_ALL), (6, 19, AFTER_ALL), (-1, 3, AFTER_ALL)]
)
def test_without_a_checkpoint_the_newest_row_sets_the_limit(
    places: list[SourcePosition] | None, epoch: int, last: int, lowest: int
) -> None:
    assert removable_from(VIEW, places, ColumnSpan("t", 0, epoch, 0, last, 1)) == lowest
    assert removable_from(VIEW, places, None) == AFTER_ALL


def test_positions_of_all_sources_are_used() -> None:
    one = offset_of({T0: (5, 2), T1: (7, -1)}, {"t": "id"})
    other = offset_of({T0: (3, 1)}, {})
    assert parse_positions(entry(one)) == {T0: (SourcePosition(5, 2, "id"),), T1: (SourcePosition(7, -1, "id"),)}
    assert parse_positions(entry(one, other, "-")) == {
        T0: (SourcePosition(5, 2, "id"), SourcePosition(3, 1)),
        T1: (SourcePosition(7, -1, "id"),),
    }
    # Offsets of Spark's Kafka source have no epochs.
    assert parse_positions(entry({"t": {"0": 4}})) == {T0: (SourcePosition(4, -1),)}


@pytest.mark.parametrize(
    "text",
    [
        entry({"logOffset": 3}),
        entry("17"),
        entry(offset_of({T0: (5, 2)}, {}), "17"),
        entry({"unresolved": True, "version": 1}),
        entry(offset_of({T0: (5, 2)}, {}), version="v2"),
        entry("not json"),
        entry(),
        "v1",
        "",
    ],
)
def test_other_sources_and_formats_are_ignored(text: str) -> None:
    assert parse_positions(text) is None


def test_only_the_checkpoint_of_the_query_itself_is_used(tmp_path: Path) -> None:
    options, folder = options_in(tmp_path), tmp_path / "checkpoint"
    assert positions_after(options, "q", 3) is None
    write_entry(folder, "q", 3, entry(offset_of({T0: (5, 2)}, {})))
    assert positions_after(options, "q", 3) == {T0: (SourcePosition(5, 2),)}
    assert positions_after(options, "q", 4) is None
    assert positions_after(options, "another", 3) is None
    assert positions_after(replace(options, checkpoint=None), "q", 3) is None
    assert positions_after(replace(options, checkpoint="hdfs://nobody/here"), "q", 3) is None


def place(folder: Path, batch: int, cluster: FakeCluster, positions: dict[TopicPartition, tuple[int, int]]) -> None:
    write_entry(folder / "checkpoint", "q", batch, entry(offset_of(positions, cluster.ids)))


@pytest.mark.parametrize("by_partition", [True, False])
@pytest.mark.parametrize("epoch", [0, -1])
def test_rows_of_an_idle_partition_are_removed_after_the_source_rewinds(
    cluster: FakeCluster, tmp_path: Path, epoch: int, by_partition: bool
) -> None:
    """`epoch`: -1 as the first release of the source wrote it after a rewind."""
    options, log, other = options_in(tmp_path, by_partition=by_partition), cluster.log("t"), cluster.log("t", 1)
    log.append(10)
    other.append(4)
    write(options, 0, records(cluster, 0, 10) + records(cluster, 0, 4, 1))
    log.elect(1, keep=7)
    # The other partition has new records; the source has not detected the truncation yet.
    other.append(1)
    place(tmp_path, 1, cluster, {T0: (10, 0), T1: (5, 0)})
    write(options, 1, records(cluster, 4, 5, 1))
    assert len(table_rows(options)) == 15
    # A batch that has only the new position.
    place(tmp_path, 2, cluster, {T0: (7, epoch), T1: (5, 0)})
    write(options, 2, [])
    assert table_rows(options) == log_rows(cluster)
    table = open_table(options)
    assert table is not None
    state = read_state(table)
    assert state is not None
    assert state.partitions[T0].end_offset == 7
    assert state.partitions[T0].leader_epoch == (1 if epoch == 0 else -1)


def test_a_recreated_topic_is_not_the_log_of_the_rows(cluster: FakeCluster, tmp_path: Path) -> None:
    options = options_in(tmp_path)
    cluster.create("u", 1)
    cluster.log("t").append(10)
    cluster.log("u").append(3)
    write(options, 0, records(cluster, 0, 10) + records(cluster, 0, 3, topic="u"))
    cluster.delete("t")
    cluster.create("t", 2, id="another")
    cluster.log("t").elect(3)
    cluster.log("u").elect(1, keep=1)
    place(tmp_path, 1, cluster, {T0: (0, -1), TopicPartition("u", 0): (1, 0)})
    write(options, 1, [])
    assert len(table_rows(options)) == 11


def test_all_rows_of_a_recreated_topic_are_removed_with_its_first_records(cluster: FakeCluster, tmp_path: Path) -> None:
    options = replace(options_in(tmp_path), on_recreated="replace")
    cluster.log("t").append(10)
    cluster.log("t", 1).append(10)
    write(options, 0, records(cluster, 0, 10) + records(cluster, 0, 10, 1))
    cluster.delete("t")
    cluster.create("t", 2, id="another")
    cluster.log("t").append(3)
    write(options, 1, records(cluster, 0, 3))
    assert table_rows(options) == log_rows(cluster)


# A source that follows the rules -------------------------------------------------------------------------------------


class Source:
    """A reader of one partition: the records it counts as read, as epochs by offset, and the start of its last
    batch."""

    def __init__(self, log: FakeLog) -> None:
        self.log = log
        self.read: list[int] = []
        self.before: list[int] = []
        self.planned: list[int] = []
        self.start = 0
        self.must_go_back = False
        """The last batch did not reach its planned position, the only one in the checkpoint."""

    @property
    def place(self) -> tuple[int, int]:
        return len(self.read), self.read[-1] if self.read else -1

    def plan(self, chance: random.Random, *, everything: bool) -> bool:
        """Whether there is a batch to run; nothing below a valid position is checked (log matching)."""
        now = self.log.epochs
        holds = not self.read or (len(self.read) <= len(now) and now[len(self.read) - 1] == self.read[-1])
        start = len(self.read) if holds else common(self.read, now)
        end = len(now) if everything else chance.randint(start, len(now))
        must_run, self.must_go_back = self.must_go_back, False
        if holds and end == start and not must_run:
            self.before, self.planned, self.start = self.read, self.read, len(self.read)
            return False
        self.before, self.planned, self.start = self.read, now[:end], start
        self.read = self.planned
        return True

    def again(self) -> tuple[int, int]:
        """The records that a replay reads: the same ones, as far as the log still has them."""
        now = self.log.epochs
        start, end = min(self.start, common(self.before, now)), common(self.planned, now)
        # If less is left than was planned, the next batch begins there, and always runs.
        self.must_go_back = end < len(self.planned)
        self.read = self.planned[:end]
        return start, end


def common(ours: list[int], theirs: list[int]) -> int:
    pairs = zip(ours, theirs, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))


class Replicas:
    """Any earlier state of a log may return, completely or partly, under a new epoch."""

    def __init__(self, log: FakeLog) -> None:
        self.log = log
        self.ever: list[list[int]] = []

    def elect(self, chance: random.Random) -> None:
        self.ever.append(list(self.log.epochs))
        found = chance.choice([*self.ever[-4:], self.log.epochs])
        self.log.epochs = list(found[: len(found) if chance.random() < 0.6 else chance.randint(0, len(found))])
        self.log.elect(self.log.leader_epoch + chance.randint(1, 2))


@pytest.mark.parametrize("seed", range(50))
def test_the_table_holds_restored_rows_and_no_others(cluster: FakeCluster, tmp_path: Path, seed: int) -> None:
    """Elections at every moment, crashes at any step and replays. After each commit the table has all records that
    the source counts as read; once the log is idle and the source has detected the change, it has no others, without
    a new record.
    """
    chance = random.Random(seed)
    options = options_in(tmp_path, by_partition=bool(seed % 2))
    sources = [Source(cluster.log("t", index)) for index in (0, 1)]
    replicas = [Replicas(cluster.log("t", index)) for index in (0, 1)]
    batch = 0

    def maybe_elect(probability: float) -> None:
        for one in replicas:
            if chance.random() < probability:
                one.elect(chance)
            if chance.random() < probability:
                one.log.append(chance.randint(0, 4))

    def attempt(ranges: list[tuple[int, int]], *, restless: bool) -> None:
        rows: list[Row] = [
            row for index, (first, end) in enumerate(ranges) for row in records(cluster, first, end, index)
        ]
        maybe_elect(0.25 * restless)
        files, evidence = task(options, rows)
        maybe_elect(0.25 * restless)
        commit(options, batch, files, evidence)

    def run(*, restless: bool) -> bool:
        nonlocal batch
        planned = [source.plan(chance, everything=not restless) for source in sources]
        if not any(planned):
            return False
        place(tmp_path, batch, cluster, {T0: sources[0].place, T1: sources[1].place})
        ranges = [(source.start, len(source.read)) for source in sources]
        while restless and chance.random() < 0.7:
            with pytest.MonkeyPatch.context() as patch:
                STEPS[chance.choice(list(STEPS))](patch)
                try:
                    attempt(ranges, restless=restless)
                except Crash:
                    maybe_elect(0.4)
                    ranges = [source.again() for source in sources]
        attempt(ranges, restless=restless)
        batch += 1
        held = {("t", index, o, e) for index, source in enumerate(sources) for o, e in enumerate(source.read)}
        assert held <= set(table_rows(options)), f"seed {seed}, batch {batch - 1}: rows are lost"
        return True

    for _ in range(10):
        maybe_elect(0.5)
        run(restless=True)
    for one in replicas:
        one.elect(chance)
    while run(restless=False):
        pass
    assert table_rows(options) == log_rows(cluster), f"seed {seed}"
    check_readers(options.path)
