"""TLS 1.3 on the only listener, with client certificates: 1 KB with confluent-kafka, and handshakes.

Handshakes are full ones (no session is resumed), by two threads of one process.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any, Final

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.certificates import TestAuthority

from benchmarks.harness import Figures, Subject, both, cpu_of, scratch

RECORDS: Final = 300_000
RECORD_BYTES: Final = 1_000
PARTITIONS: Final = 6
HANDSHAKES_S: Final = 5.0
THREADS: Final = 2


def run(figures: Figures, repeats: int) -> None:
    with scratch() as folder:
        authority = TestAuthority(folder)
        settings = {
            # Both starters name their listener so.
            "listener.security.protocol.map": "PLAINTEXT:SSL,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.enabled.protocols": "TLSv1.3",
            "ssl.client.auth": "required",
            **authority.broker_settings(),
        }
        client = authority.identity("client")
        with both(overrides=settings) as subjects:
            for attempt in range(2 + repeats):
                for side, subject in subjects.items():
                    measured = figures if attempt >= 2 else None
                    transfer(measured, side, subject, authority.ca, client, f"t-{attempt}")
                    handshakes(measured, side, subject, authority.ca, client)


def transfer(figures: Figures | None, side: str, subject: Subject, ca: Path, client: Path, topic: str) -> None:
    """Produce and consume once."""
    common: dict[str, Any] = {
        "bootstrap.servers": subject.bootstrap,
        "security.protocol": "ssl",
        "ssl.ca.location": str(ca),
        "ssl.certificate.location": str(client),
        "ssl.key.location": str(client),
    }
    admin = AdminClient(common)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    megabytes = RECORDS * RECORD_BYTES / 1e6
    producer = confluent_kafka.Producer({**common, "linger.ms": 5, "queue.buffering.max.messages": 200_000})
    value = bytes(RECORD_BYTES)
    with cpu_of(subject.pid) as used:
        began_s = time.perf_counter()
        for number in range(RECORDS):
            while True:
                try:
                    producer.produce(topic, value, partition=number % PARTITIONS)
                    break
                except BufferError:
                    producer.poll(0.001)
        producer.flush()
        rate, cpu_s = RECORDS / (time.perf_counter() - began_s), used()
    consumer = confluent_kafka.Consumer({**common, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    with cpu_of(subject.pid) as used:
        began_s, count = time.perf_counter(), 0
        while count < RECORDS:
            count += len(consumer.consume(10_000, 1.0))
        read_rate, read_cpu_s = RECORDS / (time.perf_counter() - began_s), used()
    consumer.close()
    admin.delete_topics([topic])[topic].result(60)
    if figures is not None:
        figures.add("produce 1 KB", side, rate, "records/s")
        figures.add("produce 1 KB: a broker CPU second", side, megabytes / cpu_s, "MB")
        figures.add("consume 1 KB", side, read_rate, "records/s")
        figures.add("consume 1 KB: a broker CPU second", side, megabytes / read_cpu_s, "MB")


def handshakes(figures: Figures | None, side: str, subject: Subject, ca: Path, client: Path) -> None:
    host, _, port = subject.bootstrap.rpartition(":")
    context = ssl.create_default_context(cafile=str(ca))
    context.load_cert_chain(str(client))
    counts = [0] * THREADS
    until_s = time.perf_counter() + HANDSHAKES_S

    def connect(thread: int) -> None:
        while time.perf_counter() < until_s:
            with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname=host):
                counts[thread] += 1

    threads = [threading.Thread(target=connect, args=(number,)) for number in range(THREADS)]
    with cpu_of(subject.pid) as used:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cpu_s = used()
    if figures is not None:
        figures.add("handshakes with client certificates", side, sum(counts) / HANDSHAKES_S, "1/s")
        figures.add("handshakes: broker CPU of each", side, 1000 * cpu_s / sum(counts), "ms")
