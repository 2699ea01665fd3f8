"""Compiles the schema of one message version into a Python function that writes it. See `compiler.py`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from fenceline.wire.codec_source import BYTES_KINDS, FORMATS, Conversions, Source
from fenceline.wire.schema import Field, Message, Struct

Write: TypeAlias = Callable[[bytearray, Any], None]
"""(buffer to append to, value)"""


def compile_writer(message: Message, version: int, *, from_mappings: bool, conversions: Conversions) -> Write:
    """A writer that reads values from attributes, or from mappings (a missing key means the default)."""
    source = Source()
    writer = _WriterSource(source, version, message.is_flexible(version), from_mappings, conversions)
    name = writer.struct(message.root)
    write: Write = source.compile(f"{message.root.name} v{version}")[name]
    return write


class _WriterSource:
    def __init__(
        self, source: Source, version: int, flexible: bool, from_mappings: bool, conversions: Conversions
    ) -> None:
        self._source = source
        self._version = version
        self._flexible = flexible
        self._from_mappings = from_mappings
        self._conversions = conversions
        self._structs: dict[int, str] = {}

    def struct(self, part: Struct) -> str:
        """The name of the function that writes `part`, generated at first use."""
        if id(part) in self._structs:
            return self._structs[id(part)]
        name = self._structs[id(part)] = self._source.fresh("write_")
        self._source.begin(f"{name}(out, value)")
        if self._from_mappings:
            self._source.line(1, "get = value.get")
        self._fields(part)
        self._source.line(1, "return None")
        self._source.end()
        return name

    def _fields(self, part: Struct) -> None:
        run: list[tuple[str, str]] = []
        tagged = []
        for field in part.at(self._version):
            if field.is_tagged(self._version):
                tagged.append(field)
            elif self._is_fixed(field):
                run.append((FORMATS[field.kind][0], self._encode(field.kind, self._value(field))))
            else:
                self._flush(run)
                self._variable(1, field, self._value(field))
        if self._flexible:
            if not tagged:
                run.append(("x", ""))  # a pad byte is the zero count of tagged fields
            self._flush(run)
            if tagged:
                self._tagged(sorted(tagged, key=lambda f: f.tag or 0))
        else:
            self._flush(run)

    def _is_fixed(self, field: Field) -> bool:
        return not field.is_array and field.kind in FORMATS

    def _flush(self, run: list[tuple[str, str]]) -> None:
        if not run:
            return
        pack = self._source.constant("pack_", struct.Struct(">" + "".join(f for f, _ in run)).pack)
        arguments = ", ".join(expression for _, expression in run if expression)
        self._source.line(1, f"out += {pack}({arguments})")
        run.clear()

    def _value(self, field: Field) -> str:
        if not self._from_mappings:
            return f"value.{field.name}"
        default = field.default
        if field.struct is not None and not field.is_array and default is None and not field.is_nullable(self._version):
            default = {}
        if default is None and not field.is_nullable(self._version) and field.kind != "uuid":
            default = () if field.is_array else b"" if field.kind in BYTES_KINDS else ""
        literal = repr(default) if type(default) in (int, bool, str) else None
        return f"get({field.name!r}, {literal or self._source.constant('default_', default)})"

    def _encode(self, kind: str, expression: str) -> str:
        if kind not in self._conversions.encode:
            return expression
        name = f"encode_{kind}"
        self._source.names[name] = self._conversions.encode[kind]
        return f"{name}({expression})"

    def _variable(self, depth: int, field: Field, expression: str) -> None:
        """Code for a value of variable size, or in a tagged field."""
        line = self._source.line
        nullable = field.is_nullable(self._version)
        if not field.is_array and field.kind in FORMATS:
            pack = self._source.constant("pack_", struct.Struct(">" + FORMATS[field.kind][0]).pack)
            line(depth, f"out += {pack}({self._encode(field.kind, expression)})")
            return
        if field.struct is not None and not field.is_array:
            writer = self.struct(field.struct)
            if not nullable:
                line(depth, f"{writer}(out, {expression})")
                return
            line(depth, f"x = {expression}")
            line(depth, "if x is None:")
            line(depth + 1, f"out.append({0 if field.is_tagged(self._version) else 255})")
            line(depth, "else:")
            line(depth + 1, "out.append(1)")
            line(depth + 1, f"{writer}(out, x)")
            return
        line(depth, f"x = {expression}")
        if nullable:
            null = r"b'\0'" if self._flexible else r"b'\xff\xff'" if self._is_short(field) else r"b'\xff\xff\xff\xff'"
            line(depth, "if x is None:")
            line(depth + 1, f"out += {null}")
            line(depth, "else:")
            depth += 1
        if field.kind == "string" and not field.is_array:
            line(depth, "x = x.encode()")
        self._length(depth, short=self._is_short(field))
        if not field.is_array:
            line(depth, "out += x")
        elif field.kind in FORMATS:
            values = f"[{self._encode(field.kind, 'y')} for y in x]" if field.kind in self._conversions.encode else "x"
            if field.kind == "uuid":
                line(depth, f"out += b''.join({values})")
            else:
                line(depth, f"out += pack('>%d{FORMATS[field.kind][0]}' % n, *{values})")
        elif field.struct is not None:
            writer = self.struct(field.struct)
            line(depth, "for y in x:")
            line(depth + 1, f"{writer}(out, y)")
        else:
            line(depth, "for x in x:")
            if field.kind == "string":
                line(depth + 1, "x = x.encode()")
            self._length(depth + 1, short=field.kind == "string")
            line(depth + 1, "out += x")

    @staticmethod
    def _is_short(field: Field) -> bool:
        """Whether the length has 16 bits in versions that are not flexible."""
        return field.kind == "string" and not field.is_array

    def _length(self, depth: int, *, short: bool) -> None:
        line = self._source.line
        line(depth, "n = len(x)")
        if self._flexible:
            line(depth, "if n < 127:")
            line(depth + 1, "out.append(n + 1)")
            line(depth, "else:")
            line(depth + 1, "put_uvarint(out, n + 1)")
        else:
            pack = self._source.constant("pack_", struct.Struct(">h" if short else ">i").pack)
            line(depth, f"out += {pack}(n)")

    def _tagged(self, fields: list[Field]) -> None:
        line = self._source.line
        line(1, "complete, tags, count = out, bytearray(), 0")
        for field in fields:
            default = field.default
            held = self._source.constant("default_", default)
            expression = f"get({field.name!r}, {held})" if self._from_mappings else f"value.{field.name}"
            line(1, f"z = {expression}")
            line(1, f"if z is not {held} and z != {held}:")
            line(2, "out = bytearray()")
            self._variable(2, field, "z")
            # The value may be another form of the default: a zero uuid for null, a struct of defaults.
            line(2, f"if out != {self._source.constant('default_', self._default_bytes(field))}:")
            line(3, "count += 1")
            line(3, f"put_uvarint(tags, {field.tag})")
            line(3, "put_uvarint(tags, len(out))")
            line(3, "tags += out")
        line(1, "out = complete")
        line(1, "put_uvarint(out, count)")
        line(1, "out += tags")

    def _default_bytes(self, field: Field) -> bytes | None:
        """The encoded default of a tagged field."""
        source = Source()
        writer = _WriterSource(source, self._version, self._flexible, True, self._conversions)
        source.begin("write_default(out, z)")
        writer._variable(1, field, "z")
        source.end()
        out = bytearray()
        default = field.default
        if default is None and field.struct is not None and not field.is_nullable(self._version):
            default = {}
        source.compile(f"the default of {field.name}")["write_default"](out, default)
        return bytes(out)
