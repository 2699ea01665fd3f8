"""The play on three brokers: what the lonely leader took is lost, told of, and comes back; without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from fenceline.demo.cluster import Cluster
from fenceline.demo.feed import Feed
from fenceline.demo.leaders import Leaders
from fenceline.demo.logs import look
from fenceline.demo.narration import Narration
from fenceline.demo.play import BusyPartition, Play
from fenceline.demo.watcher import Watcher, lost_as_told
from fenceline.testing.local_cluster import LocalCluster
from fenceline.testing.socket_cuts import CutsUnavailable
from fenceline.testing.waiting import eventually

BUSY = 1
KEPT, LOST, NEXT = 300, 200, 250


def month(count: int, name: str) -> pa.Table:
    """As many records for the busy partition, and some for another."""
    values = [f"{name}-{number}" for number in range(count + 10)]
    return pa.table(
        {
            "key": pa.array([b"k"] * len(values), pa.binary()),
            "value": pa.array(values, pa.string()).cast(pa.binary()),
            "partition": pa.array([BUSY] * count + [0] * 10, pa.int32()),
        }
    )


@pytest.mark.parametrize("can_cut", [True, False])
def test_what_one_leader_took_alone_is_lost_and_comes_back(
    can_cut: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise CutsUnavailable("not on this system")

    if not can_cut:
        monkeypatch.setattr(LocalCluster, "isolate", refuse)
    narration, leaders = Narration(), Leaders()
    with Cluster(tmp_path / "cluster", "flights", 2, BUSY) as cluster:
        cluster.create_topic()
        watcher = Watcher(cluster.bootstrap, "flights", range(2), narration)
        months = iter([month(KEPT, "kept"), month(LOST, "lost"), month(NEXT, "next"), month(5, "last")])
        feed = Feed(cluster.bootstrap, "flights", months, BUSY)

        def have_read(ends: Mapping[int, int]) -> bool:
            leaders.seen(narration.now_s(), cluster.leaders())
            return watcher.has_read(ends)

        stage = BusyPartition(cluster, feed, have_read)
        play = Play(stage, feed, narration, before=1, pause_s=0.0)
        for worker in (watcher, play):
            worker.start()
        try:
            eventually(lambda: play.is_over or play.error or watcher.error, "the play is over", wait_s=240)
            assert (play.error, watcher.error) == (None, None)
            eventually(lambda: watcher.has_read(cluster.ends()), "the consumer has read everything")
        finally:
            watcher.stop()
            play.stop()
        logs = look(cluster.bootstrap, "flights", range(2))
        leaders.seen(narration.now_s(), cluster.leaders())
    assert play.loss is not None
    assert (stage.taken, play.loss.records, play.sent_again) == (LOST, LOST, LOST)
    assert feed.produced == KEPT + 2 * LOST + NEXT + 5 + 4 * 10
    assert logs[BUSY].end_offset == KEPT + LOST + NEXT + 5
    assert logs[BUSY].epoch_at(KEPT) == play.loss.successor.epoch > play.loss.leader.epoch
    (lost,) = lost_as_told(stage.receipts, watcher.told)
    assert (lost.start_offset, lost.end_offset, lost.records) == (KEPT, KEPT + LOST, LOST)
    assert (lost.epoch, lost.replica) == (play.loss.leader.epoch, play.loss.leader.node)
    assert lost.loss_class in (["committed"] if can_cut else ["committed", "maybe_acknowledged"])
    assert lost.told_s is not None
    assert play.loss.cut_off_s < lost.told_s
    assert lost.receipt in lost.consumer_words
    reigns = [reign for reign in leaders.reigns(logs) if reign.partition == BUSY]
    assert [reign.leader for reign in reigns] == [play.loss.leader.node, play.loss.successor.node]
    words = " ".join(moment.text for moment in narration.moments)
    assert ("is cut off from the other brokers" in words) is can_cut
    assert ("can not be cut off on this system" in words) is not can_cut
