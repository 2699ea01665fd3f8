"""The APIs that Fenceline speaks, except Produce and Fetch: requests and responses as objects with attributes, and from
plain mappings.

Owns the lookup from (api key, version) to compiled codecs, and the Python types of scalars. The schemas are in
`fenceline.wire.schemas`, generated from kio, with Fenceline's own tagged fields (`fenceline.wire.extensions`); a module
is imported and a codec compiled with the first message of that API and version.

Reading returns an `Entity` whose attributes are the fields of exactly that version, named as in kio:

| on the wire | read as | also written from |
|---|---|---|
| error code | `ErrorCode`, or the plain int if it is unknown | int |
| duration, ms | `timedelta` (see `millis`); the longest one for more | int |
| time, ms | aware `datetime`, None for -1; the last one for more | int |
| uuid | `UUID`, None for the zero id | 16 bytes |
| array | tuple, None if null | any sized iterable |
| struct | `Entity` | mapping |

Writing takes a mapping: a missing field gets the schema's default, a field that the version lacks is dropped. Bytes
after the end of a message are ignored, as in Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import import_module
from typing import Any, Final, TypeVar, overload
from uuid import UUID

from fenceline.errors import ErrorCode, InternalError
from fenceline.wire import extensions
from fenceline.wire.apis import ApiKey
from fenceline.wire.compiler import READ_ERRORS, Conversions, Read, Write, compile_reader, compile_writer
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.primitives import Buffer
from fenceline.wire.schema import Field, Message, Struct, parse_message

_T = TypeVar("_T")

_MILLISECOND: Final = timedelta(milliseconds=1)
_UNIX_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_TIME: Final = datetime.min.replace(tzinfo=UTC)
_LAST_TIME: Final = datetime.max.replace(tzinfo=UTC)
_ZERO_ID: Final = bytes(16)
_ERROR_CODES: Final = {int(code): code for code in ErrorCode}
_WRITE_ERRORS: Final = (struct.error, AttributeError, TypeError, OverflowError)


class Entity:
    """One struct of a message, with the fields of its version as attributes. Must not be modified."""

    __slots__: tuple[str, ...] = ()
    version = -1

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__slots__)
        return f"{type(self).__name__}({fields})"


def read_request(api_key: int, version: int, body: Buffer) -> Any:
    """The request's entity. Raises MalformedRequest, also for versions that Kafka does not have."""
    return _read(api_key, version, body, True)


def read_response(api_key: int, version: int, body: Buffer) -> Any:
    """The response's entity. Raises MalformedRequest."""
    return _read(api_key, version, body, False)


def write_request(api_key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    """The body of a request. Raises InternalError if a value does not fit its field: that is our bug."""
    return _write(api_key, version, fields, True)


def write_response(api_key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    """The body of a response. Raises InternalError if a value does not fit its field: that is our bug."""
    return _write(api_key, version, fields, False)


@overload
def request_field(entity: Entity, name: str, default: None) -> Any: ...
@overload
def request_field(entity: Entity, name: str, default: tuple[()]) -> tuple[Any, ...]: ...
@overload
def request_field(entity: Entity, name: str, default: _T) -> _T: ...
def request_field(entity: Entity, name: str, default: Any) -> Any:
    """A field that some versions lack, or `default`."""
    return getattr(entity, name, default)


def millis(duration: timedelta | int) -> int:
    """A duration in integer milliseconds."""
    return duration if isinstance(duration, int) else duration // _MILLISECOND


def message_schema(api_key: int, *, is_request: bool) -> Message:
    """The schema of a message, of all versions. Raises ValueError for unknown keys, ModuleNotFoundError for an API that
    nothing here names."""
    return _schema(api_key, is_request)


def unknown_fields(api_key: int, fields: Mapping[str, Any], *, is_request: bool = False) -> list[str]:
    """Dotted paths of names in `fields` that no version of the message has; for tests, to find misspellings."""
    return sorted(set(_unknown(_schema(api_key, is_request).root, fields, "")))


# --- implementation ---------------------------------------------------------------------------------------------------


def _read(api_key: int, version: int, body: Buffer, is_request: bool) -> Any:
    read = _READERS.get((api_key, version, is_request))
    if read is None:
        read = _reader(api_key, version, is_request)
    try:
        return read(body, 0, len(body))[0]
    except READ_ERRORS as error:
        raise MalformedRequest(f"{_title(api_key, version, is_request)}: {error}") from None


def _write(api_key: int, version: int, fields: Mapping[str, Any], is_request: bool) -> bytes:
    write = _WRITERS.get((api_key, version, is_request))
    if write is None:
        write = _writer(api_key, version, is_request)
    out = bytearray()
    try:
        write(out, fields)
    except _WRITE_ERRORS as error:
        raise InternalError(f"{_title(api_key, version, is_request)} cannot be encoded: {error}") from error
    return bytes(out)


_READERS: Final[dict[tuple[int, int, bool], Read]] = {}
_WRITERS: Final[dict[tuple[int, int, bool], Write]] = {}


def _reader(api_key: int, version: int, is_request: bool) -> Read:
    message = _schema_of_version(api_key, version, is_request)
    if message is None:
        raise MalformedRequest(f"{_title(api_key, version, is_request)} is not a version of the Kafka protocol")
    read = compile_reader(
        message,
        version,
        class_of=lambda part, fields: _entity_class(part, fields, version),
        every_field=False,
        conversions=_CONVERSIONS,
    )
    _READERS[api_key, version, is_request] = read
    return read


def _writer(api_key: int, version: int, is_request: bool) -> Write:
    message = _schema_of_version(api_key, version, is_request)
    if message is None:
        raise InternalError(f"{_title(api_key, version, is_request)} is not a version of the Kafka protocol")
    write = compile_writer(message, version, from_mappings=True, conversions=_CONVERSIONS)
    _WRITERS[api_key, version, is_request] = write
    return write


def _schema_of_version(api_key: int, version: int, is_request: bool) -> Message | None:
    try:
        message = _extended_schema(api_key, is_request)
    except (ValueError, ModuleNotFoundError):
        return None
    return message if version in message.versions else None


@cache
def _schema(api_key: int, is_request: bool) -> Message:
    """Raises ValueError for unknown keys, ModuleNotFoundError for an API that nothing here names."""
    return parse_message(_schema_text(api_key, is_request))


@cache
def _extended_schema(api_key: int, is_request: bool) -> Message:
    """The schema with Fenceline's own tagged fields. Raises as `_schema`."""
    extension = (extensions.REQUESTS if is_request else extensions.RESPONSES).get(api_key)
    if extension is None:
        return _schema(api_key, is_request)
    return parse_message(_schema_text(api_key, is_request) + extension)


def _schema_text(api_key: int, is_request: bool) -> str:
    module = import_module(f"fenceline.wire.schemas.{ApiKey(api_key).name.lower()}")
    text: str = module.REQUEST if is_request else module.RESPONSE
    return text


def _title(api_key: int, version: int, is_request: bool) -> str:
    try:
        name = ApiKey(api_key).name
    except ValueError:
        name = f"API {api_key}"
    return f"{name} {'request' if is_request else 'response'} v{version}"


def _entity_class(part: Struct, fields: list[Field], version: int) -> type:
    names = [field.name for field in fields]
    lines = [f"def __init__(self, {', '.join(names)}):", *(f"    self.{name} = {name}" for name in names), "    return"]
    made: dict[str, Any] = {}
    exec("\n".join(lines), made)
    held = {"__slots__": tuple(names), "__init__": made["__init__"], "version": version, "__module__": __name__}
    return type(part.name, (Entity,), held)


def _unknown(part: Struct, fields: Mapping[str, Any], prefix: str) -> list[str]:
    by_name = {field.name: field for field in part.fields}
    found = []
    for name, value in fields.items():
        field = by_name.get(name)
        if field is None:
            found.append(prefix + name)
        elif field.struct is not None and value is not None:
            for element in value if field.is_array else (value,):
                found += _unknown(field.struct, element, f"{prefix}{name}.")
    return found


# --- conversions of scalars -------------------------------------------------------------------------------------------


def _decode_error(code: int) -> int:
    return _ERROR_CODES.get(code, code)


def _decode_uuid(raw: bytes) -> UUID | None:
    return None if raw == _ZERO_ID else UUID(int=int.from_bytes(raw, "big"))


def _encode_uuid(value: UUID | bytes | None) -> bytes:
    if value is None:
        return _ZERO_ID
    return value.bytes if isinstance(value, UUID) else value


def _decode_ms(duration_ms: int) -> timedelta:
    try:
        return timedelta(milliseconds=duration_ms)
    except OverflowError:  # Java's clients send Long.MAX_VALUE for "as long as possible"
        return timedelta.max if duration_ms > 0 else timedelta.min


def _decode_time(time_ms: int) -> datetime | None:
    if time_ms == -1:
        return None
    try:
        return _UNIX_EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return _LAST_TIME if time_ms > 0 else _FIRST_TIME


def _encode_time(value: datetime | int | None) -> int:
    if value is None:
        return -1
    return value if isinstance(value, int) else (value - _UNIX_EPOCH) // _MILLISECOND


_CONVERSIONS: Final = Conversions(
    decode={"error": _decode_error, "uuid": _decode_uuid, "ms32": _decode_ms, "ms64": _decode_ms, "time": _decode_time},
    encode={"uuid": _encode_uuid, "ms32": millis, "ms64": millis, "time": _encode_time},
)
