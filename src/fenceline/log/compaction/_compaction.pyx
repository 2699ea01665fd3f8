# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compaction kernel in Cython: twin of `_compaction_py`, which documents the functions; equal results.

A chunk of batches is processed without the interpreter's lock: acquiring the lock again for each batch would wait for
the event loop each time. Keys are identified by SipHash-2-4 of 128 bits with a secret, so that no client can construct
colliding keys. Memory safety: every read of a record goes through `_record.pxd`; the output buffer is checked for the
largest possible result before a batch is written.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from fenceline._big_endian cimport be_int32, be_int64, be_uint32, put_int32, put_int64
from fenceline._crc32c cimport fl_crc32c, fl_crc_begin
from fenceline.records._record cimport (
    BAD_OFFSET, FINE, LENGTH_DIFFERS, MIN_RECORD_BYTES, NO_MEMORY, Rec, _parse, _put, _size_of, _varint, _varlong,
    _zigzag
)

from fenceline.records.errors import corrupt

ABI = 1
IS_NATIVE = True

fl_crc_begin()

cdef struct Slot:
    uint64_t low
    uint64_t high
    int64_t next_offset  # 0: free

SLOT_BYTES = sizeof(Slot)

cdef enum:
    OVERHEAD = 61
    CODEC = 0x07
    HORIZON = 0x40
    SPECIAL_BITS = 0x37  # compressed, of a transaction, control
    GROWTH = 12  # bytes that a record may gain by another base of its timestamp
    IS_FULL = 100
    BAD_BATCH = 101
    BAD_CRC = 102

cdef enum:
    _REST = 0
    _SPECIAL = 1
    _FULL = 2


cdef struct Chosen:
    int32_t records
    int32_t tombstones
    int64_t max_timestamp


# --- hash


cdef inline uint64_t _turn(uint64_t word, int bits) noexcept nogil:
    return (word << bits) | (word >> (64 - bits))


cdef inline void _sip_round(uint64_t* v) noexcept nogil:
    v[0] += v[1]
    v[1] = _turn(v[1], 13) ^ v[0]
    v[0] = _turn(v[0], 32)
    v[2] += v[3]
    v[3] = _turn(v[3], 16) ^ v[2]
    v[0] += v[3]
    v[3] = _turn(v[3], 21) ^ v[0]
    v[2] += v[1]
    v[1] = _turn(v[1], 17) ^ v[2]
    v[2] = _turn(v[2], 32)


cdef inline void _sip_word(uint64_t* v, uint64_t word) noexcept nogil:
    v[3] ^= word
    _sip_round(v)
    _sip_round(v)
    v[0] ^= word


cdef inline void _sip(const uint8_t* p, Py_ssize_t size, uint64_t* secret, uint64_t* low, uint64_t* high) noexcept nogil:
    cdef uint64_t v[4]
    cdef uint64_t word
    cdef Py_ssize_t left = size
    cdef int i
    v[0] = secret[0] ^ <uint64_t>0x736F6D6570736575
    v[1] = secret[1] ^ <uint64_t>0x646F72616E646F6D ^ 0xEE
    v[2] = secret[0] ^ <uint64_t>0x6C7967656E657261
    v[3] = secret[1] ^ <uint64_t>0x7465646279746573
    while left >= 8:
        memcpy(&word, p, 8)
        _sip_word(v, word)
        p += 8
        left -= 8
    word = <uint64_t>(size & 255) << 56
    for i in range(<int>left):
        word |= <uint64_t>p[i] << (8 * i)
    _sip_word(v, word)
    v[2] ^= 0xEE
    for i in range(4):
        _sip_round(v)
    low[0] = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    for i in range(4):
        _sip_round(v)
    high[0] = v[0] ^ v[1] ^ v[2] ^ v[3]


cdef class KeyOffsets:
    cdef Slot* slots
    cdef uint64_t capacity
    cdef readonly Py_ssize_t most_keys
    cdef Py_ssize_t count
    cdef uint64_t secret[2]
    cdef public int64_t end_offset
    cdef uint8_t* stays
    cdef Py_ssize_t stays_room

    def __cinit__(self, Py_ssize_t most_keys, double load_factor, bytes secret not None):
        if most_keys < 1 or not 0 < load_factor <= 1 or len(secret) != 16:
            raise ValueError("room for one key at least, a load factor up to 1, and 16 secret bytes are needed")
        self.most_keys = most_keys
        self.capacity = <uint64_t>(most_keys / load_factor) + 1
        self.end_offset = -1
        memcpy(self.secret, PyBytes_AS_STRING(secret), 16)
        self.slots = <Slot*>calloc(self.capacity, sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.slots)
        free(self.stays)

    def __len__(self):
        return self.count

    def digest(self, bytes key not None):
        cdef uint64_t words[2]
        _sip(<const uint8_t*>PyBytes_AS_STRING(key), len(key), self.secret, &words[0], &words[1])
        return PyBytes_FromStringAndSize(<char*>words, 16)

    def put(self, bytes key not None, int64_t offset):
        return self._put(<const uint8_t*>PyBytes_AS_STRING(key), len(key), offset)

    def get(self, bytes key not None):
        return self._get(<const uint8_t*>PyBytes_AS_STRING(key), len(key))

    cdef inline Slot* _slot(self, const uint8_t* key, Py_ssize_t size, uint64_t* low, uint64_t* high) noexcept nogil:
        cdef uint64_t i
        cdef Slot* slots = self.slots
        _sip(key, size, self.secret, low, high)
        i = low[0] % self.capacity
        while slots[i].next_offset and (slots[i].low != low[0] or slots[i].high != high[0]):
            i += 1
            if i == self.capacity:
                i = 0
        return &slots[i]

    cdef inline bint _put(self, const uint8_t* key, Py_ssize_t size, int64_t offset) noexcept nogil:
        cdef uint64_t low, high
        cdef Slot* slot = self._slot(key, size, &low, &high)
        if not slot.next_offset:
            if self.count >= self.most_keys:
                return False
            slot.low = low
            slot.high = high
            self.count += 1
        slot.next_offset = offset + 1
        return True

    cdef inline int64_t _get(self, const uint8_t* key, Py_ssize_t size) noexcept nogil:
        cdef uint64_t low, high
        return self._slot(key, size, &low, &high).next_offset - 1

    cdef int _reserve(self, Py_ssize_t records) noexcept nogil:
        cdef uint8_t* memory
        if records > self.stays_room:
            memory = <uint8_t*>realloc(self.stays, records)
            if memory == NULL:
                return NO_MEMORY
            self.stays = memory
            self.stays_room = records
        return FINE


cdef class _View:
    """A buffer, held for as long as this lives."""

    cdef Py_buffer view
    cdef bint held
    cdef uint8_t* start

    def __cinit__(self, buf, Py_ssize_t start, Py_ssize_t end, bint writable=False):
        PyObject_GetBuffer(buf, &self.view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.held = True
        if not 0 <= start <= end <= self.view.len:
            raise ValueError(f"{start} to {end} is no part of {self.view.len} bytes")
        self.start = <uint8_t*>self.view.buf

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef _raise(int problem, int64_t base_offset):
    if problem == NO_MEMORY:
        raise MemoryError()
    if problem == BAD_BATCH:
        raise corrupt(f"no batch begins where the one at offset {base_offset} should")
    if problem == BAD_CRC:
        raise corrupt(f"the checksum of the batch at offset {base_offset} is wrong")
    raise corrupt(f"a record of the batch at offset {base_offset} is corrupt")


# --- one batch


cdef inline int _check(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Of a batch that is there whole."""
    cdef int32_t count = be_int32(p + 57)
    if be_int32(p + 23) < 0 or be_int64(p) < 0 or count < 0:
        return BAD_BATCH
    if fl_crc32c(p + 21, size - 21) != be_uint32(p + 17):
        return BAD_CRC
    return FINE if count <= (size - OVERHEAD) // MIN_RECORD_BYTES else BAD_BATCH


cdef int _index(
    KeyOffsets keys, const uint8_t* at, const uint8_t* end, int32_t count, int64_t base_offset, int32_t last_delta,
    int64_t from_offset
) noexcept nogil:
    cdef Rec record
    cdef int32_t i
    cdef int problem
    for i in range(count):
        problem = _parse(&at, end, &record)
        if problem:
            return problem
        if record.offset_delta < 0 or record.offset_delta > last_delta:
            return BAD_OFFSET
        if record.key.length >= 0 and base_offset + record.offset_delta >= from_offset:
            if not keys._put(record.key.start, record.key.length, base_offset + record.offset_delta):
                return IS_FULL
    return FINE if at == end else LENGTH_DIFFERS


cdef int _choose(
    KeyOffsets keys, const uint8_t* at, const uint8_t* end, int32_t count, int64_t base_offset, int32_t last_delta,
    int64_t base_timestamp, bint without_tombstones, Chosen* out
) noexcept nogil:
    """Which records stay: a flag for each in `keys.stays`."""
    cdef Rec record
    cdef int32_t i
    cdef int64_t offset, timestamp
    cdef bint stays
    cdef int problem = keys._reserve(count)
    out.records = 0
    out.tombstones = 0
    out.max_timestamp = INT64_MIN
    if problem:
        return problem
    for i in range(count):
        problem = _parse(&at, end, &record)
        if problem:
            return problem
        if record.offset_delta < 0 or record.offset_delta > last_delta:
            return BAD_OFFSET
        offset = base_offset + record.offset_delta
        if offset >= keys.end_offset:
            stays = True
        elif record.key.length < 0:
            stays = False
        else:
            stays = (record.value.length >= 0 or not without_tombstones) and (
                offset >= keys._get(record.key.start, record.key.length)
            )
        keys.stays[i] = stays
        if stays:
            out.records += 1
            if record.value.length < 0:
                out.tombstones += 1
            timestamp = <int64_t>(<uint64_t>base_timestamp + <uint64_t>record.timestamp_delta)
            if timestamp > out.max_timestamp:
                out.max_timestamp = timestamp
    return FINE if at == end else LENGTH_DIFFERS


cdef uint8_t* _copy(
    KeyOffsets keys, const uint8_t* at, int32_t count, uint8_t* to, int64_t shift
) noexcept nogil:
    """The records that stay, which `_choose` has parsed, with `shift` added to their timestamps' deltas."""
    cdef const uint8_t* start
    cdef const uint8_t* end
    cdef int32_t i, length = 0
    cdef int64_t delta = 0
    cdef uint64_t raw
    for i in range(count):
        start = at
        _varint(&at, at + 10, &length)
        end = at + length
        if keys.stays[i]:
            if not shift:
                memcpy(to, start, end - start)
                to += end - start
            else:
                start = at
                at += 1
                _varlong(&at, end, &delta)
                raw = _zigzag(<int64_t>(<uint64_t>delta + <uint64_t>shift))
                to = _put(to, _zigzag(1 + _size_of(raw) + (end - at)))
                to[0] = start[0]
                to = _put(to + 1, raw)
                memcpy(to, at, end - at)
                to += end - at
        at = end
    return to


cdef void _finish(
    uint8_t* to, const uint8_t* source, Py_ssize_t size, int attributes, int64_t base_timestamp, int64_t max_timestamp,
    int32_t count
) noexcept nogil:
    """The header of `source`, changed where the batch is another now."""
    memcpy(to, source, OVERHEAD)
    put_int32(to + 8, <int32_t>(size - 12))
    to[21] = <uint8_t>(attributes >> 8)
    to[22] = <uint8_t>attributes
    put_int64(to + 27, base_timestamp)
    put_int64(to + 35, max_timestamp)
    put_int32(to + 57, count)
    put_int32(to + 17, <int32_t>fl_crc32c(to + 21, size - 21))


cdef bint _is_in(const int64_t* values, Py_ssize_t count, int64_t value) noexcept nogil:
    cdef Py_ssize_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) // 2
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low < count and values[low] == value


# --- chunks


def index_chunk(KeyOffsets keys not None, buf, Py_ssize_t position, Py_ssize_t end, int64_t from_offset):
    cdef _View given = _View(buf, position, end)
    cdef const uint8_t* p
    cdef int64_t size, base = -1
    cdef int32_t last_delta
    cdef Py_ssize_t at = position, records = 0
    cdef int problem = FINE, outcome = _REST
    with nogil:
        while end - at >= OVERHEAD:
            p = given.start + at
            base = be_int64(p)
            size = <int64_t>be_int32(p + 8) + 12
            if size < OVERHEAD or p[16] != 2:
                problem = BAD_BATCH
                break
            if size > end - at:
                break
            last_delta = be_int32(p + 23)
            if base + last_delta >= from_offset:
                if p[22] & SPECIAL_BITS:
                    outcome = _SPECIAL
                    break
                problem = _check(p, size)
                if problem:
                    break
                problem = _index(keys, p + OVERHEAD, p + size, be_int32(p + 57), base, last_delta, from_offset)
                if problem == IS_FULL:
                    problem = FINE
                    outcome = _FULL
                    break
                if problem:
                    break
                records += be_int32(p + 57)
                keys.end_offset = base + last_delta + 1
            at += size
    if problem:
        _raise(problem, base)
    return at, outcome, records


def index_records(
    KeyOffsets keys not None, buf, Py_ssize_t start, Py_ssize_t end, int32_t count, int64_t base_offset,
    int32_t last_delta, int64_t from_offset
):
    cdef _View given = _View(buf, start, end)
    cdef int problem = BAD_BATCH
    if 0 <= count <= (end - start) // MIN_RECORD_BYTES:
        with nogil:
            problem = _index(
                keys, given.start + start, given.start + end, count, base_offset, last_delta, from_offset
            )
    if problem == IS_FULL:
        return False
    if problem:
        _raise(problem, base_offset)
    return True


def filter_chunk(
    KeyOffsets keys not None, buf, Py_ssize_t position, Py_ssize_t end, out, Py_ssize_t out_position, kept_ends,
    int64_t now_ms, int64_t horizon_ms
):
    cdef _View given = _View(buf, position, end)
    cdef _View target = _View(out, out_position, len(out), True)
    cdef _View ends = _View(kept_ends, 0, 0)
    cdef const int64_t* kept = <const int64_t*>ends.start
    cdef Py_ssize_t kept_count = ends.view.len // 8, room = target.view.len
    cdef const uint8_t* p
    cdef uint8_t* to
    cdef uint8_t* after
    cdef int64_t size, base = -1, base_timestamp, new_base
    cdef int32_t last_delta, count
    cdef int attributes
    cdef Py_ssize_t at = position, written = out_position, seen = 0, stayed = 0, changed = 0
    cdef int problem = FINE, outcome = _REST
    cdef Chosen chosen
    with nogil:
        while end - at >= OVERHEAD:
            p = given.start + at
            base = be_int64(p)
            size = <int64_t>be_int32(p + 8) + 12
            if size < OVERHEAD or p[16] != 2:
                problem = BAD_BATCH
                break
            if size > end - at:
                break
            if p[22] & SPECIAL_BITS:
                outcome = _SPECIAL
                break
            count = be_int32(p + 57)
            if size + <int64_t>GROWTH * (count if count > 0 else 0) > room - written:
                outcome = _FULL
                break
            to = target.start + written
            if base >= keys.end_offset:
                memcpy(to, p, size)
                written += size
                at += size
                seen += count
                stayed += count
                continue
            problem = _check(p, size)
            if problem:
                break
            attributes = p[21] << 8 | p[22]
            last_delta = be_int32(p + 23)
            base_timestamp = be_int64(p + 27)
            problem = _choose(
                keys, p + OVERHEAD, p + size, count, base, last_delta, base_timestamp,
                attributes & HORIZON != 0 and base_timestamp <= now_ms, &chosen
            )
            if problem:
                break
            if not chosen.records:
                if not _is_in(kept, kept_count, base + last_delta):
                    changed += 1
                elif not count:
                    memcpy(to, p, size)
                    written += size
                else:
                    changed += 1
                    _finish(to, p, OVERHEAD, attributes & ~(CODEC | HORIZON), -1, be_int64(p + 35), 0)
                    written += OVERHEAD
            elif chosen.records == count and (not chosen.tombstones or attributes & HORIZON):
                memcpy(to, p, size)
                written += size
            else:
                changed += 1
                new_base = base_timestamp
                if chosen.tombstones and not attributes & HORIZON:
                    new_base = horizon_ms
                    attributes |= HORIZON
                after = _copy(
                    keys, p + OVERHEAD, count, to + OVERHEAD, <int64_t>(<uint64_t>base_timestamp - <uint64_t>new_base)
                )
                if attributes & 8:  # log append time
                    chosen.max_timestamp = be_int64(p + 35)
                _finish(to, p, after - to, attributes, new_base, chosen.max_timestamp, chosen.records)
                written += after - to
            at += size
            seen += count
            stayed += chosen.records
    if problem:
        _raise(problem, base)
    return at, written, outcome, seen, stayed, changed


def filter_records(
    KeyOffsets keys not None, buf, Py_ssize_t start, Py_ssize_t end, int32_t count, int64_t base_offset,
    int32_t last_delta, int64_t base_timestamp, bint has_horizon, int64_t now_ms, int64_t horizon_ms
):
    cdef _View given = _View(buf, start, end)
    cdef int problem = BAD_BATCH
    cdef Chosen chosen
    cdef int64_t shift = 0
    cdef bint sets_horizon
    cdef uint8_t* to
    cdef uint8_t* after
    if 0 <= count <= (end - start) // MIN_RECORD_BYTES:
        with nogil:
            problem = _choose(
                keys, given.start + start, given.start + end, count, base_offset, last_delta, base_timestamp,
                has_horizon and base_timestamp <= now_ms, &chosen
            )
    if problem:
        _raise(problem, base_offset)
    sets_horizon = chosen.tombstones > 0 and not has_horizon
    if chosen.records == count and not sets_horizon:
        return None
    if sets_horizon:
        shift = <int64_t>(<uint64_t>base_timestamp - <uint64_t>horizon_ms)
    room = bytearray(end - start + <Py_ssize_t>GROWTH * count)
    cdef _View target = _View(room, 0, len(room), True)
    with nogil:
        to = target.start
        after = _copy(keys, given.start + start, count, to, shift)
    return chosen.records, chosen.max_timestamp, PyBytes_FromStringAndSize(<char*>to, after - to), sets_horizon


def tell_batches(buf, Py_ssize_t end, segment, int64_t interval_bytes):
    cdef _View given = _View(buf, 0, end)
    cdef Py_ssize_t at = 0
    cdef int64_t size, base
    cdef const uint8_t* p
    appended = segment.appended
    while at < end:
        p = given.start + at
        base = be_int64(p)
        size = <int64_t>be_int32(p + 8) + 12
        appended(base, base + be_int32(p + 23), be_int64(p + 35), size, interval_bytes)
        at += size
