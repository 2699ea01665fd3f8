# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The fast path for plain Produce requests, from the request's bytes to the response frame at C speed.

Owns no rule of its own: `producing.py` is complete without this module. A request is left to it completely, with
nothing changed, if its bytes or one of its partitions are not the plain case (another version, acks=0, an unknown
partition, one that the sender may not write, a partition named twice, too few replicas, `flush.messages`, an internal topic, a batch that opens a
transaction). A response that
waits for other replicas is encoded here and handed over. A batch that its log does not accept on the fast path is left
to `producing.py`, whose result becomes part of this response.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

from fenceline._big_endian cimport be_int32, be_int64, put_int32, put_int64
from fenceline.log.core._tail cimport LogTail, ProducerEntry

from fenceline.log.core.config import MAX_INT64
from fenceline.log.core.errors import StorageError
from fenceline.node.api.produce.acknowledging import PendingAck, AckedBy
from fenceline.wire.produce import PartitionRecords, put_flexible_result

ABI = 10

cdef enum:
    MAX_PARTITIONS = 128
    MAX_TOPICS = 32
    FIRST_FLEXIBLE = 9
    FIRST_WITH_TOPIC_IDS = 13
    PLAIN_RESULT_BYTES = 33
    FRAME_HEAD_BYTES = 9
    BATCH_OVERHEAD = 61
    ATTRIBUTES_AT = 22
    TRANSACTIONAL_BIT = 0x10
    PRODUCER_AT = 43
    EPOCH_AT = 51
    PRODUCER_BYTES = 10

cdef int64_t NOT_PLAIN = -1
_WITHOUT_FLUSHES = MAX_INT64
_BY_REPLICAS = AckedBy.REPLICAS

cdef struct Partition:
    int32_t index
    bint transactional
    Py_ssize_t start
    Py_ssize_t end

cdef struct Topic:
    Py_ssize_t name_start  # of the id's 16 bytes, or of the name
    Py_ssize_t name_end
    int first  # number of its first partition
    int behind

cdef struct Request:
    int16_t acks
    int32_t timeout_ms
    bint has_transactional_id
    Py_ssize_t transactional_id_start
    Py_ssize_t transactional_id_end
    int topic_count
    int partition_count
    Topic[MAX_TOPICS] topics
    Partition[MAX_PARTITIONS] partitions


cdef inline Py_ssize_t _length(const uint8_t* p, Py_ssize_t* at, Py_ssize_t size) noexcept nogil:
    """A compact length or count, decremented; -1 for null or a value that exceeds the request."""
    cdef uint64_t value = 0
    cdef int shift = 0
    while at[0] < size and shift <= 28:
        value |= <uint64_t>(p[at[0]] & 0x7F) << shift
        at[0] += 1
        if p[at[0] - 1] < 0x80:
            return <Py_ssize_t>value - 1 if value <= <uint64_t>size else -1
        shift += 7
    return -1


cdef bint _parse(const uint8_t* p, Py_ssize_t size, bint by_id, Request* out) noexcept nogil:
    """Whether the body is a complete request of the plain form, with no partition named twice."""
    cdef Py_ssize_t at = 0, length
    cdef int topic, other, count, i
    cdef Topic* current
    cdef Partition* partition
    out.has_transactional_id = p[0] != 0
    length = _length(p, &at, size)
    if out.has_transactional_id:
        if length < 0 or length > size - at:
            return False
        out.transactional_id_start, out.transactional_id_end = at, at + length
        for _ in range(length):
            if p[at] >= 0x80:  # it may be no valid UTF-8
                return False
            at += 1
    if size - at < 8:
        return False
    out.acks = <int16_t>(p[at] << 8 | p[at + 1])
    out.timeout_ms = be_int32(p + at + 2)
    at += 6
    out.partition_count = 0
    length = _length(p, &at, size)
    if length < 1 or length > MAX_TOPICS:
        return False
    out.topic_count = <int>length
    for topic in range(out.topic_count):
        current = &out.topics[topic]
        length = 16 if by_id else _length(p, &at, size)
        if length < 1 or length > size - at:
            return False
        current.name_start, current.name_end = at, at + length
        at += length
        length = _length(p, &at, size)
        if length < 0 or length > MAX_PARTITIONS - out.partition_count:
            return False
        count = <int>length
        current.first = out.partition_count
        for _ in range(count):
            if size - at < 5:
                return False
            partition = &out.partitions[out.partition_count]
            partition.index = be_int32(p + at)
            at += 4
            length = _length(p, &at, size)
            if length < 0 or length >= size - at:
                return False
            partition.transactional = length >= BATCH_OVERHEAD and p[at + ATTRIBUTES_AT] & TRANSACTIONAL_BIT != 0
            if partition.transactional and not out.has_transactional_id:
                return False
            partition.start, partition.end = at, at + length
            at += length
            if p[at] != 0:
                return False
            at += 1
            for i in range(current.first, out.partition_count):
                if out.partitions[i].index == partition.index:
                    return False
            out.partition_count += 1
        current.behind = out.partition_count
        if at >= size or p[at] != 0:
            return False
        at += 1
    return at == size - 1 and p[at] == 0


cdef inline void _put_count(bytearray out, Py_ssize_t count):
    cdef Py_ssize_t rest = count + 1
    while rest > 127:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


cdef bint _belong_to_open_transactions(const uint8_t* p, Request* request, list replicas):
    """Whether each transactional batch is of the same producer and epoch, whose transaction is open in its log."""
    cdef const uint8_t* first = NULL
    cdef const uint8_t* batch
    cdef int i
    cdef LogTail log
    cdef ProducerEntry producer
    cdef PyObject* known
    for i in range(request.partition_count):
        if not request.partitions[i].transactional:
            continue
        batch = p + request.partitions[i].start
        if first is NULL:
            first = batch
        elif memcmp(first + PRODUCER_AT, batch + PRODUCER_AT, PRODUCER_BYTES) != 0:
            return False
        log = replicas[i].log
        known = PyDict_GetItem(log.producers._producers, be_int64(batch + PRODUCER_AT))
        if known is NULL:
            return False
        producer = <ProducerEntry>known
        if producer.transaction_first_offset < 0:
            return False
        if <int16_t>(batch[EPOCH_AT] << 8 | batch[EPOCH_AT + 1]) != producer.epoch:
            return False
    return True


cdef bint _may_write_as(rights, const uint8_t* p, Request* request) except -1:
    """Whether the sender may use the transactional id, if a batch of the request is transactional."""
    cdef int i
    cdef Py_ssize_t start = request.transactional_id_start
    for i in range(request.partition_count):
        if request.partitions[i].transactional:
            id_bytes = PyBytes_FromStringAndSize(<const char*>p + start, request.transactional_id_end - start)
            return rights.may_write_as(id_bytes.decode("ascii"), True)
    return True


def answer_plain(producing, context, body):
    """The response frame, or a pending response; None, with nothing changed: `ProduceHandler.handle` continues."""
    cdef int version = context.api_version
    cdef Request request
    cdef Topic* topic
    cdef Partition* partition
    cdef const uint8_t[::1] view = body
    cdef int number, i
    cdef int64_t now_ms, base, end
    cdef int appended = 0
    cdef int64_t appended_bytes = 0
    cdef uint8_t[PLAIN_RESULT_BYTES] plain
    cdef bint by_id = version >= FIRST_WITH_TOPIC_IDS
    cdef LogTail log
    if version < FIRST_FLEXIBLE or view.shape[0] < 9 or not _parse(&view[0], view.shape[0], by_id, &request):
        return None
    if request.acks != -1 and request.acks != 1:
        return None
    cdef list names = []
    cdef list replicas = []
    rights = context.rights
    if rights is not None and request.has_transactional_id and not _may_write_as(rights, &view[0], &request):
        return None
    cdef dict known = producing.replicas.open_by_id if by_id else producing.replicas.open_by_name
    for number in range(request.topic_count):
        topic = &request.topics[number]
        name = PyBytes_FromStringAndSize(<const char*>&view[topic.name_start], topic.name_end - topic.name_start)
        for i in range(number):
            if names[i] == name:
                return None
        names.append(name)
        key = name
        if not by_id:
            try:
                key = (<bytes>name).decode("utf-8")
            except UnicodeDecodeError:
                return None
        for i in range(topic.first, topic.behind):
            replica = known.get((key, request.partitions[i].index))
            if replica is None or replica.leader is None or replica.is_internal:
                return None
            leader, config = replica.leader, replica.config
            if leader.is_recovering or config.flush_messages != _WITHOUT_FLUSHES:
                return None
            if request.acks == -1 and not leader.is_only_replica:
                if not leader.has_enough_replicas(config.min_insync_replicas):
                    return None
            replicas.append(replica)
        if rights is not None and topic.first < topic.behind:
            if not rights.may_write(replica.topic_partition.topic, True):
                return None
    if request.has_transactional_id and not _belong_to_open_transactions(&view[0], &request, replicas):
        return None

    now_ms = producing.clock.now_ms()
    cdef list pending_acks = []
    out = bytearray(FRAME_HEAD_BYTES)
    _put_count(out, request.topic_count)
    for number in range(request.topic_count):
        topic = &request.topics[number]
        name = names[number]
        if not by_id:
            _put_count(out, len(<bytes>name))
        out += name
        _put_count(out, topic.behind - topic.first)
        for i in range(topic.first, topic.behind):
            partition = &request.partitions[i]
            replica = replicas[i]
            log = replica.log
            records = body[partition.start : partition.end]
            try:
                base = log.append_plain(records, replica.leader.leader_epoch, now_ms)
            except StorageError as error:
                named = _named(name, by_id, partition.index, records)
                put_flexible_result(out, version, producing.refused(named, replica, error))
                continue
            if base == NOT_PLAIN:
                named = _named(name, by_id, partition.index, records)
                put_flexible_result(out, version, producing.append(named, version, request.acks, now_ms, False, i, pending_acks))
                continue
            end = log.log_end_offset
            replica.appended()
            if request.acks == -1 and end > replica.log.high_watermark:
                pending_acks.append(PendingAck(i, replica, end, _BY_REPLICAS))
            appended += 1
            appended_bytes += partition.end - partition.start
            put_int32(plain, partition.index)
            plain[4] = plain[5] = 0
            put_int64(plain + 6, base)
            put_int64(plain + 14, -1)
            put_int64(plain + 22, log.log_start_offset)
            plain[30], plain[31], plain[32] = 1, 0, 0
            out += PyBytes_FromStringAndSize(<const char*>plain, PLAIN_RESULT_BYTES)
        out.append(0)
    put_int32(plain, <int32_t>context.throttle_ms)
    plain[4] = 0
    out += PyBytes_FromStringAndSize(<const char*>plain, 5)
    metrics = producing.metrics
    metrics.produced_partitions += appended
    metrics.produced_bytes += appended_bytes
    put_int32(plain, <int32_t>(len(out) - 4))
    put_int32(plain + 4, <int32_t>context.correlation_id)
    out[:8] = PyBytes_FromStringAndSize(<const char*>plain, 8)
    if pending_acks:
        return producing.wait_for(pending_acks, context, [out], request.timeout_ms)
    return [out]


cdef object _named(bytes name, bint by_id, int32_t index, records):
    if by_id:
        return PartitionRecords(None, name, index, records)
    return PartitionRecords(name.decode("utf-8"), None, index, records)
