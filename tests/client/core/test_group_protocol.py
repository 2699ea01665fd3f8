"""Subscriptions and assignments match Kafka's schema byte for byte."""

from __future__ import annotations

import io
from importlib import import_module
from typing import Any

import pytest
from kio.serial import entity_reader, entity_writer

from fenceline.client.core.group_protocol import (
    ClassicSubscription,
    decode_assignment,
    decode_owned,
    decode_subscription,
    encode_assignment,
    encode_owned,
    encode_subscription,
)
from fenceline.errors import PeerError
from fenceline.ids import TopicPartition

_OWNED = (TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1))


def _schema(name: str, version: int) -> Any:
    return import_module(f"kio.schema.consumer_protocol_{name}.v{version}.data")


def _entity(kind: Any, raw: bytes) -> Any:
    return entity_reader(kind)(raw, 0)[0]


def test_subscription_matches_kafkas_schema() -> None:
    module = _schema("subscription", 3)
    raw = encode_subscription(ClassicSubscription(("b", "a"), _OWNED, 4, b"u", "rack"))
    assert raw[:2] == b"\0\3"
    found = _entity(module.ConsumerProtocolSubscription, raw[2:])
    assert (found.topics, found.user_data, found.generation_id, found.rack_id) == (("a", "b"), b"u", 4, "rack")
    assert [(t.topic, t.partitions) for t in found.owned_partitions] == [("a", (0, 2)), ("b", (1,))]


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_subscriptions_of_every_version_are_decoded(version: int) -> None:
    module = _schema("subscription", version)
    fields: dict[str, Any] = {"topics": ("a",), "user_data": b"u"}
    if version >= 1:
        fields["owned_partitions"] = (module.TopicPartition(topic="a", partitions=(1,)),)
    if version >= 2:
        fields["generation_id"] = 9
    if version >= 3:
        fields["rack_id"] = "r"
    out = io.BytesIO()
    entity_writer(module.ConsumerProtocolSubscription)(out, module.ConsumerProtocolSubscription(**fields))
    found = decode_subscription(version.to_bytes(2, "big") + out.getvalue())
    assert found == ClassicSubscription(
        ("a",),
        (TopicPartition("a", 1),) if version >= 1 else (),
        9 if version >= 2 else -1,
        b"u",
        "r" if version >= 3 else None,
    )


def test_assignments_round_trip() -> None:
    raw = encode_assignment(_OWNED)
    found = _entity(_schema("assignment", 1).ConsumerProtocolAssignment, raw[2:])
    assert [(t.topic, t.partitions) for t in found.assigned_partitions] == [("a", (0, 2)), ("b", (1,))]
    assert decode_assignment(raw) == _OWNED
    assert decode_assignment(b"") == ()


def test_sticky_user_data_round_trips() -> None:
    assert decode_owned(encode_owned(_OWNED, 3)) == (_OWNED, 3)
    assert decode_owned(encode_owned(_OWNED, 3)[:-4]) == (_OWNED, -1)


def test_truncated_bytes_are_rejected() -> None:
    raw = encode_subscription(ClassicSubscription(("topic",), _OWNED, 4))
    for size in range(2, len(raw) - 2):
        with pytest.raises(PeerError):
            decode_subscription(raw[:size])
