# cython: language_level=3
"""The calls of the TLS library that decrypt record after record, without Python between them.

Owns the loop only. What it calls are functions of the library by their address; `decryption.py` finds them, and holds
the connection while it runs.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer

ABI = 1

ctypedef int (*SslRead)(void *ssl, void *target, int size) noexcept nogil


def read_records(size_t ssl_read, size_t ssl, target):
    """`SSL_read` at the address `ssl_read` for the `SSL` at the address `ssl`, until `target` is full or it has no more.

    Returns the number of bytes, and the last result of `SSL_read`.
    """
    cdef SslRead read = <SslRead><void *>ssl_read
    cdef Py_buffer space
    cdef Py_ssize_t done = 0
    cdef int result
    PyObject_GetBuffer(target, &space, PyBUF_WRITABLE)
    try:
        while True:
            result = read(<void *>ssl, <char *>space.buf + done, <int>(space.len - done))
            if result <= 0:
                return done, result
            done += result
            if done == space.len:
                return done, result
    finally:
        PyBuffer_Release(&space)
