"""Round trips, the framings of Kafka's clients, and decompression bombs."""

from __future__ import annotations

import os
import tracemalloc
import zlib

import cramjam
import pytest

from fenceline.errors import ErrorCode
from fenceline.records.batch import Codec
from fenceline.records.compression import LEVELS, compress, decompress
from fenceline.records.errors import RecordsError

CONTENTS = {
    "empty": b"",
    "one byte": b"x",
    "text": b"hello kafka " * 20_000,
    "random": os.urandom(200_000),
    "mixed": (b"abc" * 30_000 + os.urandom(70_000)) * 2,
}


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("name", CONTENTS)
def test_round_trip_at_the_exact_limit(codec: Codec, name: str) -> None:
    content = CONTENTS[name]
    assert decompress(codec, compress(codec, content), len(content)) == content


@pytest.mark.parametrize("codec", list(LEVELS))
def test_every_compression_level(codec: Codec) -> None:
    lowest, highest, default = LEVELS[codec]
    content = CONTENTS["text"]
    for level in {lowest, highest, default, 1, 5, None}:
        assert decompress(codec, compress(codec, content, level)) == content


@pytest.mark.parametrize("codec", list(Codec))
def test_one_byte_above_the_limit(codec: Codec) -> None:
    content = CONTENTS["text"]
    with pytest.raises(RecordsError) as refused:
        decompress(codec, compress(codec, content), len(content) - 1)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_decompression_bomb_stays_within_the_memory_limit(codec: Codec) -> None:
    bomb = compress(codec, bytes(200_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(RecordsError):
            decompress(codec, bomb, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 6_000_000 + len(bomb)
    finally:
        tracemalloc.stop()


def test_claimed_size_is_not_trusted() -> None:
    with pytest.raises(RecordsError) as refused:
        decompress(Codec.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"x" * 20)
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_truncated_input_is_rejected(codec: Codec) -> None:
    packed = compress(codec, CONTENTS["text"])
    for size in (1, 5, 10, 20, len(packed) // 2, len(packed) - 1):
        with pytest.raises(RecordsError) as refused:
            decompress(codec, packed[:size])
        assert refused.value.code is ErrorCode.CORRUPT_MESSAGE


def test_snappy_has_xerial_framing_and_raw_is_read() -> None:
    content = CONTENTS["text"]
    assert compress(Codec.SNAPPY, content).startswith(b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
    assert decompress(Codec.SNAPPY, bytes(cramjam.snappy.compress_raw(content))) == content


def test_lz4_blocks_are_independent() -> None:
    """Kafka's own reader rejects linked blocks; frames of others may be linked and have checksums and sizes."""
    packed = compress(Codec.LZ4, CONTENTS["mixed"])
    assert packed[4] & 0x20
    assert bytes(cramjam.lz4.decompress(packed)) == CONTENTS["mixed"]
    assert decompress(Codec.LZ4, bytes(cramjam.lz4.compress(CONTENTS["mixed"]))) == CONTENTS["mixed"]


def test_consecutive_members_and_frames_are_read() -> None:
    a, b = CONTENTS["text"], CONTENTS["random"]
    for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
        assert decompress(codec, compress(codec, a) + compress(codec, b)) == a + b


def test_gzip_of_other_implementations() -> None:
    assert decompress(Codec.GZIP, zlib.compress(b"abc", 1, 31)) == b"abc"


def test_a_million_bytes_of_empty_parts_use_little_memory() -> None:
    """Members and blocks that hold nothing: neither a copy of the rest nor an object is kept for each."""
    member, block = zlib.compress(b"", 9, 31), b"\0\0\0\x01\0"
    xerial = compress(Codec.SNAPPY, b"")[:16]
    tracemalloc.start()
    try:
        assert decompress(Codec.GZIP, member * 10_000) == b""
        assert decompress(Codec.SNAPPY, xerial + block * 40_000) == b""
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_members_of_many_sizes_are_joined() -> None:
    parts = [bytes([number % 251]) * (number * 37 % 5_000) for number in range(300)] + [CONTENTS["text"] * 3]
    assert decompress(Codec.GZIP, b"".join(zlib.compress(part, 1, 31) for part in parts)) == b"".join(parts)
    with pytest.raises(RecordsError, match="gzip"):
        decompress(Codec.GZIP, b"".join(zlib.compress(part, 1, 31) for part in parts)[:-1])
