"""Lost records as the client reads them: retries, bad answers, and what is missing."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from fenceline.client.core.errors import ClientError, EvidenceIncompleteError, TimedOut
from fenceline.client.core.loss_receipts import LossReceipt
from fenceline.client.reader.lost_records import LostRecordsReader
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import EVIDENCE_RESOURCE, TopicPartition
from fenceline.records.build import build_batch
from fenceline.records.markers import end_marker
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import HANG_UP, REFUSE, SILENT, Log, ScriptedCluster
from tests.kip.test_kip320_consumer import QUICK

ID = "0123456789abcdef01234567"
EVIDENCE = TopicPartition(f"{EVIDENCE_RESOURCE}/{ID}", 3)


def receipt(**fields: Any) -> LossReceipt:
    given: dict[str, Any] = {
        "id": ID,
        "topic": "t",
        "topic_id": "",
        "partition": 3,
        "start_offset": 2,
        "end_offset_exclusive": 12,
        "leader_epochs": (4,),
        "records": 10,
        "size_bytes": 700,
        "loss_class": "committed",
        "cause": "divergence",
        "replica": 2,
        "leader": 1,
        "time_ms": 1,
        "evidence": ("/data/t-3/lost+found/00000000000000000000.log.0",),
    }
    return LossReceipt(**{**given, **fields})


def keep(cluster: ScriptedCluster, *sizes: int) -> Log:
    """Node 2 keeps batches of these numbers of records, from offset 0 on."""
    log = Log(leader=2)
    for size in sizes:
        log.append(build_batch([(1_000, None, b"value", ()) for _ in range(size)]))
    cluster.logs[EVIDENCE] = log
    return log


def a_reader(cluster: ScriptedCluster, **settings: Any) -> LostRecordsReader:
    return LostRecordsReader(cluster.bootstrap, **QUICK, **{"max.partition.fetch.bytes": 100, **settings})


def offsets(reader: LostRecordsReader, loss: LossReceipt) -> list[int]:
    return [record.offset for records in reader.read(loss, arrow=False) for record in records]


def test_only_the_records_of_the_loss(cluster: ScriptedCluster) -> None:
    keep(cluster, 5, 4, 6)
    with a_reader(cluster) as reader:
        assert offsets(reader, receipt()) == list(range(2, 12))
    assert {node for node, _, _ in cluster.fetches} == {2}
    for _, version, request in cluster.fetches:
        assert (version, request.session_id, request.session_epoch, request.replica_id) == (12, 0, -1, -1)
        (asked,) = request.partitions
        assert (asked.topic, asked.index) == EVIDENCE
        assert asked.max_bytes == 100
    assert [request.partitions[0].fetch_offset for _, _, request in cluster.fetches] == [2, 5, 9]


@pytest.mark.parametrize("fault", [HANG_UP, REFUSE])
def test_lost_connections_are_made_again(cluster: ScriptedCluster, fault: object) -> None:
    keep(cluster, 5, 4, 6)
    cluster.faults[ApiKey.FETCH] = [None, fault, fault, None, fault]
    with a_reader(cluster) as reader:
        assert offsets(reader, receipt()) == list(range(2, 12))


def test_node_that_does_not_know_the_rights_yet(cluster: ScriptedCluster) -> None:
    keep(cluster, 12)
    cluster.faults[ApiKey.FETCH] = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
    with a_reader(cluster) as reader:
        assert offsets(reader, receipt()) == list(range(2, 12))
    cluster.fault_rule = lambda key: ErrorCode.NOT_LEADER_OR_FOLLOWER if key is ApiKey.FETCH else None
    settings = {"default.api.timeout.ms": 100}
    with a_reader(cluster, **settings) as reader, pytest.raises(PeerError, match="does not know the rights"):
        offsets(reader, receipt())


def test_node_that_does_not_answer(cluster: ScriptedCluster) -> None:
    keep(cluster, 12)
    cluster.fault_rule = lambda key: SILENT if key is ApiKey.FETCH else None
    settings = {"request.timeout.ms": 50, "default.api.timeout.ms": 300}
    with a_reader(cluster, **settings) as reader, pytest.raises(TimedOut):
        offsets(reader, receipt())


def test_older_node(cluster: ScriptedCluster) -> None:
    keep(cluster, 12)
    cluster.versions[ApiKey.FETCH] = (4, 6)
    with a_reader(cluster) as reader:
        assert offsets(reader, receipt()) == list(range(2, 12))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "no evidence of it, or none any more"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, f"READ is needed on the topic t and on .* {EVIDENCE_RESOURCE}"),
        (ErrorCode.POLICY_VIOLATION, r"fenceline\.evidence\.fetch\.enable is false"),
        (ErrorCode.KAFKA_STORAGE_ERROR, "disk failed"),
        (ErrorCode.INVALID_REQUEST, "INVALID_REQUEST"),
    ],
)
def test_errors_of_the_node(cluster: ScriptedCluster, code: ErrorCode, reason: str) -> None:
    keep(cluster, 5, 7)
    cluster.faults[ApiKey.FETCH] = [None, code]
    with a_reader(cluster) as reader:
        pieces = reader.read(receipt(), arrow=False)
        assert len(next(pieces)) == 3
        with pytest.raises(PeerError, match=reason) as error:
            next(pieces)
        assert error.value.code is code
        assert ID[:12] in error.value.message


def test_nodes_without_evidence(cluster: ScriptedCluster) -> None:
    with a_reader(cluster) as reader:
        with pytest.raises(OperatorError, match=r"Node 9, which keeps the evidence .*, is not running"):
            offsets(reader, receipt(replica=9))
        with pytest.raises(OperatorError, match="no evidence") as error:
            offsets(reader, receipt(evidence=(), evidence_note="It was too old."))
        assert error.value.advice == "It was too old."
    assert not cluster.fetches


def test_missing_records_are_an_error_after_the_last_one(cluster: ScriptedCluster) -> None:
    log = keep(cluster, 5, 4, 6)
    del log.batches[1]
    found: list[int] = []
    with a_reader(cluster) as reader, pytest.raises(EvidenceIncompleteError, match="6 of 10 records") as error:
        found.extend(record.offset for records in reader.read(receipt(), arrow=False) for record in records)
    assert found == [2, 3, 4, 9, 10, 11]
    assert (error.value.records, error.value.missing_records) == (6, 4)
    again = pickle.loads(pickle.dumps(error.value))
    assert (again.receipt, again.missing_records, again.message) == (receipt(), 4, error.value.message)


def test_end_of_the_evidence_before_the_end_of_the_loss(cluster: ScriptedCluster) -> None:
    keep(cluster, 5)
    with a_reader(cluster) as reader, pytest.raises(EvidenceIncompleteError) as error:
        offsets(reader, receipt())
    assert error.value.missing_records == 7


def test_control_records_count_and_are_not_returned(cluster: ScriptedCluster) -> None:
    log = keep(cluster, 5)
    log.append(bytes(end_marker(True, 7, 0, 0, 1_000)))
    log.append(build_batch([(1_000, None, b"value", ()) for _ in range(6)]))
    with a_reader(cluster) as reader:
        assert offsets(reader, receipt()) == [2, 3, 4, *range(6, 12)]


def test_answer_that_does_not_go_on(cluster: ScriptedCluster) -> None:
    """A server that sends the same batch again must not be asked for ever."""
    log = keep(cluster, 5, 7)
    with a_reader(cluster) as reader:
        pieces = reader.read(receipt(), arrow=False)
        next(pieces)
        with cluster.lock:
            log.sent = lambda raw: log.batches[0]  # type: ignore[method-assign]
        with pytest.raises(ClientError, match=r"no records .* from offset 5 on"):
            next(pieces)


def test_damage_in_transit(cluster: ScriptedCluster) -> None:
    log = keep(cluster, 12)
    log.batches[0] = log.batches[0][:-1] + b"!"
    with a_reader(cluster) as reader, pytest.raises(ClientError, match="wrong checksum"):
        offsets(reader, receipt())


def test_reading_can_stop_early(cluster: ScriptedCluster) -> None:
    keep(cluster, 5, 4, 6)
    with a_reader(cluster) as reader:
        pieces = reader.read(receipt())
        assert next(pieces).num_rows == 3
        pieces.close()
        assert offsets(reader, receipt()) == list(range(2, 12))
    assert len(cluster.fetches) == 4
