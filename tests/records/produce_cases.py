"""Batches that a leader must reject, accept or change, for the tests of `validate.py` with and without Apache Kafka."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from fenceline.records.batch import BATCH_OVERHEAD, Codec, TimestampType
from fenceline.records.build import build_batch, finish_batch
from fenceline.records.kernel import append_record

HOUR_MS: Final = 3_600_000
MAX_MESSAGE_BYTES: Final = 20_000

TOPICS: Final[dict[str, dict[str, str]]] = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "to-zstd": {"compression.type": "zstd"},
    "to-lz4": {"compression.type": "lz4"},
    "to-gzip": {"compression.type": "gzip"},
    "to-snappy": {"compression.type": "snappy"},
    "to-none": {"compression.type": "uncompressed"},
    "recent": {"message.timestamp.before.max.ms": str(HOUR_MS)},
}


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    make: Callable[[int], bytes]
    """Maps the current time in ms to the records of the request."""
    topic: str = "plain"
    version: int = 8
    code: int = 0
    """The error code of Apache Kafka 4.3.1."""
    record_indexes: tuple[int, ...] = ()
    ours: int | None = None
    """The error code of Fenceline where Kafka fails internally (UNKNOWN_SERVER_ERROR)."""


def fix_crc(batch: bytes | bytearray) -> bytes:
    out = bytearray(batch)
    struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    return bytes(out)


def patched(batch: bytes | bytearray, at: int, layout: str, value: int, *, crc: bool = True) -> bytes:
    """The batch with one header field changed, with a matching CRC by default."""
    out = bytearray(batch)
    struct.pack_into(layout, out, at, value)
    return fix_crc(out) if crc else bytes(out)


def rows(now: int, count: int = 3, key: bytes | None = b"k") -> list[tuple[int, bytes | None, bytes | None, tuple[()]]]:
    return [(now - count + index, key, b"v%d" % index, ()) for index in range(count)]


def raw_batch(
    now: int, payload: bytes, *, count: int, codec: Codec = Codec.NONE, last_offset_delta: int | None = None
) -> bytes:
    """A batch with a valid header and CRC around any records."""
    return bytes(
        finish_batch(
            bytearray(BATCH_OVERHEAD) + payload,
            base_offset=0,
            leader_epoch=-1,
            codec=codec,
            level=None,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            transactional=False,
            control=False,
            timestamp_type=TimestampType.CREATE_TIME,
            base_timestamp=now,
            max_timestamp=now,
            record_count=count,
            last_offset_delta=last_offset_delta,
        )
    )


def deltas(*offset_deltas: int, rest: bytes = b"") -> bytes:
    out = bytearray()
    for delta in offset_deltas:
        append_record(out, delta, 0, b"k", b"v", ())
    return bytes(out + rest)


def not_compressed(now: int, codec: Codec) -> bytes:
    """A batch marked as compressed with uncompressed records."""
    return patched(build_batch(rows(now)), 21, ">h", codec)


CORRUPT, TOO_LARGE, BAD_TIME, UNSUPPORTED_CODEC, INVALID = 2, 10, 32, 76, 87

CASES: Final[tuple[Case, ...]] = (
    Case("good", lambda now: bytes(build_batch(rows(now)))),
    *(Case(f"good {codec.name}", lambda now, c=codec: bytes(build_batch(rows(now), codec=c))) for codec in Codec),
    Case("empty", lambda now: b"", code=INVALID),
    Case("no whole header", lambda now: bytes(build_batch(rows(now)))[:40], code=INVALID),
    Case("cut short", lambda now: bytes(build_batch(rows(now)))[:-1], code=INVALID),
    Case("two batches", lambda now: bytes(build_batch(rows(now)) * 2), code=INVALID),
    Case("torn second batch", lambda now: bytes(build_batch(rows(now))) + bytes(build_batch(rows(now)))[:-1]),
    Case("zeros behind", lambda now: bytes(build_batch(rows(now))) + bytes(30), code=CORRUPT),
    Case("few zeros behind", lambda now: bytes(build_batch(rows(now))) + bytes(9)),
    Case("length below the least", lambda now: patched(build_batch(rows(now)), 8, ">i", 13, crc=False), code=CORRUPT),
    Case("negative length", lambda now: patched(build_batch(rows(now)), 8, ">i", -1, crc=False), code=CORRUPT),
    Case("magic 0", lambda now: patched(build_batch(rows(now)), 16, ">b", 0), code=INVALID),
    Case("magic 1", lambda now: patched(build_batch(rows(now)), 16, ">b", 1), code=INVALID),
    Case("magic 3", lambda now: patched(build_batch(rows(now)), 16, ">b", 3), code=CORRUPT),
    Case("magic -1", lambda now: patched(build_batch(rows(now)), 16, ">b", -1), code=CORRUPT),
    Case("wrong crc", lambda now: patched(build_batch(rows(now)), 17, ">I", 1, crc=False), code=CORRUPT),
    Case("base offset", lambda now: patched(build_batch(rows(now)), 0, ">q", 5, crc=False), code=INVALID),
    Case("leader epoch is free", lambda now: patched(build_batch(rows(now)), 12, ">i", 77, crc=False)),
    Case(
        "too large",
        lambda now: bytes(build_batch([(now, b"k", bytes(MAX_MESSAGE_BYTES), ())])),
        code=TOO_LARGE,
    ),
    Case(
        "zstd before version 7",
        lambda now: bytes(build_batch(rows(now), codec=Codec.ZSTD)),
        version=6,
        code=UNSUPPORTED_CODEC,
    ),
    Case("unknown codec", lambda now: patched(build_batch(rows(now)), 21, ">h", 5), code=-1, ours=INVALID),
    Case("negative last delta", lambda now: patched(build_batch(rows(now)), 23, ">i", -1), code=INVALID),
    Case("last delta differs", lambda now: patched(build_batch(rows(now)), 23, ">i", 5), code=INVALID),
    Case("count 0", lambda now: patched(build_batch(rows(now)), 57, ">i", 0), code=INVALID),
    Case("count differs", lambda now: patched(build_batch(rows(now)), 57, ">i", 2), code=INVALID),
    Case("count and delta too low", lambda now: raw_batch(now, deltas(0, 1, 2), count=2), code=INVALID),
    Case("count and delta too high", lambda now: raw_batch(now, deltas(0, 1), count=3), code=INVALID),
    Case("control batch", lambda now: bytes(build_batch(rows(now), control=True)), code=INVALID),
    Case(
        "producer without sequence",
        lambda now: bytes(build_batch(rows(now), producer_id=9, producer_epoch=0)),
        code=INVALID,
    ),
    Case("rest behind the records", lambda now: raw_batch(now, deltas(0, 1, rest=b"\0"), count=2), code=INVALID),
    Case("garbage records", lambda now: raw_batch(now, b"\xff" * 40, count=2), code=-1, ours=INVALID),
    Case("record of no length", lambda now: raw_batch(now, bytes(14), count=2), code=INVALID),
    Case("deltas twice", lambda now: raw_batch(now, deltas(0, 0, 2), count=3)),
    Case(
        "time too late",
        lambda now: bytes(build_batch([*rows(now), (now + 2 * HOUR_MS, b"k", b"v", ())])),
        code=BAD_TIME,
        record_indexes=(3,),
    ),
    Case(
        "two too late",
        lambda now: bytes(
            build_batch([(now + 2 * HOUR_MS, b"k", b"v", ()), *rows(now), (now + 2 * HOUR_MS, b"k", b"v", ())])
        ),
        code=BAD_TIME,
        record_indexes=(0, 4),
    ),
    Case(
        "time too early",
        lambda now: bytes(build_batch([*rows(now), (now - 2 * HOUR_MS, b"k", b"v", ())])),
        "recent",
        code=BAD_TIME,
        record_indexes=(3,),
    ),
    Case("no time at all", lambda now: bytes(build_batch([(-1, b"k", b"v", ())])), "recent"),
    Case(
        "negative time",
        lambda now: bytes(build_batch([(-5, b"k", b"v", ())])),
        "recent",
        code=BAD_TIME,
        record_indexes=(0,),
    ),
    Case("header's maximum wrong", lambda now: patched(build_batch(rows(now)), 35, ">q", now + 9 * HOUR_MS)),
    Case("header's maximum low", lambda now: patched(build_batch(rows(now)), 35, ">q", 5)),
    Case("log append time set, in range", lambda now: patched(build_batch(rows(now)), 21, ">h", 8)),
    Case(
        "log append time set, no time",
        lambda now: patched(patched(build_batch(rows(now)), 21, ">h", 8), 35, ">q", -1),
        code=BAD_TIME,
        record_indexes=(0, 1, 2),
    ),
    Case("log append time topic", lambda now: bytes(build_batch(rows(now + 9 * HOUR_MS))), "stamped"),
    Case(
        "log append time twice",
        lambda now: patched(build_batch(rows(now)), 21, ">h", 8),
        "stamped",
        code=BAD_TIME,
        record_indexes=(0, 1, 2),
    ),
    Case("compacted with keys", lambda now: bytes(build_batch(rows(now))), "compacted"),
    Case(
        "compacted without a key",
        lambda now: bytes(build_batch([*rows(now), *rows(now, 2, None)])),
        "compacted",
        code=INVALID,
        record_indexes=(3, 4),
    ),
    Case(
        "compacted without a key and too late",
        lambda now: bytes(build_batch([*rows(now, 1, None), (now + 2 * HOUR_MS, b"k", b"v", ())])),
        "compacted",
        code=BAD_TIME,
        record_indexes=(0, 1),
    ),
    Case(
        "compacted lz4 without a key",
        lambda now: bytes(build_batch(rows(now, 2, None), codec=Codec.LZ4)),
        "compacted",
        code=INVALID,
        record_indexes=(0, 1),
    ),
    *(
        Case(f"recompress {source.name} {topic}", lambda now, c=source: bytes(build_batch(rows(now), codec=c)), topic)
        for topic in ("to-zstd", "to-lz4", "to-gzip", "to-snappy", "to-none")
        for source in (Codec.NONE, Codec.LZ4, Codec.ZSTD)
    ),
    Case(
        "too large once decompressed",
        lambda now: bytes(build_batch([(now, b"k", bytes(MAX_MESSAGE_BYTES), ())], codec=Codec.LZ4)),
        "to-none",
        code=TOO_LARGE,
    ),
    Case(
        "deltas twice, compressed",
        lambda now: raw_batch(now, deltas(0, 0, 2), count=3, codec=Codec.LZ4),
        code=-1,
        ours=0,
    ),
    Case(
        "time too late, compressed",
        lambda now: bytes(build_batch([*rows(now), (now + 2 * HOUR_MS, b"k", b"v", ())], codec=Codec.ZSTD)),
        code=BAD_TIME,
        record_indexes=(3,),
    ),
    *(
        Case(f"not {codec.name} at all", lambda now, c=codec: not_compressed(now, c), code=-1, ours=INVALID)
        for codec in list(Codec)[1:]
    ),
    *(
        Case(
            f"count too low, {codec.name}",
            lambda now, c=codec: raw_batch(now, deltas(0, 1, 2), count=2, codec=c),
            code=INVALID,
        )
        for codec in list(Codec)[1:]
    ),
    Case("count too high, LZ4", lambda now: raw_batch(now, deltas(0, 1), count=3, codec=Codec.LZ4), code=INVALID),
    Case("garbage records, LZ4", lambda now: raw_batch(now, b"\xff" * 40, count=2, codec=Codec.LZ4), code=INVALID),
)
