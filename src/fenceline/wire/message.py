"""Records of the metadata log and of the coordinators' topics: dataclasses that declare their encoding.

Owns the declaration (`kafka(...)` as the default) and the codec compiled from it (`formats.md F6`, `F7`). Knows no
record by name; the frame around a record (version and key bytes) is up to its users.

    @dataclass(frozen=True, slots=True)
    class OffsetCommitValue:
        offset: int = kafka("int64", versions="0+")
        leader_epoch: int = kafka("int32", versions="3+", default=-1)

    OFFSET_COMMIT_VALUE = codec(OffsetCommitValue, versions=(0, 4), flexible="4+")

A field that a version lacks is not written, and has its default when read. A tagged field is written if it differs from
its default. Functions are compiled at the first use of each version.
"""

from __future__ import annotations

import dataclasses
import struct
import types
import typing
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from fenceline.errors import InternalError
from fenceline.ids import ZERO_UUID
from fenceline.wire.compiler import READ_ERRORS, Conversions, Read, Write, compile_reader, compile_writer
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.primitives import Buffer
from fenceline.wire.schema import SCALARS, Field, Message, Struct, Versions, implicit_default

T = TypeVar("T")

_KEY: Final = "fenceline.kafka"
_CONVERSIONS: Final = Conversions(
    decode={"uuid": lambda raw: UUID(bytes=raw)}, encode={"uuid": lambda value: value.bytes}
)


def kafka(
    kind: str,
    *,
    versions: str,
    tag: int | None = None,
    tagged_versions: str | None = None,
    nullable: str | None = None,
    default: Any = dataclasses.MISSING,
) -> Any:
    """A dataclass field of this kind: a scalar, a struct's name (the class is in the annotation), or `[]` and either.

    versions, tagged_versions, nullable: ranges as `0+`, `1-2`, `3`. Without `tagged_versions` a tag applies to all
    versions of the field. Without `default` the constructor requires a value, and the wire default is zero, empty or
    null.
    """
    declared = (kind, versions, tag, tagged_versions, nullable)
    return dataclasses.field(default=default, metadata={_KEY: declared})


class MessageCodec(Generic[T]):
    """Encodes and decodes one class in all its versions."""

    __slots__ = ("_message", "_readers", "_writers", "cls", "versions")

    def __init__(self, cls: type[T], message: Message) -> None:
        self.cls = cls
        self.versions = (message.versions.low, message.versions.high)
        self._message = message
        self._writers: dict[int, Write] = {}
        self._readers: dict[int, Read] = {}

    def encode(self, version: int, value: T) -> bytes:
        """The fields' bytes. Raises InternalError if a value does not fit its field: that is our bug."""
        write = self._writers.get(version)
        if write is None:
            self._check(version)
            write = compile_writer(self._message, version, from_mappings=False, conversions=_CONVERSIONS)
            self._writers[version] = write
        out = bytearray()
        try:
            write(out, value)
        except (struct.error, AttributeError, TypeError) as error:
            raise InternalError(f"{value!r} cannot be encoded as {self.cls.__name__} v{version}: {error}") from error
        return bytes(out)

    def decode(self, version: int, buf: Buffer, position: int = 0) -> tuple[T, int]:
        """(value, position after it); bytes after it are the caller's. Raises MalformedRequest."""
        read = self._readers.get(version)
        if read is None:
            if version not in self._message.versions:
                raise MalformedRequest(f"{self.cls.__name__} has no version {version}")
            read = compile_reader(
                self._message, version, class_of=_target_of, every_field=True, conversions=_CONVERSIONS
            )
            self._readers[version] = read
        try:
            return read(buf, position, len(buf))
        except READ_ERRORS as error:
            raise MalformedRequest(f"{self.cls.__name__} v{version}: {error}") from None

    def _check(self, version: int) -> None:
        if version not in self._message.versions:
            raise InternalError(f"{self.cls.__name__} has no version {version}")


def codec(cls: type[T], *, versions: tuple[int, int], flexible: str | None) -> MessageCodec[T]:
    """The codec of a dataclass declared with `kafka`. `flexible`: the versions with compact lengths and tags."""
    parsed = None if flexible is None else Versions.parse(flexible)
    return MessageCodec(cls, Message(_struct_of(cls), Versions(*versions), parsed))


def _target_of(part: Struct, fields: list[Field]) -> type:
    assert part.target is not None, "a struct of a record without its class"
    return part.target


def _struct_of(cls: type) -> Struct:
    if not dataclasses.is_dataclass(cls):
        raise InternalError(f"{cls.__name__} is not a dataclass")
    hints = typing.get_type_hints(cls)
    return Struct(cls.__name__, tuple(_field_of(cls, f, hints[f.name]) for f in dataclasses.fields(cls)), cls)


def _field_of(cls: type, field: dataclasses.Field[Any], hint: Any) -> Field:
    declared = field.metadata.get(_KEY)
    if declared is None:
        raise InternalError(f"{cls.__name__}.{field.name} is not declared with kafka()")
    kind, versions, tag, tagged_versions, nullable = declared
    is_array = kind.startswith("[]")
    kind = kind.removeprefix("[]")
    struct_class = None if kind in SCALARS else _dataclass_in(hint)
    if kind not in SCALARS and struct_class is None:
        raise InternalError(f"{cls.__name__}.{field.name}: {kind} is neither a scalar nor a dataclass")
    if field.default is not dataclasses.MISSING:
        default = field.default
    else:
        default = implicit_default(kind, is_array, nullable is not None, struct_class is not None)
        if kind == "uuid" and not is_array:
            default = ZERO_UUID
    return Field(
        name=field.name,
        kind=kind,
        is_array=is_array,
        versions=Versions.parse(versions),
        struct=None if struct_class is None else _struct_of(struct_class),
        nullable=None if nullable is None else Versions.parse(nullable),
        tag=tag,
        tagged=None if tag is None else Versions.parse(tagged_versions or versions),
        default=default,
    )


def _dataclass_in(hint: Any) -> type | None:
    """The dataclass in `X`, `X | None`, `tuple[X, ...]` or `tuple[X, ...] | None`."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) in (typing.Union, tuple):
        for inner in typing.get_args(hint):
            if inner is not Ellipsis and (found := _dataclass_in(inner)) is not None:
                return found
    return None
