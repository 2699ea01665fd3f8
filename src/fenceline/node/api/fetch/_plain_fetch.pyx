# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The fast path for fetches of a follower that keeps up: new records of its partitions, at once or when they arrive. And
for the partitions of a consumer, of which one fetch may have thousands: `read_plain`.

Owns no rule of its own: `fetching.py` and `reads.py` are complete without this module. A request or a response is
left to them completely, with nothing changed, if anything in it is not the plain case (another version, a partition
that is new to the session, different epochs, throttles, a wait for the disk, more than fits into one response). The
follower state in a request is applied once; if the records to read are not plain, `fetching.py` continues from there.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t

from fenceline._big_endian cimport be_int32, be_int64, put_int32, put_int64
from fenceline.log.core._tail cimport LogTail, SegmentTail

from fenceline.log.core.disk import FileSlice
from fenceline.log.core.errors import StorageError
from fenceline.node.api.fetch.reads import Reader
from fenceline.node.api.fetch.parked_fetch import ParkedFetch
from fenceline.replica.fetch_session import SessionAnswer, SentState
from fenceline.wire.fetch import FetchedPartition, FetchPartition, FetchRequest

ABI = 8

_new_tuple = tuple.__new__

cdef enum:
    FIRST_WITH_TOPIC_IDS = 13
    FIRST_WITH_REPLICA_STATE = 15
    MAX_PARTITIONS = 64
    REQUEST_HEAD_BYTES = 21
    REQUEST_TAIL_BYTES = 18
    WANTED_BYTES = 33
    FRAME_HEAD_BYTES = 19
    FETCHED_BYTES = 60  # of one partition with everything that may precede it, without its records
    MOST_COPIED_BYTES = 4096


cdef bint _is_plain_tail(const uint8_t* p) noexcept nogil:
    """Whether a request has no forgotten topics, no rack, and only a replica state in its tags."""
    return (
        p[0] == 1 and p[1] == 1 and p[2] == 1 and p[3] == 1 and p[4] == 13 and p[17] == 0 and be_int32(p + 5) >= 0
    )


cdef dict _wanted(const uint8_t* p, Py_ssize_t size):
    """The partitions of a request by topic id and index; None if it has another form."""
    cdef dict wanted = {}
    cdef Py_ssize_t at = REQUEST_HEAD_BYTES, end = size - REQUEST_TAIL_BYTES
    cdef int topics, count, i, total = 0
    cdef object topic_id, index
    if p[at] < 1 or p[at] > MAX_PARTITIONS:
        return None
    topics = p[at] - 1
    at += 1
    for _ in range(topics):
        if end - at < 17:
            return None
        topic_id = PyBytes_FromStringAndSize(<const char*>p + at, 16)
        count = p[at + 16] - 1
        at += 17
        if count < 1 or count >= MAX_PARTITIONS or end - at < count * WANTED_BYTES + 1:
            return None
        for i in range(count):
            if p[at + WANTED_BYTES - 1]:
                return None
            index = be_int32(p + at)
            wanted[topic_id, index] = FetchPartition(
                None, topic_id, index, be_int64(p + at + 8), be_int32(p + at + 28), be_int32(p + at + 4), be_int32(p + at + 16),
                be_int64(p + at + 20),
            )
            at += WANTED_BYTES
        total += count
        if p[at]:
            return None
        at += 1
    return wanted if at == end and len(wanted) == total and total <= MAX_PARTITIONS else None


cdef object _served(dict hosted, key, wanted, int32_t replica_id):
    """The replica, if it may serve this follower and the follower's log agrees with its own; else None."""
    cdef tuple asked = <tuple>wanted
    cdef int64_t leader_epoch = asked[5], last_fetched_epoch = asked[6], offset = asked[3]
    cdef list epochs
    cdef LogTail log
    replica = hosted.get(key)
    if replica is None:
        return None
    leader = replica.leader
    if leader is None or leader.is_recovering or replica.is_being_cut or replica_id not in leader.followers:
        return None
    if leader_epoch < 0 or leader_epoch != <int64_t>replica.leader_epoch:
        return None
    log = <LogTail?>replica.log
    if last_fetched_epoch >= 0:
        epochs = log.epochs._epochs
        if not epochs or <int64_t>epochs[len(epochs) - 1] != last_fetched_epoch:
            return None
    return replica if log.log_start_offset <= offset <= log.log_end_offset else None


def handle_plain(fetching, context, body):
    """The response, or a pending one; None, with nothing changed: `FetchHandler.handle` continues."""
    cdef const uint8_t[::1] view = body
    cdef const uint8_t* p
    cdef const uint8_t* tail
    cdef Py_ssize_t size = view.shape[0]
    cdef int32_t replica_id
    cdef int64_t replica_epoch, epoch
    cdef dict wanted, changed, known, hosted
    cdef list to_read, replicas
    if <int>context.api_version < FIRST_WITH_REPLICA_STATE or size <= REQUEST_HEAD_BYTES + REQUEST_TAIL_BYTES:
        return None
    p = &view[0]
    tail = p + size - REQUEST_TAIL_BYTES
    epoch = be_int32(p + 17)
    if be_int32(p) <= 0 or be_int32(p + 4) <= 0 or p[12] or epoch <= 0 or not _is_plain_tail(tail):
        return None  # it does not wait, does not read everything, or does not continue a session
    replica_id, replica_epoch = be_int32(tail + 5), be_int64(tail + 9)
    sessions = fetching.sessions.by_id
    session_id = be_int32(p + 13)
    session = sessions.get(session_id)
    if session is None or <int64_t>session.next_epoch != epoch or not session.uses_topic_ids:
        return None
    if <int64_t>session.replica_epoch != replica_epoch or replica_epoch < 0 or session.isolation_level:
        return None
    if not _may_read(fetching, replica_id, replica_epoch):
        return None
    wanted = _wanted(p, size)
    if wanted is None:
        return None
    hosted, changed, known = fetching.reads.replicas.open_by_id, session.changed, session.partitions
    if not known:
        return None
    for key, asked in wanted.items():
        if key not in known or _served(hosted, key, asked, replica_id) is None:
            return None
    for key, held in changed.items():
        if key not in wanted and _served(hosted, key, held.asked, replica_id) is None:
            return None

    for key, asked in wanted.items():
        held = known[key]
        if held._waiters is not None:
            held.let_go()
        held.asked = asked
        changed[key] = held
    session.went_on(fetching.clock.monotonic_ms())
    sessions.move_to_end(session_id)
    to_read = session.to_read()
    replicas = [hosted[held.key] for held in to_read]
    replication = fetching.replication
    for held, replica in zip(to_read, replicas):
        asked = held.asked
        replication.fetched(
            replica,
            replica_id,
            fetch_offset=asked[3],
            log_start_offset=asked[7],
            broker_epoch=replica_epoch,
        )
    request = FetchRequest(
        None, replica_id, replica_epoch, be_int32(p), be_int32(p + 4), be_int32(p + 8), 0, session_id, epoch,
        list(wanted.values()), [], "",
    )
    answer = SessionAnswer(session, is_full=False)
    reader = Reader(False, context.listener)
    frame = _answer(fetching, context, request, answer, to_read, replicas)
    if frame is None:
        return fetching.read_or_park(context, request, answer, reader)
    return frame or ParkedFetch(fetching, context, request, answer, reader).park([hosted[key] for key in changed])


def answer_plain(fetching, context, request, answer):
    """The frame with a follower's new records, empty if there are none; None, with nothing changed."""
    cdef int32_t replica_id = request.replica_id
    cdef dict hosted
    cdef list to_read, replicas
    session = answer.session
    if session is None or answer.is_full or replica_id < 0 or <int>context.api_version < FIRST_WITH_TOPIC_IDS:
        return None
    if request.isolation_level or not _may_read(fetching, replica_id, request.replica_epoch):
        return None
    hosted, to_read, replicas = fetching.reads.replicas.open_by_id, session.to_read(), []
    for held in to_read:
        replica = _served(hosted, held.key, held.asked, replica_id)
        if replica is None:
            return None
        replicas.append(replica)
    return _answer(fetching, context, request, answer, to_read, replicas)


cdef bint _may_read(fetching, int32_t replica_id, int64_t replica_epoch) except -1:
    """Whether no throttle is set, and the follower's broker epoch is the registered one."""
    replication = fetching.replication
    return not replication.throttles.leader.is_active and replica_epoch >= <int64_t>replication.eligible_epoch(replica_id)


cdef object _answer(fetching, context, request, answer, list to_read, list replicas):
    """`replicas`: of `to_read`, all of which this follower may read."""
    cdef int64_t left = min(<int64_t>request.max_bytes, <int64_t>fetching.reads.max_response_bytes)
    cdef int64_t total = 0, max_bytes, log_start_sent
    cdef Py_ssize_t number, count = len(to_read)
    cdef LogTail log
    cdef list found = []
    cdef int with_records = 0
    if count == 0:
        return () if answer.has_idle else None
    if count > MAX_PARTITIONS:
        return None
    for number in range(count):
        held = to_read[number]
        asked = held.asked
        log = replicas[number].log
        records = b""
        if <int64_t>asked[3] < log.log_end_offset:
            max_bytes = min(<int64_t>asked[4], left - total)
            records = _read(log, asked[3], max_bytes, total == 0) if left > total else None
            if records is None:
                return None
            total += len(records)
            with_records += 1
        else:
            log_start_sent = held.sent[1]
            if log_start_sent >= 0 and log_start_sent != log.log_start_offset:
                return None
        found.append(records)
    if 0 < total < <int64_t>request.min_bytes:
        return None
    for number in range(count):
        log = replicas[number].log
        if not len(found[number]) and log.high_watermark == log.log_end_offset:
            fetching.reads.mark_idle(request.replica_id, to_read[number], replicas[number])
    if total == 0:
        return ()
    metrics = fetching.metrics
    metrics.fetched_partitions += with_records
    metrics.fetched_bytes += total
    return _frame(context, answer.session_id, to_read, replicas, found)


cdef object _read(log, offset, int64_t max_bytes, bint at_least_one):
    """The records from `offset` to the log end, within `max_bytes`; None if they are not in memory, or on an error."""
    try:
        records = log.read_newest(offset, max_bytes)
        if records is None:
            read = log.read(
                offset, max_bytes, end_offset_exclusive=log.log_end_offset, at_least_one=at_least_one
            )
            records = read.payload
            if not read.resident or isinstance(records, FileSlice):
                read.close()
                return None
    except StorageError:
        return None
    return records if len(records) else None


cdef list _frame(context, int32_t session_id, list to_read, list replicas, list found):
    """The frame with the changes of these partitions, which are then marked as sent."""
    cdef uint8_t[FRAME_HEAD_BYTES + MAX_PARTITIONS * FETCHED_BYTES] out
    cdef uint8_t* topics = out + FRAME_HEAD_BYTES
    cdef uint8_t* partitions = NULL
    cdef Py_ssize_t number, size, rest, at = FRAME_HEAD_BYTES + 1, cut = 0, total = 0
    cdef bytes topic_id, last_topic_id = None
    cdef int64_t high_watermark
    cdef LogTail log
    cdef list parts = []
    cdef int i
    topics[0] = 1
    for number in range(len(to_read)):
        held, records, log = to_read[number], found[number], replicas[number].log
        size = len(records)
        high_watermark = log.high_watermark
        now = SentState(high_watermark, log.log_start_offset)
        if size:
            held.record_sent(now)
        elif held.sent != now:
            held.sent, held.is_known = now, True
        else:
            continue
        topic_id, index = held.key
        if topic_id != last_topic_id:
            if partitions is not NULL:
                out[at] = 0
                at += 1
            topics[0] += 1
            for i in range(16):
                out[at + i] = <uint8_t>topic_id[i]
            partitions = out + at + 16
            partitions[0] = 1
            at += 17
            last_topic_id = topic_id
        partitions[0] += 1
        put_int32(out + at, index)
        out[at + 4] = out[at + 5] = 0
        put_int64(out + at + 6, high_watermark)
        put_int64(out + at + 14, log.last_stable_offset)
        put_int64(out + at + 22, log.log_start_offset)
        out[at + 30] = 0
        put_int32(out + at + 31, -1)
        at += 35
        rest = size + 1
        while rest > 127:
            out[at] = <uint8_t>(rest & 0x7F | 0x80)
            rest >>= 7
            at += 1
        out[at] = <uint8_t>rest
        at += 1
        if size:
            parts.append((cut, at))
            parts.append(records)
            cut = at
            total += size
        out[at] = 0
        at += 1
    out[at] = out[at + 1] = 0
    at += 2
    put_int32(out, <int32_t>(at - 4 + total))
    put_int32(out + 4, context.correlation_id)
    out[8] = 0
    put_int32(out + 9, 0)
    out[13] = out[14] = 0
    put_int32(out + 15, session_id)
    for number in range(0, len(parts), 2):
        begin, end = parts[number]
        parts[number] = PyBytes_FromStringAndSize(<const char*>out + <Py_ssize_t>begin, <Py_ssize_t>end - <Py_ssize_t>begin)
    parts.append(PyBytes_FromStringAndSize(<const char*>out + cut, at - cut))
    return [b"".join(parts)] if total < MOST_COPIED_BYTES else parts


def read_plain(reads, request, list to_read, Py_ssize_t number, int64_t budget, result):
    """Read the partitions from `number` on into `result`, up to the first that `FetchReads.read` has to check or read
    in another way; returns its number. For consumers that may read everything, and whatever is not committed."""
    cdef dict hosted = reads.replicas.open_by_id
    cdef list fetched = result.fetched, epochs
    cdef Py_ssize_t count = len(to_read), with_records = 0
    cdef int64_t total = result.size_bytes, before = total, offset, bound, stable, left, epoch
    cdef tuple asked
    cdef LogTail log
    while number < count:
        held = to_read[number]
        asked = <tuple>held.asked
        replica = hosted.get((asked[1], asked[2]))
        if replica is None:
            break
        leader = replica.leader
        if leader is None or leader.is_recovering or replica.is_being_cut:
            break
        epoch = asked[5]
        if epoch >= 0 and epoch != <int64_t>replica.leader_epoch:
            break
        log, offset, epoch = <LogTail?>replica.log, asked[3], asked[6]
        if epoch >= 0:
            epochs = log.epochs._epochs
            if not epochs or <int64_t>epochs[len(epochs) - 1] != epoch:
                break
        if not log.log_start_offset <= offset <= log.log_end_offset:
            break
        bound = stable = log.high_watermark
        producers = log.producers
        if producers._ongoing or producers._unreplicated:
            stable = log.last_stable_offset
        records = b""
        if offset < bound:
            left = budget - total
            if left <= 0 and total:
                break
            records = _read_at_once(log, offset, bound, max(0, min(<int64_t>asked[4], left)), total == 0)
            if records is None:
                break
        fetched.append(
            _new_tuple(
                FetchedPartition,
                (
                    asked[0], asked[1], asked[2], 0, bound, stable, log.log_start_offset, None, None, None, None, -1,
                    records,
                ),
            )
        )
        if offset < bound:
            if len(records):
                total += len(records)
                with_records += 1
        elif held.session is not None:
            reads.mark_if_idle(request, held, replica, result)
        number += 1
    result.size_bytes = total
    if with_records:
        metrics = reads.metrics
        metrics.fetched_partitions += with_records
        metrics.fetched_bytes += total - before
    return number


cdef object _read_at_once(LogTail log, int64_t offset, int64_t end, int64_t max_bytes, bint at_least_one):
    """As `ReadableLog.read`; None if that takes more than one read of the page cache."""
    cdef list segments = log.segments, bases = log.bases
    cdef Py_ssize_t count = len(segments), low = 0, high = len(bases) - 1, middle
    cdef SegmentTail segment
    cdef int64_t position = -1
    if count == 0 or high != count - 1:
        return None
    while low < high:
        middle = (low + high + 1) >> 1
        if <int64_t>bases[middle] <= offset:
            low = middle
        else:
            high = middle - 1
    segment = <SegmentTail?>segments[low]
    if low + 1 < count and (not segment.size_bytes or offset >= segment.next_offset):
        return None
    hint = log.hints.get(offset)
    if hint is not None and hint[0] is segment:
        position = hint[1]
    try:
        found = log.batches_at(segment, offset, end, max_bytes, at_least_one, position)
    except OSError:
        return None  # `ReadableLog.read` reports it
    if found is None:
        return None
    records, position = found
    if end == segment.next_offset and low + 1 == count and position + len(records) == segment.size_bytes:
        log._hint(end, segment, segment.size_bytes)
    return records
