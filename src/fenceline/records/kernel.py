"""Chooses the kernel: Cython when it was built and fits, else the pure-Python twin.

`FENCELINE_PURE_PYTHON=1` forces the twin. Owns nothing else; import the functions from here.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import TYPE_CHECKING

from fenceline.records import _kernel_py

if TYPE_CHECKING:
    from fenceline.records._kernel_py import IS_NATIVE, Walk, append_record, decode, encode, murmur2, walk
else:

    def _choose() -> ModuleType:
        if os.environ.get("FENCELINE_PURE_PYTHON", "") not in ("", "0"):
            return _kernel_py
        try:
            from fenceline.records import _kernel
        except ImportError:
            return _kernel_py
        # A build left over from another version of the sources must not be mixed with this one.
        return _kernel if getattr(_kernel, "ABI", None) == _kernel_py.ABI else _kernel_py

    _chosen = _choose()
    IS_NATIVE = _chosen.IS_NATIVE
    Walk = _kernel_py.Walk
    walk = _chosen.walk
    decode = _chosen.decode
    append_record = _chosen.append_record
    encode = _chosen.encode
    murmur2 = _chosen.murmur2

__all__ = ["IS_NATIVE", "Walk", "append_record", "decode", "encode", "murmur2", "walk"]
