"""Schemas of messages: fields with their types and version ranges.

Owns the types that the codecs are compiled from (`fenceline.wire.compiler`), and their text form. Encodes nothing.

A schema describes all versions of a message at once, as Kafka's own message definitions do:

    name: type versions [tagN@versions] [null@versions] [=default]

A type is a scalar of `SCALARS`, the name of a struct whose fields follow indented by two spaces, or `[]` and either.
Version ranges are `3`, `3-7` or `3+`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fenceline.errors import InternalError

SCALARS: Final = frozenset(
    {
        *("bool", "int8", "int16", "int32", "int64", "uint16", "uint32", "float64"),
        *("string", "bytes", "records", "uuid"),
        # The same bytes as int16, int32 and int64, with a Python type of their own: see `entities`.
        *("error", "ms32", "ms64", "time"),
    }
)

_IMPLICIT: Final[dict[str, Any]] = {
    "bool": False,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": None,
}

_NO_LIMIT: Final = 0x7FFF


class Versions(NamedTuple):
    """An inclusive range of versions."""

    low: int
    high: int

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.low <= version <= self.high

    def __str__(self) -> str:
        if self.high == _NO_LIMIT:
            return f"{self.low}+"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"

    @classmethod
    def parse(cls, text: str) -> Versions:
        """`3`, `3-7` or `3+`. Raises InternalError."""
        low, dash, high = text.partition("-")
        try:
            if text.endswith("+"):
                return cls(int(text[:-1]), _NO_LIMIT)
            return cls(int(low), int(high) if dash else int(low))
        except ValueError:
            raise InternalError(f"not a version range: {text!r}") from None


@dataclass(frozen=True, slots=True)
class Field:
    """One field. `struct` is set when `kind` names a struct; `default` is a plain Python value (None: null or zero)."""

    name: str
    kind: str
    is_array: bool
    versions: Versions
    struct: Struct | None = None
    nullable: Versions | None = None
    tag: int | None = None
    tagged: Versions | None = None
    default: Any = None

    def is_nullable(self, version: int) -> bool:
        return self.nullable is not None and version in self.nullable

    def is_tagged(self, version: int) -> bool:
        return self.tag is not None and self.tagged is not None and version in self.tagged


@dataclass(frozen=True, slots=True)
class Struct:
    """A message or a nested struct. `target` is the class that readers build, if there is one already."""

    name: str
    fields: tuple[Field, ...]
    target: type | None = None

    def at(self, version: int) -> list[Field]:
        """The fields of one version, in the order of the definition (which is their order on the wire)."""
        return [f for f in self.fields if version in f.versions]


@dataclass(frozen=True, slots=True)
class Message:
    """A complete message: its versions, and its flexible versions (KIP-482)."""

    root: Struct
    versions: Versions
    flexible: Versions | None

    def is_flexible(self, version: int) -> bool:
        return self.flexible is not None and version in self.flexible


def implicit_default(kind: str, is_array: bool, is_nullable: bool, is_struct: bool) -> Any:
    """The default of a field without one: null if nullable, else empty or zero."""
    if is_nullable:
        return None
    if is_array:
        return ()
    return None if is_struct else _IMPLICIT.get(kind, 0)


# --- text form --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Line:
    depth: int
    words: list[str]
    children: list[_Line] = field(default_factory=list)


def parse_message(text: str) -> Message:
    """A message from its text: `Name versions [flexible=versions]`, then its fields. Raises InternalError."""
    lines = [line for line in text.splitlines() if line.strip()]
    head = lines[0].split()
    flexible = next((Versions.parse(w.partition("=")[2]) for w in head if w.startswith("flexible=")), None)
    top = _Line(-1, [])
    open_lines = [top]
    for line in lines[1:]:
        entry = _Line((len(line) - len(line.lstrip())) // 2 - 1, line.split())
        while open_lines[-1].depth >= entry.depth:
            open_lines.pop()
        open_lines[-1].children.append(entry)
        open_lines.append(entry)
    return Message(Struct(head[0], _fields(top.children)), Versions.parse(head[1]), flexible)


def _fields(lines: Iterable[_Line]) -> tuple[Field, ...]:
    return tuple(_field(line) for line in lines)


def _field(line: _Line) -> Field:
    name, kind, versions, *rest = line.words
    is_array = kind.startswith("[]")
    kind = kind.removeprefix("[]")
    is_struct = kind not in SCALARS
    nullable = tagged = tag = None
    default_text = None
    for word in rest:
        if word.startswith("tag"):
            tag_text, _, range_text = word.partition("@")
            tag, tagged = int(tag_text[3:]), Versions.parse(range_text)
        elif word.startswith("null@"):
            nullable = Versions.parse(word[5:])
        elif word.startswith("="):
            default_text = word[1:]
        else:
            raise InternalError(f"unknown attribute in the schema of {name}: {word!r}")
    default = (
        implicit_default(kind, is_array, nullable is not None, is_struct)
        if default_text is None
        else parse_default(kind, default_text)
    )
    struct = Struct(kind, _fields(line.children)) if is_struct else None
    return Field(
        name.removesuffix(":"), kind, is_array, Versions.parse(versions), struct, nullable, tag, tagged, default
    )


def parse_default(kind: str, text: str) -> Any:
    """A default from its text, by the type of its field."""
    if text == "null":
        return None
    if kind == "bool":
        return text == "true"
    if kind == "float64":
        return float(text)
    if kind == "string":
        return text
    return int(text)
