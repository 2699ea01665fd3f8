"""Audits of a log with committed, aborted and open transactions, in this process, on a node of each kind."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from fenceline.client import Producer, TopicPartition
from fenceline.client.reader.reader import RangeReader
from pyspark_fenceline.auditing.repair_table import repair_here
from pyspark_fenceline.auditing.table import audit_here, settings
from tests.spark.conftest import Broker

EACH = 5


def _write(broker: Broker, topic: str) -> Producer:
    """Five records committed, five aborted, five in a transaction that stays open: offsets 0, 6 and 12."""
    producer = Producer(broker.bootstrap, **{"transactional.id": topic})
    producer.init_transactions()
    for ends in (producer.commit_transaction, producer.abort_transaction, producer.flush):
        producer.begin_transaction()
        for number in range(EACH):
            producer.send(topic, value=b"%d" % number)
        producer.flush()
        ends()
    return producer


def _table(broker: Broker, topic: str, path: Path, end: int) -> str:
    """What a reader of uncommitted records gets up to `end`."""
    with RangeReader({"bootstrap.servers": broker.bootstrap}) as reader:
        found = pa.Table.from_batches(list(reader.read({TopicPartition(topic, 0): (0, end)})))
    write_deltalake(str(path), found.select(["topic", "partition", "offset", "leader_epoch"]))
    return str(path)


def test_an_audit_tells_aborted_open_and_committed_transactions_apart(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.create(topic)
    producer = _write(broker, topic)
    table = _table(broker, topic, tmp_path / "table", 15)
    chosen = settings(broker.bootstrap, topic, isolation_level="read_committed")
    found = audit_here(table, chosen)
    kinds = [(one["kind"], one["start_offset"], one["end_offset_exclusive"]) for one in found.findings.to_pylist()]
    assert kinds == [("aborted", 6, 11), ("undecided", 12, 15)]
    assert f"{topic}-0 has an open transaction at 12: 5 offsets from there on are not decided yet" in str(found)

    done = repair_here(table, chosen, apply=True, kinds=["aborted"])
    assert done.removed_rows == EACH
    assert audit_here(table, chosen).verdict.outcome == "unproven"
    producer.commit_transaction()
    producer.close()
    found = audit_here(table, chosen)
    assert [(one["kind"], one["rows"]) for one in found.findings.to_pylist()] == [("behind", 2)]
    assert "not decided yet" not in str(found)
