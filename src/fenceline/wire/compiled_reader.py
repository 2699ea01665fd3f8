"""Compiles the schema of one message version into a Python function that reads it. See `compiler.py`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from fenceline.wire.codec_source import FORMATS, Conversions, Source, smallest_size
from fenceline.wire.schema import Field, Message, Struct

Read: TypeAlias = Callable[[Any, int, int], tuple[Any, int]]
"""(buffer, position, end) -> (value, position after it)"""

READ_ERRORS: Final = (struct.error, IndexError, UnicodeDecodeError, OverflowError)
"""Errors of a compiled reader on malformed bytes, besides MalformedRequest; callers translate them."""


def compile_reader(
    message: Message,
    version: int,
    *,
    class_of: Callable[[Struct, list[Field]], type],
    every_field: bool,
    conversions: Conversions,
) -> Read:
    """A reader that builds `class_of(struct, fields)`, called with the fields in order.

    every_field: the class takes all fields of the struct; those that this version lacks get their default.
    """
    source = Source()
    reader = _ReaderSource(source, version, message.is_flexible(version), class_of, every_field, conversions)
    name = reader.struct(message.root)
    read: Read = source.compile(f"{message.root.name} v{version}")[name]
    return read


class _ReaderSource:
    def __init__(
        self,
        source: Source,
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
        """The name of the function that reads `part`, generated at first use."""
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
            elif not field.is_array and field.kind in FORMATS:
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
        """The default as a reader returns it. Text schemas hold plain numbers, dataclasses the value itself."""
        if type(field.default) is int and field.kind in self._conversions.decode and not field.is_array:
            return self._conversions.decode[field.kind](field.default)
        return field.default

    def _decode(self, kind: str, expression: str) -> str:
        if kind not in self._conversions.decode:
            return expression
        name = f"decode_{kind}"
        self._source.names[name] = self._conversions.decode[kind]
        return f"{name}({expression})"

    def _flush(self, run: list[Field], variables: dict[str, str]) -> None:
        if not run:
            return
        layout = struct.Struct(">" + "".join(FORMATS[f.kind][0] for f in run))
        unpack = self._source.constant("unpack_", layout.unpack_from)
        names = "".join(f"{variables[f.name]}, " for f in run)
        self._source.line(1, f"{names}= {unpack}(buf, p)")
        self._source.line(1, f"p += {layout.size}")
        for field in run:
            variable = variables[field.name]
            if field.kind in self._conversions.decode:
                self._source.line(1, f"{variable} = {self._decode(field.kind, variable)}")
        run.clear()

    def _variable(self, depth: int, field: Field, variable: str) -> None:
        line = self._source.line
        nullable = field.is_nullable(self._version)
        if not field.is_array and field.kind in FORMATS:
            layout = struct.Struct(">" + FORMATS[field.kind][0])
            line(depth, f"{variable}, = {self._source.constant('unpack_', layout.unpack_from)}(buf, p)")
            line(depth, f"p += {layout.size}")
            if field.kind in self._conversions.decode:
                line(depth, f"{variable} = {self._decode(field.kind, variable)}")
            return
        if field.struct is not None and not field.is_array:
            reader = self.struct(field.struct)
            if nullable:
                line(depth, "p += 1")
                # -1 for null, or 0 for a tagged field.
                line(depth, "if buf[p - 1] != 1:")
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
        if field.kind in FORMATS and field.kind != "uuid":
            line(depth, f"{variable} = unpack_from('>%d{FORMATS[field.kind][0]}' % n, buf, p)")
            line(depth, f"p += n * {element}")
            if field.kind in self._conversions.decode:
                line(depth, f"{variable} = tuple([{self._decode(field.kind, 'y')} for y in {variable}])")
            return
        line(depth, "items = []")
        line(depth, "for _ in range(n):")
        if field.struct is not None:
            line(depth + 1, f"item, p = {self.struct(field.struct)}(buf, p, end)")
        elif field.kind == "uuid":
            line(depth + 1, f"item = {self._decode('uuid', 'bytes(buf[p : p + 16])')}")
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
        if field.kind in FORMATS:
            return FORMATS[field.kind][1]
        return 1 if self._flexible else 2 if field.kind == "string" else 4

    def _sized(self, depth: int, kind: str, variable: str, name: str) -> None:
        line = self._source.line
        line(depth, "e = p + n")
        line(depth, "if e > end:")
        line(depth + 1, f"raise Malformed({f'{name} exceeds the message'!r})")
        line(depth, f"{variable} = " + ("str(buf[p:e], 'utf-8')" if kind == "string" else "bytes(buf[p:e])"))
        line(depth, "p = e")

    def _length(self, depth: int, *, short: bool) -> None:
        """`n`: the length, negative for null."""
        line = self._source.line
        if self._flexible:
            line(depth, "n = buf[p]")
            line(depth, "p += 1")
            line(depth, "if n > 127:")
            line(depth + 1, "n, p = read_uvarint(buf, p - 1)")
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
        line(3, "count, p = read_uvarint(buf, p - 1)")
        line(2, "for _ in range(count):")
        if not fields:
            line(3, "p = skip_tagged_field(buf, p, end)")
            return
        line(3, "tag, q = read_uvarint(buf, p)")
        for position, (field, variable) in enumerate(fields):
            line(3, f"{'if' if position == 0 else 'elif'} tag == {field.tag}:")
            line(4, "size, p = read_uvarint(buf, q)")
            line(4, "q = p + size")
            self._variable(4, field, variable)
            line(4, "if p != q:")
            line(5, f"raise Malformed({f'{field.name} does not have its declared length'!r})")
        line(3, "else:")
        line(4, "p = skip_tagged_field(buf, p, end)")
