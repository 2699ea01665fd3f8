"""Compiles the schema of one message version into two Python functions: one that writes it, one that reads it.

Owns the translation of schemas to source code (`compiled_writer.py`, `compiled_reader.py`). Knows no message by name,
caches nothing (callers cache the results).

How it works: adjacent fields of fixed width become one `struct` call, all others straight-line code on local variables,
so a field costs few calls. Every read is checked against the end of the buffer, and an array may not claim more
elements than the remaining bytes can hold: memory is bounded by the size of the input. Known tagged fields are written
if they differ from their default, unknown ones are skipped (KIP-482). Nullable structs are encoded as in KIP-893.
"""

from __future__ import annotations

from fenceline.wire.codec_source import Conversions
from fenceline.wire.compiled_reader import READ_ERRORS, Read, compile_reader
from fenceline.wire.compiled_writer import Write, compile_writer

__all__ = ["READ_ERRORS", "Conversions", "Read", "Write", "compile_reader", "compile_writer"]
