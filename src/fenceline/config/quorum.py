"""Parses controller addresses in `controller.quorum.voters` and `controller.quorum.bootstrap.servers`.

Owns their syntax. Opens no connections.
"""

from __future__ import annotations

from typing import NamedTuple

from fenceline.errors import OperatorError


class QuorumAddress(NamedTuple):
    """A controller in the configuration; `node_id` -1 if only the address is known."""

    node_id: int
    host: str
    port: int


def parse_quorum_voters(items: tuple[str, ...], node_id: int, roles: frozenset[str]) -> tuple[QuorumAddress, ...]:
    """Each `id@host:port`. Raises OperatorError, also if the voters contradict this node's process.roles."""
    key = "controller.quorum.voters"
    voters = []
    for item in items:
        number, separator, address = item.partition("@")
        if not separator or not number.strip().isdigit():
            raise OperatorError(f"invalid voter {item!r} in {key}", "Use the form id@host:port.")
        voters.append(parse_quorum_address(key, address, int(number)))
    ids = [voter.node_id for voter in voters]
    if len(set(ids)) != len(ids):
        raise OperatorError(f"{key}={','.join(items)} contains a duplicate id")
    if not ids:
        return ()
    if "controller" in roles and node_id not in ids:
        raise OperatorError(
            f"{key}={','.join(items)} does not contain node {node_id}, which has the controller role",
            "Add it, or remove controller from process.roles.",
        )
    if "controller" not in roles and node_id in ids:
        raise OperatorError(
            f"{key}={','.join(items)} contains node {node_id}, which is not a controller",
            "Give this broker another node.id, or add controller to process.roles.",
        )
    return tuple(voters)


def parse_quorum_address(key: str, text: str, node_id: int = -1) -> QuorumAddress:
    """Parses `host:port`. Raises OperatorError that names `key`."""
    host, separator, port = text.strip().rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise OperatorError(f"invalid address {text!r} in {key}", "Use the form host:port.")
    return QuorumAddress(node_id, host.strip("[]"), int(port))
