"""Decrypting what a peer has sent, many records at a time.

Owns the only use of names that pyOpenSSL and `cryptography` do not publish. pyOpenSSL's `recv_into` decrypts one record
with two allocations and a copy, which cost more than the cipher if records are small: librdkafka sends three for each
message that it produces, of 10, 1,000 and 9 bytes for example (decision 037). Where the compiled loop is missing, or
one of the names, `recv_into` does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, NamedTuple

from OpenSSL import SSL

from fenceline.compiled import compiled

MAX_RECORD_BYTES: Final = 16 << 10
_ABI: Final = 1


def decrypt_into(connection: SSL.Connection, target: memoryview) -> tuple[int, SSL.Error | None]:
    """Decrypt the records that have arrived, until `target` (writable bytes) is full.

    Returns the number of bytes, and what came behind them if it was no data: `SSL.ZeroReturnError` for the peer's
    close, another `SSL.Error` for what the peer should not have sent.
    """
    return (_decrypt_by_calls if _native is None else _decrypt_natively)(connection, target)


def _decrypt_by_calls(connection: SSL.Connection, target: memoryview) -> tuple[int, SSL.Error | None]:
    done = 0
    try:
        while done < len(target):
            done += connection.recv_into(target[done:], MAX_RECORD_BYTES)
    except SSL.WantReadError:
        return done, None
    except SSL.Error as error:
        return done, error
    return done, None


class _Native(NamedTuple):
    read_records: Callable[[int, int, memoryview], tuple[int, int]]
    ssl_read: int
    """The address of the library's function."""
    address_type: Any
    cast: Callable[[Any, Any], Any]


def _find_native(module: ModuleType | None) -> _Native | None:
    if module is None:
        return None
    try:
        from cryptography.hazmat.bindings._rust import _openssl

        ffi = _openssl.ffi
        address_type = ffi.typeof("uintptr_t")
        ssl_read = int(ffi.cast(address_type, ffi.addressof(_openssl.lib, "SSL_read")))
        _ = SSL.Connection._raise_ssl_error
    except (ImportError, AttributeError):
        return None
    return _Native(module.read_records, ssl_read, address_type, ffi.cast)


_native: Final = _find_native(compiled("fenceline.tls._decryption", _ABI))


def _decrypt_natively(connection: SSL.Connection, target: memoryview) -> tuple[int, SSL.Error | None]:
    assert _native is not None, "it is called if it is there"
    read_records, ssl_read, address_type, cast = _native
    tls = connection._ssl
    done, result = read_records(ssl_read, int(cast(address_type, tls)), target)
    if result <= 0:
        try:
            connection._raise_ssl_error(tls, result)
        except SSL.WantReadError:
            pass
        except SSL.Error as error:
            return done, error
    return done, None
