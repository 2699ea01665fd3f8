"""Chooses the kernel: Cython if a matching build exists, else the pure-Python twin.

`FENCELINE_PURE_PYTHON=1` forces the twin. Owns nothing else; import the functions from here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fenceline.compiled import compiled
from fenceline.records import _columns_py, _kernel_py

if TYPE_CHECKING:
    from fenceline.records._columns_py import ColumnBuilder, Columns, encode_columns, hash_column
    from fenceline.records._kernel_py import IS_NATIVE, Walk, append_record, decode, decode_rows, encode, murmur2, walk
else:
    _chosen = compiled("fenceline.records._kernel", _kernel_py.ABI)
    _records = _chosen or _kernel_py
    _columns = _chosen or _columns_py
    Columns = _columns_py.Columns
    Walk = _kernel_py.Walk
    IS_NATIVE = _records.IS_NATIVE
    append_record = _records.append_record
    decode = _records.decode
    decode_rows = _records.decode_rows
    encode = _records.encode
    murmur2 = _records.murmur2
    walk = _records.walk
    ColumnBuilder = _columns.ColumnBuilder
    encode_columns = _columns.encode_columns
    hash_column = _columns.hash_column

__all__ = [
    "IS_NATIVE",
    "ColumnBuilder",
    "Columns",
    "Walk",
    "append_record",
    "decode",
    "decode_rows",
    "encode",
    "encode_columns",
    "hash_column",
    "murmur2",
    "walk",
]
