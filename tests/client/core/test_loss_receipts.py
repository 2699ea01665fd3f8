"""A receipt as clients see it."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from fenceline.client.core.loss_receipts import newest_versions, parse_receipt
from fenceline.ids import encode_uuid
from fenceline.losses.receipt import LossCause, LossClass, Receipt, encode, identified

_OTHER = UUID(int=77)


def receipt(**changes: Any) -> Receipt:
    facts: dict[str, Any] = {
        "topic": "t",
        "topic_id": None,
        "partition": 0,
        "start_offset": 6,
        "end_offset_exclusive": 10,
        "leader_epochs": (0,),
        "records": 4,
        "size_bytes": 400,
        "loss_class": LossClass.MAYBE_ACKNOWLEDGED,
        "known_by": "the high watermark",
        "cause": LossCause.DIVERGENCE,
        "reason": "",
        "replica": 1,
        "leader": 2,
        "leader_epoch": 1,
        "time_ms": 5,
        "evidence": ("/data/lost+found/t-0/6.log",),
    }
    return identified(Receipt(**{**facts, **changes}))


def test_receipt_round_trips() -> None:
    written = receipt(topic_id=_OTHER)
    found = parse_receipt(encode(written))
    assert found is not None
    assert (found.id, found.topic, found.topic_id, found.partition) == (written.id, "t", encode_uuid(_OTHER), 0)
    assert (found.start_offset, found.end_offset_exclusive, found.leader_epochs) == (6, 10, (0,))
    assert (found.records, found.size_bytes, found.loss_class, found.cause) == (
        4,
        400,
        "maybe_acknowledged",
        "divergence",
    )
    assert (found.replica, found.leader, found.time_ms, found.evidence) == (1, 2, 5, ("/data/lost+found/t-0/6.log",))


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"7", b'{"id": "x"}', b"\xff", b'{"id":1,"topic":[]}'])
def test_records_that_are_no_receipts_are_skipped(raw: bytes) -> None:
    assert parse_receipt(raw) is None


@pytest.mark.parametrize("topic_id", ["x", "AAAA", 7])
def test_invalid_topic_id_makes_no_receipt(topic_id: object) -> None:
    fields = json.loads(encode(receipt(topic_id=_OTHER)))
    assert parse_receipt(json.dumps(fields).encode()) is not None
    assert parse_receipt(json.dumps({**fields, "topic_id": topic_id}).encode()) is None


@pytest.mark.parametrize(
    ("changes", "tells"),
    [
        ({}, True),
        ({"start_offset": 0, "end_offset_exclusive": 7}, True),
        ({"start_offset": 9, "end_offset_exclusive": 99}, True),
        ({"start_offset": 0, "end_offset_exclusive": 6}, False),
        ({"start_offset": 10, "end_offset_exclusive": 11}, False),
        ({"leader_epochs": (3, 4)}, False),
        ({"leader_epochs": ()}, True),
    ],
)
def test_receipts_matching_a_range(changes: dict[str, Any], tells: bool) -> None:
    found = parse_receipt(encode(receipt(**changes)))
    assert found is not None
    assert found.overlaps(6, 10, (0,)) is tells


def test_last_version_of_each_receipt_counts() -> None:
    early, late = receipt(time_ms=2, replica=9), receipt(time_ms=5)
    without_evidence = receipt(time_ms=5, evidence=())
    assert late.id == without_evidence.id
    assert newest_versions([late, early, without_evidence]) == [early, without_evidence]
