"""Frames: size, header and body of one request or response.

Owns both headers (request 1 and 2, response 0 and 1) in both directions. Never reads a body. The connection handles the
size prefix of an incoming frame; everything here starts after it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from fenceline.wire.apis import API_VERSIONS_LATEST, ApiKey, first_flexible_version, flexible, response_header_version
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.primitives import Buffer, skip_tagged_fields

__all__ = [
    "MalformedRequest",
    "RequestHeader",
    "encode_request_frame",
    "encode_request_header",
    "encode_response_frame",
    "parse_request_header",
    "parse_response_header",
]

_REQUEST_START: Final = struct.Struct(">hhi")
_REQUEST_WITH_CLIENT_ID: Final = struct.Struct(">hhih")
_CORRELATION_ID: Final = struct.Struct(">i")
_SIZE: Final = struct.Struct(">i")
_JOINED_BELOW_BYTES: Final = 16 * 1024
"""A first part of the body smaller than this is copied into one buffer with the header, which is cheaper than sending
another buffer."""


class RequestHeader(NamedTuple):
    """`api_key` may be unknown. `body_position` counts from the start of the header."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def parse_request_header(buf: Buffer) -> RequestHeader:
    """The header of a request. Raises MalformedRequest.

    An ApiVersions request of an unknown version may have an unknown header: only key, version and correlation id are
    read, which is enough to answer with UNSUPPORTED_VERSION (KIP-511).
    """
    try:
        api_key, version, correlation_id, client_id_size = _REQUEST_WITH_CLIENT_ID.unpack_from(buf)
        if api_key == ApiKey.API_VERSIONS and not 0 <= version <= API_VERSIONS_LATEST:
            return RequestHeader(api_key, version, correlation_id, None, len(buf))
        position = 10
        if client_id_size >= 0:
            position += client_id_size
            client_id = str(buf[10:position], "utf-8")
        else:
            client_id = None
        if version >= first_flexible_version(api_key):
            if buf[position]:
                position = skip_tagged_fields(buf, position, len(buf))
            else:
                position += 1
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        return _short_header(buf, error)
    if position > len(buf):
        raise MalformedRequest("the client id exceeds the request")
    return RequestHeader(api_key, version, correlation_id, client_id, position)


def _short_header(buf: Buffer, error: Exception) -> RequestHeader:
    """The header without a client id: valid only for an ApiVersions request of an unknown version."""
    if len(buf) >= _REQUEST_START.size:
        api_key, version, correlation_id = _REQUEST_START.unpack_from(buf)
        if api_key == ApiKey.API_VERSIONS and not 0 <= version <= API_VERSIONS_LATEST:
            return RequestHeader(api_key, version, correlation_id, None, len(buf))
    raise MalformedRequest(f"request header: {error}") from None


def encode_request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """The header of a request, without the size prefix."""
    if client_id is None:
        header = _REQUEST_WITH_CLIENT_ID.pack(api_key, version, correlation_id, -1)
    else:
        encoded = client_id.encode()
        header = _REQUEST_WITH_CLIENT_ID.pack(api_key, version, correlation_id, len(encoded)) + encoded
    return header + b"\0" if flexible(api_key, version) else header


def encode_request_frame(
    api_key: int, version: int, correlation_id: int, client_id: str | None, body: Sequence[Buffer] | bytes
) -> list[Buffer]:
    """Size, header and body as buffers to send together; large parts of the body are not copied."""
    return _frame(encode_request_header(api_key, version, correlation_id, client_id), body)


def encode_response_frame(
    api_key: int, version: int, correlation_id: int, body: Sequence[Buffer] | bytes
) -> list[Buffer]:
    """Size, header and body as buffers to send together; large parts of the body are not copied."""
    header = _CORRELATION_ID.pack(correlation_id)
    if version >= first_flexible_version(api_key) and api_key != ApiKey.API_VERSIONS:
        header += b"\0"
    return _frame(header, body)


def _frame(header: bytes, body: Sequence[Buffer] | bytes) -> list[Buffer]:
    parts: Sequence[Buffer] = (body,) if isinstance(body, bytes) else body
    size = len(header)
    for part in parts:
        size += len(part)
    if parts and len(parts[0]) < _JOINED_BELOW_BYTES:
        return [b"".join((_SIZE.pack(size), header, parts[0])), *parts[1:]]
    return [_SIZE.pack(size) + header, *parts]


def parse_response_header(api_key: int, version: int, buf: Buffer) -> tuple[int, int]:
    """(correlation id, position of the body). Raises MalformedRequest."""
    try:
        (correlation_id,) = _CORRELATION_ID.unpack_from(buf)
        position = 4
        if response_header_version(api_key, version) == 1:
            position = skip_tagged_fields(buf, position, len(buf)) if buf[position] else position + 1
    except (struct.error, IndexError):
        raise MalformedRequest(f"a response of {len(buf)} bytes has no complete header") from None
    return correlation_id, position
