# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Fetches of a follower that keeps up: one partition, at the log's end, and then one batch for it.

Owns no rule of its own: it knows what to leave to `fetching.py` and `fetch_reads.py`, which are complete without this
module. A request or an answer is left as a whole, with nothing changed, where anything of it is not the plain case
(another version, another partition that may have news, an epoch that is not the same on both sides, throttles, a disk
that would be waited for, what is settled or would become so).
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t

from fenceline._big_endian cimport be_int32, be_int64, put_int32, put_int64
from fenceline.log._tail cimport LogTail

from fenceline.errors import ErrorCode
from fenceline.node.fetch_reads import Reader
from fenceline.node.parked_fetch import ParkedFetch
from fenceline.replica.fetch_session import SessionAnswer, Told
from fenceline.wire.fetch import FetchPartition, FetchRequest

ABI = 2

cdef enum:
    REQUEST_BYTES = 91
    FIRST_WITH_TOPIC_IDS = 13
    FIRST_WITH_REPLICA_STATE = 15
    HEAD_BYTES = 72
    MOST_COPIED_BYTES = 4096


cdef object NONE = ErrorCode.NONE


cdef bint _is_plain_request(const uint8_t* p, Py_ssize_t size) noexcept nogil:
    """Whether a follower goes on with a session, asks for one partition of one topic and says nothing else."""
    return (
        size == REQUEST_BYTES
        and be_int32(p) > 0 and be_int32(p + 4) > 0 and p[12] == 0  # waits, reads all
        and be_int32(p + 17) > 0  # has a session
        and p[21] == 2 and p[38] == 2 and p[71] == 0 and p[72] == 0  # a topic, a partition
        and p[73] == 1 and p[74] == 1  # forgets nothing, has no rack
        and p[75] == 1 and p[76] == 1 and p[77] == 13 and p[90] == 0 and be_int32(p + 78) >= 0  # is a replica
    )


cdef object _served(fetching, key, asked, int32_t replica_id, int64_t replica_epoch):
    """The replica that may serve this follower beyond doubt, with a log that its own agrees with; else None."""
    cdef int64_t leader_epoch = asked[5], last_fetched_epoch = asked[6]
    cdef list epochs
    replica = fetching.reads.replicas.open_by_id.get(key)
    if replica is None:
        return None
    leader = replica.leader
    if leader is None or leader.is_recovering or replica.is_being_cut:
        return None
    if leader_epoch < 0 or leader_epoch != <int64_t>replica.leader_epoch:
        return None
    if leader.check_follower(replica_id, replica_epoch, knows_epoch=True) is not NONE:
        return None
    log = <LogTail?>replica.log
    epochs = log.epochs._epochs
    if not epochs or last_fetched_epoch < 0 or <int64_t>epochs[len(epochs) - 1] != last_fetched_epoch:
        return None
    if fetching.broker.replication.throttles.leader.is_active:
        return None
    return replica


def park_plain(fetching, context, body):
    """A follower has everything and asks for what comes next: what waits for that, None with nothing changed."""
    cdef const uint8_t[::1] view = body
    cdef const uint8_t* p
    cdef int32_t replica_id
    cdef int64_t replica_epoch, epoch
    cdef LogTail log
    cdef dict unsettled
    if <int>context.api_version < FIRST_WITH_REPLICA_STATE or view.shape[0] != REQUEST_BYTES:
        return None
    p = &view[0]
    if not _is_plain_request(p, REQUEST_BYTES):
        return None
    replica_id, replica_epoch, epoch = be_int32(p + 78), be_int64(p + 82), be_int32(p + 17)
    sessions = fetching.sessions.by_id
    session_id = be_int32(p + 13)
    session = sessions.get(session_id)
    if session is None or <int64_t>session.next_epoch != epoch or not session.uses_topic_ids:
        return None
    if <int64_t>session.replica_epoch != replica_epoch or replica_epoch < 0:
        return None
    topic_id = PyBytes_FromStringAndSize(<const char*>p + 22, 16)
    key = (topic_id, be_int32(p + 39))
    wanted = session.partitions.get(key)
    unsettled = session.unsettled
    if wanted is None or len(unsettled) != 1 or key not in unsettled:
        return None
    asked = FetchPartition(
        None, topic_id, key[1], be_int64(p + 47), be_int32(p + 67), be_int32(p + 43), be_int32(p + 55),
        be_int64(p + 59),
    )
    replica = _served(fetching, key, asked, replica_id, replica_epoch)
    if replica is None:
        return None
    log = replica.log
    told = wanted.told
    if be_int64(p + 47) != log.log_end_offset or <int64_t>told[0] == log.log_end_offset:
        return None
    if <int64_t>told[1] != log.log_start_offset:
        return None

    wanted.asked = asked
    session.went_on(fetching.broker.clock.monotonic_ms())
    sessions.move_to_end(session_id)
    fetching.broker.replication.fetched(
        replica,
        replica_id,
        fetch_offset=asked[3],
        log_start_offset=asked[7],
        broker_epoch=replica_epoch,
    )
    request = FetchRequest(
        None, replica_id, replica_epoch, be_int32(p), be_int32(p + 4), be_int32(p + 8), 0, session_id, epoch,
        [asked], [], "",
    )
    answer = SessionAnswer(session, is_full=False)
    return ParkedFetch(fetching, context, request, answer, Reader(False, context.listener)).park(replica)


def answer_plain(fetching, context, request, answer):
    """The frame with the batch that came for a follower's parked fetch, None with nothing changed."""
    cdef int32_t replica_id = request.replica_id
    cdef int64_t size
    cdef LogTail log
    cdef dict unsettled
    session = answer.session
    if session is None or answer.is_full or replica_id < 0 or <int>context.api_version < FIRST_WITH_TOPIC_IDS:
        return None
    unsettled = session.unsettled
    if len(unsettled) != 1 or request.isolation_level:
        return None
    key, wanted = next(iter(unsettled.items()))
    asked = wanted.asked
    if asked[1] is None:
        return None
    replica = _served(fetching, key, asked, replica_id, request.replica_epoch)
    if replica is None:
        return None
    log = replica.log
    if <int64_t>asked[3] < log.log_start_offset or <int64_t>asked[3] >= log.log_end_offset:
        return None
    try:
        records = log.read_newest(asked[3], asked[4])
    except Exception:
        return None
    if records is None:
        return None
    size = len(records)
    if size == 0 or size < <int64_t>request.min_bytes:
        return None
    metrics = fetching.broker.metrics
    metrics.fetched_partitions += 1
    metrics.fetched_bytes += size
    high_watermark = log.high_watermark
    wanted.was_told(Told(high_watermark, log.log_start_offset))
    return _frame(context, answer.session_id, key, high_watermark, log.last_stable_offset, log.log_start_offset, records)


cdef list _frame(
    context, int32_t session_id, key, int64_t high_watermark, int64_t last_stable_offset, int64_t log_start_offset, records
):
    cdef uint8_t[HEAD_BYTES + 5] out
    cdef Py_ssize_t size = len(records), at = HEAD_BYTES
    cdef Py_ssize_t rest = size + 1
    cdef bytes topic_id = key[0]
    cdef int i
    put_int32(out + 4, <int32_t>context.correlation_id)
    out[8] = 0
    put_int32(out + 9, 0)
    out[13] = out[14] = 0
    put_int32(out + 15, session_id)
    out[19] = 2
    for i in range(16):
        out[20 + i] = <uint8_t>topic_id[i]
    out[36] = 2
    put_int32(out + 37, <int32_t>key[1])
    out[41] = out[42] = 0
    put_int64(out + 43, high_watermark)
    put_int64(out + 51, last_stable_offset)
    put_int64(out + 59, log_start_offset)
    out[67] = 0
    put_int32(out + 68, -1)
    while rest > 127:
        out[at] = <uint8_t>(rest & 0x7F | 0x80)
        rest >>= 7
        at += 1
    out[at] = <uint8_t>rest
    at += 1
    put_int32(out, <int32_t>(at - 4 + size + 3))
    head = PyBytes_FromStringAndSize(<const char*>out, at)
    if size < MOST_COPIED_BYTES:
        return [b"".join((head, records, b"\0\0\0"))]
    return [head, records, b"\0\0\0"]
