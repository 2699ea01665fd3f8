"""Decrypting what a peer has sent, many records at a time.

Owns the only use of names that pyOpenSSL does not publish. Its `recv_into` decrypts one record with two allocations and
a copy, and costs more than the cipher for small records: librdkafka sends three for each message that it produces, of
10, 1,000 and 9 bytes for example (decision 037).
"""

from __future__ import annotations

from OpenSSL import SSL
from OpenSSL._util import ffi, lib


def decrypt_into(connection: SSL.Connection, target: memoryview) -> tuple[int, SSL.Error | None]:
    """Decrypt records that have arrived, until `target` (writable bytes) is full.

    Returns the number of bytes, and the error behind them, None if the target is full: `SSL.WantReadError` when all is
    read, `SSL.ZeroReturnError` at the peer's close, another `SSL.Error` for what the peer should not have sent.
    """
    read, tls, space = lib.SSL_read, connection._ssl, len(target)
    done = 0
    with ffi.from_buffer(target, require_writable=True) as start:
        while True:
            count = read(tls, start + done, space - done)
            if count <= 0:
                return done, _error_of(connection, count)
            done += count
            if done == space:
                return done, None


def _error_of(connection: SSL.Connection, result: int) -> SSL.Error:
    try:
        connection._raise_ssl_error(connection._ssl, result)
    except SSL.Error as error:
        return error.with_traceback(None)  # which would keep the target in use
    raise AssertionError("a result without data is an error")
