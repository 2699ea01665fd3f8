"""Record codecs declared with dataclasses, against bytes counted by hand."""

# ruff: noqa: RUF009 (a field is declared by a call)

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.errors import InternalError
from fenceline.ids import ZERO_UUID
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.message import codec, kafka


@dataclass(frozen=True, slots=True)
class OffsetCommitValue:
    """`formats.md F7`."""

    offset: int = kafka("int64", versions="0+")
    leader_epoch: int = kafka("int32", versions="3+", default=-1)
    metadata: str = kafka("string", versions="0+", default="")
    commit_timestamp: int = kafka("int64", versions="0+", default=0)
    expire_timestamp: int = kafka("int64", versions="1", default=-1)
    topic_id: UUID = kafka("uuid", versions="4+", tag=0, default=ZERO_UUID)


OFFSET_COMMIT_VALUE = codec(OffsetCommitValue, versions=(0, 4), flexible="4+")
COMMITTED = OffsetCommitValue(5, 6, "m", 7, 8, UUID(int=9))


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (0, "0000000000000005 0001 6d 0000000000000007"),
        (1, "0000000000000005 0001 6d 0000000000000007 0000000000000008"),
        (2, "0000000000000005 0001 6d 0000000000000007"),
        (3, "0000000000000005 00000006 0001 6d 0000000000000007"),
        (4, "0000000000000005 00000006 02 6d 0000000000000007 01 00 10 00000000000000000000000000000009"),
    ],
)
def test_versions_by_hand(version: int, text: str) -> None:
    encoded = OFFSET_COMMIT_VALUE.encode(version, COMMITTED)
    assert encoded == bytes.fromhex(text)
    decoded, end = OFFSET_COMMIT_VALUE.decode(version, b"xx" + encoded + b"rest", 2)
    assert end == 2 + len(encoded)
    assert decoded == OffsetCommitValue(
        5,
        6 if version >= 3 else -1,
        "m",
        7,
        8 if version == 1 else -1,
        UUID(int=9) if version >= 4 else ZERO_UUID,
    )


def test_tagged_fields_at_their_default_are_not_written() -> None:
    assert OFFSET_COMMIT_VALUE.encode(4, OffsetCommitValue(5)).endswith(b"\0")
    assert len(OFFSET_COMMIT_VALUE.encode(4, OffsetCommitValue(5))) == 22


@dataclass(frozen=True, slots=True)
class Protocol:
    name: str = kafka("string", versions="0+")
    metadata: bytes = kafka("bytes", versions="0+", default=b"")


@dataclass(frozen=True, slots=True)
class Classic:
    session_timeout_ms: int = kafka("int32", versions="0+")
    protocols: tuple[Protocol, ...] = kafka("[]Protocol", versions="0+", default=())


@dataclass(frozen=True, slots=True)
class Member:
    """Every feature of a schema, in one struct."""

    instance_id: str | None = kafka("string", versions="0+", nullable="0+", default=None)
    topics: tuple[str, ...] = kafka("[]string", versions="0+", default=())
    ids: tuple[UUID, ...] | None = kafka("[]uuid", versions="0+", nullable="0+", default=None)
    numbers: tuple[int, ...] = kafka("[]int32", versions="0+", default=())
    blobs: tuple[bytes, ...] = kafka("[]bytes", versions="0+", default=())
    flag: bool = kafka("bool", versions="0+", default=False)
    port: int = kafka("uint16", versions="0+", default=0)
    share: float = kafka("float64", versions="0+", default=0.0)
    protocol: Protocol = kafka("Protocol", versions="0+", default=Protocol("p"))
    other: Classic | None = kafka("Classic", versions="1+", nullable="1+", default=None)
    classic: Classic | None = kafka("Classic", versions="0+", tag=0, tagged_versions="1+", nullable="0+", default=None)
    late: int = kafka("int64", versions="1+", tag=5, default=-1)
    tagged: tuple[int, ...] | None = kafka("[]int32", versions="1+", tag=3, nullable="1+", default=None)


MEMBER = codec(Member, versions=(0, 1), flexible="1+")
TEXT = st.text(max_size=5)
PROTOCOLS = st.builds(Protocol, TEXT, st.binary(max_size=130))
CLASSICS = st.builds(Classic, st.integers(0, 9), st.lists(PROTOCOLS, max_size=2).map(tuple))
NUMBERS = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4).map(tuple)
MEMBERS = st.builds(
    Member,
    st.none() | TEXT,
    st.lists(TEXT, max_size=3).map(tuple),
    st.none() | st.lists(st.uuids(), max_size=2).map(tuple),
    NUMBERS,
    st.lists(st.binary(max_size=3), max_size=2).map(tuple),
    st.booleans(),
    st.integers(0, 65535),
    st.floats(allow_nan=False),
    PROTOCOLS,
    st.none() | CLASSICS,
    st.none() | CLASSICS,
    st.integers(-5, 5),
    st.none() | NUMBERS,
)


@given(MEMBERS)
def test_round_trip(member: Member) -> None:
    encoded = MEMBER.encode(1, member)
    assert MEMBER.decode(1, encoded) == (member, len(encoded))
    assert MEMBER.decode(1, memoryview(bytearray(encoded))) == (member, len(encoded))
    encoded = MEMBER.encode(0, member)
    older, end = MEMBER.decode(0, encoded)
    assert end == len(encoded)
    assert older.classic == member.classic
    assert (older.other, older.late, older.tagged) == (None, -1, None)


def test_nullable_struct_in_a_tag_by_hand() -> None:
    """`KIP-893`: the marker byte is part of the tag's size."""
    bare = MEMBER.encode(1, Member())
    held = MEMBER.encode(1, Member(classic=Classic(3)))
    assert bare.endswith(bytes.fromhex("ff 00"))
    assert held == bare[:-1] + bytes.fromhex("01 00 07 01 00000003 01 00")


def test_tags_are_sent_in_order_and_unknown_ones_are_skipped() -> None:
    encoded = MEMBER.encode(1, Member(late=1, tagged=()))
    assert encoded.endswith(bytes.fromhex("02 03 01 01 05 08 0000000000000001"))
    bare = MEMBER.encode(1, Member())[:-1]
    unknown = bare + bytes.fromhex("03 05 08 0000000000000002 07 02 aabb 8101 00")
    assert MEMBER.decode(1, unknown) == (Member(late=2), len(unknown))


@pytest.mark.parametrize(
    "tail", ["01 05 07 00000000000002", "01 05 09 000000000000000200", "01 05 08 00", "01 09 09", "01"]
)
def test_malformed_tags_are_rejected(tail: str) -> None:
    with pytest.raises(MalformedRequest):
        MEMBER.decode(1, MEMBER.encode(1, Member())[:-1] + bytes.fromhex(tail))


@given(MEMBERS, st.data())
def test_damaged_bytes(member: Member, data: st.DataObject) -> None:
    for version in (0, 1):
        encoded = bytearray(MEMBER.encode(version, member))
        for _ in range(data.draw(st.integers(1, 3))):
            encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
        for damaged in (encoded, encoded[: data.draw(st.integers(0, len(encoded)))]):
            try:
                decoded, end = MEMBER.decode(version, damaged)
            except MalformedRequest:
                continue
            assert isinstance(decoded, Member)
            assert end <= len(damaged)


def test_values_out_of_range_are_an_internal_error() -> None:
    for wrong in (Member(port=70_000), Member(topics=None), Member(protocol=None)):  # type: ignore[arg-type]
        with pytest.raises(InternalError, match="Member v1"):
            MEMBER.encode(1, wrong)
    with pytest.raises(InternalError):
        MEMBER.encode(2, Member())
    with pytest.raises(MalformedRequest):
        MEMBER.decode(2, b"")


def test_invalid_declarations_are_rejected() -> None:
    @dataclass
    class Undeclared:
        number: int = field(default=0)

    @dataclass
    class Untyped:
        number: int = kafka("[]Thing", versions="0+", default=())

    for cls in (Undeclared, Untyped, int):
        with pytest.raises(InternalError):
            codec(cls, versions=(0, 0), flexible=None)
