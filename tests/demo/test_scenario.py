"""The scenario on three brokers, without Spark: an isolated leader's records are lost, reported and sent again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from fenceline.demo.cluster import DemoCluster
from fenceline.demo.feed import Feed
from fenceline.demo.leader_history import LeaderHistory
from fenceline.demo.logs import read_logs
from fenceline.demo.scenario import BusyPartition, DemoScenario
from fenceline.demo.timeline import Timeline
from fenceline.demo.watcher import Watcher, lost_ranges
from fenceline.local_cluster.cluster import LocalCluster
from fenceline.local_cluster.socket_cuts import CutsUnavailable
from fenceline.testing.waiting import eventually

BUSY = 1
KEPT, LOST, NEXT = 300, 200, 250


def month(count: int, name: str) -> pa.Table:
    """`count` records for the busy partition, and ten for another."""
    values = [f"{name}-{number}" for number in range(count + 10)]
    return pa.table(
        {
            "key": pa.array([b"k"] * len(values), pa.binary()),
            "value": pa.array(values, pa.string()).cast(pa.binary()),
            "partition": pa.array([BUSY] * count + [0] * 10, pa.int32()),
        }
    )


@pytest.mark.parametrize("can_isolate", [True, False])
@pytest.mark.long
def test_records_of_an_isolated_leader_are_lost_and_sent_again(
    can_isolate: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise CutsUnavailable("not on this system")

    if not can_isolate:
        monkeypatch.setattr(LocalCluster, "isolate", refuse)
    timeline, leaders = Timeline(), LeaderHistory()
    with DemoCluster(tmp_path / "cluster", "flights", 2, BUSY) as cluster:
        cluster.create_topics()
        watcher = Watcher(cluster.bootstrap, "flights", range(2), timeline)
        months = iter([month(KEPT, "kept"), month(LOST, "lost"), month(NEXT, "next"), month(5, "last")])
        feed = Feed(cluster.bootstrap, "flights", months, BUSY)

        def readers_caught_up(ends: Mapping[int, int]) -> bool:
            leaders.record(timeline.now_s(), cluster.leaders())
            return watcher.has_read(ends)

        stage = BusyPartition(cluster, feed, readers_caught_up)
        scenario = DemoScenario(stage, feed, timeline, before=1, pause_s=0.0)
        for worker in (watcher, scenario):
            worker.start()
        try:
            eventually(
                lambda: scenario.is_finished or scenario.error or watcher.error, "the scenario is finished", wait_s=240
            )
            assert (scenario.error, watcher.error) == (None, None)
            eventually(lambda: watcher.has_read(cluster.ends()), "the consumer has read everything")
        finally:
            watcher.stop()
            scenario.stop()
        logs = read_logs(cluster.bootstrap, "flights", range(2))
        leaders.record(timeline.now_s(), cluster.leaders())
    assert scenario.loss is not None
    assert (stage.acknowledged, scenario.loss.records, scenario.resent) == (LOST, LOST, LOST)
    assert feed.produced == KEPT + 2 * LOST + NEXT + 5 + 4 * 10
    assert logs[BUSY].end_offset == KEPT + LOST + NEXT + 5
    assert logs[BUSY].epoch_at(KEPT) == scenario.loss.successor.epoch > scenario.loss.leader.epoch
    (lost,) = lost_ranges(stage.receipts, watcher.truncations)
    assert (lost.start_offset, lost.end_offset, lost.records) == (KEPT, KEPT + LOST, LOST)
    assert (lost.epoch, lost.replica) == (scenario.loss.leader.epoch, scenario.loss.leader.node)
    assert lost.loss_class in (["committed"] if can_isolate else ["committed", "maybe_acknowledged"])
    assert lost.reported_s is not None
    assert scenario.loss.isolated_s < lost.reported_s
    assert lost.receipt in lost.consumer_message
    periods = [period for period in leaders.periods(logs) if period.partition == BUSY]
    assert [period.leader for period in periods] == [scenario.loss.leader.node, scenario.loss.successor.node]
    words = " ".join(event.text for event in timeline.events)
    assert ("is isolated from the other brokers" in words) is can_isolate
    assert ("this system cannot" in words) is not can_isolate
