"""The story of a mixed voter set: a voter starts late, then the leader is killed, again and again.

Owns the order of events and the observations; the tests assert the results.
"""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fenceline.client.admin.admin import Admin
from fenceline.node.metadata.metadata_log import DIRECTORY_NAME
from fenceline.quorum.log_view import SnapshotId
from fenceline.testing.mixed_cluster import MixedCluster, MixedNode
from fenceline.testing.waiting import eventually
from tests.support.kafka_start import quick_environment
from tests.support.same_metadata import snapshot_path, snapshots
from tests.support.topic_load import TopicLoad

KILLS = 20
BROKER_ID = 4
SETTINGS = {
    "controller.quorum.fetch.timeout.ms": "1000",
    "metadata.log.max.record.bytes.between.snapshots": "4000",
    "controller.quorum.fetch.snapshot.max.bytes": "1000",
}
"""Half of Kafka's fetch timeout. Snapshots are frequent, and are fetched in several chunks."""
_LOOK_S = 0.2
"""Between two checks of the voters' log ends."""


@dataclass(slots=True)
class StoryResult:
    """The result, after all nodes have stopped."""

    kinds: dict[int, str]
    directories: dict[int, Path]
    late: int
    late_snapshot: SnapshotId
    """The first one of the late voter."""
    late_log_began: int
    high_watermark: int = 0
    """The leader's at the end of the story; every voter has all records before it."""
    created: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    shown: set[str] = field(default_factory=set)
    """The topics on the broker at the end."""
    killed: Counter[int] = field(default_factory=Counter)
    handed: set[tuple[str, str]] = field(default_factory=set)
    """The implementations of each killed leader and its successor."""
    overtaken: list[tuple[int, int, int]] = field(default_factory=list)
    """The killed leader, the node that lacked committed records then, and the new leader."""
    epochs: list[int] = field(default_factory=list)


def run_mixed_story(root: Path, kinds: list[str], late: int) -> StoryResult:
    """Three controllers of `kinds` and a broker, from the first start to the last stop."""
    scratch = root / "scratch"
    scratch.mkdir()
    cluster = MixedCluster(
        root, [*kinds, "broker"], late=[late], settings=SETTINGS, environment=quick_environment(scratch)
    )
    with cluster:
        cluster.wait_ready()
        with TopicLoad(cluster.node(BROKER_ID).bootstrap) as load:
            result = _start_late_voter(cluster, late)
            for turn in range(KILLS):
                overtake = turn % 3 == 2 or (turn > KILLS // 2 and not result.overtaken)
                _kill_leader(cluster, result, load, overtake=overtake)
        described = leader_after(cluster, 0)[1]
        eventually(lambda: _ends(cluster, described.high_watermark) == 3, "all voters have everything", step_s=_LOOK_S)
        result.high_watermark = described.high_watermark
        result.created, result.deleted = load.created, load.deleted

        def shown() -> bool:
            with Admin(cluster.node(BROKER_ID).bootstrap) as admin:
                result.shown = set(admin.metadata().topics)
            return result.created <= result.shown and not result.deleted & result.shown

        eventually(shown, "the broker shows what was acknowledged")
        for node in reversed(cluster.nodes):
            node.stop()
    return result


def leader_after(cluster: MixedCluster, epoch: int, *, but: int = -1) -> tuple[MixedNode, Any]:
    """The leader of an epoch later than `epoch` that reports so itself, with its description of the quorum; waits for
    it.
    """

    def look() -> tuple[MixedNode, Any] | None:
        for node in cluster.nodes:
            if node.is_controller and node.is_running and node.node_id != but:
                try:
                    described = node.describe_quorum()
                except OSError:
                    continue
                leads = described.error_code == 0 and described.leader_id == node.node_id
                if leads and described.leader_epoch > epoch and described.high_watermark >= 0:
                    return node, described
        return None

    return eventually(look, f"a leader after epoch {epoch}", wait_s=120)


def _ends(cluster: MixedCluster, offset: int) -> int:
    """How many voters have all records before `offset`, according to the leader."""
    described = leader_after(cluster, 0)[1]
    return sum(each.log_end_offset >= offset for each in described.current_voters)


def _start_late_voter(cluster: MixedCluster, late: int) -> StoryResult:
    """The voter that never ran starts when the others have snapshots: it catches up faster by one."""
    node = cluster.node(late)
    leader, _ = leader_after(cluster, 0)
    eventually(lambda: len(snapshots(leader.log_dir)) > 1, "the leader has snapshots")
    node.start()
    node.wait_ready()
    offset = leader_after(cluster, 0)[1].high_watermark
    eventually(lambda: _ends(cluster, offset) == 3, "the late voter has everything", step_s=_LOOK_S)
    return StoryResult(
        {each.node_id: each.kind for each in cluster.nodes},
        {each.node_id: each.log_dir for each in cluster.nodes if each.is_controller},
        late,
        snapshots(node.log_dir)[0],
        min(int(path.stem) for path in (node.log_dir / DIRECTORY_NAME).glob("*.log")),
    )


def _kill_leader(cluster: MixedCluster, result: StoryResult, load: TopicLoad, *, overtake: bool) -> None:
    """If it is to `overtake`, and the other two are of different implementations: the one of the leader's
    implementation is suspended while topics are created, so only the other can be elected without losing any.
    """
    load.await_more(2)
    old, described = leader_after(cluster, 0)
    others = [each for each in cluster.nodes if each.is_controller and each is not old]
    sleeper = next((each for each in others if each.kind == old.kind), None)
    if not overtake or sleeper is None or all(each.kind == old.kind for each in others):
        sleeper = None
    if sleeper is not None:
        sleeper.send_signal(signal.SIGSTOP)
        # One fetch response may be in its socket already.
        load.await_more(4)
    old.kill()
    if sleeper is None:
        old.start()
        new, described = leader_after(cluster, described.leader_epoch)
    else:
        sleeper.send_signal(signal.SIGCONT)
        new, described = leader_after(cluster, described.leader_epoch)
        result.overtaken.append((old.node_id, sleeper.node_id, new.node_id))
        old.start()
    result.killed[old.node_id] += 1
    result.handed.add((old.kind, new.kind))
    result.epochs.append(described.leader_epoch)
    offset = described.high_watermark
    eventually(lambda: _ends(cluster, offset) == 3, "the killed one has caught up", wait_s=120, step_s=_LOOK_S)


def has_same_file(result: StoryResult) -> bool:
    """Whether the late voter's first snapshot is, byte for byte, that of another voter."""
    mine, *others = (
        snapshot_path(result.directories[node_id], result.late_snapshot)
        for node_id in sorted(result.directories, key=lambda node_id: node_id != result.late)
    )
    return any(path.exists() and path.read_bytes() == mine.read_bytes() for path in others)
