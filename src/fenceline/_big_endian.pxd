# cython: language_level=3
"""Numbers in the byte order of the protocol and of the logs, for the compiled modules. Owns no form of its own."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t


cdef inline uint32_t be_uint32(const uint8_t* p) noexcept nogil:
    return <uint32_t>p[0] << 24 | <uint32_t>p[1] << 16 | <uint32_t>p[2] << 8 | p[3]


cdef inline int32_t be_int32(const uint8_t* p) noexcept nogil:
    return <int32_t>be_uint32(p)


cdef inline int64_t be_int64(const uint8_t* p) noexcept nogil:
    return <int64_t>(<uint64_t>be_uint32(p) << 32 | be_uint32(p + 4))


cdef inline int16_t be_int16(const uint8_t* p) noexcept nogil:
    return <int16_t>(<uint32_t>p[0] << 8 | p[1])


cdef inline void put_int16(uint8_t* p, int16_t value) noexcept nogil:
    p[0], p[1] = <uint8_t>(value >> 8), <uint8_t>value


cdef inline void put_int32(uint8_t* p, int32_t value) noexcept nogil:
    p[0], p[1], p[2], p[3] = <uint8_t>(value >> 24), <uint8_t>(value >> 16), <uint8_t>(value >> 8), <uint8_t>value


cdef inline void put_int64(uint8_t* p, int64_t value) noexcept nogil:
    put_int32(p, <int32_t>(value >> 32))
    put_int32(p + 4, <int32_t>value)
