# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The records of a batch in Cython: twin of `_kernel_py`, which documents the functions; equal results.

Memory safety rests on three rules. Every read goes through `_varint`, `_varlong` or `_span` (`_record.pxd`), which know
the end of the record; a record's end is checked against the end of the batch first. Space for the columns is reserved
from a batch's size before the batch is parsed, since no column can get more bytes than the batch has (names of headers:
three times as many, because an invalid UTF-8 byte becomes U+FFFD). The values of a batch count only once all of it was
valid.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from fenceline._big_endian cimport be_int32, be_int64, be_uint32
from fenceline.records._record cimport (
    BAD_HEADER_COUNT, BAD_OFFSET, BAD_TIMESTAMP, FIELD_PAST_END, FINE, LENGTH_DIFFERS, MIN_RECORD_BYTES,
    NAMELESS_HEADER, NO_MEMORY, NUMBER_PAST_END, NUMBER_TOO_LONG, RECORD_PAST_END, Rec, Span, _parse, _put, _size_of,
    _span, _zigzag
)

from fenceline.records._columns_py import Columns, columns_full, timestamp_out_of_range
from fenceline.records._kernel_py import Walk, decode_name
from fenceline.records.crc import crc32c
from fenceline.records.errors import corrupt

cdef extern from "Python.h":
    void PyObject_GC_UnTrack(void*)
    object PyType_GenericAlloc(PyTypeObject* kind, Py_ssize_t items)

ABI = 6
IS_NATIVE = True

_PROBLEMS = {
    NUMBER_PAST_END: "a number goes past its end",
    NUMBER_TOO_LONG: "a number is too long",
    RECORD_PAST_END: "its length goes past the end of the batch",
    FIELD_PAST_END: "a field goes past its end",
    BAD_HEADER_COUNT: "the number of headers can not be",
    NAMELESS_HEADER: "a header has no name",
    LENGTH_DIFFERS: "its length differs from its content",
    BAD_OFFSET: "its offset lies outside of the batch or not behind the one before",
}

cdef Py_ssize_t MAX_COLUMN_BYTES = 2147483647

# --- reading


@cython.final
cdef class _Input:
    """The records of a batch: a buffer held for as long as this lives, and the part that was asked for."""

    cdef Py_buffer view
    cdef bint held
    cdef const uint8_t* start
    cdef const uint8_t* end

    def __cinit__(self, buf, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count):
        PyObject_GetBuffer(buf, &self.view, PyBUF_SIMPLE)
        self.held = True
        if start < 0 or start > end or end > self.view.len:
            raise corrupt(f"records from {start} to {end} do not lie in a buffer of {self.view.len} bytes")
        if count < 0 or count > (end - start) // MIN_RECORD_BYTES:
            raise corrupt(f"{end - start} bytes can not hold {count} records")
        self.start = <const uint8_t*>self.view.buf + start
        self.end = <const uint8_t*>self.view.buf + end

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef _raise(int problem, Py_ssize_t index, Py_ssize_t count, Py_ssize_t rest):
    if problem == BAD_TIMESTAMP:
        raise timestamp_out_of_range(index)
    if problem == NO_MEMORY:
        raise MemoryError()
    if problem:
        raise corrupt(f"record {index} of the batch is corrupt: {_PROBLEMS[problem]}")
    raise corrupt(f"{rest} bytes are left behind the {count} records of the batch")


cdef _check_offsets(int64_t base_offset, int64_t last_offset_delta):
    if base_offset < 0 or last_offset_delta < 0 or base_offset > INT64_MAX - last_offset_delta - 1:
        raise corrupt(f"a batch can not have the base offset {base_offset} and the last delta {last_offset_delta}")


def walk(buf, Py_ssize_t start, Py_ssize_t end, Py_ssize_t count, int64_t base_timestamp):
    cdef _Input given = _Input(buf, start, end, count)
    cdef const uint8_t* at = given.start
    cdef Rec record
    cdef int64_t low = INT64_MAX, high = INT64_MIN, timestamp
    cdef bint contiguous = True
    cdef Py_ssize_t without_key = -1, index = 0
    cdef int problem = FINE
    with nogil:
        while index < count:
            problem = _parse(&at, given.end, &record)
            if problem:
                break
            timestamp = <int64_t>(<uint64_t>base_timestamp + <uint64_t>record.timestamp_delta)
            if timestamp < low:
                low = timestamp
            if timestamp > high:
                high = timestamp
            if record.offset_delta != index:
                contiguous = False
            if record.key.length < 0 and without_key < 0:
                without_key = index
            index += 1
    if problem or at != given.end:
        _raise(problem, index, count, given.end - at)
    if not count:
        low = high = -1
    return Walk(contiguous, low, high, without_key)


cdef bint _records_are_plain(
    const uint8_t* at, const uint8_t* end, int32_t count, bint compacted, int64_t base, int64_t high,
    int64_t earliest, int64_t latest
) noexcept nogil:
    """Whether `count` records with rising deltas fill the bytes, all in time, the latest one at `high`."""
    cdef Rec record
    cdef int64_t timestamp, found = -1
    cdef int32_t index
    for index in range(count):
        if _parse(&at, end, &record) or record.offset_delta != index or (compacted and record.key.length < 0):
            return False
        timestamp = <int64_t>(<uint64_t>base + <uint64_t>record.timestamp_delta)
        if timestamp < earliest or timestamp > latest:
            return False
        if timestamp > found:
            found = timestamp
    return at == end and found == high


cdef bint accept_plain(
    object records, const uint8_t* p, Py_ssize_t size, int64_t now, AppendLimits* limits, PlainBatch* out
) except -1:
    """Whether a produced batch, the bytes of `records`, is beyond doubt and needs no change; then its facts in `out`.

    False means only that the full checks (`validate.py`) must decide. The topic has create time.
    """
    cdef int64_t base, high, earliest, latest
    cdef int32_t last_delta, count, attributes, sequence
    cdef bint fine = False
    if size < 61 or size > limits.max_message_bytes or p[16] != 2 or be_int64(p) != 0:
        return False
    if <int64_t>be_uint32(p + 8) + 12 != size:
        return False
    attributes = p[21] << 8 | p[22]
    if attributes & ~0x17 or attributes & 7 > 4 or (limits.codec >= 0 and attributes & 7 != limits.codec):
        return False
    last_delta, base, high = be_int32(p + 23), be_int64(p + 27), be_int64(p + 35)
    sequence, count = be_int32(p + 53), be_int32(p + 57)
    out.producer_id = be_int64(p + 43)
    if last_delta < 0 or count != <int64_t>last_delta + 1 or (out.producer_id >= 0 and sequence < 0):
        return False
    if base < 0 or high < base or now < 0 or limits.before_max_ms < 0 or limits.after_max_ms < 0:
        return False
    latest = now + limits.after_max_ms if limits.after_max_ms < INT64_MAX - now else INT64_MAX
    earliest = now - limits.before_max_ms if limits.before_max_ms < now else 0
    if attributes & 7:
        fine = (
            not limits.compacted and not limits.check_compressed and limits.before_max_ms >= now and high <= latest
        )
    elif count <= (size - 61) // MIN_RECORD_BYTES:
        with nogil:
            fine = _records_are_plain(p + 61, p + size, count, limits.compacted, base, high, earliest, latest)
    if not fine or crc32c(records[21:]) != be_uint32(p + 17):
        return False
    out.last_offset_delta = last_delta
    out.base_sequence = sequence
    out.producer_epoch = <int32_t>(<int32_t>(<uint32_t>(p[51] << 8 | p[52]) << 16) >> 16)
    out.transactional = attributes & 0x10 != 0
    out.max_timestamp = high
    return True


cdef inline object _bytes(Span span):
    return None if span.length < 0 else PyBytes_FromStringAndSize(<const char*>span.start, span.length)


cdef tuple _headers(Rec* record):
    cdef const uint8_t* at = record.headers
    cdef const uint8_t* end = at + MAX_COLUMN_BYTES  # checked by _parse
    cdef Span name, content
    cdef list out = []
    for _ in range(record.header_count):
        _span(&at, end, &name)
        _span(&at, end, &content)
        out.append((decode_name(_bytes(name)), _bytes(content)))
    return tuple(out)


def decode(
    buf,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t count,
    int64_t base_offset,
    int64_t last_offset_delta,
    int64_t base_timestamp,
    fixed_timestamp,
    record_type,
    bint check_deltas=True,
):
    cdef _Input given = _Input(buf, start, end, count)
    cdef const uint8_t* at = given.start
    cdef Rec record
    cdef int64_t previous = -1
    cdef Py_ssize_t index = 0
    cdef int problem = FINE
    cdef list records = []
    _check_offsets(base_offset, last_offset_delta)
    new = tuple.__new__
    while index < count:
        problem = _parse(&at, given.end, &record)
        if not problem and check_deltas and (record.offset_delta <= previous or record.offset_delta > last_offset_delta):
            problem = BAD_OFFSET
        if problem:
            break
        previous = record.offset_delta
        timestamp = fixed_timestamp
        if timestamp is None:
            timestamp = <int64_t>(<uint64_t>base_timestamp + <uint64_t>record.timestamp_delta)
        records.append(
            new(
                record_type,
                (
                    base_offset + record.offset_delta,
                    timestamp,
                    _bytes(record.key),
                    _bytes(record.value),
                    _headers(&record) if record.header_count else (),
                ),
            )
        )
        index += 1
    if problem or at != given.end:
        _raise(problem, index, count, given.end - at)
    return records


cdef inline void _set(tuple row, Py_ssize_t index, object item):
    Py_INCREF(item)  # the next line takes a reference away
    PyTuple_SET_ITEM(row, index, item)


def decode_rows(
    buf,
    Py_ssize_t start,
    Py_ssize_t end,
    Py_ssize_t count,
    int64_t base_offset,
    int64_t last_offset_delta,
    int64_t base_timestamp,
    fixed_timestamp,
    row_type,
    before,
    between,
    int64_t start_offset,
    int64_t end_offset_exclusive,
):
    cdef _Input given = _Input(buf, start, end, count)
    cdef const uint8_t* at = given.start
    cdef Rec record
    cdef int64_t previous = -1, offset, timestamp_delta = 0
    cdef Py_ssize_t index = 0
    cdef int problem = FINE
    cdef list rows = []
    cdef tuple row
    topic, partition = before
    kind, epoch = between
    timestamp = fixed_timestamp
    _check_offsets(base_offset, last_offset_delta)
    while index < count:
        problem = _parse(&at, given.end, &record)
        if not problem and (record.offset_delta <= previous or record.offset_delta > last_offset_delta):
            problem = BAD_OFFSET
        if problem:
            break
        previous = record.offset_delta
        index += 1
        offset = base_offset + record.offset_delta
        if offset < start_offset or offset >= end_offset_exclusive:
            continue
        if fixed_timestamp is None and (timestamp is None or record.timestamp_delta != timestamp_delta):
            # Most records of a busy batch share their millisecond, and then the number.
            timestamp_delta = record.timestamp_delta
            timestamp = <int64_t>(<uint64_t>base_timestamp + <uint64_t>timestamp_delta)
        key = _bytes(record.key)
        value = _bytes(record.value)
        headers = _headers(&record) if record.header_count else ()
        row = <tuple>PyType_GenericAlloc(<PyTypeObject*>row_type, 9)
        _set(row, 0, topic)
        _set(row, 1, partition)
        _set(row, 2, offset)
        _set(row, 3, timestamp)
        _set(row, 4, kind)
        _set(row, 5, epoch)
        _set(row, 6, key)
        _set(row, 7, value)
        _set(row, 8, headers)
        # Nothing in a row can lead back to it: the collector would only walk over all of them again and again.
        PyObject_GC_UnTrack(<void*>row)
        rows.append(row)
    if problem or at != given.end:
        _raise(problem, index, count, given.end - at)
    return rows


# --- writing


cdef inline uint8_t* _put_span(uint8_t* to, const uint8_t* start, int64_t length) noexcept nogil:
    to = _put(to, _zigzag(length))
    if length > 0:
        memcpy(to, start, length)
        to += length
    return to


cdef inline int64_t _span_size(int64_t length) noexcept nogil:
    return _size_of(_zigzag(length)) + (length if length > 0 else 0)


cdef inline int64_t _length(content) except -2:
    if content is None:
        return -1
    if type(content) is not bytes:
        raise TypeError(f"keys, values and headers are bytes or None, not {type(content).__name__}")
    return PyBytes_GET_SIZE(content)


cdef inline const uint8_t* _start(content):
    return NULL if content is None else <const uint8_t*>PyBytes_AS_STRING(content)


cdef int _append(bytearray out, int64_t offset_delta, int64_t timestamp_delta, key, value, headers) except -1:
    cdef int64_t body, before = PyByteArray_GET_SIZE(out)
    cdef int64_t key_length = _length(key), value_length = _length(value)
    cdef list encoded = None
    cdef uint8_t* to
    cdef Py_ssize_t header_count = len(headers)
    body = 1 + _size_of(_zigzag(timestamp_delta)) + _size_of(_zigzag(offset_delta))
    body += _span_size(key_length) + _span_size(value_length) + _size_of(_zigzag(header_count))
    if header_count:
        encoded = [(name.encode(), content) for name, content in headers]
        for name, content in encoded:
            body += _span_size(_length(name)) + _span_size(_length(content))
    if body > MAX_COLUMN_BYTES:
        raise OverflowError(f"a record can not have {body} bytes")
    PyByteArray_Resize(out, before + _size_of(_zigzag(body)) + body)
    to = <uint8_t*>PyByteArray_AS_STRING(out) + before
    to = _put(to, _zigzag(body))
    to[0] = 0
    to = _put(to + 1, _zigzag(timestamp_delta))
    to = _put(to, _zigzag(offset_delta))
    to = _put_span(to, _start(key), key_length)
    to = _put_span(to, _start(value), value_length)
    to = _put(to, _zigzag(header_count))
    if header_count:
        for name, content in encoded:
            to = _put_span(to, _start(name), _length(name))
            to = _put_span(to, _start(content), _length(content))
    return 0


def append_record(bytearray out not None, int64_t offset_delta, int64_t timestamp_delta, key, value, headers):
    _append(out, offset_delta, timestamp_delta, key, value, headers)


def encode(bytearray out not None, rows, int64_t base_timestamp, int64_t first_delta=0):
    cdef int64_t low = INT64_MAX, high = INT64_MIN, timestamp, delta = first_delta
    for row_timestamp, key, value, headers in rows:
        timestamp = row_timestamp
        _append(out, delta, <int64_t>(<uint64_t>timestamp - <uint64_t>base_timestamp), key, value, headers)
        if timestamp < low:
            low = timestamp
        if timestamp > high:
            high = timestamp
        delta += 1
    return low, high


# --- hash of a key


cdef inline uint32_t _murmur2(const uint8_t* key, uint32_t size) noexcept nogil:
    cdef uint32_t mixed = <uint32_t>0x9747B28C ^ size, word, left = size
    while left >= 4:
        word = key[0] | <uint32_t>key[1] << 8 | <uint32_t>key[2] << 16 | <uint32_t>key[3] << 24
        word *= <uint32_t>0x5BD1E995
        word ^= word >> 24
        mixed = (mixed * <uint32_t>0x5BD1E995) ^ (word * <uint32_t>0x5BD1E995)
        key += 4
        left -= 4
    if left:
        if left == 3:
            mixed ^= <uint32_t>key[2] << 16
        if left >= 2:
            mixed ^= <uint32_t>key[1] << 8
        mixed ^= key[0]
        mixed *= <uint32_t>0x5BD1E995
    mixed = (mixed ^ (mixed >> 13)) * <uint32_t>0x5BD1E995
    return (mixed ^ (mixed >> 15)) & 0x7FFFFFFF


def murmur2(key):
    cdef Py_buffer view
    PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
    try:
        return _murmur2(<const uint8_t*>view.buf, <uint32_t>view.len)
    finally:
        PyBuffer_Release(&view)


# --- batches to columns


# First touch of fresh memory costs more than filling it (a page fault is worth some 40 rows), and a reader makes
# columns of the same size over and over. So up to 64 MiB of what was freed is kept, in blocks of powers of two.
cdef enum:
    SMALLEST_KEPT = 16  # log2 of the size
    LARGEST_KEPT = 26
    KEPT_PER_SIZE = 16
cdef Py_ssize_t KEPT_BYTES = 64 * 1024 * 1024
cdef uint8_t* _kept[LARGEST_KEPT - SMALLEST_KEPT + 1][KEPT_PER_SIZE]
cdef int _kept_count[LARGEST_KEPT - SMALLEST_KEPT + 1]
cdef Py_ssize_t _kept_bytes = 0


cdef inline int _size_class(Py_ssize_t capacity) noexcept:
    """Log2 of the smallest kept size that holds `capacity`; above LARGEST_KEPT when there is none."""
    cdef int power = SMALLEST_KEPT
    while power <= LARGEST_KEPT and (<Py_ssize_t>1 << power) < capacity:
        power += 1
    return power


cdef uint8_t* _take(Py_ssize_t* capacity) except NULL:
    """Memory of at least `capacity` bytes, which becomes what there really is."""
    global _kept_bytes
    cdef int power
    cdef uint8_t* memory
    if capacity[0] > 32768:
        power = _size_class(capacity[0])
        if power <= LARGEST_KEPT:
            capacity[0] = <Py_ssize_t>1 << power
            if _kept_count[power - SMALLEST_KEPT]:
                _kept_count[power - SMALLEST_KEPT] -= 1
                _kept_bytes -= capacity[0]
                return _kept[power - SMALLEST_KEPT][_kept_count[power - SMALLEST_KEPT]]
    memory = <uint8_t*>malloc(capacity[0])
    if memory is NULL:
        raise MemoryError()
    return memory


cdef void _give(uint8_t* memory, Py_ssize_t capacity) noexcept:
    global _kept_bytes
    cdef int power = _size_class(capacity)
    cdef int index = power - SMALLEST_KEPT
    if (
        memory is not NULL
        and power <= LARGEST_KEPT
        and capacity == <Py_ssize_t>1 << power
        and _kept_count[index] < KEPT_PER_SIZE
        and _kept_bytes + capacity <= KEPT_BYTES
    ):
        _kept[index][_kept_count[index]] = memory
        _kept_count[index] += 1
        _kept_bytes += capacity
    else:
        free(memory)


@cython.final
cdef class Block:
    """Growing memory that becomes a buffer of an Arrow array."""

    cdef uint8_t* data
    cdef Py_ssize_t size
    cdef Py_ssize_t capacity

    def __dealloc__(self):
        _give(self.data, self.capacity)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)

    cdef int reserve(self, Py_ssize_t capacity, Py_ssize_t used) except -1:
        """Room for `capacity` bytes, keeping the first `used`."""
        if capacity > self.capacity:
            self._move(max(capacity, self.capacity * 2, 256), used)
        return 0

    cdef int _move(self, Py_ssize_t capacity, Py_ssize_t used) except -1:
        cdef uint8_t* memory = _take(&capacity)
        if used:
            memcpy(memory, self.data, used)
        _give(self.data, self.capacity)
        self.data = memory
        self.capacity = capacity
        return 0

    cdef int close(self, Py_ssize_t size) except -1:
        """Fix the size; memory that was reserved in vain goes back."""
        if self.data is NULL or self.capacity // 4 > max(size, 256):
            self._move(max(size, 64), size)
        self.size = size
        return 0


cdef inline void _set_bit(uint8_t* bits, Py_ssize_t index, bint value) noexcept nogil:
    cdef uint8_t mask = <uint8_t>(1 << (index & 7))
    if index & 7 == 0:
        bits[index >> 3] = mask if value else 0
    elif value:
        bits[index >> 3] |= mask
    else:
        bits[index >> 3] &= <uint8_t>~mask


@cython.final
cdef class _Bytes:
    """A column of nullable bytes: validity bits, offsets, data."""

    cdef Block bits
    cdef Block offsets
    cdef Block data
    cdef Py_ssize_t rows  # what counts: rows, bytes of data, nulls
    cdef Py_ssize_t size
    cdef Py_ssize_t nulls
    cdef Py_ssize_t new_size
    cdef Py_ssize_t new_nulls

    def __cinit__(self):
        self.bits = Block()
        self.offsets = Block()
        self.data = Block()

    cdef int reserve(self, Py_ssize_t rows, Py_ssize_t more_bytes) except -1:
        """Room for `rows` in all and for `more_bytes` more of data; opens a change that `commit` makes count."""
        self.bits.reserve((rows >> 3) + 1, (self.rows + 7) >> 3)
        self.offsets.reserve((rows + 1) * 4, (self.rows + 1) * 4 if self.rows else 0)
        (<int32_t*>self.offsets.data)[0] = 0
        self.data.reserve(self.size + more_bytes, self.size)
        self.new_size = self.size
        self.new_nulls = self.nulls
        return 0

    cdef inline void put(self, Py_ssize_t row, const uint8_t* start, int32_t length) noexcept nogil:
        if length > 0:
            memcpy(self.data.data + self.new_size, start, length)
            self.new_size += length
        elif length < 0:
            self.new_nulls += 1
        _set_bit(self.bits.data, row, length >= 0)
        (<int32_t*>self.offsets.data)[row + 1] = <int32_t>self.new_size

    cdef void commit(self, Py_ssize_t rows) noexcept nogil:
        self.rows = rows
        self.size = self.new_size
        self.nulls = self.new_nulls

    cdef tuple finish(self, Py_ssize_t rows):
        self.reserve(rows, 0)
        self.bits.close((rows + 7) >> 3)
        self.offsets.close((rows + 1) * 4)
        self.data.close(self.size)
        return (self.bits if self.nulls else None), self.offsets, self.data


@cython.final
cdef class ColumnBuilder:
    cdef bint with_headers
    cdef int64_t scale
    cdef readonly Py_ssize_t rows
    cdef Py_ssize_t header_rows
    cdef Block topics, partitions, offsets, timestamps, timestamp_types, epochs, header_lists
    cdef _Bytes keys, values, header_names, header_values

    def __cinit__(self, bint with_headers, int64_t timestamp_scale):
        self.with_headers = with_headers
        self.scale = timestamp_scale
        self._reset()

    cdef _reset(self):
        self.rows = self.header_rows = 0
        self.topics, self.partitions, self.offsets = Block(), Block(), Block()
        self.timestamps, self.timestamp_types, self.epochs, self.header_lists = Block(), Block(), Block(), Block()
        self.keys, self.values, self.header_names, self.header_values = _Bytes(), _Bytes(), _Bytes(), _Bytes()

    @property
    def size_bytes(self):
        return self.rows * 40 + self.keys.size + self.values.size + self.header_names.size + self.header_values.size

    def has_room_for(self, Py_ssize_t payload_bytes):
        cdef Py_ssize_t most = max(self.keys.size, self.values.size, self.rows)
        if self.with_headers:
            most = max(most, self.header_values.size, self.header_rows, self.header_names.size + 2 * payload_bytes)
        return most + payload_bytes <= MAX_COLUMN_BYTES

    def expect(self, Py_ssize_t rows, Py_ssize_t value_bytes):
        cdef Py_ssize_t now = self.rows, all_rows = self.rows + max(rows, 0)
        value_bytes = min(max(value_bytes, 0), MAX_COLUMN_BYTES)
        if all_rows > MAX_COLUMN_BYTES // 8:
            return
        self.values.data.reserve(self.values.size + value_bytes, self.values.size)
        for column in (self.keys, self.values):
            (<_Bytes>column).reserve(all_rows, 0)
        for block in (self.offsets, self.timestamps):
            (<Block>block).reserve(all_rows * 8, now * 8)
        for block in (self.topics, self.partitions, self.epochs, self.timestamp_types):
            (<Block>block).reserve(all_rows * 4, now * 4)

    def append(
        self,
        buf,
        Py_ssize_t start,
        Py_ssize_t end,
        Py_ssize_t count,
        int64_t base_offset,
        int64_t last_offset_delta,
        int64_t base_timestamp,
        fixed_timestamp,
        int64_t first_offset,
        int64_t end_offset_exclusive,
        int32_t topic,
        int32_t partition,
        int32_t leader_epoch,
        int32_t timestamp_type,
    ):
        cdef _Input given = _Input(buf, start, end, count)
        cdef const uint8_t* at = given.start
        cdef Py_ssize_t size = end - start, row = self.rows, header_row = self.header_rows, index = 0, rows
        cdef bint is_fixed = fixed_timestamp is not None
        cdef int64_t fixed = fixed_timestamp if is_fixed else 0
        cdef int64_t previous = -1, offset, timestamp
        cdef int64_t lowest = INT64_MIN // self.scale, highest = INT64_MAX // self.scale
        cdef int64_t* offsets
        cdef int64_t* timestamps
        cdef int problem = FINE
        cdef Rec record
        _check_offsets(base_offset, last_offset_delta)
        if not self.has_room_for(size):
            raise columns_full()
        rows = row + count
        self.keys.reserve(rows, size)
        self.values.reserve(rows, size)
        self.offsets.reserve(rows * 8, row * 8)
        self.timestamps.reserve(rows * 8, row * 8)
        if self.with_headers:
            self.header_lists.reserve((rows + 1) * 4, (row + 1) * 4 if row else 0)
            (<int32_t*>self.header_lists.data)[0] = 0
            self.header_names.reserve(header_row + size // 2 + 1, size * 3)
            self.header_values.reserve(header_row + size // 2 + 1, size)
        offsets = <int64_t*>self.offsets.data
        timestamps = <int64_t*>self.timestamps.data
        with nogil:
            while index < count:
                problem = _parse(&at, given.end, &record)
                if problem:
                    break
                if record.offset_delta <= previous or record.offset_delta > last_offset_delta:
                    problem = BAD_OFFSET
                    break
                previous = record.offset_delta
                index += 1
                offset = base_offset + record.offset_delta
                if offset < first_offset or offset >= end_offset_exclusive:
                    continue
                if is_fixed:
                    timestamp = fixed
                else:
                    timestamp = <int64_t>(<uint64_t>base_timestamp + <uint64_t>record.timestamp_delta)
                if timestamp < lowest or timestamp > highest:
                    problem = BAD_TIMESTAMP
                    index -= 1
                    break
                offsets[row] = offset
                timestamps[row] = timestamp * self.scale
                self.keys.put(row, record.key.start, record.key.length)
                self.values.put(row, record.value.start, record.value.length)
                if self.with_headers:
                    header_row = self._put_headers(&record, header_row)
                    if header_row < 0:
                        problem = NO_MEMORY
                        break
                    (<int32_t*>self.header_lists.data)[row + 1] = <int32_t>header_row
                row += 1
        if problem or at != given.end:
            _raise(problem, index, count, given.end - at)
        rows = row - self.rows
        if rows:
            self._fill(self.topics, row, topic)
            self._fill(self.partitions, row, partition)
            self._fill(self.epochs, row, leader_epoch)
            self._fill(self.timestamp_types, row, timestamp_type)
        self.keys.commit(row)
        self.values.commit(row)
        if self.with_headers:
            self.header_names.commit(header_row)
            self.header_values.commit(header_row)
        self.rows = row
        self.header_rows = header_row
        return rows

    cdef int _fill(self, Block block, Py_ssize_t end, int32_t value) except -1:
        cdef int32_t* out
        cdef Py_ssize_t row
        block.reserve(end * 4, self.rows * 4)
        out = <int32_t*>block.data
        for row in range(self.rows, end):
            out[row] = value
        return 0

    cdef Py_ssize_t _put_headers(self, Rec* record, Py_ssize_t header_row) noexcept nogil:
        cdef const uint8_t* at = record.headers
        cdef const uint8_t* end = at + MAX_COLUMN_BYTES  # checked by _parse
        cdef Span name, content
        cdef int32_t i, j
        cdef bint ascii
        for i in range(record.header_count):
            _span(&at, end, &name)
            _span(&at, end, &content)
            ascii = True
            for j in range(name.length):
                if name.start[j] >= 0x80:
                    ascii = False
                    break
            if ascii:
                self.header_names.put(header_row, name.start, name.length)
            else:
                with gil:
                    try:
                        clean = decode_name(_bytes(name)).encode()
                    except MemoryError:
                        return -1
                    self.header_names.put(header_row, _start(clean), <int32_t>len(clean))
            self.header_values.put(header_row, content.start, content.length)
            header_row += 1
        return header_row

    def finish(self):
        cdef Py_ssize_t rows = self.rows, header_rows = self.header_rows
        headers = None
        for block in (self.topics, self.partitions, self.epochs, self.timestamp_types):
            (<Block>block).close(rows * 4)
        self.offsets.close(rows * 8)
        self.timestamps.close(rows * 8)
        if self.with_headers:
            self.header_lists.reserve((rows + 1) * 4, (rows + 1) * 4 if rows else 0)
            (<int32_t*>self.header_lists.data)[0] = 0
            self.header_lists.close((rows + 1) * 4)
            names = self.header_names.finish(header_rows)
            headers = (header_rows, self.header_lists, names, self.header_values.finish(header_rows))
        columns = Columns(
            rows,
            self.topics,
            self.partitions,
            self.offsets,
            self.timestamps,
            self.timestamp_types,
            self.epochs,
            self.keys.finish(rows),
            self.values.finish(rows),
            headers,
        )
        self._reset()
        return columns


# --- columns to batches


@cython.final
cdef class _Column:
    """A nullable Arrow column of bytes or strings, as (rows, array offset, validity, offsets, data)."""

    cdef Py_buffer bits_view, offsets_view, data_view
    cdef bint has_bits, has_offsets, has_data
    cdef const uint8_t* bits
    cdef const int32_t* offsets
    cdef const uint8_t* data
    cdef int64_t data_size
    cdef Py_ssize_t shift
    cdef Py_ssize_t rows

    def __cinit__(self, column):
        rows, shift, bits, offsets, data = column
        self.rows, self.shift = rows, shift
        if bits is not None:
            PyObject_GetBuffer(bits, &self.bits_view, PyBUF_SIMPLE)
            self.has_bits = True
            self.bits = <const uint8_t*>self.bits_view.buf
            if self.bits_view.len * 8 < self.shift + self.rows:
                raise ValueError("the validity bits of a column are cut short")
        PyObject_GetBuffer(offsets, &self.offsets_view, PyBUF_SIMPLE)
        self.has_offsets = True
        self.offsets = <const int32_t*>self.offsets_view.buf + self.shift
        if self.rows and self.offsets_view.len < (self.shift + self.rows + 1) * 4:
            raise ValueError("the offsets of a column are cut short")
        if data is not None:
            PyObject_GetBuffer(data, &self.data_view, PyBUF_SIMPLE)
            self.has_data = True
            self.data = <const uint8_t*>self.data_view.buf
            self.data_size = self.data_view.len

    def __dealloc__(self):
        if self.has_bits:
            PyBuffer_Release(&self.bits_view)
        if self.has_offsets:
            PyBuffer_Release(&self.offsets_view)
        if self.has_data:
            PyBuffer_Release(&self.data_view)

    cdef inline bint is_null(self, Py_ssize_t row) noexcept nogil:
        row += self.shift
        return self.has_bits and not (self.bits[row >> 3] >> (row & 7)) & 1

    cdef inline bint get(self, Py_ssize_t row, Span* out) noexcept nogil:
        """False when the column's own offsets make no sense."""
        cdef int64_t start, end
        if row < 0 or row >= self.rows:
            return False
        if self.is_null(row):
            out.start = NULL
            out.length = -1
            return True
        start = self.offsets[row]
        end = self.offsets[row + 1]
        if start < 0 or end < start or end > self.data_size:
            return False
        out.start = self.data + start
        out.length = <int32_t>(end - start)
        return True


@cython.final
cdef class _HeaderColumn:
    cdef _Column lists  # offsets count headers; has no data
    cdef _Column names
    cdef _Column values

    def __cinit__(self, headers):
        lists, names, values = headers
        self.lists = _Column(lists)
        self.names = _Column(names)
        self.values = _Column(values)

    cdef inline bint range(self, Py_ssize_t row, int64_t* start, int64_t* end) noexcept nogil:
        if self.lists.is_null(row):
            start[0] = end[0] = 0
            return True
        start[0] = self.lists.offsets[row]
        end[0] = self.lists.offsets[row + 1]
        return 0 <= start[0] <= end[0] <= self.names.rows and end[0] <= self.values.rows


cdef int64_t _body_size(
    _Column keys, _Column values, _HeaderColumn headers, Py_ssize_t row, int64_t timestamp_delta, int64_t offset_delta
) noexcept nogil:
    """Bytes of the record without its length; -1 when a column is broken, -2 when a header has no name."""
    cdef Span span
    cdef int64_t body, first = 0, last = 0, i
    body = 1 + _size_of(_zigzag(timestamp_delta)) + _size_of(_zigzag(offset_delta))
    span.length = -1
    if keys is not None and not keys.get(row, &span):
        return -1
    body += _span_size(span.length)
    span.length = -1
    if values is not None and not values.get(row, &span):
        return -1
    body += _span_size(span.length)
    if headers is not None and not headers.range(row, &first, &last):
        return -1
    body += _size_of(_zigzag(last - first))
    for i in range(first, last):
        if not headers.names.get(i, &span):
            return -1
        if span.length < 0:
            return -2
        body += _span_size(span.length)
        if not headers.values.get(i, &span):
            return -1
        body += _span_size(span.length)
    return body


cdef uint8_t* _put_row(
    uint8_t* to, _Column keys, _Column values, _HeaderColumn headers, Py_ssize_t row, int64_t body,
    int64_t timestamp_delta, int64_t offset_delta
) noexcept nogil:
    cdef Span span
    cdef int64_t first = 0, last = 0, i
    to = _put(to, _zigzag(body))
    to[0] = 0
    to = _put(to + 1, _zigzag(timestamp_delta))
    to = _put(to, _zigzag(offset_delta))
    span.start = NULL
    span.length = -1
    if keys is not None:
        keys.get(row, &span)
    to = _put_span(to, span.start, span.length)
    span.length = -1
    if values is not None:
        values.get(row, &span)
    to = _put_span(to, span.start, span.length)
    if headers is not None:
        headers.range(row, &first, &last)
    to = _put(to, _zigzag(last - first))
    for i in range(first, last):
        headers.names.get(i, &span)
        to = _put_span(to, span.start, span.length)
        headers.values.get(i, &span)
        to = _put_span(to, span.start, span.length)
    return to


def encode_columns(
    Py_ssize_t start_row,
    Py_ssize_t end_row,
    Py_ssize_t room_before,
    Py_ssize_t max_size_bytes,
    timestamps,
    int64_t default_timestamp,
    keys,
    values,
    headers,
):
    cdef _Column key_column = None if keys is None else _Column(keys)
    cdef _Column value_column = None if values is None else _Column(values)
    cdef _HeaderColumn header_column = None if headers is None else _HeaderColumn(headers)
    cdef Py_buffer times_view
    cdef const int64_t* times = NULL
    cdef int64_t base = default_timestamp, high = default_timestamp, timestamp = default_timestamp, body = 0, size
    cdef Py_ssize_t row = start_row, last
    cdef bytearray out
    cdef uint8_t* to
    cdef uint8_t* out_end
    for column in (keys, values, None if headers is None else headers[0]):
        if column is not None and end_row > column[0]:
            raise ValueError(f"rows up to {end_row} of a column of {column[0]}")
    if not 0 <= start_row < end_row:
        raise ValueError(f"no rows from {start_row} to {end_row}")
    if timestamps is not None:
        PyObject_GetBuffer(timestamps, &times_view, PyBUF_SIMPLE)
        times = <const int64_t*>times_view.buf
    try:
        if times is not NULL:
            if times_view.len < end_row * 8:
                raise ValueError("the timestamps are cut short")
            base = high = times[start_row]
        size = room_before
        with nogil:
            while row < end_row:
                if times is not NULL:
                    timestamp = times[row]
                body = _body_size(
                    key_column, value_column, header_column, row,
                    <int64_t>(<uint64_t>timestamp - <uint64_t>base), row - start_row,
                )
                if body < 0 or body > MAX_COLUMN_BYTES:
                    break
                body += _size_of(_zigzag(body))
                if size + body > max_size_bytes and row > start_row:
                    body = 0
                    break
                size += body
                if timestamp > high:
                    high = timestamp
                row += 1
                body = 0
        if body == -2:
            raise ValueError(f"row {row}: a header has no name")
        if body == -1:
            raise ValueError(f"row {row}: the offsets of a column are broken")
        if body > MAX_COLUMN_BYTES:
            raise OverflowError(f"row {row}: a record can not have {body} bytes")
        last = row
        out = PyByteArray_FromStringAndSize(NULL, size)
        to = <uint8_t*>PyByteArray_AS_STRING(out)
        out_end = to + size
        for row in range(room_before):
            to[row] = 0
        to += room_before
        with nogil:
            for row in range(start_row, last):
                if times is not NULL:
                    timestamp = times[row]
                body = _body_size(
                    key_column, value_column, header_column, row,
                    <int64_t>(<uint64_t>timestamp - <uint64_t>base), row - start_row,
                )
                to = _put_row(
                    to, key_column, value_column, header_column, row, body,
                    <int64_t>(<uint64_t>timestamp - <uint64_t>base), row - start_row,
                )
        assert to == out_end, "a record took another size than computed"
        return out, last, base, high
    finally:
        if timestamps is not None:
            PyBuffer_Release(&times_view)


def hash_column(column):
    cdef _Column keys = _Column(column)
    cdef Py_ssize_t row
    cdef bytearray out = PyByteArray_FromStringAndSize(NULL, keys.rows * 4)
    cdef int32_t* to = <int32_t*>PyByteArray_AS_STRING(out)
    cdef Span span
    cdef bint fine = True
    with nogil:
        for row in range(keys.rows):
            if not keys.get(row, &span):
                fine = False
                break
            to[row] = -1 if span.length < 0 else <int32_t>_murmur2(span.start, <uint32_t>span.length)
    if not fine:
        raise ValueError(f"row {row}: the offsets of a column are broken")
    return out
