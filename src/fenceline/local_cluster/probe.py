"""Queries single nodes: for the brokers they know, for the leader of the quorum, to see when a cluster is complete.

Owns one request on one short connection each. Never used by the server.
"""

from __future__ import annotations

import secrets
import socket
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from fenceline.errors import FencelineError
from fenceline.local_cluster.secured import BROKER, MECHANISM, ClusterLogin
from fenceline.sasl.scram import ClientExchange, MalformedMessage
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_response, write_request
from fenceline.wire.frame import encode_request_frame, parse_response_header

_METADATA_VERSION: Final = 1
"""The oldest version that can request no topics."""
_DESCRIBE_QUORUM_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ProbedQuorum:
    """The active controller, and how many records of the metadata log each replica lags behind it."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    lags: dict[int, int]


def known_brokers(port: int, *, timeout_s: float, login: ClusterLogin | None = None) -> frozenset[int]:
    """The brokers in the metadata of the node at `port`: registered and not fenced. Empty without a response."""
    answer = ask_node(port, ApiKey.METADATA, _METADATA_VERSION, {"topics": ()}, timeout_s, login, is_client=True)
    return frozenset() if answer is None else frozenset(broker.node_id for broker in answer.brokers)


def quorum_status(
    controller_ports: Sequence[int], *, timeout_s: float, login: ClusterLogin | None = None
) -> ProbedQuorum | None:
    """The quorum as the active controller reports it; all controllers are queried at once. None if none of them
    leads."""
    if not controller_ports:
        return None
    with ThreadPoolExecutor(len(controller_ports)) as asking:
        reports = list(asking.map(lambda port: _quorum_of(port, timeout_s, login), controller_ports))
    # A controller that was cut off may still report itself as leader.
    return max((each for each in reports if each is not None), key=lambda each: each.leader_epoch, default=None)


def _quorum_of(port: int, timeout_s: float, login: ClusterLogin | None) -> ProbedQuorum | None:
    topics = ({"topic_name": "__cluster_metadata", "partitions": ({"partition_index": 0},)},)
    answer = ask_node(port, ApiKey.DESCRIBE_QUORUM, _DESCRIBE_QUORUM_VERSION, {"topics": topics}, timeout_s, login)
    if answer is None or answer.error_code or not answer.topics:
        return None
    partition = answer.topics[0].partitions[0]
    ends = {each.replica_id: each.log_end_offset for each in (*partition.observers, *partition.current_voters)}
    if partition.error_code or partition.leader_id not in ends:
        return None
    end = ends[partition.leader_id]
    return ProbedQuorum(
        leader_id=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        high_watermark=partition.high_watermark,
        lags={node: max(0, end - offset) for node, offset in sorted(ends.items())},
    )


def ask_node(
    port: int,
    api: ApiKey,
    version: int,
    fields: dict[str, Any],
    timeout_s: float,
    login: ClusterLogin | None,
    *,
    is_client: bool = False,
) -> Any:
    """One response of the node at `port`; None if there is none in time. `is_client`: its listener is for clients."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as connection:
            if login is None:
                return _exchange(connection, api, version, fields)
            with login.context().wrap_socket(connection, server_hostname="127.0.0.1") as tls:
                if is_client:
                    _log_in(tls, login)
                return _exchange(tls, api, version, fields)
    except (OSError, FencelineError, MalformedMessage):
        return None


def _exchange(connection: socket.socket, api: ApiKey, version: int, fields: dict[str, Any]) -> Any:
    body = write_request(api, version, fields)
    connection.sendall(b"".join(encode_request_frame(api, version, 1, "local-cluster", body)))
    (size,) = struct.unpack(">i", _receive(connection, 4))
    answer = _receive(connection, size)
    _, position = parse_response_header(api, version, answer)
    return read_response(api, version, answer[position:])


def _log_in(connection: socket.socket, login: ClusterLogin) -> None:
    def send(message: bytes) -> bytes:
        answer = _exchange(connection, ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": message})
        if answer.error_code:
            raise ConnectionError(str(answer.error_message))
        return bytes(answer.auth_bytes)

    _exchange(connection, ApiKey.SASL_HANDSHAKE, 1, {"mechanism": MECHANISM})
    exchange = ClientExchange(MECHANISM, BROKER, login.password(BROKER), secrets.token_urlsafe(24), {})
    exchange.check(send(exchange.answer(send(exchange.first()))))


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = connection.recv(size - len(received))
        if not piece:
            raise ConnectionError("the node closed the connection")
        received += piece
    return bytes(received)
