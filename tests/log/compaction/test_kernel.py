"""The compaction kernel: both twins give equal results for valid and for damaged batches."""

from __future__ import annotations

from array import array
from random import Random
from types import ModuleType
from typing import Any

import pytest

from fenceline.compiled import compiled
from fenceline.log.compaction import _compaction_py
from fenceline.records.batch import (
    BATCH_OVERHEAD,
    Codec,
    TimestampType,
    crc_is_valid,
    iter_headers,
    read_header,
    rewrite_header,
)
from fenceline.records.build import Row, build_batch
from fenceline.records.decode import decode_batch
from fenceline.records.errors import RecordsError

_NATIVE = compiled("fenceline.log.compaction._compaction", _compaction_py.ABI)
TWINS: list[Any] = [
    pytest.param(_compaction_py, id="python"),
    pytest.param(_NATIVE, id="native", marks=pytest.mark.compiled),
]
SECRET = bytes(range(16))
NOW_MS, HORIZON_MS = 50_000, 90_000


def rows(rng: Random, count: int) -> list[Row]:
    found: list[Row] = []
    for _ in range(count):
        key = None if rng.random() < 0.1 else b"k%d" % rng.randrange(6)
        value = None if rng.random() < 0.3 else rng.randbytes(rng.choice([0, 1, 90]))
        headers = (("name", rng.choice([None, b"v"])),) if rng.random() < 0.2 else ()
        found.append((rng.choice([0, 1, -1, 1_000, 1 << 60, -(1 << 60)]), key, value, headers))
    return found


def stretch(rng: Random) -> bytearray:
    """Consecutive batches, some of which the kernel leaves to its caller."""
    out = bytearray()
    offset = 0
    for _ in range(rng.randrange(1, 12)):
        count = rng.choice([1, 2, 5])
        made = build_batch(
            rows(rng, count),
            base_offset=offset,
            leader_epoch=3,
            codec=rng.choice([Codec.NONE] * 9 + [Codec.GZIP]),
            transactional=rng.random() < 0.05,
            timestamp_type=rng.choice([TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME]),
            producer_id=rng.choice([-1, 7]),
            producer_epoch=0,
            base_sequence=offset,
        )
        if rng.random() < 0.2 and read_header(made).codec is Codec.NONE:
            horizon = rng.choice([NOW_MS, NOW_MS + 1])
            made = rewrite_header(made, records=count, horizon_ms=horizon)
        out += made
        offset += count + rng.choice([0, 0, 3])
    return out


def played(twin: ModuleType, content: bytearray, seed: int) -> Any:
    """All results of one twin for a stretch, or its error code."""
    rng = Random(seed)
    keys = twin.KeyOffsets(rng.choice([2, 100]), 0.9, SECRET)
    keys.end_offset = start = rng.randrange(4)
    reported: list[Any] = []
    try:
        position = 0
        while True:
            position, outcome, records = twin.index_chunk(keys, content, position, len(content), start)
            reported.append((position, outcome, records, len(keys), keys.end_offset))
            if outcome != _compaction_py.SPECIAL:
                break
            header = read_header(content, position)
            whole = header.codec is Codec.NONE and twin.index_records(
                keys, content, position + BATCH_OVERHEAD, header.end_position, header.record_count,
                header.base_offset, header.last_offset_delta, start,
            )  # fmt: skip
            reported.append(whole)
            position = header.end_position
        reported.append([keys.get(b"k%d" % number) for number in range(7)])
        out = bytearray(3 * len(content))
        kept = array("q", sorted({header.last_offset for header in iter_headers(content) if rng.random() < 0.4}))
        position = written = 0
        while True:
            found = twin.filter_chunk(keys, content, position, len(content), out, written, kept, NOW_MS, HORIZON_MS)
            position, written, outcome = found[:3]
            reported.append(found)
            if outcome != _compaction_py.SPECIAL:
                break
            header = read_header(content, position)
            if header.codec is Codec.NONE:
                left = twin.filter_records(
                    keys, content, position + BATCH_OVERHEAD, header.end_position, header.record_count,
                    header.base_offset, header.last_offset_delta, header.base_timestamp, header.has_delete_horizon,
                    NOW_MS, HORIZON_MS,
                )  # fmt: skip
                reported.append(None if left is None else tuple(left))
            position = header.end_position
        reported.append(bytes(out[:written]))
    except RecordsError as error:
        reported.append(error.code)
    return reported


@pytest.mark.compiled
@pytest.mark.parametrize("seed", range(300))
def test_twins_are_equal(seed: int) -> None:
    content = stretch(Random(seed))
    found = played(_compaction_py, content, seed)
    assert found == played(_NATIVE, content, seed)  # type: ignore[arg-type]
    written = found[-1]
    if isinstance(written, bytes):
        for header in iter_headers(written):
            assert crc_is_valid(written, header)
            if header.codec is Codec.NONE:
                decode_batch(written, header)


@pytest.mark.compiled
@pytest.mark.parametrize("seed", range(300))
def test_twins_are_equal_for_damaged_batches(seed: int) -> None:
    rng = Random(seed)
    content = stretch(rng)
    for _ in range(rng.choice([1, 1, 4])):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    if rng.random() < 0.5:
        del content[rng.randrange(1, len(content)) :]
    # The checksums match, so that only the records are damaged.
    position = 0
    while rng.random() < 0.9 and position + BATCH_OVERHEAD <= len(content):
        size = int.from_bytes(content[position + 8 : position + 12], "big", signed=True) + 12
        if size < BATCH_OVERHEAD or position + size > len(content) or content[position + 16] != 2:
            break
        header = read_header(content, position)
        content[position : position + size] = _with_crc(content[position : position + size])
        position += header.size_bytes
    assert played(_compaction_py, content, seed) == played(_NATIVE, content, seed)  # type: ignore[arg-type]


def _with_crc(batch: bytearray) -> bytearray:
    from fenceline.records.batch import compute_crc

    batch[17:21] = compute_crc(batch, 0, len(batch)).to_bytes(4, "big")
    return batch


@pytest.mark.parametrize("twin", TWINS)
def test_map_holds_as_many_keys_as_its_capacity(twin: Any) -> None:
    keys = twin.KeyOffsets(1_000, 0.9, SECRET)
    assert all(keys.put(b"%d" % number, number) for number in range(1_000))
    assert not keys.put(b"one more", 5)
    assert keys.put(b"77", 5_000)
    assert [keys.get(b"%d" % number) for number in (0, 77, 999)] == [0, 5_000, 999]
    assert keys.get(b"one more") == -1
    assert len(keys) == keys.most_keys == 1_000


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("given", [(0, 0.9, SECRET), (1, 0.0, SECRET), (1, 1.1, SECRET), (1, 0.9, b"short")])
def test_invalid_map_size_is_rejected(twin: Any, given: tuple[int, float, bytes]) -> None:
    with pytest.raises(ValueError, match="needed"):
        twin.KeyOffsets(*given)


@pytest.mark.compiled
def test_the_hash_is_siphash_2_4_of_128_bits() -> None:
    """The first test vector published by its authors."""
    digest = _NATIVE.KeyOffsets(1, 0.9, SECRET).digest  # type: ignore[union-attr]
    assert digest(b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert digest(b"\0").hex() == "da87c1d86b99af44347659119b22fc45"


@pytest.mark.parametrize("twin", TWINS)
def test_tombstones_are_marked_once_and_removed_after_their_delete_horizon(twin: Any) -> None:
    keys = twin.KeyOffsets(10, 0.9, SECRET)
    made = build_batch([(1_000, b"a", None, ()), (2_000, b"b", b"v", ())])
    keys.end_offset = 0
    assert twin.index_chunk(keys, made, 0, len(made), 0)[:2] == (len(made), _compaction_py.REST)
    out = bytearray(3 * len(made))

    def filtered(batch: bytes | bytearray, now_ms: int) -> bytes:
        written = twin.filter_chunk(keys, batch, 0, len(batch), out, 0, array("q"), now_ms, now_ms + 500)[1]
        return bytes(out[:written])

    marked = filtered(made, 10_000)
    header = read_header(marked)
    assert header.has_delete_horizon
    assert header.base_timestamp == 10_500
    assert [(each.timestamp, each.key, each.value) for each in decode_batch(marked, header)] == [
        (1_000, b"a", None),
        (2_000, b"b", b"v"),
    ]
    assert filtered(marked, 10_499) == marked
    late = filtered(marked, 10_500)
    assert [(each.offset, each.timestamp, each.key) for each in decode_batch(late, read_header(late))] == [
        (1, 2_000, b"b")
    ]
    assert read_header(late).last_offset == 1
