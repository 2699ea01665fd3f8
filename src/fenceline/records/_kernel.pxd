"""What other compiled modules may use of the kernel."""

from libc.stdint cimport int32_t, int64_t, uint8_t


cdef struct AppendLimits:
    # What a topic's settings allow; `codec` is -1 where the producer's own is kept.
    int64_t max_message_bytes
    int64_t before_max_ms
    int64_t after_max_ms
    int codec
    bint compacted
    bint check_compressed


cdef struct PlainBatch:
    int32_t last_offset_delta
    int32_t base_sequence
    int32_t producer_epoch
    bint transactional
    int64_t max_timestamp
    int64_t producer_id


cdef bint accept_plain(
    object records, const uint8_t* p, Py_ssize_t size, int64_t now, AppendLimits* limits, PlainBatch* out
) except -1
