"""Encoded forms of metadata records (formats.md F6, since_4_0.md K3)."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.metadata.node_records import BrokerRegistrationChangeRecord, RegisterBrokerRecord
from fenceline.metadata.records import (
    API_KEYS,
    BeginTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    UnknownRecord,
    api_key_of,
    decode_record,
    encode_record,
)
from fenceline.wire.errors import MalformedRequest
from tests.metadata.helpers import values_of


@given(st.sampled_from(sorted(API_KEYS, key=lambda cls: cls.__name__)).flatmap(values_of))
def test_every_record_survives_a_round_trip(record: MetadataRecord) -> None:
    value = encode_record(record, 30)
    assert api_key_of(value) == API_KEYS[type(record)]
    assert decode_record(value) == record


@pytest.mark.parametrize(
    ("record", "value"),
    [
        (BeginTransactionRecord("Bootstrap records"), "01170001001212426f6f747374726170207265636f726473"),
        (FeatureLevelRecord("metadata.version", 30), "010c00116d657461646174612e76657273696f6e001e00"),
        (NoOpRecord(), "01140000"),
        (BrokerRegistrationChangeRecord(1, 13, fenced=-1), "01110000000001000000000000000d010001ff"),
        (BrokerRegistrationChangeRecord(1, 13, cordoned_log_dirs=()), "01110300000001000000000000000d01030101"),
    ],
)
def test_bytes_in_the_format_of_apache_kafka(record: MetadataRecord, value: str) -> None:
    """controller.md C5: frame version, api key and record version before the fields."""
    assert encode_record(record, 30).hex() == value
    assert decode_record(bytes.fromhex(value)) == record


@pytest.mark.parametrize(
    ("record", "metadata_version", "version"),
    [
        (RegisterBrokerRecord(), 7, 1),
        (RegisterBrokerRecord(), 8, 2),
        (RegisterBrokerRecord(), 17, 3),
        (RegisterBrokerRecord(), 30, 4),
        (PartitionRecord(), 16, 0),
        (PartitionRecord(), 17, 1),
        (PartitionChangeRecord(), 22, 1),
        (PartitionChangeRecord(), 23, 2),
        (BrokerRegistrationChangeRecord(fenced=1), 30, 0),
        (BrokerRegistrationChangeRecord(in_controlled_shutdown=1), 30, 1),
        (BrokerRegistrationChangeRecord(log_dirs=(UUID(int=1),)), 30, 2),
        (BrokerRegistrationChangeRecord(cordoned_log_dirs=()), 30, 3),
    ],
)
def test_record_versions_follow_the_metadata_version(
    record: MetadataRecord, metadata_version: int, version: int
) -> None:
    assert encode_record(record, metadata_version)[2] == version


@pytest.mark.parametrize(
    ("record", "tag"),
    [
        (PartitionRecord(leader_recovery_state=1), "01000101"),
        (PartitionChangeRecord(leader_recovery_state=1), "01050101"),
        (PartitionChangeRecord(leader_recovery_state=0), "01050100"),
    ],
)
def test_the_leader_recovery_state_is_a_tagged_field(record: MetadataRecord, tag: str) -> None:
    """recovery.md V2, V3: in every version of the record, and absent at its default."""
    for metadata_version in (7, 17, 30):
        default = encode_record(type(record)(), metadata_version)
        assert default[-1] == 0, "no tag"
        assert encode_record(record, metadata_version) == default[:-1] + bytes.fromhex(tag)


@pytest.mark.parametrize("value", ["", "01", "011400", "02140000", "01630000", "01140100"])
def test_unknown_and_truncated_records_are_rejected(value: str) -> None:
    with pytest.raises((UnknownRecord, MalformedRequest)):
        decode_record(bytes.fromhex(value))


@pytest.mark.parametrize(
    ("value", "reported"),
    [
        ("01020900", "a TopicRecord of version 9; this release supports up to 0"),
        ("01630000", "a record of type 99, which this release does not support"),
        ("02020000", "an invalid record that starts with 020200"),
        ("", "an invalid record that starts with nothing"),
    ],
)
def test_a_record_of_a_newer_release_is_named_in_the_error(value: str, reported: str) -> None:
    with pytest.raises(UnknownRecord, match=reported) as caught:
        decode_record(bytes.fromhex(value))
    assert "newer release" in caught.value.advice
