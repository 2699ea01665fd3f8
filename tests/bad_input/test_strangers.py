"""Connections that speak no Kafka, of several kinds: each is closed with a reason, which is not written for each of
them; clients are served meanwhile, and nothing is left."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest
from benchmarks.scale_clients import METADATA, NO_KAFKA

from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually

OF_EACH_KIND = 40


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode(overrides={"connections.max.idle.ms": "3000"}) as node:
        yield node


def test_each_is_closed_and_clients_are_served(node: EmbeddedNode) -> None:
    with ExitStack() as stack:

        def connection() -> socket.socket:
            return stack.enter_context(socket.create_connection(("127.0.0.1", node.port), timeout=60))

        client = connection()

        def is_served() -> bool:
            client.sendall(METADATA)
            return len(client.recv(65_536)) > 4

        assert is_served()
        before = psutil.Process(node.pid).memory_info().rss
        strangers = {what: [connection() for _ in range(OF_EACH_KIND)] for what in NO_KAFKA}
        for what, sockets in strangers.items():
            for each in sockets:
                each.sendall(NO_KAFKA[what])
        assert is_served()
        assert psutil.Process(node.pid).memory_info().rss - before < 20_000_000
        # Those that say nothing, or too little, are closed when they have been idle; a client is not.
        eventually(lambda: is_served() and _open_sockets(node) == 1, "only the client is connected")
        assert is_served()
    lines = [json.loads(line) for line in node.errors.splitlines() if line.startswith("{")]
    reasons = Counter(line["reason"].split(";")[0] for line in lines if line["event"] == "connection closed")
    assert all(count <= 2 for count in reasons.values()), reasons
    for part in ("invalid request size of ", "in the middle of a request"):
        assert any(part in reason for reason in reasons), reasons


def _open_sockets(node: EmbeddedNode) -> int:
    return sum(each.status == psutil.CONN_ESTABLISHED for each in psutil.Process(node.pid).net_connections("tcp"))
