"""The folder of a local cluster: its nodes, their settings, and their files.

Owns the names in the folder and the contents of `cluster.json` and of each `server.properties`. Starts nothing.

    D/cluster.json          cluster id, and for each node its id, roles, controller port and directory id
    D/security/             of a secure cluster (`secured`)
    D/supervisor.pid, D/lock, D/control.sock      used only while the cluster is up
    D/node-1/server.properties, node.log, pid, data/
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from fenceline.config.properties import format_properties
from fenceline.errors import OperatorError
from fenceline.ids import decode_uuid, encode_uuid, random_id
from fenceline.local_cluster import secured
from fenceline.local_cluster.cuts import MAX_NODES, outbound_address
from fenceline.local_cluster.ports import HOST, check_ports, free_ports, is_free
from fenceline.local_cluster.secured import FOLDER, ClusterLogin

CLUSTER_FILE: Final = "cluster.json"
_VERSION: Final = 1
_NEW_CLUSTER_NODES: Final = 3
_OUR_KEYS: Final = frozenset(
    {
        "node.id",
        "broker.id",
        "process.roles",
        "listeners",
        "advertised.listeners",
        "controller.listener.names",
        "controller.quorum.voters",
        "controller.quorum.bootstrap.servers",
        "inter.broker.listener.name",
        "log.dir",
        "log.dirs",
        "metadata.log.dir",
        "fenceline.outbound.address",
    }
)
"""Settings that identify a node; the cluster sets them itself."""
_BROKER: Final = "broker"
_CONTROLLER: Final = "controller"


@dataclass(frozen=True, slots=True)
class NodePlace:
    """One node: its roles, its ports (None if it has no such listener), its folder."""

    node_id: int
    roles: tuple[str, ...]
    port: int | None
    controller_port: int | None
    directory_id: UUID
    root: Path

    @property
    def is_broker(self) -> bool:
        return _BROKER in self.roles

    @property
    def is_controller(self) -> bool:
        return _CONTROLLER in self.roles

    @property
    def address(self) -> str:
        """The address for clients, or for other nodes if it is only a controller."""
        return f"{HOST}:{self.port if self.port is not None else self.controller_port}"

    @property
    def properties_file(self) -> Path:
        return self.root / "server.properties"

    @property
    def log_file(self) -> Path:
        return self.root / "node.log"

    @property
    def pid_file(self) -> Path:
        return self.root / "pid"

    @property
    def data_dir(self) -> Path:
        return self.root / "data"


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """The cluster of one folder."""

    root: Path
    cluster_id: str
    nodes: tuple[NodePlace, ...]
    is_formatted: bool = False
    """Whether all directories existed: one that is missing then is lost, not new."""
    is_secure: bool = False
    """Whether its listeners have TLS and users (`secured`)."""

    @property
    def login(self) -> ClusterLogin | None:
        """How this process asks the nodes; None without security."""
        return ClusterLogin(self.root / FOLDER) if self.is_secure else None

    @property
    def brokers(self) -> tuple[NodePlace, ...]:
        return tuple(node for node in self.nodes if node.is_broker)

    @property
    def bootstrap(self) -> str:
        """The addresses for clients, separated by commas."""
        return ",".join(node.address for node in self.brokers)

    @property
    def listeners(self) -> dict[tuple[str, int], int]:
        """Every address on which a node of the cluster listens."""
        return {
            (HOST, port): node.node_id
            for node in self.nodes
            for port in (node.port, node.controller_port)
            if port is not None
        }


def plan(
    root: Path, *, nodes: int | None, controllers: int | None, port: int, secure: bool | None = None
) -> ClusterLayout:
    """The cluster in the folder, or a new one (of three nodes, unless `nodes` is given); nothing is written.

    `port` 0 selects free ones. Raises OperatorError: a different number of nodes than the cluster has, a folder with
    other content, a port in use."""
    kept = _read(root)
    if kept is None:
        layout = _new(
            root, nodes=_NEW_CLUSTER_NODES if nodes is None else nodes, controllers=controllers or 0, port=port
        )
        layout = replace(layout, is_secure=bool(secure))
    else:
        layout = _continued(root, kept, nodes=nodes, controllers=controllers, port=port)
        if secure and not layout.is_secure:
            raise OperatorError(
                f"{root} holds a cluster without security", "Use another folder: users are created with the cluster."
            )
    for node in layout.nodes:
        for number in (node.port, node.controller_port):
            if number is not None and not is_free(number):
                advice = "Choose another one with --port (0 selects free ones), or stop the process that uses it."
                if number == node.controller_port:
                    advice = f"{root / CLUSTER_FILE} keeps it for this cluster: stop the process that uses it."
                raise OperatorError(f"Port {number}, needed by node {node.node_id}, is already in use", advice)
    return layout


def write(layout: ClusterLayout, overrides: Mapping[str, str]) -> None:
    """Write all files and format the directories that are not formatted yet. Raises OperatorError."""
    rejected = sorted(_OUR_KEYS.intersection(overrides))
    if rejected:
        raise OperatorError(
            f"{rejected[0]} cannot be set for a local cluster, which sets it for each node",
            "Remove it; for a node configured by hand use `fenceline start`.",
        )
    try:
        for node in layout.nodes:
            node.root.mkdir(parents=True, exist_ok=True)
        _write_description(layout)
        if layout.is_secure:
            secured.write_client_files(
                secured.create(layout.root, [node.node_id for node in layout.nodes]), layout.bootstrap
            )
        for node in layout.nodes:
            text = format_properties({**_properties(layout, node), **overrides})
            _replace(node.properties_file, text, is_private=layout.is_secure)
    except OSError as error:
        raise OperatorError(
            f"{error.filename or layout.root} cannot be written: {error.strerror or error}",
            "Specify a folder that this user can create and write.",
        ) from error
    _format(layout)


def _write_description(layout: ClusterLayout) -> None:
    _replace(layout.root / CLUSTER_FILE, json.dumps(_document(layout), indent=2) + "\n")


# --- cluster.json -------------------------------------------------------------------------------------------------


def _read(root: Path) -> dict[str, Any] | None:
    path = root / CLUSTER_FILE
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        foreign = _foreign_file(root)
        if foreign is not None:
            raise OperatorError(
                f"{root} holds {foreign}, but no cluster",
                "Specify a new or empty folder, or one that a local cluster has created.",
            ) from None
        return None
    except OSError as error:
        raise OperatorError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        document = json.loads(text)
        if document["version"] == _VERSION:
            return dict(document)
        damage = f"version {document['version']}"
    except (ValueError, KeyError, TypeError) as error:
        damage = repr(error)
    raise OperatorError(f"{path} cannot be parsed: {damage}", "Restore it from a copy, or use an empty folder.")


def _foreign_file(root: Path) -> str | None:
    try:
        names = sorted(os.listdir(root))
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise OperatorError(f"{root} is a file, not a folder", "Specify a folder, which need not exist.") from None
    ours = {"lock", "control.sock", "supervisor.pid"}
    return next((name for name in names if name not in ours and not name.startswith((".", "lost+found"))), None)


def _new(root: Path, *, nodes: int, controllers: int, port: int) -> ClusterLayout:
    total = nodes + controllers
    if nodes < 1 or controllers < 0 or total > MAX_NODES:
        raise OperatorError(
            f"A local cluster has 1 to {MAX_NODES} nodes, not {total}",
            "Change --nodes (and --controllers); 3 is the usual number.",
        )
    check_ports(nodes, port)
    first = port or free_ports(nodes)
    first_controller = free_ports(controllers or nodes, apart_from=range(first, first + nodes))
    places = []
    for index in range(total):
        is_broker, is_controller = index < nodes, index >= nodes or not controllers
        places.append(
            NodePlace(
                node_id=index + 1,
                roles=(_BROKER,) * is_broker + (_CONTROLLER,) * is_controller,
                port=first + index if is_broker else None,
                controller_port=first_controller + (index - nodes if controllers else index) if is_controller else None,
                directory_id=random_id(),
                root=root / f"node-{index + 1}",
            )
        )
    return ClusterLayout(root, encode_uuid(random_id()), tuple(places))


def _continued(
    root: Path, kept: Mapping[str, Any], *, nodes: int | None, controllers: int | None, port: int
) -> ClusterLayout:
    try:
        brokers = sum(_BROKER in entry["roles"] for entry in kept["nodes"])
        alone = sum(entry["roles"] == [_CONTROLLER] for entry in kept["nodes"])
        check_ports(brokers, port)
        first = port or free_ports(brokers)
        places = tuple(
            NodePlace(
                node_id=int(entry["node_id"]),
                roles=tuple(entry["roles"]),
                port=first + index if _BROKER in entry["roles"] else None,
                controller_port=entry["controller_port"],
                directory_id=decode_uuid(entry["directory_id"]),
                root=root / f"node-{entry['node_id']}",
            )
            for index, entry in enumerate(kept["nodes"])
        )
        layout = ClusterLayout(
            root,
            str(kept["cluster_id"]),
            places,
            bool(kept.get("formatted", False)),
            bool(kept.get("secure", False)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise OperatorError(
            f"{root / CLUSTER_FILE} cannot be parsed: {error!r}",
            "Restore it from a copy, or use an empty folder.",
        ) from error
    for what, has, asked in (("nodes", brokers, nodes), ("controllers", alone, controllers)):
        if asked is not None and asked != has:
            raise OperatorError(
                f"{root} holds a cluster with --{what} {has}, not {asked}",
                f"Omit --{what} to continue it, or specify another folder for a new one.",
            )
    return layout


def _document(layout: ClusterLayout) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "cluster_id": layout.cluster_id,
        "formatted": layout.is_formatted,
        "secure": layout.is_secure,
        "nodes": [
            {
                "node_id": node.node_id,
                "roles": list(node.roles),
                "controller_port": node.controller_port,
                "directory_id": encode_uuid(node.directory_id),
            }
            for node in layout.nodes
        ],
    }


def _replace(path: Path, text: str, *, is_private: bool = False) -> None:
    """`is_private`: it has a password, and only its owner may read it."""
    fresh = path.with_name(path.name + ".new")
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if is_private else 0o666), "w") as file:
        file.write(text)
    fresh.replace(path)


# --- the nodes' settings ------------------------------------------------------------------------------------------


def _properties(layout: ClusterLayout, node: NodePlace) -> dict[str, str]:
    """The server.properties of the node, as for Kafka."""
    controllers = [each for each in layout.nodes if each.is_controller]
    listeners = []
    settings = {"node.id": str(node.node_id), "process.roles": ",".join(node.roles)}
    name, controller = (secured.LISTENER, "SSL") if layout.is_secure else ("PLAINTEXT", "PLAINTEXT")
    if node.is_broker:
        listeners.append(f"{name}://{HOST}:{node.port}")
        settings["advertised.listeners"] = listeners[0]
    settings["inter.broker.listener.name"] = name
    if layout.login is not None:
        settings |= secured.settings(layout.login, node.node_id)
    if node.is_controller:
        listeners.append(f"CONTROLLER://{HOST}:{node.controller_port}")
    replicas = min(3, len(layout.brokers))
    return {
        **settings,
        "listeners": ",".join(listeners),
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": f"{name}:{name},CONTROLLER:{controller}",
        "controller.quorum.bootstrap.servers": ",".join(f"{HOST}:{each.controller_port}" for each in controllers),
        "log.dirs": str(node.data_dir.absolute()),
        "fenceline.outbound.address": outbound_address(node.node_id),
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(min(2, replicas)),
        "share.coordinator.state.topic.replication.factor": str(replicas),
        "share.coordinator.state.topic.min.isr": str(min(2, replicas)),
    }


def owned_environment() -> frozenset[str]:
    """Environment variables that would change the identity of a node; nodes are started without them."""
    from fenceline.config.node import environment_name

    return frozenset(environment_name(key) for key in _OUR_KEYS)


def _format(layout: ClusterLayout) -> None:
    missing = [node for node in layout.nodes if not (node.data_dir / "meta.properties").exists()]
    if missing and layout.is_formatted:
        raise OperatorError(
            f"Node {missing[0].node_id} has lost its directory: {missing[0].data_dir}/meta.properties is missing",
            f"Restore it, or {_advice_without(missing[0], layout)}",
        )
    if not missing and layout.is_formatted:
        return
    # Not needed for a cluster that is continued.
    from fenceline.node.metadata.format import format_directory, parse_initial_controllers
    from fenceline.security.added_users import added_user

    voters = parse_initial_controllers(_initial_controllers(layout), "CONTROLLER")
    users = [] if layout.login is None else [added_user(text, os.urandom) for text in secured.first_users(layout.login)]
    for node in missing:
        format_directory(
            [node.data_dir],
            cluster_id=layout.cluster_id,
            node_id=node.node_id,
            voters=voters if node.is_controller else (),
            users=users,
        )
    _write_description(replace(layout, is_formatted=True))


def _advice_without(node: NodePlace, layout: ClusterLayout) -> str:
    """How the cluster continues without the data of a node. A voter that came back empty under its old directory id
    could vote twice, so it gets a new one."""
    command = f"fenceline format --config '{node.properties_file}' --cluster-id {layout.cluster_id}"
    if not node.is_controller:
        return f"format it as an empty node: {command}"
    if sum(each.is_controller for each in layout.nodes) == 1:
        return "start a new cluster in another folder: it was the only controller."
    return (
        f"let it join as a new node: {command} --no-initial-controllers;"
        f" once the cluster is up, `fenceline quorum remove {node.node_id}` and `fenceline quorum add --config ...`."
    )


def _initial_controllers(layout: ClusterLayout) -> str:
    """As in `kafka-storage format --initial-controllers`: a dynamic quorum (KIP-853) of all controllers."""
    return ",".join(
        f"{node.node_id}@{HOST}:{node.controller_port}:{encode_uuid(node.directory_id)}"
        for node in layout.nodes
        if node.is_controller
    )
