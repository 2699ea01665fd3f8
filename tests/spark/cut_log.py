"""Truncates a log as an unclean election would: the files of the stopped node are cut."""

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
    """With a topic `t` of 150 records, the last 50 in separate batches."""
    with EmbeddedNode() as running:
        broker = Broker("fenceline", running.bootstrap)
        broker.create("t")
        broker.produce("t", range(100))
        broker.produce("t", range(100, 150))
        yield running


def cut(log_dir: Path, topic: str, offset: int) -> None:
    """Truncate partition 0 of the stopped node to `offset`, which must be the base offset of a batch."""
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
    """Stop the node, truncate partition 0 of the topic to `offset`, and restart the node in a new epoch."""
    node.stop()
    cut(node.log_dir, topic, offset)
    node.start()
