"""Controllers as the configuration names them: `controller.quorum.voters` and `controller.quorum.bootstrap.servers`.

Owns their syntax. Connects to nobody.
"""

from __future__ import annotations

from typing import NamedTuple

from fenceline.errors import OperatorError


class QuorumAddress(NamedTuple):
    """A controller as the configuration names it; `node_id` -1 where only the address is known."""

    node_id: int
    host: str
    port: int


def parse_quorum_voters(items: tuple[str, ...], node_id: int, roles: frozenset[str]) -> tuple[QuorumAddress, ...]:
    """`id@host:port` each. Raises OperatorError, also where this node's part in it contradicts process.roles."""
    key = "controller.quorum.voters"
    voters = []
    for item in items:
        number, separator, address = item.partition("@")
        if not separator or not number.strip().isdigit():
            raise OperatorError(f"{key} has {item!r}, which is no voter", "Write each as id@host:port.")
        voters.append(parse_quorum_address(key, address, int(number)))
    ids = [voter.node_id for voter in voters]
    if len(set(ids)) != len(ids):
        raise OperatorError(f"{key}={','.join(items)} names an id twice")
    if not ids:
        return ()
    if "controller" in roles and node_id not in ids:
        raise OperatorError(
            f"{key}={','.join(items)} does not name node {node_id}, which is to be a controller",
            "Add it, or take controller out of process.roles.",
        )
    if "controller" not in roles and node_id in ids:
        raise OperatorError(
            f"{key}={','.join(items)} names node {node_id}, which is no controller",
            "Give this broker an id of its own, or add controller to process.roles.",
        )
    return tuple(voters)


def parse_quorum_address(key: str, text: str, node_id: int = -1) -> QuorumAddress:
    """`host:port`. Raises OperatorError, naming `key`."""
    host, separator, port = text.strip().rpartition(":")
    if not separator or not host or not port.isdigit() or int(port) > 65535:
        raise OperatorError(f"{key} has {text!r}, which is no address", "Write it as host:port.")
    return QuorumAddress(node_id, host.strip("[]"), int(port))
