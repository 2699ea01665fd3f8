"""Ten thousand peers that send nothing, or too little, while real clients work.

Rules: security.md A12, A63, A68 (CVE-2022-34917), A69.
"""

from __future__ import annotations

import contextlib
import itertools
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import confluent_kafka
import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from tests.support.certificates import TestAuthority

pytestmark = [pytest.mark.long, pytest.mark.together("silent peers")]

MOST: Final = 10_000
SPARE_FILES: Final = 1_000
PEERS_PER_ADDRESS: Final = 5_000
RECORDS: Final = 2_000
TIMEOUT_MS: Final = 10_000
JAAS: Final = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="broker" password="of the broker" user_broker="of the broker" user_anna="secret";'
)
MOST_BYTES: Final = {"PLAINTEXT": 8_000, "SASL_PLAINTEXT": 10_000, "SASL_SSL": 8_000}
"""That the node may use for a peer that sends nothing or some bytes. Without a kernel's buffers."""


class Node:
    """One listener, and a client of each kind."""

    def __init__(self, folder: Path, protocol: str, overrides: dict[str, str]) -> None:
        authority = TestAuthority(folder)
        secured = {
            **authority.broker_settings(),
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            f"listener.name.{protocol.lower()}.plain.sasl.jaas.config": JAAS,
        }
        self.process = EmbeddedNode(
            security_protocol=protocol,
            # Without a long queue, the system of the peers repeats each of their attempts after a second.
            overrides={
                "socket.listen.backlog.size": "4000",
                **({} if protocol == "PLAINTEXT" else secured),
                **overrides,
            },
            log_level="info",
        )
        self._settings = {"security.protocol": protocol}
        if protocol != "PLAINTEXT":
            self._settings |= {"sasl.mechanism": "PLAIN", "sasl.username": "anna", "sasl.password": "secret"}
            self._settings |= {"ssl.ca.location": str(authority.ca)}

    @property
    def settings(self) -> dict[str, str]:
        return {"bootstrap.servers": self.process.bootstrap, **self._settings}

    def used_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_full_info().uss)

    def connections(self) -> int:
        """Open ones, as the system counts them."""
        return psutil.Process(self.process.pid).num_fds()


def wanted_peers() -> int:
    """As many as the limit of open files permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return min(MOST, hard - SPARE_FILES)


@contextmanager
def peers(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Connections from several addresses of this machine, since one has too few ports."""
    found: list[socket.socket] = []
    try:
        for number in range(count):
            opened = socket.socket()
            found.append(opened)
            opened.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
            opened.bind((f"127.0.0.{2 + number // PEERS_PER_ADDRESS}", 0))
            opened.settimeout(60)
            opened.connect(("127.0.0.1", port))
            opened.setblocking(False)
        yield found
    finally:
        for opened in found:
            opened.close()


def closed(waiting: dict[socket.socket, None]) -> None:
    """Remove the peers whose connections the node has closed."""
    for peer in list(waiting):
        try:
            if not peer.recv(1 << 10):
                del waiting[peer]
        except BlockingIOError:
            pass
        except OSError:
            del waiting[peer]


def send(waiting: list[socket.socket], content: bytes) -> None:
    for peer in waiting:
        with contextlib.suppress(OSError):  # it is closed
            peer.send(content)


def work(settings: dict[str, str], finished: threading.Event, errors: list[object]) -> None:
    """One producer and one consumer."""
    try:
        consumer = confluent_kafka.Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
        producer = confluent_kafka.Producer({**settings, "linger.ms": "5"})
        for number in range(RECORDS):
            producer.produce("t", str(number).encode())
        if producer.flush(100):
            errors.append("records are not written")
        found: list[bytes] = []
        while len(found) < RECORDS:
            record = consumer.poll(60)
            if record is None or record.error():
                errors.append("no more records" if record is None else record.error())
                return
            found.append(record.value())
        if found != [str(number).encode() for number in range(RECORDS)]:
            errors.append("other records")
        consumer.close()
    finally:
        finished.set()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL"])
def test_clients_work_beside_peers_that_send_too_little(protocol: str, tmp_path: Path) -> None:
    count = wanted_peers()
    node = Node(tmp_path, protocol, {"fenceline.authentication.timeout.ms": str(TIMEOUT_MS)})
    with node.process:
        admin = AdminClient(node.settings)
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
        before_bytes, before = node.used_bytes(), node.connections()
        # The second half sends a byte a second, of a message that does not end.
        begun = b"\x16\x03\x01\x02" if protocol.endswith("SSL") else struct.pack(">i", 1_000)
        drops = itertools.chain((begun[at : at + 1] for at in range(4)), itertools.repeat(b"\0"))
        with peers(node.process.port, count) as silent:
            slow, errors = silent[count // 2 :], []
            finished = threading.Event()
            worker = threading.Thread(target=work, args=(node.settings, finished, errors))
            worker.start()
            try:
                send(slow, next(drops))
                most_bytes, most = 0, 0
                while not finished.wait(1):
                    send(slow, next(drops))
                    most_bytes = max(most_bytes, node.used_bytes())
                    most = max(most, node.connections())
            finally:
                worker.join()
            assert not errors, errors[0]
            most_bytes, most = max(most_bytes, node.used_bytes()), max(most, node.connections())
            if protocol != "PLAINTEXT":
                left = dict.fromkeys(silent)

                def all_are_closed() -> bool:
                    send(slow, next(drops))
                    closed(left)
                    return not left

                eventually(all_are_closed, "every silent peer is closed", step_s=1)
        each_bytes = (most_bytes - before_bytes) // max(most - before, 1)
        print(f"{protocol}: {each_bytes} bytes for each of {most - before} connections")
        assert each_bytes < MOST_BYTES[protocol]
        eventually(lambda: node.connections() <= before + 5, "the node has closed them")
        assert "Traceback" not in node.process.errors
        lines = node.process.errors.count("\n")
        assert lines < 100, f"{lines} lines of log: peers must not be able to fill a disk"
