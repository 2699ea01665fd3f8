"""`fenceline start --nodes N`: the nodes of this host, from one configuration.

Owns which directories are formatted at the first start, the command of each node, and what is printed. A directory that
was formatted and is missing now is never formatted again: a controller that came back empty could vote twice.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fenceline.config.host import nodes_of_host
from fenceline.config.node import NodeConfig
from fenceline.errors import OperatorError
from fenceline.local_cluster.host import HostNodes, NodeCommand, address_of
from fenceline.log.core.disk import OsDisk
from fenceline.log.core.meta_properties import META_FILE, read_meta
from fenceline.node.metadata.format import format_directory, format_if_new, initial_quorum
from fenceline.node.service_manager import READY, STOPPING, notify

if TYPE_CHECKING:
    import argparse


def run_host(options: argparse.Namespace, overrides: Mapping[str, str]) -> int:
    """Run the nodes until a signal; returns the exit code. Raises OperatorError."""
    base = NodeConfig.load(options.config, overrides, os.environ)
    nodes = nodes_of_host(base, options.nodes, socket.gethostname())
    configs = [NodeConfig.load(options.config, {**overrides, **node.settings}, os.environ) for node in nodes]
    cluster_id = _format(configs, options.cluster_id)
    # A pipe is no terminal to the nodes.
    is_terminal = options.log_format == "auto" and sys.stderr.isatty()
    commands = []
    for config, node in zip(configs, nodes, strict=True):
        arguments = ["--log-format", "console" if is_terminal else options.log_format, "--log-level", options.log_level]
        if options.config is not None:
            arguments += ["--config", str(options.config)]
        for name, value in {**overrides, **node.settings}.items():
            arguments += ["--override", f"{name}={value}"]
        commands.append(NodeCommand(node.node_id, arguments, stops_last=config.is_controller))

    def all_ready(lines: Mapping[int, str]) -> None:
        ids = sorted(lines)
        which = f"nodes {ids[0]} to {ids[-1]}" if ids[1:] else f"node {ids[0]}"
        addresses = ",".join(address_of(lines[each]) for each in ids)
        print(f"Fenceline is ready: {which}, cluster {cluster_id}, listening on {addresses}", flush=True)
        notify(READY)

    host = HostNodes(
        commands,
        all_ready=all_ready,
        report=lambda sentence: print(f"fenceline: {sentence}", file=sys.stderr, flush=True),
        lines=sys.stderr.buffer,
        # They are ready together, so only we tell the service manager.
        environment={name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"},
    )
    try:
        return host.run()
    finally:
        notify(STOPPING)


def _format(configs: list[NodeConfig], cluster_id: str | None) -> str:
    """Format the directories of new nodes; returns the cluster's id. Raises OperatorError."""
    known = {config.node_id: found for config in configs if (found := _cluster_id(config)) is not None}
    if cluster_id is not None and set(known.values()) - {cluster_id}:
        raise OperatorError(
            f"The nodes of this host belong to cluster {next(iter(known.values()))}, not to {cluster_id}",
            "Omit --cluster-id, or set log.dirs to new directories.",
        )
    lost = [each for each in configs if each.node_id not in known and known and each.node_id < max(known)]
    if lost:
        raise OperatorError(
            f"Node {lost[0].node_id} has lost its directory: {lost[0].log_dirs[0]} is not formatted",
            "Restore or mount it. To let it come back empty, format it by hand (`fenceline format`).",
        )
    first = configs[0]
    if not known and cluster_id is None:
        formatted = format_if_new(first)
        assert formatted is not None, "it is not formatted"
        known[first.node_id] = formatted.cluster_id
    cluster_id = cluster_id or known[min(known)]
    for config in configs:
        if config.node_id not in known:
            endpoint, voters = initial_quorum(config, standalone=False, initial_controllers=None, joins=False)
            format_directory(
                config.log_dirs,
                cluster_id=cluster_id,
                node_id=config.node_id,
                metadata_log_dir=config.metadata_log_dir,
                voter_endpoint=endpoint,
                voters=voters,
            )
    return cluster_id


def _cluster_id(config: NodeConfig) -> str | None:
    """Of the node's directories; None if none of them is formatted. Raises OperatorError."""
    for path in (*config.log_dirs, config.metadata_log_dir):
        try:
            if (path / META_FILE).exists():
                return read_meta(OsDisk(), str(path))["cluster.id"]
        except OSError as error:
            raise OperatorError(f"{path / META_FILE} cannot be read: {error.strerror or error}") from error
    return None
