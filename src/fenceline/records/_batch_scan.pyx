# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Scans complete batches in Cython: twin of `_batch_scan_py`, which documents the function; equal results."""

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint32_t

from fenceline._big_endian cimport be_int16, be_int32, be_int64, be_uint32
from fenceline._crc32c cimport fl_crc32c, fl_crc_begin, fl_crc_by_instruction

from fenceline.records.crc import crc32c

ABI = 2

fl_crc_begin()

cdef Py_ssize_t BATCH_OVERHEAD = 61
cdef int COLUMN_COUNT = 14
cdef int TOTAL_COUNT = 6
cdef int64_t HIGHEST_OFFSET = 9223372036854775806
# Of shorter batches the call of the package's function takes longer than the checksum.
cdef int64_t SHORT_BYTES = 4096


cdef inline bint _is_right(const uint8_t* p, int64_t size, uint32_t crc):
    """Whether that is the checksum of a batch."""
    if size <= SHORT_BYTES and fl_crc_by_instruction:
        return fl_crc32c(p + 21, size - 21) == crc
    return <uint32_t>crc32c(PyMemoryView_FromMemory(<char*>p + 21, size - 21, PyBUF_READ)) == crc


def scan_plain(
    content, Py_ssize_t start, Py_ssize_t end, int64_t position, rows, totals, int64_t next_offset,
    int32_t leader_epoch, bint check_crc
):
    cdef Py_buffer bytes_view, rows_view, totals_view
    PyObject_GetBuffer(content, &bytes_view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(rows, &rows_view, PyBUF_WRITABLE)
        try:
            PyObject_GetBuffer(totals, &totals_view, PyBUF_WRITABLE)
            try:
                if start < 0 or end > bytes_view.len or totals_view.len < TOTAL_COUNT * 8:
                    raise ValueError(f"{start} to {end} of {bytes_view.len} bytes, {totals_view.len // 8} totals")
                return _scan(
                    <const uint8_t*>bytes_view.buf, start, end, position, <int64_t*>rows_view.buf,
                    rows_view.len // 8 // COLUMN_COUNT, <int64_t*>totals_view.buf, next_offset, leader_epoch,
                    check_crc,
                )
            finally:
                PyBuffer_Release(&totals_view)
        finally:
            PyBuffer_Release(&rows_view)
    finally:
        PyBuffer_Release(&bytes_view)


cdef _scan(
    const uint8_t* content, Py_ssize_t start, Py_ssize_t end, int64_t position, int64_t* rows, int64_t capacity,
    int64_t* totals, int64_t next_offset, int32_t leader_epoch, bint check_crc
):
    cdef const uint8_t* p
    cdef int64_t count = 0, size, base, highest = INT64_MIN
    cdef int32_t epoch, delta, records
    cdef int16_t attributes
    cdef uint32_t crc
    cdef int64_t* row
    totals[0], totals[1], totals[2], totals[3], totals[4], totals[5] = 0, 0, 0, -1, 0, 0
    while count < capacity and end - start >= BATCH_OVERHEAD:
        p = content + start
        size = <int64_t>be_int32(p + 8) + 12
        if p[16] != 2 or size < BATCH_OVERHEAD or size > end - start:
            break
        base = be_int64(p)
        epoch = be_int32(p + 12)
        crc = be_uint32(p + 17)
        attributes = be_int16(p + 21)
        delta = be_int32(p + 23)
        records = be_int32(p + 57)
        if base < next_offset or delta < 0 or base > HIGHEST_OFFSET - delta or epoch < leader_epoch:
            break
        if (attributes & 7) > 4 or records < 0 or records > <int64_t>delta + 1:
            break
        if (attributes & 7) == 0 and records > (size - BATCH_OVERHEAD) // 7:
            break
        if check_crc and not _is_right(p, size, crc):
            break
        row = rows + count
        row[0] = position
        row[capacity] = base
        row[2 * capacity] = base + delta
        row[3 * capacity] = size
        row[4 * capacity] = epoch
        row[5 * capacity] = crc
        row[6 * capacity] = attributes
        row[7 * capacity] = be_int64(p + 27)
        row[8 * capacity] = be_int64(p + 35)
        row[9 * capacity] = be_int64(p + 43)
        row[10 * capacity] = be_int16(p + 51)
        row[11 * capacity] = be_int32(p + 53)
        row[12 * capacity] = records
        highest = max(highest, row[8 * capacity])
        row[13 * capacity] = highest
        if base > next_offset:
            if totals[1] == 0:
                totals[3] = count
            totals[1] += 1
            totals[2] += base - next_offset
        totals[0] += records
        totals[4] += records <= delta
        totals[5] += (attributes & 0x20) != 0
        count += 1
        start += size
        position += size
        next_offset = base + delta + 1
        leader_epoch = epoch
    return count
