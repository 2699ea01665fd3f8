# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The end of a log in Cython: twin of `_tail_py`, which documents the classes; equal results.

`append_plain` is the complete append of a plain batch: the checks of the batch and of its producer, offset and epoch
assigned in place, the write, the state in memory. `append_fetched` is the same for batches fetched from a leader. For
any other batch they change nothing and return NOT_PLAIN.
"""

from cpython cimport array
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint32_t

from fenceline._big_endian cimport be_int32, be_int64, be_uint32, put_int16, put_int32, put_int64
from fenceline.records._kernel cimport PlainBatch, accept_plain

from fenceline.log.core._tail_py import BatchSeen
from fenceline.log.core._tail_py import BATCHES_KEPT as _BATCHES_KEPT
from fenceline.log.core._tail_py import NEWEST_BYTES as _NEWEST_BYTES
from fenceline.log.core._tail_py import PRODUCER as _PRODUCER
from fenceline.log.core._tail_py import WRITE_BYTES as _WRITE_BYTES
from fenceline.log.core.index import OFFSET_ENTRY_BYTES as _OFFSET_ENTRY_BYTES
from fenceline.log.core.index import TIME_ENTRY_BYTES as _TIME_ENTRY_BYTES
from fenceline.records.batch import TimestampType
from fenceline.records.crc import crc32c

ABI = 11

cdef int KEPT = 5
cdef int64_t NEWEST_BYTES = _NEWEST_BYTES
cdef int64_t WRITE_BYTES = _WRITE_BYTES
cdef int64_t OFFSET_ENTRY_BYTES = _OFFSET_ENTRY_BYTES
cdef int64_t TIME_ENTRY_BYTES = _TIME_ENTRY_BYTES
cdef int64_t MAX_RELATIVE_OFFSET = 2147483647
cdef int64_t NOT_PLAIN = -1
cdef int64_t BATCH_OVERHEAD = 61
cdef Py_ssize_t PRODUCER_BYTES = _PRODUCER.size
assert _BATCHES_KEPT == KEPT
_CREATE_TIME = TimestampType.CREATE_TIME


cdef class ProducerEntry:
    def __init__(
        self,
        int64_t producer_id,
        int32_t epoch,
        int32_t coordinator_epoch,
        int64_t last_timestamp_ms,
        int64_t transaction_first_offset,
    ):
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp_ms = last_timestamp_ms
        self.transaction_first_offset = transaction_first_offset

    @property
    def batches(self):
        return [
            BatchSeen(
                self.first_sequences[i], self.last_sequences[i], self.first_offsets[i], self.last_offsets[i],
                self.timestamps[i],
            )
            for i in range(self.kept)
        ]

    @property
    def last_sequence(self):
        return self.last_sequences[self.kept - 1] if self.kept else -1

    @property
    def last_offset(self):
        return self.last_offsets[self.kept - 1] if self.kept else -1

    cpdef remember(
        self, int32_t first_sequence, int32_t last_sequence, int64_t first_offset, int64_t last_offset,
        int64_t timestamp_ms
    ):
        cdef int i
        if self.kept == KEPT:
            for i in range(KEPT - 1):
                self.first_sequences[i] = self.first_sequences[i + 1]
                self.last_sequences[i] = self.last_sequences[i + 1]
                self.first_offsets[i] = self.first_offsets[i + 1]
                self.last_offsets[i] = self.last_offsets[i + 1]
                self.timestamps[i] = self.timestamps[i + 1]
            self.kept -= 1
        i = self.kept
        self.first_sequences[i] = first_sequence
        self.last_sequences[i] = last_sequence
        self.first_offsets[i] = first_offset
        self.last_offsets[i] = last_offset
        self.timestamps[i] = timestamp_ms
        self.kept += 1

    def forget_batches(self):
        self.kept = 0


def encode_producers(dict producers):
    cdef Py_ssize_t count = len(producers)
    content = bytearray(4 + PRODUCER_BYTES * count)
    cdef uint8_t* p = <uint8_t*><char*>content
    cdef ProducerEntry entry
    cdef int i
    put_int32(p, <int32_t>count)
    p += 4
    for entry in producers.values():
        i = entry.kept - 1
        put_int64(p, entry.producer_id)
        put_int16(p + 8, <int16_t>entry.epoch)
        put_int32(p + 10, entry.last_sequences[i] if i >= 0 else -1)
        put_int64(p + 14, entry.last_offsets[i] if i >= 0 else -1)
        put_int32(p + 22, <int32_t>(entry.last_offsets[i] - entry.first_offsets[i]) if i >= 0 else 0)
        put_int64(p + 26, entry.last_timestamp_ms)
        put_int32(p + 34, entry.coordinator_epoch)
        put_int64(p + 38, entry.transaction_first_offset)
        p += PRODUCER_BYTES
    return content


def expired_producers(dict producers, int64_t until_ms):
    cdef ProducerEntry entry
    return [
        entry.producer_id
        for entry in producers.values()
        if entry.transaction_first_offset < 0 and entry.last_timestamp_ms <= until_ms
    ]


cdef inline _append_int(array.array numbers, int32_t number):
    cdef Py_ssize_t count = len(numbers)
    array.resize_smart(numbers, count + 1)
    numbers.data.as_ints[count] = number


cdef class SegmentTail:
    def __init__(self):
        self.first_timestamp_ms = -1
        self.max_timestamp_ms = -1
        self.max_timestamp_offset = -1
        self.last_batch_offset = -1
        self.last_batch_position = -1
        self.fd = -1

    cpdef appended(
        self, int64_t base_offset, int64_t last_offset, int64_t max_timestamp_ms, int64_t size_bytes,
        int64_t interval_bytes
    ):
        cdef int64_t position = self.size_bytes
        cdef array.array stamps
        if position == 0:
            self.first_timestamp_ms = max_timestamp_ms
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
        if self.bytes_since_index > interval_bytes:
            index, time_index = self.index, self.time_index
            if index is None or time_index is None:
                index, time_index = self.indexes()
            _append_int(index.positions, <int32_t>position)
            _append_int(index.offsets, <int32_t>(last_offset - self.base_offset))
            stamps = <array.array>time_index.timestamps
            if len(stamps) == 0 or self.max_timestamp_ms > stamps.data.as_longlongs[len(stamps) - 1]:
                time_index.maybe_append(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)
            self.bytes_since_index = 0
        self.bytes_since_index += size_bytes
        self.size_bytes = position + size_bytes
        self.next_offset = last_offset + 1
        self.last_batch_offset = base_offset
        self.last_batch_position = position
        self.indexes_saved = False


cdef inline int32_t _epoch_of_producer(const uint8_t* batch) noexcept nogil:
    return <int32_t>(<int32_t>(<uint32_t>(batch[51] << 8 | batch[52]) << 16) >> 16)


cdef _around(index, int64_t relative_offset, int64_t* before, int64_t* at):
    """`OffsetIndex.around`."""
    cdef array.array offsets = <array.array?>index.offsets, positions = <array.array?>index.positions
    cdef Py_ssize_t low = 0, high = len(offsets), middle
    while low < high:
        middle = (low + high) >> 1
        if offsets.data.as_ints[middle] < relative_offset:
            low = middle + 1
        else:
            high = middle
    before[0] = positions.data.as_ints[low - 1] if low > 0 else 0
    at[0] = positions.data.as_ints[low] if low < len(positions) else -1


cdef void _choose(
    const uint8_t* p, Py_ssize_t room, int64_t offset, int64_t end_offset_exclusive, int64_t max_bytes,
    bint by_index, bint may_take_all, Py_ssize_t* first, Py_ssize_t* end
) noexcept nogil:
    """The bytes to return of those that were read. `first` is -1 if `batches_at` returns None."""
    cdef Py_ssize_t at = 0, after, start = -1
    cdef int64_t base, last
    while room - at >= BATCH_OVERHEAD:
        base, last = be_int64(p + at), be_int64(p + at) + be_int32(p + at + 23)
        after = at + <Py_ssize_t>be_int32(p + at + 8) + 12
        if p[at + 16] != 2 or after - at < BATCH_OVERHEAD:
            return
        if start < 0 and last >= offset:
            if at == 0 and by_index and base > offset:
                return
            start = at
            if may_take_all and room - at <= max_bytes:
                end[0] = room
                break
        if start >= 0:
            if last >= end_offset_exclusive or after - start > max_bytes:
                break
            if after > room:
                return
            end[0] = after
        at = after
    first[0] = start


cdef class LogTail:
    def __init__(self, disk, config, epochs, producers, int64_t log_start_offset):
        self.disk = disk
        self.config = config
        self.epochs = epochs
        self.producers = producers
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_start_offset
        self.segments = []

    @property
    def config(self):
        return self._config

    @config.setter
    def config(self, config):
        self._config = config
        codec = config.compression_type
        self.limits.max_message_bytes = config.max_message_bytes
        self.limits.before_max_ms = config.timestamp_before_max_ms
        self.limits.after_max_ms = config.timestamp_after_max_ms
        self.limits.codec = -1 if codec is None else codec
        self.limits.compacted = config.compacted
        self.limits.check_compressed = config.validate_compressed_records
        self.create_time = config.timestamp_type is _CREATE_TIME
        self.segment_bytes = config.segment_bytes
        self.segment_ms = config.segment_ms
        self.segment_index_bytes = config.segment_index_bytes
        self.index_interval_bytes = config.index_interval_bytes

    cpdef int64_t append_plain(self, records, int32_t leader_epoch, int64_t now_ms) except -2:
        cdef Py_ssize_t count = PyList_GET_SIZE(self.segments)
        cdef Py_buffer view
        if not self.create_time or count == 0 or self.offline is not None:
            return NOT_PLAIN
        if self.durable_recovery_point > self.log_end_offset:
            return NOT_PLAIN
        segment = <SegmentTail>PyList_GET_ITEM(self.segments, count - 1)
        if segment.fd < 0 or segment.index is None or segment.time_index is None:
            return NOT_PLAIN
        epochs = <list>self.epochs._epochs
        count = PyList_GET_SIZE(epochs)
        if count == 0 or <object>PyList_GET_ITEM(epochs, count - 1) != leader_epoch:
            return NOT_PLAIN
        if records.readonly:
            return NOT_PLAIN
        PyObject_GetBuffer(records, &view, PyBUF_WRITABLE)
        try:
            return self._append(segment, records, <uint8_t*>view.buf, view.len, leader_epoch, now_ms)
        finally:
            PyBuffer_Release(&view)

    cdef int64_t _append(
        self, SegmentTail segment, records, uint8_t* p, Py_ssize_t size, int32_t leader_epoch, int64_t now_ms
    ) except -2:
        cdef PlainBatch batch
        cdef ProducerEntry producer = None
        cdef PyObject* known
        cdef int64_t base = self.log_end_offset, last
        if segment.size_bytes > self.segment_bytes - size:
            return NOT_PLAIN
        if not accept_plain(records, p, size, now_ms, &self.limits, &batch):
            return NOT_PLAIN
        last = base + batch.last_offset_delta
        if self._roll_due(segment, last, batch.max_timestamp, now_ms):
            return NOT_PLAIN
        if batch.producer_id >= 0:
            known = PyDict_GetItem(self.producers._producers, batch.producer_id)
            if known is NULL:
                return NOT_PLAIN
            producer = <ProducerEntry>known
            if (
                batch.transactional != (producer.transaction_first_offset >= 0) or producer.kept == 0
                or batch.producer_epoch != producer.epoch
                or <int64_t>batch.base_sequence != <int64_t>producer.last_sequences[producer.kept - 1] + 1
            ):
                return NOT_PLAIN
        elif batch.transactional:
            return NOT_PLAIN
        put_int64(p, base)
        put_int32(p + 12, leader_epoch)
        self._write_plain(segment, records, size)
        segment.appended(base, last, batch.max_timestamp, size, self.index_interval_bytes)
        self.log_end_offset = last + 1
        self.size_bytes += size
        if producer is not None:
            producer.last_timestamp_ms = batch.max_timestamp
            producer.remember(
                batch.base_sequence, <int32_t>((<int64_t>batch.base_sequence + batch.last_offset_delta) & 0x7FFFFFFF),
                base, last, batch.max_timestamp,
            )
        return base

    cdef _write_plain(self, SegmentTail segment, records, Py_ssize_t size):
        cdef Py_ssize_t written
        segment.recently_used = True
        try:
            write = self.disk.write
            if size <= WRITE_BYTES:
                written = write(segment.fd, records)
            else:
                written = write(segment.fd, records[:WRITE_BYTES])
            while written < size:
                written += <Py_ssize_t>write(segment.fd, records[written : written + WRITE_BYTES])
        except OSError as error:
            raise self._write_failed(segment, error) from error

    cpdef int64_t append_fetched(self, records, int32_t leader_epoch, int64_t now_ms) except -2:
        cdef Py_ssize_t count = PyList_GET_SIZE(self.segments)
        cdef int32_t epoch
        cdef Py_buffer view
        if count == 0 or self.offline is not None or self.durable_recovery_point > self.log_end_offset:
            return NOT_PLAIN
        segment = <SegmentTail>PyList_GET_ITEM(self.segments, count - 1)
        if segment.fd < 0 or segment.index is None or segment.time_index is None:
            return NOT_PLAIN
        epochs = <list>self.epochs._epochs
        count = PyList_GET_SIZE(epochs)
        if count == 0:
            return NOT_PLAIN
        epoch = <object>PyList_GET_ITEM(epochs, count - 1)
        if epoch > leader_epoch:
            return NOT_PLAIN
        PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
        try:
            return self._append_fetched(segment, records, <const uint8_t*>view.buf, view.len, epoch, now_ms)
        finally:
            PyBuffer_Release(&view)

    cdef int64_t _append_fetched(
        self, SegmentTail segment, records, const uint8_t* start, Py_ssize_t size, int32_t epoch, int64_t now_ms
    ) except -2:
        cdef const uint8_t* p
        cdef Py_ssize_t at = 0, taken
        cdef int64_t length, base, stamp, producer_id, next_offset = self.log_end_offset, newest_ms = INT64_MIN
        cdef int64_t absent = 0
        cdef int32_t delta, sequence
        cdef bint transactional
        cdef ProducerEntry producer
        cdef PyObject* known
        while size - at >= BATCH_OVERHEAD:
            p = start + at
            length = <int64_t>be_int32(p + 8) + 12
            if length < BATCH_OVERHEAD or p[16] != 2:
                return NOT_PLAIN
            if length > size - at:
                break
            base, delta = be_int64(p), be_int32(p + 23)
            if base < next_offset or delta < 0 or base > INT64_MAX - delta - 1 or be_int32(p + 12) != epoch:
                return NOT_PLAIN
            if p[21] or p[22] & ~0x1F:
                return NOT_PLAIN
            transactional = p[22] & 0x10 != 0
            producer_id = be_int64(p + 43)
            if producer_id >= 0:
                known = PyDict_GetItem(self.producers._producers, producer_id)
                if known is NULL or be_int32(p + 53) < 0:
                    return NOT_PLAIN
                producer = <ProducerEntry>known
                if transactional != (producer.transaction_first_offset >= 0) or producer.epoch != _epoch_of_producer(p):
                    return NOT_PLAIN
            elif transactional:
                return NOT_PLAIN
            if <uint32_t>crc32c(records[at + 21 : at + length]) != be_uint32(p + 17):
                return NOT_PLAIN
            stamp = be_int64(p + 35)
            if stamp > newest_ms:
                newest_ms = stamp
            absent += base - next_offset + delta + 1 - be_int32(p + 57)
            next_offset = base + delta + 1
            at += length
        taken = at
        if taken == 0 or segment.size_bytes > self.segment_bytes - taken:
            return NOT_PLAIN
        if self._roll_due(segment, next_offset - 1, newest_ms, now_ms):
            return NOT_PLAIN
        self._write_plain(segment, records if taken == size else records[:taken], taken)
        at = 0
        while at < taken:
            p = start + at
            length = <int64_t>be_int32(p + 8) + 12
            base, delta, stamp = be_int64(p), be_int32(p + 23), be_int64(p + 35)
            segment.appended(base, base + delta, stamp, length, self.index_interval_bytes)
            producer_id = be_int64(p + 43)
            if producer_id >= 0:
                producer = <ProducerEntry>PyDict_GetItem(self.producers._producers, producer_id)
                sequence = be_int32(p + 53)
                producer.last_timestamp_ms = stamp
                producer.remember(
                    sequence, <int32_t>((<int64_t>sequence + delta) & 0x7FFFFFFF), base, base + delta, stamp
                )
            at += length
        self.log_end_offset = next_offset
        self.size_bytes += taken
        self.absent_records += absent
        return taken

    cpdef newest(self, int64_t offset, int64_t max_bytes, int64_t position):
        cdef Py_ssize_t count = PyList_GET_SIZE(self.segments)
        cdef int64_t size
        if count == 0:
            return None
        segment = <SegmentTail>PyList_GET_ITEM(self.segments, count - 1)
        if position < 0:
            if segment.last_batch_offset != offset:
                return None
            position = segment.last_batch_position
        size = segment.size_bytes - position
        if segment.fd < 0 or size <= 0 or size > max_bytes or size >= NEWEST_BYTES:
            return None
        segment.recently_used = True
        return self.disk.pread_resident(segment.fd, size, position)

    cpdef batches_at(
        self, SegmentTail segment, int64_t offset, int64_t end_offset_exclusive, int64_t max_bytes, bint at_least_one,
        int64_t position
    ):
        cdef int64_t size = segment.size_bytes, low = position, latest = position, high = size, stop
        cdef bint takes_all = end_offset_exclusive >= segment.next_offset
        cdef Py_ssize_t first = -1, end = 0
        cdef Py_buffer view
        index = segment.index
        if index is None or segment.fd < 0:
            return None
        if not takes_all:
            _around(index, end_offset_exclusive - segment.base_offset, &stop, &high)
            if high < 0 or high > size:
                high = size
        if position < 0 and offset == segment.last_batch_offset:
            low = latest = segment.last_batch_position
        elif position < 0:
            _around(index, offset - segment.base_offset, &low, &latest)
        if latest < 0:
            latest = size
        stop = min(high, latest + max_bytes)
        if stop <= low or stop - low >= NEWEST_BYTES:
            return None
        chunk = self.disk.pread_resident(segment.fd, stop - low, low)
        if chunk is None or len(chunk) != stop - low:
            return None
        segment.recently_used = True
        PyObject_GetBuffer(chunk, &view, PyBUF_SIMPLE)
        _choose(
            <const uint8_t*>view.buf, view.len, offset, end_offset_exclusive, max_bytes, low > 0 and position < 0,
            takes_all and stop == size, &first, &end,
        )
        PyBuffer_Release(&view)
        if first < 0 or (end == 0 and at_least_one):
            return None
        if first == 0 and end == stop - low:
            return chunk, low
        return memoryview(chunk)[first : max(first, end)], low + first

    cdef bint _roll_due(self, SegmentTail segment, int64_t last, int64_t newest_ms, int64_t now_ms) except -1:
        cdef int64_t waited_ms, index_entries, time_entries
        if last - segment.base_offset > MAX_RELATIVE_OFFSET:
            return True
        if segment.size_bytes == 0:
            return False
        if segment.first_timestamp_ms >= 0:
            waited_ms = newest_ms - segment.first_timestamp_ms
        else:
            waited_ms = now_ms - segment.created_ms
        if waited_ms > self.segment_ms - segment.jitter_ms:
            return True
        index_entries, time_entries = len(segment.index.offsets), len(segment.time_index.offsets)
        return (
            index_entries * OFFSET_ENTRY_BYTES > self.segment_index_bytes - OFFSET_ENTRY_BYTES
            or time_entries * TIME_ENTRY_BYTES > self.segment_index_bytes - 2 * TIME_ENTRY_BYTES
        )
