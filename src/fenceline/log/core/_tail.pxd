"""What other compiled modules may use of the tail."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from fenceline.records._kernel cimport AppendLimits


cdef class ProducerEntry:
    cdef readonly int64_t producer_id
    cdef public int32_t epoch
    cdef public int32_t coordinator_epoch
    cdef public int64_t last_timestamp_ms
    cdef public int64_t transaction_first_offset
    cdef int kept
    cdef int32_t[5] first_sequences
    cdef int32_t[5] last_sequences
    cdef int64_t[5] first_offsets
    cdef int64_t[5] last_offsets
    cdef int64_t[5] timestamps

    cpdef remember(
        self, int32_t first_sequence, int32_t last_sequence, int64_t first_offset, int64_t last_offset,
        int64_t timestamp_ms
    )


cdef class SegmentTail:
    cdef public int64_t base_offset
    cdef public int64_t next_offset
    cdef public int64_t size_bytes
    cdef public int64_t created_ms
    cdef public int64_t jitter_ms
    cdef public int64_t first_timestamp_ms
    cdef public int64_t max_timestamp_ms
    cdef public int64_t max_timestamp_offset
    cdef public int64_t bytes_since_index
    cdef public int64_t last_batch_offset
    cdef public int64_t last_batch_position
    cdef public object index
    cdef public object time_index
    cdef public bint indexes_saved
    cdef public bint recently_used
    cdef public int fd

    cpdef appended(
        self, int64_t base_offset, int64_t last_offset, int64_t max_timestamp_ms, int64_t size_bytes,
        int64_t interval_bytes
    )


cdef class LogTail:
    cdef public int64_t log_start_offset
    cdef public int64_t log_end_offset
    cdef public int64_t size_bytes
    cdef public int64_t durable_recovery_point
    cdef public int64_t absent_records
    cdef public object offline
    cdef public object epochs
    cdef public object producers
    cdef public list segments
    cdef public object disk
    cdef object _config
    cdef AppendLimits limits
    cdef bint create_time
    cdef int64_t segment_bytes
    cdef int64_t segment_ms
    cdef int64_t segment_index_bytes
    cdef int64_t index_interval_bytes

    cpdef int64_t append_plain(self, records, int32_t leader_epoch, int64_t now_ms) except -2
    cdef int64_t _append(
        self, SegmentTail segment, records, uint8_t* p, Py_ssize_t size, int32_t leader_epoch, int64_t now_ms
    ) except -2
    cpdef int64_t append_fetched(self, records, int32_t leader_epoch, int64_t now_ms) except -2
    cdef int64_t _append_fetched(
        self, SegmentTail segment, records, const uint8_t* start, Py_ssize_t size, int32_t epoch, int64_t now_ms
    ) except -2
    cdef _write_plain(self, SegmentTail segment, records, Py_ssize_t size)
    cpdef newest(self, int64_t offset, int64_t max_bytes, int64_t position)
    cpdef batches_at(
        self, SegmentTail segment, int64_t offset, int64_t end_offset_exclusive, int64_t max_bytes, bint at_least_one,
        int64_t position
    )
    cdef bint _roll_due(self, SegmentTail segment, int64_t last, int64_t newest_ms, int64_t now_ms) except -1
