"""A node of one that loses records of a topic, keeps them as evidence, and runs again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from fenceline.client import Admin, LossReceipt, LostRecordsReader, Producer, TopicPartition
from fenceline.log.core.disk import OsDisk
from fenceline.losses.cutting import cut_log
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from tests.losses.helpers import cut, open_log, stored_values, write


class Lost(NamedTuple):
    receipt: LossReceipt
    values: list[str]
    """Of its records, in their order."""


def lose(node: EmbeddedNode, topic: str, settings: Mapping[str, Any], *, batches: int = 12) -> Lost:
    """Cut the log of a topic while the node is stopped, as a follower does; the node runs again afterwards."""
    with Admin(settings) as admin, Producer(settings) as producer:
        admin.create_topics([topic])
        producer.send(topic, b"first", partition=0)
        producer.flush()
        topic_id = admin.metadata([topic]).topics[topic].id
    node.stop()
    log = open_log(OsDisk(), str(node.log_dir / f"{topic}-0"), partition=0, topic_id=topic_id)
    log.topic_partition = TopicPartition(topic, 0)
    write(log, 0, batches)
    values = stored_values(log)
    cut_log(OsDisk(), log, replace(cut(3), replica=1))
    log.close()
    for name in ("recovery-point-offset-checkpoint", ".kafka_cleanshutdown"):
        (node.log_dir / name).unlink(missing_ok=True)
    node.start()
    with LostRecordsReader(settings) as reader:
        receipt = eventually(
            lambda: next((each for each in reader.receipts() if each.topic == topic), None), "the receipt"
        )
    return Lost(receipt, values[-receipt.records :])
