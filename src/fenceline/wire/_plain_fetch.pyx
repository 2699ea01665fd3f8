# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The fast path for the two Fetch messages that a follower writes and reads for every record, at C speed.

Equivalent to `fetch_request.encode_request` and `fetch_response.parse_response`, which are complete without this
module: None for messages of another form.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from fenceline._big_endian cimport be_int32, be_int64, put_int32, put_int64

from fenceline.wire.fetch_messages import FetchedPartition, FetchResponse

ABI = 4

cdef enum:
    MAX_PARTITIONS = 64
    REQUEST_HEAD_BYTES = 22
    WANTED_BYTES = 51  # of one partition, with everything that may precede and follow it
    REQUEST_TAIL_BYTES = 18
    TOPICS_AT = 10
    FETCHED_BYTES = 35  # of one partition, before its records


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
