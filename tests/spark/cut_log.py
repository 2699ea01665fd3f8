"""A log that loses its end as an unclean election would take it: cut in the stopped node's files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from fenceline.records.batch import iter_headers
from fenceline.testing.node import EmbeddedNode
from tests.spark.conftest import Broker

if TYPE_CHECKING:
    from fenceline.testing.apache_kafka import ApacheKafka


@contextmanager
def node_to_cut() -> Iterator[EmbeddedNode]:
    """With a topic `t` of 150 records, the last 50 in batches of their own."""
    with EmbeddedNode() as running:
        broker = Broker("fenceline", running.bootstrap)
        broker.create("t")
        broker.produce("t", range(100))
        broker.produce("t", range(100, 150))
        yield running


def cut(log_dir: Path, topic: str, offset: int) -> None:
    """Remove everything from `offset` on (a batch begins there) from the stopped node's partition 0."""
    (folder,) = log_dir.rglob(f"{topic}-0")
    (segment,) = folder.glob("*.log")
    records = segment.read_bytes()
    position = next(header.position for header in iter_headers(records) if header.base_offset == offset)
    with segment.open("r+b") as file:
        file.truncate(position)
    for derived in (*folder.glob("*.index"), *folder.glob("*.timeindex"), *folder.glob("*.snapshot")):
        derived.unlink()
    for mark in log_dir.rglob(".kafka_cleanshutdown"):
        mark.unlink()


def restart_cut(node: EmbeddedNode | ApacheKafka, topic: str, offset: int) -> None:
    """The node stops, loses what partition 0 of the topic has from `offset` on, and runs again in a new epoch."""
    node.stop()
    cut(node.log_dir, topic, offset)
    node.start()
