# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The Fetch messages at C speed: those that a follower writes and reads for every record, and the partitions of the
requests and responses of other readers, of which there may be thousands.

Equivalent to `fetch_request` and `fetch_response`, which are complete without this module: None for another form.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from fenceline._big_endian cimport be_int32, be_int64, put_int32, put_int64

from fenceline.wire.fetch_messages import FetchedPartition, FetchPartition, FetchResponse
from fenceline.wire.partitioned import COPIED_BELOW_BYTES

ABI = 5

_new_tuple = tuple.__new__

cdef enum:
    MAX_PARTITIONS = 64
    REQUEST_HEAD_BYTES = 22
    WANTED_BYTES = 51  # of one partition, with everything that may precede and follow it
    REQUEST_TAIL_BYTES = 18
    TOPICS_AT = 10
    FETCHED_BYTES = 35  # of one partition, before its records
    ASKED_BYTES = 33  # of one partition of a request, without tagged fields
    TOPIC_BYTES = 16 + 5 + 1
    LENGTH_BYTES = 5


def encode_request(request):
    """The body of a replica's request with partitions only, from version 15 on. None for others."""
    cdef uint8_t[REQUEST_HEAD_BYTES + MAX_PARTITIONS * WANTED_BYTES + REQUEST_TAIL_BYTES] out
    cdef uint8_t* p = out
    cdef uint8_t* partitions = NULL
    cdef list wanted = request.partitions
    cdef tuple asked
    cdef bytes topic_id, last_topic_id = None
    cdef int i
    cdef Py_ssize_t number
    if len(wanted) > MAX_PARTITIONS or request.forgotten or request.rack_id or request.cluster_id is not None:
        return None
    if <int32_t>request.replica_id < 0:
        return None
    put_int32(p, request.max_wait_ms)
    put_int32(p + 4, request.min_bytes)
    put_int32(p + 8, request.max_bytes)
    p[12] = <uint8_t><signed char>request.isolation_level
    put_int32(p + 13, request.session_id)
    put_int32(p + 17, request.session_epoch)
    out[21] = 1
    p += REQUEST_HEAD_BYTES
    for number in range(len(wanted)):
        asked = <tuple>wanted[number]
        if asked[1] is None or asked[8] is not None or asked[9] is not None:
            return None
        topic_id = asked[1]
        if len(topic_id) != 16:
            return None
        if topic_id != last_topic_id:
            if partitions is not NULL:
                p[0] = 0
                p += 1
            out[21] += 1
            for i in range(16):
                p[i] = <uint8_t>topic_id[i]
            partitions = p + 16
            partitions[0] = 1
            p += 17
            last_topic_id = topic_id
        partitions[0] += 1
        put_int32(p, asked[2])
        put_int32(p + 4, asked[5])
        put_int64(p + 8, asked[3])
        put_int32(p + 16, asked[6])
        put_int64(p + 20, asked[7])
        put_int32(p + 28, asked[4])
        p[32] = 0
        p += 33
    if partitions is not NULL:
        p[0] = 0
        p += 1
    p[0] = p[1] = p[2] = p[3] = 1
    p[4] = 13
    put_int32(p + 5, request.replica_id)
    put_int64(p + 9, request.replica_epoch)
    p[17] = 0
    return PyBytes_FromStringAndSize(<const char*>out, p + REQUEST_TAIL_BYTES - out)


def parse_response(body):
    """The response with records of partitions, from version 13 on. None for others."""
    cdef const uint8_t[::1] view = body
    cdef const uint8_t* p
    cdef Py_ssize_t size = view.shape[0], at = TOPICS_AT + 1, fetched
    cdef uint64_t length
    cdef int shift, topics, count
    cdef list partitions = []
    cdef object topic_id
    if size < TOPICS_AT + 2:
        return None
    p = &view[0]
    topics = p[TOPICS_AT]
    if topics >= 128:
        if p[at] >= 128:
            return None
        topics = topics & 0x7F | p[at] << 7
        at += 1
    topics -= 1
    if topics < 0:
        return None
    for _ in range(topics):
        if size - at < 17:
            return None
        topic_id = PyBytes_FromStringAndSize(<const char*>p + at, 16)
        if p[at + 16] < 1 or p[at + 16] > 127:
            return None
        count = p[at + 16] - 1
        at += 17
        for _ in range(count):
            if size - at < FETCHED_BYTES or p[at + 30] != 0:
                return None
            fetched = at
            at += FETCHED_BYTES
            length = 0
            shift = 0
            while at < size and shift <= 28:
                length |= <uint64_t>(p[at] & 0x7F) << shift
                shift += 7
                at += 1
                if p[at - 1] < 0x80:
                    break
            else:
                return None
            if length < 1 or length > <uint64_t>(size - at):
                return None
            records = body[at : at + <Py_ssize_t>length - 1]
            at += <Py_ssize_t>length - 1
            if p[at]:
                return None
            at += 1
            partitions.append(
                FetchedPartition(
                    None, topic_id, be_int32(p + fetched), <int16_t>(p[fetched + 4] << 8 | p[fetched + 5]),
                    be_int64(p + fetched + 6), be_int64(p + fetched + 14), be_int64(p + fetched + 22),
                    None, None, None, None, be_int32(p + fetched + 31), records,
                )
            )
        if at >= size or p[at]:
            return None
        at += 1
    if at != size - 1 or p[at]:
        return None
    return FetchResponse(partitions, be_int32(p), <int16_t>(p[4] << 8 | p[5]), be_int32(p + 6), ())


cdef inline Py_ssize_t _count(const uint8_t* p, Py_ssize_t* at, Py_ssize_t size) noexcept nogil:
    """The length of a compact array, whose elements have at least one byte each; -1 if it is not one."""
    cdef Py_ssize_t count = 0
    cdef int shift = 0
    while at[0] < size and shift <= 21:
        count |= <Py_ssize_t>(p[at[0]] & 0x7F) << shift
        shift += 7
        at[0] += 1
        if p[at[0] - 1] < 0x80:
            return count - 1 if count <= size else -1
    return -1


def parse_wanted(body, Py_ssize_t at):
    """(partitions, position after them) of a request from version 13 on. None for others."""
    cdef const uint8_t[::1] view = body
    cdef const uint8_t* p
    cdef Py_ssize_t size = view.shape[0], topics, count
    cdef list partitions = []
    cdef bytes topic_id
    if not 0 <= at < size:
        return None
    p = &view[0]
    topics = _count(p, &at, size)
    if topics < 0:
        return None
    for _ in range(topics):
        if size - at < 17:
            return None
        topic_id = PyBytes_FromStringAndSize(<const char*>p + at, 16)
        at += 16
        count = _count(p, &at, size)
        if count < 0 or (size - at) // ASKED_BYTES < count:
            return None
        for _ in range(count):
            if p[at + ASKED_BYTES - 1]:
                return None
            partitions.append(
                _new_tuple(
                    FetchPartition,
                    (
                        None, topic_id, be_int32(p + at), be_int64(p + at + 8), be_int32(p + at + 28),
                        be_int32(p + at + 4), be_int32(p + at + 16), be_int64(p + at + 20), None, None,
                    ),
                )
            )
            at += ASKED_BYTES
        if at >= size or p[at]:
            return None
        at += 1
    return partitions, at


cdef inline Py_ssize_t _put_uvarint(uint8_t* p, Py_ssize_t value) noexcept nogil:
    cdef Py_ssize_t size = 0
    while value > 127:
        p[size] = <uint8_t>(value & 0x7F | 0x80)
        value >>= 7
        size += 1
    p[size] = <uint8_t>value
    return size + 1


def encode_fetched(bytes head, partitions):
    """`head`, the partitions of a response from version 13 on, and no tagged fields, in buffers as `encode_response`
    arranges them. None if a partition has an aborted transaction, a hint or a divergence."""
    cdef list given = <list?>partitions, buffers = []
    cdef Py_ssize_t count = len(given), number, size, runs = 0, at = len(head), cut = 0, copied = 0, after
    cdef Py_ssize_t copied_below = COPIED_BELOW_BYTES
    cdef tuple one
    cdef uint8_t* out
    cdef Py_buffer content
    last = None
    for number in range(count):
        one = <tuple>given[number]
        if one[7] is not None or one[8] is not None or one[9] is not None or one[10]:
            return None
        records = one[12]
        if records is None or not isinstance(one[1], bytes) or len(<bytes>one[1]) != 16:
            return None
        if runs == 0 or one[1] != last:
            last = one[1]
            runs += 1
        size = len(records)
        if size < copied_below:
            copied += size
    size = at + LENGTH_BYTES + runs * TOPIC_BYTES + count * (FETCHED_BYTES + LENGTH_BYTES + 1) + copied + 1
    out = <uint8_t*>PyMem_Malloc(size)
    if out is NULL:
        raise MemoryError
    try:
        memcpy(out, <const char*>head, at)
        at += _put_uvarint(out + at, runs + 1)
        number = 0
        while number < count:
            last = (<tuple>given[number])[1]
            memcpy(out + at, <const char*><bytes>last, 16)
            after = number + 1
            while after < count and (<tuple>given[after])[1] == last:
                after += 1
            at += 16
            at += _put_uvarint(out + at, after - number + 1)
            while number < after:
                one = <tuple>given[number]
                number += 1
                put_int32(out + at, one[2])
                size = <int16_t>one[3]
                out[at + 4], out[at + 5] = <uint8_t>(size >> 8), <uint8_t>size
                put_int64(out + at + 6, one[4])
                put_int64(out + at + 14, one[5])
                put_int64(out + at + 22, one[6])
                out[at + 30] = 0 if one[10] is None else 1
                put_int32(out + at + 31, one[11])
                at += FETCHED_BYTES
                records = one[12]
                size = len(records)
                at += _put_uvarint(out + at, size + 1)
                if size >= copied_below:
                    buffers.append(PyBytes_FromStringAndSize(<const char*>out + cut, at - cut))
                    buffers.append(records)
                    cut = at
                elif size:
                    PyObject_GetBuffer(records, &content, PyBUF_SIMPLE)
                    memcpy(out + at, content.buf, size)
                    PyBuffer_Release(&content)
                    at += size
                out[at] = 0
                at += 1
            out[at] = 0
            at += 1
        out[at] = 0
        at += 1
        buffers.append(PyBytes_FromStringAndSize(<const char*>out + cut, at - cut))
    finally:
        PyMem_Free(out)
    return buffers
