# cython: language_level=3
"""One record as it lies in a batch: reading it within its bounds, and the numbers of which it is made.

For the compiled modules, which take it in; `_kernel_py` has the same in Python. Every read goes through `_varint`,
`_varlong` or `_span`, which know the end of the record; a record's end is checked against the end of the batch first.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef enum Problem:
    FINE = 0
    NUMBER_PAST_END = 1
    NUMBER_TOO_LONG = 2
    RECORD_PAST_END = 3
    FIELD_PAST_END = 4
    BAD_HEADER_COUNT = 5
    NAMELESS_HEADER = 6
    LENGTH_DIFFERS = 7
    BAD_OFFSET = 8
    BAD_TIMESTAMP = 9
    NO_MEMORY = 10


cdef enum:
    MIN_RECORD_BYTES = 7


cdef struct Span:
    const uint8_t* start
    int32_t length  # negative: null

cdef struct Rec:
    int64_t timestamp_delta
    int32_t offset_delta
    Span key
    Span value
    int32_t header_count
    const uint8_t* headers


cdef inline int _varint(const uint8_t** at, const uint8_t* end, int32_t* out) noexcept nogil:
    cdef const uint8_t* p = at[0]
    cdef uint32_t raw = 0
    cdef uint8_t byte
    cdef int shift = 0
    while True:
        if p >= end:
            return NUMBER_PAST_END
        byte = p[0]
        p += 1
        raw |= <uint32_t>(byte & 0x7F) << shift
        if byte < 0x80:
            out[0] = <int32_t>((raw >> 1) ^ (0 - (raw & 1)))
            at[0] = p
            return FINE
        shift += 7
        if shift > 28:
            return NUMBER_TOO_LONG


cdef inline int _varlong(const uint8_t** at, const uint8_t* end, int64_t* out) noexcept nogil:
    cdef const uint8_t* p = at[0]
    cdef uint64_t raw = 0
    cdef uint8_t byte
    cdef int shift = 0
    while True:
        if p >= end:
            return NUMBER_PAST_END
        byte = p[0]
        p += 1
        raw |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            out[0] = <int64_t>((raw >> 1) ^ (0 - (raw & 1)))
            at[0] = p
            return FINE
        shift += 7
        if shift > 63:
            return NUMBER_TOO_LONG


cdef inline int _span(const uint8_t** at, const uint8_t* end, Span* out) noexcept nogil:
    cdef int32_t length = 0
    cdef int problem = _varint(at, end, &length)
    if problem:
        return problem
    out.start = at[0]
    out.length = length
    if length > 0:
        if length > end - at[0]:
            return FIELD_PAST_END
        at[0] += length
    return FINE


cdef inline int _parse(const uint8_t** at, const uint8_t* end, Rec* out) noexcept nogil:
    cdef int32_t length = 0, count = 0, i
    cdef Span name, content
    cdef int problem = _varint(at, end, &length)
    if problem:
        return problem
    if length < 0 or length > end - at[0]:
        return RECORD_PAST_END
    end = at[0] + length
    if length == 0:
        return NUMBER_PAST_END
    at[0] += 1  # attributes: unused
    problem = _varlong(at, end, &out.timestamp_delta)
    if problem:
        return problem
    problem = _varint(at, end, &out.offset_delta)
    if problem:
        return problem
    problem = _span(at, end, &out.key)
    if problem:
        return problem
    problem = _span(at, end, &out.value)
    if problem:
        return problem
    problem = _varint(at, end, &count)
    if problem:
        return problem
    if count < 0 or count > end - at[0]:
        return BAD_HEADER_COUNT
    out.header_count = count
    out.headers = at[0]
    for i in range(count):
        problem = _span(at, end, &name)
        if problem:
            return problem
        if name.length < 0:
            return NAMELESS_HEADER
        problem = _span(at, end, &content)
        if problem:
            return problem
    return FINE if at[0] == end else LENGTH_DIFFERS


cdef inline int _size_of(uint64_t raw) noexcept nogil:
    cdef int size = 1
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size


cdef inline uint64_t _zigzag(int64_t value) noexcept nogil:
    return (<uint64_t>value << 1) ^ (0 - (<uint64_t>value >> 63))


cdef inline uint8_t* _put(uint8_t* to, uint64_t raw) noexcept nogil:
    while raw > 0x7F:
        to[0] = <uint8_t>(raw & 0x7F) | 0x80
        to += 1
        raw >>= 7
    to[0] = <uint8_t>raw
    return to + 1
