"""Source code of compiled codecs: functions under construction, and facts about field types for readers and writers.

Owns widths, formats and names of constants. Knows no direction.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from fenceline.wire.errors import MalformedRequest
from fenceline.wire.primitives import put_uvarint, read_uvarint, skip_tagged_field
from fenceline.wire.schema import Field, Struct

FORMATS: Final = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "int32": ("i", 4),
    "int64": ("q", 8),
    "uint16": ("H", 2),
    "uint32": ("I", 4),
    "float64": ("d", 8),
    "uuid": ("16s", 16),
    "error": ("h", 2),
    "ms32": ("i", 4),
    "ms64": ("q", 8),
    "time": ("q", 8),
}
BYTES_KINDS: Final = frozenset({"bytes", "records"})


class Conversions:
    """Conversions of scalar types with a Python type. `decode`: from the wire's value; `encode`: to it."""

    def __init__(self, decode: dict[str, Callable[[Any], Any]], encode: dict[str, Callable[[Any], Any]]) -> None:
        self.decode = decode
        self.encode = encode


def smallest_size(part: Struct, version: int, flexible: bool) -> int:
    """The minimum size of a struct in bytes; at least 1, so that it can be a divisor."""
    size = 1 if flexible else 0
    for field in part.at(version):
        if not field.is_tagged(version):
            size += _smallest_field(field, version, flexible)
    return max(size, 1)


def _smallest_field(field: Field, version: int, flexible: bool) -> int:
    if field.is_array or field.kind in BYTES_KINDS:
        return 1 if flexible else 4
    if field.struct is not None:
        return 1 if field.is_nullable(version) else smallest_size(field.struct, version, flexible)
    if field.kind == "string":
        return 1 if flexible else 2
    return FORMATS[field.kind][1]


class Source:
    """Functions under construction, and the constants they use."""

    def __init__(self) -> None:
        self._finished: list[str] = []
        self._open: list[list[str]] = []
        self.names: dict[str, Any] = {
            "Malformed": MalformedRequest,
            "put_uvarint": put_uvarint,
            "read_uvarint": read_uvarint,
            "skip_tagged_field": skip_tagged_field,
            "pack": struct.pack,
            "unpack_from": struct.unpack_from,
        }
        self._count = 0

    def begin(self, signature: str) -> None:
        """Start a function; an enclosing one continues after `end`."""
        self._open.append([f"def {signature}:"])

    def end(self) -> None:
        self._finished.extend(self._open.pop())

    def line(self, depth: int, text: str) -> None:
        self._open[-1].append("    " * depth + text)

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def constant(self, prefix: str, value: Any) -> str:
        name = self.fresh(prefix)
        self.names[name] = value
        return name

    def compile(self, title: str) -> dict[str, Any]:
        exec(compile("\n".join(self._finished), f"<codec of {title}>", "exec"), self.names)
        return self.names
