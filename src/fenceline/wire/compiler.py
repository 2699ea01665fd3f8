"""Turns the schema of one message version into two Python functions: one that writes it, one that reads it.

Owns the translation of schemas to source. Knows no message by name, keeps nothing (callers cache what they get).

How: neighbouring fields of fixed width become one `struct` call, everything else becomes straight-line code on local
variables, so a message costs few calls a field. Every read is checked against the end of the buffer, and an array may
not claim more elements than bytes are left for: memory is bounded by the size of the input. Known tagged fields are
written when they differ from their default, unknown ones are skipped (KIP-482). Nullable structs as in KIP-893.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from fenceline.wire.errors import MalformedRequest
from fenceline.wire.primitives import put_uvarint, skip_tagged_field, take_uvarint
from fenceline.wire.schema import Field, Message, Struct

Write: TypeAlias = Callable[[bytearray, Any], None]
"""(buffer to append to, value)"""
Read: TypeAlias = Callable[[Any, int, int], tuple[Any, int]]
"""(buffer, position, end) -> (value, position behind it)"""

READ_ERRORS: Final = (struct.error, IndexError, UnicodeDecodeError, OverflowError)
"""What a compiled reader raises on malformed bytes beside MalformedRequest; callers translate."""

_FORMATS: Final = {
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
_CONVERTED: Final = frozenset({"uuid", "error", "ms32", "ms64", "time"})
_BYTES_KINDS: Final = frozenset({"bytes", "records"})


class Conversions:
    """How the scalars with a meaning look in Python. `take_*`: from the plain value; `give_*`: to it."""

    def __init__(self, take: dict[str, Callable[[Any], Any]], give: dict[str, Callable[[Any], Any]]) -> None:
        self.take = take
        self.give = give


def smallest_size(part: Struct, version: int, flexible: bool) -> int:
    """The fewest bytes that one such struct takes; at least 1, so that it can divide."""
    size = 1 if flexible else 0
    for field in part.at(version):
        if not field.is_tagged(version):
            size += _smallest_field(field, version, flexible)
    return max(size, 1)


def _smallest_field(field: Field, version: int, flexible: bool) -> int:
    if field.is_array or field.kind in _BYTES_KINDS:
        return 1 if flexible else 4
    if field.struct is not None:
        return 1 if field.is_nullable(version) else smallest_size(field.struct, version, flexible)
    if field.kind == "string":
        return 1 if flexible else 2
    return _FORMATS[field.kind][1]


class _Source:
    """Functions under construction, and the constants they use."""

    def __init__(self) -> None:
        self._finished: list[str] = []
        self._open: list[list[str]] = []
        self.names: dict[str, Any] = {
            "Malformed": MalformedRequest,
            "put_uvarint": put_uvarint,
            "take_uvarint": take_uvarint,
            "skip_tagged_field": skip_tagged_field,
            "pack": struct.pack,
            "unpack_from": struct.unpack_from,
        }
        self._count = 0

    def begin(self, signature: str) -> None:
        """Start a function; one that is under construction goes on after `end`."""
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


# --- writing ----------------------------------------------------------------------------------------------------------


def compile_writer(message: Message, version: int, *, from_mappings: bool, conversions: Conversions) -> Write:
    """A writer that takes values from attributes, or from mappings (what a mapping lacks is at its default)."""
    source = _Source()
    writer = _WriterSource(source, version, message.is_flexible(version), from_mappings, conversions)
    name = writer.struct(message.root)
    write: Write = source.compile(f"{message.root.name} v{version}")[name]
    return write


class _WriterSource:
    def __init__(
        self, source: _Source, version: int, flexible: bool, from_mappings: bool, conversions: Conversions
    ) -> None:
        self._source = source
        self._version = version
        self._flexible = flexible
        self._from_mappings = from_mappings
        self._conversions = conversions
        self._structs: dict[int, str] = {}

    def struct(self, part: Struct) -> str:
        """The name of the function that writes `part`, made at first use."""
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
                run.append((_FORMATS[field.kind][0], self._give(field.kind, self._value(field))))
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
        return not field.is_array and field.kind in _FORMATS

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
            default = () if field.is_array else b"" if field.kind in _BYTES_KINDS else ""
        literal = repr(default) if type(default) in (int, bool, str) else None
        return f"get({field.name!r}, {literal or self._source.constant('default_', default)})"

    def _give(self, kind: str, expression: str) -> str:
        if kind not in self._conversions.give:
            return expression
        name = f"give_{kind}"
        self._source.names[name] = self._conversions.give[kind]
        return f"{name}({expression})"

    def _variable(self, depth: int, field: Field, expression: str) -> None:
        """Code for one value that is not of fixed width, or in a tagged field."""
        line = self._source.line
        nullable = field.is_nullable(self._version)
        if not field.is_array and field.kind in _FORMATS:
            pack = self._source.constant("pack_", struct.Struct(">" + _FORMATS[field.kind][0]).pack)
            line(depth, f"out += {pack}({self._give(field.kind, expression)})")
            return
        if field.struct is not None and not field.is_array:
            writer = self.struct(field.struct)
            if not nullable:
                line(depth, f"{writer}(out, {expression})")
                return
            line(depth, f"x = {expression}")
            line(depth, "if x is None:")
            line(depth + 1, "out.append(255)")
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
        elif field.kind in _FORMATS:
            values = f"[{self._give(field.kind, 'y')} for y in x]" if field.kind in self._conversions.give else "x"
            if field.kind == "uuid":
                line(depth, f"out += b''.join({values})")
            else:
                line(depth, f"out += pack('>%d{_FORMATS[field.kind][0]}' % n, *{values})")
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
        """Whether the length takes 16 bits in versions that are not flexible."""
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
        line(1, "whole, tags, count = out, bytearray(), 0")
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
        line(1, "out = whole")
        line(1, "put_uvarint(out, count)")
        line(1, "out += tags")

    def _default_bytes(self, field: Field) -> bytes | None:
        """How the default of a tagged field would be written; None when it can not be."""
        source = _Source()
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


# --- reading ----------------------------------------------------------------------------------------------------------


def compile_reader(
    message: Message,
    version: int,
    *,
    class_of: Callable[[Struct, list[Field]], type],
    every_field: bool,
    conversions: Conversions,
) -> Read:
    """A reader that builds `class_of(struct, fields)`, called with the fields in order.

    every_field: the class takes all fields of the struct, also those that this version lacks (they get their default).
    """
    source = _Source()
    reader = _ReaderSource(source, version, message.is_flexible(version), class_of, every_field, conversions)
    name = reader.struct(message.root)
    read: Read = source.compile(f"{message.root.name} v{version}")[name]
    return read


class _ReaderSource:
    def __init__(
        self,
        source: _Source,
        version: int,
        flexible: bool,
        class_of: Callable[[Struct, list[Field]], type],
        every_field: bool,
        conversions: Conversions,
    ) -> None:
        self._source = source
        self._version = version
        self._flexible = flexible
        self._class_of = class_of
        self._every_field = every_field
        self._conversions = conversions
        self._structs: dict[int, str] = {}

    def struct(self, part: Struct) -> str:
        """The name of the function that reads `part`, made at first use."""
        if id(part) in self._structs:
            return self._structs[id(part)]
        name = self._structs[id(part)] = self._source.fresh("read_")
        self._source.begin(f"{name}(buf, p, end)")
        self._fields(part)
        self._source.end()
        return name

    def _fields(self, part: Struct) -> None:
        run: list[Field] = []
        tagged: list[tuple[Field, str]] = []
        variables: dict[str, str] = {}
        present = part.at(self._version)
        for index, field in enumerate(present):
            variable = variables[field.name] = f"f{index}"
            if field.is_tagged(self._version):
                tagged.append((field, variable))
                self._source.line(1, f"{variable} = {self._default(field)}")
            elif not field.is_array and field.kind in _FORMATS:
                run.append(field)
            else:
                self._flush(run, variables)
                self._variable(1, field, variable)
        self._flush(run, variables)
        if self._flexible:
            self._tagged(tagged)
        constructor = self._source.constant("make_", self._class_of(part, present))
        fields = part.fields if self._every_field else present
        arguments = ", ".join(variables.get(f.name) or self._default(f) for f in fields)
        self._source.line(1, f"return {constructor}({arguments}), p")

    def _default(self, field: Field) -> str:
        default = field.default
        is_struct = field.struct is not None and not field.is_array
        if is_struct and default is None and not field.is_nullable(self._version) and field.nullable is None:
            assert field.struct is not None
            default = self._default_struct(field.struct)
        else:
            default = self._converted(field)
        return repr(default) if type(default) in (int, bool, str) else self._source.constant("default_", default)

    def _default_struct(self, part: Struct) -> Any:
        present = part.at(self._version)
        fields = part.fields if self._every_field else present
        return self._class_of(part, list(present))(*(self._converted(f) for f in fields))

    def _converted(self, field: Field) -> Any:
        """The default as a reader gives it. Schemas in text hold plain numbers, dataclasses the value itself."""
        if type(field.default) is int and field.kind in self._conversions.take and not field.is_array:
            return self._conversions.take[field.kind](field.default)
        return field.default

    def _take(self, kind: str, expression: str) -> str:
        if kind not in self._conversions.take:
            return expression
        name = f"take_{kind}"
        self._source.names[name] = self._conversions.take[kind]
        return f"{name}({expression})"

    def _flush(self, run: list[Field], variables: dict[str, str]) -> None:
        if not run:
            return
        layout = struct.Struct(">" + "".join(_FORMATS[f.kind][0] for f in run))
        unpack = self._source.constant("unpack_", layout.unpack_from)
        names = "".join(f"{variables[f.name]}, " for f in run)
        self._source.line(1, f"{names}= {unpack}(buf, p)")
        self._source.line(1, f"p += {layout.size}")
        for field in run:
            variable = variables[field.name]
            if field.kind in self._conversions.take:
                self._source.line(1, f"{variable} = {self._take(field.kind, variable)}")
        run.clear()

    def _variable(self, depth: int, field: Field, variable: str) -> None:
        line = self._source.line
        nullable = field.is_nullable(self._version)
        if not field.is_array and field.kind in _FORMATS:
            layout = struct.Struct(">" + _FORMATS[field.kind][0])
            line(depth, f"{variable}, = {self._source.constant('unpack_', layout.unpack_from)}(buf, p)")
            line(depth, f"p += {layout.size}")
            if field.kind in self._conversions.take:
                line(depth, f"{variable} = {self._take(field.kind, variable)}")
            return
        if field.struct is not None and not field.is_array:
            reader = self.struct(field.struct)
            if nullable:
                line(depth, "p += 1")
                line(depth, "if buf[p - 1] > 127:")
                line(depth + 1, f"{variable} = None")
                line(depth, "else:")
                depth += 1
            line(depth, f"{variable}, p = {reader}(buf, p, end)")
            return
        is_short = field.kind == "string" and not field.is_array
        self._length(depth, short=is_short)
        line(depth, "if n < 0:")
        if nullable:
            line(depth + 1, f"{variable} = None")
        else:
            line(depth + 1, f"raise Malformed({f'{field.name} is null'!r})")
        line(depth, "else:")
        depth += 1
        if not field.is_array:
            self._sized(depth, field.kind, variable, field.name)
            return
        element = self._smallest_element(field)
        line(depth, f"if n * {element} > end - p:")
        line(depth + 1, f"raise Malformed({f'{field.name} claims more elements than the message can hold'!r})")
        if field.kind in _FORMATS and field.kind != "uuid":
            line(depth, f"{variable} = unpack_from('>%d{_FORMATS[field.kind][0]}' % n, buf, p)")
            line(depth, f"p += n * {element}")
            if field.kind in self._conversions.take:
                line(depth, f"{variable} = tuple([{self._take(field.kind, 'y')} for y in {variable}])")
            return
        line(depth, "items = []")
        line(depth, "for _ in range(n):")
        if field.struct is not None:
            line(depth + 1, f"item, p = {self.struct(field.struct)}(buf, p, end)")
        elif field.kind == "uuid":
            line(depth + 1, f"item = {self._take('uuid', 'bytes(buf[p : p + 16])')}")
            line(depth + 1, "p += 16")
        else:
            self._length(depth + 1, short=field.kind == "string")
            line(depth + 1, "if n < 0:")
            line(depth + 2, f"raise Malformed({f'an element of {field.name} is null'!r})")
            self._sized(depth + 1, field.kind, "item", field.name)
        line(depth + 1, "items.append(item)")
        line(depth, f"{variable} = tuple(items)")

    def _smallest_element(self, field: Field) -> int:
        if field.struct is not None:
            return smallest_size(field.struct, self._version, self._flexible)
        if field.kind in _FORMATS:
            return _FORMATS[field.kind][1]
        return 1 if self._flexible else 2 if field.kind == "string" else 4

    def _sized(self, depth: int, kind: str, variable: str, name: str) -> None:
        line = self._source.line
        line(depth, "e = p + n")
        line(depth, "if e > end:")
        line(depth + 1, f"raise Malformed({f'{name} ends outside of the message'!r})")
        line(depth, f"{variable} = " + ("str(buf[p:e], 'utf-8')" if kind == "string" else "bytes(buf[p:e])"))
        line(depth, "p = e")

    def _length(self, depth: int, *, short: bool) -> None:
        """`n`: the length, negative for null."""
        line = self._source.line
        if self._flexible:
            line(depth, "n = buf[p]")
            line(depth, "p += 1")
            line(depth, "if n > 127:")
            line(depth + 1, "n, p = take_uvarint(buf, p - 1)")
            line(depth, "n -= 1")
        else:
            layout = struct.Struct(">h" if short else ">i")
            line(depth, f"n, = {self._source.constant('unpack_', layout.unpack_from)}(buf, p)")
            line(depth, f"p += {layout.size}")

    def _tagged(self, fields: list[tuple[Field, str]]) -> None:
        line = self._source.line
        line(1, "count = buf[p]")
        line(1, "p += 1")
        line(1, "if count:")
        line(2, "if count > 127:")
        line(3, "count, p = take_uvarint(buf, p - 1)")
        line(2, "for _ in range(count):")
        if not fields:
            line(3, "p = skip_tagged_field(buf, p, end)")
            return
        line(3, "tag, q = take_uvarint(buf, p)")
        for position, (field, variable) in enumerate(fields):
            line(3, f"{'if' if position == 0 else 'elif'} tag == {field.tag}:")
            line(4, "size, p = take_uvarint(buf, q)")
            line(4, "q = p + size")
            self._variable(4, field, variable)
            line(4, "if p != q:")
            line(5, f"raise Malformed({f'{field.name} is not as long as its tag says'!r})")
        line(3, "else:")
        line(4, "p = skip_tagged_field(buf, p, end)")
