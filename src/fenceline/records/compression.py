"""The codecs of a record batch: bytes to bytes, bounded.

Owns the framings that Kafka's clients expect: xerial framing for snappy (raw snappy is read too, librdkafka writes it),
LZ4 frames of independent 64 KiB blocks (Kafka's reader rejects linked ones), gzip, zstd. `decompress` never holds more
than `max_size_bytes` of output, whatever the input claims. gzip is the standard library's: as fast as cramjam's, and it
can stop at a limit.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import ErrorCode
from fenceline.records.batch import Codec
from fenceline.records.errors import RecordsError, corrupt

if TYPE_CHECKING:
    from typing_extensions import Buffer

DEFAULT_MAX_SIZE_BYTES: Final = 256 * 1024 * 1024
"""The largest decompressed batch that is accepted if the caller gives no limit."""

LEVELS: Final = {Codec.GZIP: (1, 9, -1), Codec.LZ4: (1, 17, 9), Codec.ZSTD: (-131072, 22, 3)}
"""Lowest, highest and default level of each codec that has levels (Kafka's `compression.<codec>.level`)."""

_GZIP_PIECE_BYTES: Final = 1024
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_LZ4_HEADER: Final = _LZ4_MAGIC + b"\x60\x40\x82"  # version 1, independent blocks, 64 KiB, checksum of the two bytes
_LZ4_BLOCK_BYTES: Final = 64 * 1024
_LZ4_UNCOMPRESSED: Final = 0x80000000
_LZ4_SIZES: Final = {4: 1 << 16, 5: 1 << 18, 6: 1 << 20, 7: 1 << 22}
_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_BLOCK_BYTES: Final = 128 * 1024
_SKIPPABLE: Final = 0x184D2A50


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """`data` under `codec`; `level` is the codec's own scale (`LEVELS`), None its default; snappy has none."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return zlib.compress(data, -1 if level is None else level, 31)
        case Codec.SNAPPY:
            return _compress_snappy(memoryview(data).cast("B"))
        case Codec.LZ4:
            return _compress_lz4(memoryview(data).cast("B"), level)
        case Codec.ZSTD:
            import cramjam

            return bytes(cramjam.zstd.compress(data, LEVELS[Codec.ZSTD][2] if level is None else level))


def decompress(codec: Codec, data: Buffer, max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES) -> bytes:
    """The inverse of `compress`.

    Raises RecordsError: CORRUPT_MESSAGE if `data` is invalid for the codec, MESSAGE_TOO_LARGE if the output would
    exceed `max_size_bytes`.
    """
    return bytes(decompress_view(codec, data, max_size_bytes))


def decompress_view(codec: Codec, data: Buffer, max_size_bytes: int = DEFAULT_MAX_SIZE_BYTES) -> memoryview:
    """As `decompress` without the last copy: a view of the output (of `data` itself for Codec.NONE)."""
    view = memoryview(data).cast("B")
    match codec:
        case Codec.NONE:
            if view.nbytes > max_size_bytes:
                raise _too_large(max_size_bytes)
            return view
        case Codec.GZIP:
            return _decompress_gzip(view, max_size_bytes)
        case Codec.SNAPPY:
            return _decompress_snappy(view, max_size_bytes)
        case Codec.LZ4:
            import cramjam

            return _into(cramjam.lz4, view, _lz4_bound(view), max_size_bytes)
        case Codec.ZSTD:
            import cramjam

            return _into(cramjam.zstd, view, _zstd_bound(view), max_size_bytes)


def _too_large(max_size_bytes: int) -> RecordsError:
    return RecordsError(
        ErrorCode.MESSAGE_TOO_LARGE, f"the decompressed records exceed the limit of {max_size_bytes} bytes"
    )


def _into(module: Any, data: memoryview, bound: int, max_size_bytes: int) -> memoryview:
    """Decompress into a buffer of the maximum size that the input's structure allows."""
    import cramjam

    output = bytearray(min(bound, max_size_bytes))
    try:
        written = module.decompress_into(data, output)
    except cramjam.DecompressionError as error:
        if bound > max_size_bytes:
            raise _too_large(max_size_bytes) from error
        raise corrupt(f"the records cannot be decompressed: {error}") from error
    return memoryview(output)[:written]


# --- gzip


def _decompress_gzip(data: memoryview, max_size_bytes: int) -> memoryview:
    parts: list[bytes] = []
    room = max_size_bytes
    position, end = 0, data.nbytes
    piece_bytes = end
    while True:
        member = zlib.decompressobj(31)
        while not member.eof:
            if position == end:
                raise corrupt("the records cannot be decompressed: the gzip stream is truncated")
            piece = data[position : position + piece_bytes]
            try:
                # One byte more than allowed distinguishes "exactly full" from "more follows".
                part = member.decompress(piece, room + 1)
            except zlib.error as error:
                raise corrupt(f"the records cannot be decompressed: {error}") from error
            if len(part) > room:
                raise _too_large(max_size_bytes)
            if part:
                parts.append(part)
            room -= len(part)
            position += piece.nbytes - len(member.unused_data)
            piece_bytes *= 2
        if position == end:
            return memoryview(parts[0] if len(parts) == 1 else b"".join(parts))
        # The library copies what is behind a member: with all of the rest, thousands of members would take minutes.
        piece_bytes = _GZIP_PIECE_BYTES


# --- snappy


def _compress_snappy(data: memoryview) -> bytes:
    from cramjam import snappy

    parts: list[bytes] = [_XERIAL_HEADER]
    for start in range(0, data.nbytes, _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(data: memoryview, max_size_bytes: int) -> memoryview:
    # Twice, without a list: an empty block has five bytes here, and would have two hundred there.
    total = 0
    for block in _snappy_blocks(data):
        total += _snappy_size(block)
        if total > max_size_bytes:
            raise _too_large(max_size_bytes)
    return _uncompressed_snappy(_snappy_blocks(data), total)


def _snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        yield data
        return
    position = len(_XERIAL_HEADER)
    if data.nbytes < position:
        raise corrupt("the snappy framing is truncated")
    while position < data.nbytes:
        size = int.from_bytes(data[position : position + 4], "big")
        position += 4
        if size > data.nbytes - position:
            raise corrupt("a snappy block exceeds the end of the records")
        yield data[position : position + size]
        position += size


def _snappy_size(block: memoryview) -> int:
    """The size that the block claims, checked against snappy's maximum ratio (about 21 to 1)."""
    size = shift = 0
    for index in range(min(5, block.nbytes)):
        byte = block[index]
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            if size > (block.nbytes + 1) * 64:
                raise corrupt(f"a snappy block of {block.nbytes} bytes claims to hold {size}")
            return size
        shift += 7
    raise corrupt("a snappy block has no valid length")


def _uncompressed_snappy(blocks: Iterable[memoryview], total: int) -> memoryview:
    import cramjam

    output = bytearray(total)
    target = memoryview(output)
    position = 0
    for block in blocks:
        size = _snappy_size(block)
        try:
            written = cramjam.snappy.decompress_raw_into(block, target[position : position + size])
        except cramjam.DecompressionError as error:
            raise corrupt(f"the records cannot be decompressed: {error}") from error
        if written != size:
            raise corrupt(f"a snappy block holds {written} bytes instead of {size}")
        position += size
    return target


# --- lz4


def _compress_lz4(data: memoryview, level: int | None) -> bytes:
    from cramjam import lz4

    # As in Kafka, the default level means the fast mode and every other level LZ4 HC.
    high = level is not None and level != LEVELS[Codec.LZ4][2]
    parts: list[bytes | memoryview] = [_LZ4_HEADER]
    for start in range(0, data.nbytes, _LZ4_BLOCK_BYTES):
        raw = data[start : start + _LZ4_BLOCK_BYTES]
        if high:
            block = bytes(lz4.compress_block(raw, mode="high_compression", compression=level, store_size=False))
        else:
            block = bytes(lz4.compress_block(raw, store_size=False))
        if len(block) < raw.nbytes:
            parts += (len(block).to_bytes(4, "little"), block)
        else:
            parts += ((raw.nbytes | _LZ4_UNCOMPRESSED).to_bytes(4, "little"), raw)
    parts.append(b"\0\0\0\0")
    return b"".join(parts)


def _lz4_bound(data: memoryview) -> int:
    """The maximum output of the frames in `data`: number of blocks times block size. Raises if truncated."""
    bound = position = 0
    size = data.nbytes
    while position < size:
        magic = int.from_bytes(data[position : position + 4], "little")
        if magic & 0xFFFFFFF0 == _SKIPPABLE:
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
            continue
        if size - position < 7 or magic != 0x184D2204:
            raise corrupt("the records are not an LZ4 frame")
        flags, descriptor = data[position + 4], data[position + 5]
        block_bytes = _LZ4_SIZES.get((descriptor >> 4) & 7)
        if block_bytes is None or flags >> 6 != 1:
            raise corrupt("the LZ4 frame has a header of an unknown kind")
        position += 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
        block_checksum = 4 if flags & 0x10 else 0
        while True:
            if size - position < 4:
                raise corrupt("the LZ4 frame is truncated")
            length = int.from_bytes(data[position : position + 4], "little")
            position += 4
            if length == 0:
                break
            position += (length & ~_LZ4_UNCOMPRESSED) + block_checksum
            bound += block_bytes
        position += 4 if flags & 0x04 else 0
    if position != size:
        raise corrupt("the LZ4 frame is truncated")
    return bound


# --- zstd


def _zstd_bound(data: memoryview) -> int:
    """The maximum output of the frames in `data`, from their block headers (RFC 8878). Raises if truncated."""
    bound = position = 0
    size = data.nbytes
    while position < size:
        magic = int.from_bytes(data[position : position + 4], "little")
        if magic & 0xFFFFFFF0 == _SKIPPABLE:
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
            continue
        if magic != _ZSTD_MAGIC or size - position < 6:
            raise corrupt("the records are not a zstd frame")
        flags = data[position + 4]
        single_segment = flags & 0x20
        content_size_bytes = (1 if single_segment else 0, 2, 4, 8)[flags >> 6]
        position += 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[flags & 3] + content_size_bytes
        last = False
        while not last:
            if size - position < 3:
                raise corrupt("the zstd frame is truncated")
            block = int.from_bytes(data[position : position + 3], "little")
            last = bool(block & 1)
            kind, length = (block >> 1) & 3, block >> 3
            if kind == 3:
                raise corrupt("the zstd frame has a block of an unknown kind")
            position += 3 + (1 if kind == 1 else length)
            bound += _ZSTD_BLOCK_BYTES if kind == 2 else length
        position += 4 if flags & 0x04 else 0
    if position != size:
        raise corrupt("the zstd frame is truncated")
    return bound
