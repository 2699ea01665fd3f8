# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The two messages of Fetch that a follower writes and reads for every record, in C speed: one partition each.

Twin of `fetch_request.encode_request` and `fetch_response.parse_response`, which are complete without this module:
None stands for whatever has another form.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, uint8_t, uint64_t

from fenceline._big_endian cimport be_int32, be_int64, put_int32, put_int64

from fenceline.wire.fetch_messages import FetchedPartition, FetchResponse

ABI = 2

cdef enum:
    REQUEST_BYTES = 91
    RECORDS_AT = 63
    BEHIND_RECORDS = 3


def encode_request(request):
    """The body from version 15 on: a replica asks for one partition and says nothing else. None for others."""
    cdef uint8_t[REQUEST_BYTES] out
    cdef uint8_t* p = out
    cdef list partitions = request.partitions
    cdef tuple asked
    cdef bytes topic_id
    cdef int i
    if len(partitions) != 1 or request.forgotten or request.rack_id or request.cluster_id is not None:
        return None
    asked = <tuple>partitions[0]
    if asked[1] is None or asked[8] is not None or asked[9] is not None or <int32_t>request.replica_id < 0:
        return None
    topic_id = asked[1]
    if len(topic_id) != 16:
        return None
    put_int32(p, request.max_wait_ms)
    put_int32(p + 4, request.min_bytes)
    put_int32(p + 8, request.max_bytes)
    p[12] = <uint8_t><signed char>request.isolation_level
    put_int32(p + 13, request.session_id)
    put_int32(p + 17, request.session_epoch)
    p[21] = 2
    for i in range(16):
        p[22 + i] = <uint8_t>topic_id[i]
    p[38] = 2
    put_int32(p + 39, asked[2])
    put_int32(p + 43, asked[5])
    put_int64(p + 47, asked[3])
    put_int32(p + 55, asked[6])
    put_int64(p + 59, asked[7])
    put_int32(p + 67, asked[4])
    p[71] = p[72] = 0
    p[73] = p[74] = p[75] = p[76] = 1
    p[77] = 13
    put_int32(p + 78, request.replica_id)
    put_int64(p + 82, request.replica_epoch)
    p[90] = 0
    return PyBytes_FromStringAndSize(<const char*>p, REQUEST_BYTES)


def parse_response(body):
    """The answer with records of one partition, from version 13 on. None for others."""
    cdef const uint8_t[::1] view = body
    cdef const uint8_t* p
    cdef Py_ssize_t size = view.shape[0], at = RECORDS_AT
    cdef uint64_t length = 0
    cdef int shift = 0
    if size < RECORDS_AT + 1 + BEHIND_RECORDS:
        return None
    p = &view[0]
    if p[10] != 2 or p[27] != 2 or p[58] != 0:
        return None
    while at < size and shift <= 28:
        length |= <uint64_t>(p[at] & 0x7F) << shift
        shift += 7
        at += 1
        if p[at - 1] < 0x80:
            break
    else:
        return None
    if length < 1 or length - 1 != <uint64_t>(size - at - BEHIND_RECORDS) or p[size - 3] or p[size - 2] or p[size - 1]:
        return None
    fetched = FetchedPartition(
        None, PyBytes_FromStringAndSize(<const char*>p + 11, 16), be_int32(p + 28), <int16_t>(p[32] << 8 | p[33]),
        be_int64(p + 34), be_int64(p + 42), be_int64(p + 50), None, None, None, None, be_int32(p + 59),
        body[at : size - BEHIND_RECORDS],
    )
    return FetchResponse([fetched], be_int32(p), <int16_t>(p[4] << 8 | p[5]), be_int32(p + 6), ())
