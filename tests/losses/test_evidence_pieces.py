"""Evidence in pieces: all of it, in order, in bounded memory, past damage."""

from __future__ import annotations

from random import Random

import pytest

from fenceline.log.core.scan import CHUNK_BYTES
from fenceline.losses.cutting import cut_log
from fenceline.losses.evidence import EvidenceReader
from fenceline.losses.evidence_pieces import EvidencePlace, load, locate
from fenceline.losses.receipt import Receipt
from fenceline.records.batch import iter_headers
from fenceline.testing.sim_disk import SimDisk
from tests.losses.helpers import a_disk, cut, open_log, write

LENGTH_AT = 8
CRC_AT = 17
LAST_OFFSET_DELTA_AT = 23


def a_loss(disk: SimDisk, *, start_offset: int = 7, batches: int = 30) -> Receipt:
    """Of several segments, the first of which begins below the loss."""
    log = open_log(disk)
    write(log, 1, batches // 2, Random(1))
    write(log, 2, batches - batches // 2, Random(2))
    (receipt,) = cut_log(disk, log, cut(start_offset))
    assert len(receipt.evidence) > 2
    return receipt


def stored(disk: SimDisk, receipt: Receipt) -> list[bytes]:
    """The batches that a reader of the files finds."""
    return [bytes(content) for _, content in EvidenceReader(disk, receipt, receipt.evidence).batches()]


def in_pieces(disk: SimDisk, receipt: Receipt, max_bytes: int, *, resumes: bool = True) -> list[bytes]:
    """All batches, asked for as a client does: by the first offset that it lacks."""
    found: list[bytes] = []
    offset, after = receipt.start_offset, None
    for _ in range(1_000):
        piece = locate(disk, receipt, offset, max_bytes, after if resumes else None)
        content = load(disk, piece)
        assert len(content) == piece.size_bytes
        if not content:
            return found
        headers = list(iter_headers(memoryview(content)))
        assert len(content) <= max_bytes or len(headers) == 1
        found += [bytes(content[each.position : each.position + each.size_bytes]) for each in headers]
        offset, after = headers[-1].next_offset, piece.after
        if after is None:
            assert not locate(disk, receipt, offset, max_bytes).runs
            return found
    raise AssertionError("the pieces do not end")


@pytest.mark.parametrize("max_bytes", [-1, 1, 150, 400, 1 << 20])
@pytest.mark.parametrize("resumes", [True, False])
def test_pieces_have_every_batch_once_in_order(max_bytes: int, resumes: bool) -> None:
    disk = a_disk()
    receipt = a_loss(disk)
    expected = stored(disk, receipt)
    assert len(expected) > 10
    assert in_pieces(disk, receipt, max_bytes, resumes=resumes) == expected


def test_offsets_outside_the_loss() -> None:
    disk = a_disk()
    receipt = a_loss(disk)
    whole = locate(disk, receipt, receipt.start_offset, 1 << 20)
    for offset in (-(2**63), -1, 0):
        assert locate(disk, receipt, offset, 1 << 20) == whole
    for offset in (receipt.end_offset_exclusive, 2**63 - 1):
        assert locate(disk, receipt, offset, 1 << 20).runs == ()
        assert locate(disk, receipt, offset, 1 << 20).after is None


def test_offset_within_a_batch() -> None:
    """The batch is returned whole."""
    disk = a_disk()
    receipt = a_loss(disk)
    for batch in stored(disk, receipt):
        (header,) = iter_headers(memoryview(batch))
        for offset in range(max(header.base_offset, receipt.start_offset), header.next_offset):
            assert bytes(load(disk, locate(disk, receipt, offset, 1))) == batch


def test_place_of_other_evidence_is_not_used() -> None:
    disk = a_disk()
    receipt = a_loss(disk)
    elsewhere = EvidencePlace("/data/rain-3/lost+found/gone.log.0", 5_000, 0)
    assert locate(disk, receipt, 0, 100, elsewhere) == locate(disk, receipt, 0, 100)


@pytest.mark.parametrize("at", [LENGTH_AT + 3, CRC_AT, LAST_OFFSET_DELTA_AT, 70])
def test_damaged_batch_is_left_out(at: int) -> None:
    disk = a_disk()
    receipt = a_loss(disk)
    disk.flip(receipt.evidence[1], at)
    reader = EvidenceReader(disk, receipt, receipt.evidence)
    expected = [bytes(batch) for _, batch in reader.batches()]
    assert reader.damaged_batches
    for max_bytes in (1, 300, 1 << 20):
        assert in_pieces(disk, receipt, max_bytes) == expected


def test_length_that_is_damage_takes_no_memory() -> None:
    disk = a_disk()
    receipt = a_loss(disk)
    path = receipt.evidence[-1]
    content = bytearray(disk.peek(path) or b"")
    content[LENGTH_AT : LENGTH_AT + 4] = (3 * CHUNK_BYTES).to_bytes(4, "big")
    rewrite(disk, path, bytes(content) + bytes(4 * CHUNK_BYTES))
    reads: list[int] = []
    pread = disk.pread

    def watched(fd: int, size_bytes: int, position: int) -> bytes:
        reads.append(size_bytes)
        return pread(fd, size_bytes, position)

    disk.pread = watched  # type: ignore[method-assign]
    piece = locate(disk, receipt, 0, 1 << 20)
    assert path not in {run.path for run in piece.runs}
    assert 0 < piece.size_bytes < CHUNK_BYTES
    assert max(reads) <= CHUNK_BYTES


def test_deleted_evidence() -> None:
    disk = a_disk()
    receipt = a_loss(disk)
    piece = locate(disk, receipt, 0, 1 << 20)
    disk.unlink(receipt.evidence[-1])
    with pytest.raises(FileNotFoundError):
        locate(disk, receipt, 0, 1 << 20)
    with pytest.raises(FileNotFoundError):
        load(disk, piece)


def test_files_are_closed() -> None:
    disk = a_disk()
    receipt = a_loss(disk)
    disk.unlink(receipt.evidence[-1])
    before = dict(disk._descriptors)
    assert load(disk, locate(disk, receipt, 0, 100))
    with pytest.raises(FileNotFoundError):
        load(disk, locate(disk, receipt, 0, 1 << 20))
    assert disk._descriptors == before


def rewrite(disk: SimDisk, path: str, content: bytes) -> None:
    disk.unlink(path)
    fd = disk.open_append(path)
    disk.write(fd, content)
    disk.close(fd)
