"""kill -9 at every step of a batch during real truncations: unclean elections in a cluster of three brokers, under a
query that rewinds and removes lost records from its table. In the end the table must equal the log.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from fenceline.client.reader.reader import RangeReader
from pyspark_fenceline.auditing.table import audit_here, settings
from tests.conftest import need_java
from tests.scheduling import CLUSTERS
from tests.spark.kill_plans import ALONE
from tests.spark.killed_steps import MORE, plans
from tests.spark.killed_while_cut import ENOUGH, WIDER
from tests.spark.own_process import OwnProcess, driver
from tests.support.unclean_story import FIRST, KEPT, LOST, SECOND, UncleanStory, cluster_of

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.together(CLUSTERS), pytest.mark.timeout(3600)]
MAKING = [f"driver {plan}" for plan in plans("driver") if plan.endswith(" table")]
STEPS = [f"{side} {plan}" for side in ("executor", "driver") for plan in plans(side) if not plan.endswith(" table")]
WHOLE = "driver before entry"
"""The step at which the whole driver dies, with its JVM; at the others only one of its processes."""


@pytest.fixture
def story(tmp_path: Path) -> Iterator[UncleanStory]:
    with cluster_of("fenceline", tmp_path / "cluster") as running:
        running.wait_ready()
        running.wait_complete()
        yield UncleanStory(running)


class Victim:
    """The query's driver, restarted whenever a plan has killed all of it."""

    def __init__(self, begin: Callable[[], OwnProcess], folder: Path) -> None:
        self._begin, self._folder = begin, folder
        self._running = begin()

    def plan(self, steps: Iterable[str], whole: Iterable[str] = ()) -> None:
        for step in steps:
            draft = self._folder / "draft"
            draft.write_text("" if step in whole or step.startswith("executor") else ALONE)
            draft.rename(self._folder / step)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        while not self._running.meets(condition, what):
            assert self._running.wait() == -signal.SIGKILL, self._running.log_tail
            self._running = self._begin()

    def until_claimed(self) -> None:
        def left() -> list[str]:
            return [step for step in (*MAKING, *STEPS) if (self._folder / step).exists()]

        self.until(lambda: not left(), "death at every step that was planned")

    def end(self) -> None:
        (self._folder / ENOUGH).touch()
        self._running.await_success()


def rows_of(table: str) -> list[tuple[int, int, bytes]]:
    """Offset, epoch and value."""
    if not DeltaTable.is_deltatable(table):
        return []
    return _sorted(DeltaTable(table).to_pyarrow_table(columns=["offset", "leader_epoch", "value"]))


def _sorted(rows: pa.Table) -> list[tuple[int, int, bytes]]:
    found = rows.select(["offset", "leader_epoch", "value"]).to_pylist()
    return sorted((row["offset"], row["leader_epoch"], row["value"]) for row in found)


@pytest.mark.parametrize("more_cuts", [1, pytest.param(12, marks=pytest.mark.soak)])
def test_a_process_killed_during_a_truncation_leaves_the_table_equal_to_the_log(
    story: UncleanStory, tmp_path: Path, checkpoint: str, more_cuts: int
) -> None:
    need_java()
    folder, scratch, table = tmp_path / "plans", tmp_path / "scratch", str(tmp_path / "table")
    folder.mkdir()
    chance = random.Random(more_cuts)
    kept, lost = story.part()
    with ExitStack() as stack:

        def begin() -> OwnProcess:
            given = (story.bootstrap, story.tp.topic, table, checkpoint, folder)
            return stack.enter_context(driver("killed_while_cut", scratch, *given))

        for step in MAKING:
            (folder / step).write_text(ALONE)
        victim = Victim(begin, folder)
        victim.until_claimed()
        victim.until(lambda: len(rows_of(table)) == KEPT + LOST, "all rows of the first history")
        assert [value for _, _, value in rows_of(table)] == [*kept, *lost]

        # Every step once, in the batches that rewind: the first of them removes a part of the table's only file.
        (folder / WIDER).touch()
        victim.plan(STEPS, whole=[WHOLE])
        story.lead_uncleanly(SECOND, instead_of=FIRST)
        new = story.write(2 * LOST, "new")
        victim.until_claimed()

        # The other history returns; complete files of the table are stale, so nothing is rewritten.
        leader, other = FIRST, SECOND
        for number in range(more_cuts):
            steps = chance.sample([step for step in STEPS if not step.endswith(" copy")], 3)
            victim.plan(steps, whole=steps[:1])
            story.lead_uncleanly(leader, instead_of=other)
            story.write(10, f"newest{number}-")
            victim.until_claimed()
            leader, other = other, leader
        victim.end()

    with RangeReader({"bootstrap.servers": story.bootstrap}) as reader:
        whole = KEPT + (LOST + 10 * ((more_cuts + 1) // 2) if more_cuts % 2 else 2 * LOST + 10 * (more_cuts // 2))
        log = _sorted(pa.Table.from_batches(list(reader.read({story.tp: (0, whole)}))))
    assert len(log) == whole
    # No row of the other history is left, and no row is duplicated.
    assert rows_of(table) == log
    values = [value for _, _, value in log]
    assert values[: KEPT + LOST] == [*kept, *(lost if more_cuts % 2 else new[:LOST])]
    assert audit_here(table, settings(story.bootstrap, story.tp.topic)).verdict.is_equal
    assert MORE in {field.name for field in DeltaTable(table).schema().fields}
