"""A cluster of real processes, Fenceline alone or mixed with Kafka 4.3.1, with every fault of the list.

Owns the nodes and what is done to them from outside: one fault at a time, mended again before the next. Checkpoint
intervals are drawn anew for every start of a node, from a tenth of a second to never. Asserts nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from fenceline.local_cluster.cuts import NetworkCut, NetworkCuts, outbound_address
from fenceline.node.net.peer_connection import open_peer
from fenceline.testing.mixed_cluster import COMBINED, MixedCluster, MixedNode
from fenceline.testing.simulation.operations import Fault
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.support.partition_files import change_unflushed_byte
from tests.support.process_faults import ProcessFaults

KAFKA: Final = f"kafka:{COMBINED}"
WAIT_S: Final = 180
_CALL_S: Final = 10.0
_CHECKPOINTS: Final = (
    "log.flush.offset.checkpoint.interval.ms",
    "replica.high.watermark.checkpoint.interval.ms",
    "log.flush.start.offset.checkpoint.interval.ms",
)
_INTERVALS_MS: Final = (100, 1_000, 5_000, 60_000, 3_600_000)
_CLOCK_STEP_S: Final = 50 * 60.0
_SETTINGS: Final = MappingProxyType(
    {
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "replica.lag.time.max.ms": "3000",
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "3",
        "log.retention.check.interval.ms": "1000",
        "log.cleaner.backoff.ms": "500",
        "metadata.log.max.record.bytes.between.snapshots": "20000",
        "auto.create.topics.enable": "false",
        "controller.quorum.fetch.timeout.ms": "1500",
    }
)

NOT_BY_PROCESSES: Final[Mapping[Fault, str]] = {
    Fault.POWER_LOSS: "what a process wrote stays in the page cache of the machine, which runs on",
    Fault.TORN_WRITE: "the same: a write of a process is torn by a loss of power only",
    Fault.QUICK_RETURN: "the same; a kill with the start right behind it is among the kills",
    Fault.WRONG_BITS: "logs are read through mappings and sendfile, between which and the disk nothing can be loaded",
    Fault.DROPPED_CONNECTIONS: "sockets of others cannot be reset without rights over the machine; a kill resets all",
    Fault.LAG: "the loopback interface delays nothing without rights over the machine; a pause delays everything",
}
"""Why these are left to simulated clusters."""


class ChaosCluster:
    """Three combined nodes, `kinds` of Fenceline or Kafka. Faults need nodes 1 and 2 to be of Fenceline."""

    def __init__(self, root: Path, kinds: tuple[str, ...], rng: random.Random) -> None:
        self._rng = rng
        self.process_faults = ProcessFaults(root / "faults")
        environment = {**os.environ, **self.process_faults.environment}
        self.cluster = MixedCluster(root / "cluster", kinds, settings=_SETTINGS, environment=environment, directories=2)
        for node in self.nodes:
            self._draw(node)
        listeners = {
            ("127.0.0.1", port): node.node_id for node in self.nodes for port in (node.port, node.controller_port)
        }
        self.cuts = NetworkCuts(listeners, self._pids)
        self.story: list[str] = []
        self.said: list[str] = []
        """Lines of Fenceline's nodes that have ended."""
        self._began_s = time.monotonic()
        self.strikes: Mapping[Fault, Callable[[MixedNode, float], None]] = {
            Fault.KILL: self._kill,
            Fault.WRONG_BYTES: self._spoil,
            Fault.STOP: self._stop,
            Fault.PAUSE: self._pause,
            Fault.PARTITION: self._partition,
            Fault.ONE_WAY_PARTITION: self._one_way,
            Fault.SLOW_DISK: self._slow_disk,
            Fault.FULL_DISK: self._full_disk,
            Fault.FAILING_DISK: self._failing_disk,
            Fault.DIRECTORY_LOST: self._lose_directory,
            Fault.CLOCK_JUMP: self._clock,
        }
        """What is done by one node's fault; Fault.STRANDED is a story of its own."""

    @property
    def nodes(self) -> list[MixedNode]:
        return self.cluster.nodes

    @property
    def ours(self) -> list[MixedNode]:
        """Fenceline's."""
        return [node for node in self.nodes if not node.is_kafka]

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes)

    def say(self, text: str) -> None:
        self.story.append(f"{time.monotonic() - self._began_s:.1f} {text}")

    def _draw(self, node: MixedNode) -> None:
        node.settings = {key: str(self._rng.choice(_INTERVALS_MS)) for key in _CHECKPOINTS}
        if not node.is_kafka:
            node.settings["fenceline.outbound.address"] = outbound_address(node.node_id)

    def _pids(self) -> Mapping[int, int]:
        return {node.node_id: node.pid for node in self.ours if node.is_running}

    def call(self, key: ApiKey, versions: tuple[int, int], fields: Mapping[str, Any], *, node: int = 0) -> Any:
        """The answer of a node, or of any that takes a connection. Raises ConnectionError."""
        candidates = [self.cluster.node(node)] if node else self._rng.sample(self.nodes, len(self.nodes))

        async def ask(place: MixedNode) -> Any:
            connection = await open_peer("127.0.0.1", place.port, client_id="chaos")
            try:
                return await connection.call(key, connection.version_for(key, *versions), fields, _CALL_S)
            finally:
                connection.close()

        failure: ConnectionError = ConnectionError("no node runs")
        for place in candidates:
            try:
                return asyncio.run(ask(place))
            except ConnectionError as error:
                failure = error
        raise failure

    # -- faults --------------------------------------------------------------------------------------------------------

    def start(self, node: MixedNode) -> None:
        self.keep_output(node)
        self._draw(node)
        node.start()
        node.wait_ready()

    def keep_output(self, node: MixedNode) -> None:
        """What a life of it said, before the next one writes over it."""
        if not node.is_kafka:
            self.said += [f"{node.node_id}: {line}" for line in node.output.splitlines()]

    def whole(self, node: MixedNode) -> None:
        """Running, with all its partitions: as an operator who restarts what has given up."""
        if not node.is_running:
            self.say(f"node {node.node_id} had ended by itself: {node.output[-300:]!r}")
            node.kill()
            self.start(node)
        elif "partition offline" in node.output or "directory offline" in node.output:
            self.restart(node)

    def restart(self, node: MixedNode) -> None:
        with contextlib.suppress(Exception):
            node.stop(wait_s=60)
        node.kill()
        self.start(node)

    def strike(self, fault: Fault, node: MixedNode, lasts_s: float) -> None:
        """Break a node, and mend it again."""
        self.say(f"{fault} {node.node_id} for {lasts_s:.1f} s")
        self.strikes[fault](node, lasts_s)
        self.whole(node)
        self.say(f"{fault} {node.node_id} over")

    def may_strike(self, fault: Fault, node: MixedNode) -> bool:
        """Kafka's processes take signals only."""
        return not node.is_kafka or fault in (Fault.KILL, Fault.STOP, Fault.PAUSE)

    def _kill(self, node: MixedNode, lasts_s: float) -> None:
        node.kill()
        # Every other one comes back before its session has ended.
        time.sleep(lasts_s if self._rng.random() < 0.5 else 0)
        self.start(node)

    def _spoil(self, node: MixedNode, lasts_s: float) -> None:
        node.kill()
        self.say(f"changes {change_unflushed_byte(node.log_dirs, self._rng)}")
        self.start(node)

    def _stop(self, node: MixedNode, lasts_s: float) -> None:
        node.stop(wait_s=WAIT_S)
        time.sleep(lasts_s)
        self.start(node)

    def _pause(self, node: MixedNode, lasts_s: float) -> None:
        node.send_signal(signal.SIGSTOP)
        time.sleep(lasts_s)
        node.send_signal(signal.SIGCONT)

    def _partition(self, node: MixedNode, lasts_s: float) -> None:
        self._cut(node, NetworkCut(), lasts_s)

    def _one_way(self, node: MixedNode, lasts_s: float) -> None:
        self._cut(node, self._rng.choice((NetworkCut(inbound=False), NetworkCut(outbound=False))), lasts_s)

    def _cut(self, node: MixedNode, cut: NetworkCut, lasts_s: float) -> None:
        self.cuts.isolate(node.node_id, [cut])
        time.sleep(lasts_s)
        self.cuts.heal(node.node_id)

    def _slow_disk(self, node: MixedNode, lasts_s: float) -> None:
        self.process_faults.slow_disk(node.pid, self._rng.uniform(0.001, 0.02))
        time.sleep(lasts_s)
        self.process_faults.slow_disk(node.pid, 0)

    def _full_disk(self, node: MixedNode, lasts_s: float) -> None:
        self.process_faults.fill_disk(pid := node.pid)
        time.sleep(lasts_s)
        self.process_faults.fill_disk(pid, is_full=False)

    def _failing_disk(self, node: MixedNode, lasts_s: float) -> None:
        """Its directories fail, and with the metadata log the node."""
        self.process_faults.fail_disk(pid := node.pid)
        time.sleep(lasts_s)
        self.process_faults.fail_disk(pid, fails=False)
        self.restart(node)

    def _lose_directory(self, node: MixedNode, lasts_s: float) -> None:
        """The one without the metadata log: what is asked of it ends with an error."""
        lost = node.log_dirs[1]
        kept = lost.with_name("lost")
        lost.rename(kept)
        lost.write_bytes(b"no directory any more")
        time.sleep(max(lasts_s, 2.0))
        with contextlib.suppress(Exception):
            node.stop(wait_s=60)
        node.kill()
        lost.unlink()
        kept.rename(lost)
        self.start(node)

    def _clock(self, node: MixedNode, lasts_s: float) -> None:
        self.process_faults.step_clock(node.pid, self._rng.uniform(-_CLOCK_STEP_S, _CLOCK_STEP_S))
        time.sleep(lasts_s)
        self.process_faults.step_clock(node.pid, 0)

    def mend(self) -> None:
        """Everything runs, and every broker knows every other."""
        for node in self.nodes:
            self.cuts.heal(node.node_id)
            self.whole(node)
        eventually(lambda: self.cluster.wait_complete() is None, "the brokers know each other", wait_s=WAIT_S)
