# cython: language_level=3
"""CRC-32C without a call into Python, for the compiled modules: what is short, or has to do without the interpreter's
lock. The package's function goes three ways at once and is faster for long pieces. Each module that uses it calls
`fl_crc_begin` first, as it has tables of its own."""

from libc.stdint cimport uint8_t, uint32_t

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #if defined(__x86_64__) && defined(__GNUC__)
    #include <nmmintrin.h>
    #define FL_HAS_CRC_INSTRUCTION __builtin_cpu_supports("sse4.2")
    #if defined(__clang__)  /* Clang has these instructions in a feature of their own since its version 14 */
    __attribute__((target("sse4.2,crc32")))
    #else
    __attribute__((target("sse4.2")))
    #endif
    static uint32_t fl_crc_instruction(uint32_t crc, const uint8_t *p, size_t n) {
        uint64_t wide = crc, word;
        for (; n >= 8; p += 8, n -= 8) {
            memcpy(&word, p, 8);
            wide = _mm_crc32_u64(wide, word);
        }
        for (; n; p++, n--) wide = _mm_crc32_u8((uint32_t)wide, *p);
        return (uint32_t)wide;
    }
    #else
    #define FL_HAS_CRC_INSTRUCTION 0
    static uint32_t fl_crc_instruction(uint32_t crc, const uint8_t *p, size_t n) { return crc; }
    #endif
    static uint32_t fl_crc_table[8][256];
    static int fl_crc_by_instruction = 0;
    static void fl_crc_begin(void) {
        uint32_t i, k, crc;
        for (i = 0; i < 256; i++) {
            for (crc = i, k = 0; k < 8; k++) crc = crc & 1 ? (crc >> 1) ^ 0x82F63B78u : crc >> 1;
            fl_crc_table[0][i] = crc;
        }
        for (i = 0; i < 256; i++)
            for (k = 1; k < 8; k++)
                fl_crc_table[k][i] = fl_crc_table[0][fl_crc_table[k - 1][i] & 255] ^ (fl_crc_table[k - 1][i] >> 8);
        fl_crc_by_instruction = FL_HAS_CRC_INSTRUCTION ? 1 : 0;
    }
    static uint32_t fl_crc32c(const uint8_t *p, size_t n) {
        uint32_t crc = 0xFFFFFFFFu;
        if (fl_crc_by_instruction) return ~fl_crc_instruction(crc, p, n);
        for (; n >= 8; p += 8, n -= 8) {
            crc ^= (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
            crc = fl_crc_table[7][crc & 255] ^ fl_crc_table[6][crc >> 8 & 255] ^ fl_crc_table[5][crc >> 16 & 255]
                ^ fl_crc_table[4][crc >> 24] ^ fl_crc_table[3][p[4]] ^ fl_crc_table[2][p[5]]
                ^ fl_crc_table[1][p[6]] ^ fl_crc_table[0][p[7]];
        }
        for (; n; p++, n--) crc = fl_crc_table[0][(crc ^ *p) & 255] ^ (crc >> 8);
        return ~crc;
    }
    """
    void fl_crc_begin() noexcept nogil
    uint32_t fl_crc32c(const uint8_t* p, size_t n) noexcept nogil
    int fl_crc_by_instruction
