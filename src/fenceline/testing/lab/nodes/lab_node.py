"""The node of a laboratory: a production node whose surroundings fail on request.

Owns the composition of the faulty parts, and the execution of the laboratory's orders. Runs in a process of its own,
which the fork server (`fork_server`) or a new interpreter has started.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from fenceline.config.node import NodeConfig
from fenceline.errors import OperatorError
from fenceline.metadata.changes import Delta
from fenceline.metadata.image import LeaderRecoveryState, MetadataImage
from fenceline.node.broker import Broker
from fenceline.node.controller_node import ControllerNode
from fenceline.node.logs import configure
from fenceline.node.net.server import Server
from fenceline.node.run import RunnableNode, run_node
from fenceline.testing.lab.fault_state import LinkFault, NodeFaults
from fenceline.testing.lab.nodes.channel import ControlChannel
from fenceline.testing.lab.nodes.faulty_clock import SteppedClock
from fenceline.testing.lab.nodes.faulty_disk import FaultyDisk
from fenceline.testing.lab.nodes.faulty_loop import FaultyLoop, links_of
from fenceline.testing.lab.nodes.request_faults import FaultyServer, RequestFaults

_MOST_REPORTED: Final = 1000
"""Partitions of one change."""


class LabBroker(Broker):
    """A broker that reports elections, and whose requests can fail."""

    server_type = FaultyServer

    def __init__(self, config: NodeConfig, *, clock: SteppedClock, disk: FaultyDisk, channel: ControlChannel) -> None:
        super().__init__(config, clock=clock, disk=disk)
        self._channel = channel
        self.request_faults: RequestFaults | None = None
        self.wanted = NodeFaults()

    def _make_server(self) -> Server:
        server = super()._make_server()
        assert isinstance(server, FaultyServer), "server_type"
        loop = asyncio.get_running_loop()
        self.request_faults = server.faults = RequestFaults(links_of(loop), self._channel, self._topic_name, loop)
        self.request_faults.set(self.wanted.requests)
        return server

    def _topic_name(self, topic_id: UUID) -> str | None:
        topic = self.image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def _on_image(self, image: MetadataImage, delta: Delta) -> None:
        super()._on_image(image, delta)
        _report_changes(delta, self._channel)


def _report_changes(delta: Delta, channel: ControlChannel) -> None:
    """An event for each topic that is made or deleted, and for each partition whose leader or ISR changes."""
    for topic in delta.created_topics:
        channel.event("topic created", topic=topic.name, id=str(topic.id), partitions=len(topic.partitions))
    for topic in delta.deleted_topics:
        channel.event("topic deleted", topic=topic.name, id=str(topic.id))
    for change in delta.changed_partitions[:_MOST_REPORTED]:
        before, after = change.before, change.after
        if before is None:
            continue
        if (before.leader, before.leader_epoch) != (after.leader, after.leader_epoch) and after.leader >= 0:
            channel.event(
                "leader elected",
                topic=change.topic,
                partition=change.index,
                leader=after.leader,
                epoch=after.leader_epoch,
                was=before.leader,
                unclean=after.leader_recovery_state is LeaderRecoveryState.RECOVERING,
            )
        elif after.leader < 0 <= before.leader:
            channel.event("no leader", topic=change.topic, partition=change.index, epoch=after.leader_epoch)
        elif set(before.isr) != set(after.isr):
            channel.event("ISR changed", topic=change.topic, partition=change.index, isr=list(after.isr))


class _LabNode:
    """The parts of one process."""

    def __init__(self, control: socket.socket) -> None:
        self.channel = ControlChannel(control)
        self.clock = SteppedClock()
        self.disk = FaultyDisk(self._tore)
        self.broker: LabBroker | None = None
        self.faults = NodeFaults.from_json(json.dumps(self.channel.first()["set"]))

    def make(self, config: NodeConfig) -> RunnableNode:
        """The node; its loop runs."""
        loop = asyncio.get_running_loop()
        self._set(self.faults)
        self.channel.start(loop, self._execute)
        if not config.is_broker:
            return ControllerNode(config, clock=self.clock, disk=self.disk)
        self.broker = LabBroker(config, clock=self.clock, disk=self.disk, channel=self.channel)
        self.broker.wanted = self.faults
        return self.broker

    def _set(self, faults: NodeFaults) -> None:
        self.faults = faults
        self.clock.ahead_ms = faults.clock_ahead_ms
        self.disk.set(faults.disk)
        links = links_of(asyncio.get_running_loop())
        links.peers = dict(faults.peers)
        links.controller_ports = frozenset(faults.controller_ports)
        links.set(faults.links)
        if self.broker is not None:
            self.broker.wanted = faults
            if self.broker.request_faults is not None:
                self.broker.request_faults.set(faults.requests)

    def _execute(self, order: dict[str, Any]) -> dict[str, Any]:
        if "set" in order:
            self._set(NodeFaults.from_json(json.dumps(order["set"])))
            return {}
        links = links_of(asyncio.get_running_loop())
        match order["do"]:
            case "reset":
                return {"count": links.reset(LinkFault(**order["link"]))}
            case "forget":
                return {"count": links.forget(LinkFault(**order["link"]))}
            case "end half open":
                links.end_half_open()
                return {}
            case "clients":
                return {"clients": links.clients()}
            case "partition":
                return {"state": self._partition(str(order["topic"]), int(order["partition"]))}
        raise ValueError(f"unknown order {order!r}")

    def _partition(self, topic: str, partition: int) -> dict[str, Any] | None:
        """What this broker knows of a partition; None if it does not know it."""
        if self.broker is None:
            return None
        image = self.broker.image
        found = image.partition(topic, partition)
        if found is None:
            return None
        return {
            "known_at": image.offset,
            "leader": found.leader,
            "leader_epoch": found.leader_epoch,
            "replicas": found.replicas,
            "isr": found.isr,
        }

    def _tore(self, path: str, size_bytes: int) -> None:
        self.channel.event("torn write", path=path, written_bytes=size_bytes)
        self.channel.flush_now()


def main(arguments: Sequence[str]) -> int:
    """Run the node; returns the exit code of the process."""
    options = argparse.ArgumentParser()
    options.add_argument("--config", type=Path, required=True)
    options.add_argument("--log-level", required=True)
    options.add_argument("--control", type=int, required=True, help="descriptor of the control channel")
    given = options.parse_args(arguments)
    configure(level=given.log_level)
    node = _LabNode(socket.socket(fileno=given.control))
    try:
        return run_node(given.config, {}, make=node.make, make_loop=FaultyLoop)
    except OperatorError as error:
        print(f"fenceline: {error.message}", file=sys.stderr)
        if error.advice:
            print(f"  {error.advice}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
