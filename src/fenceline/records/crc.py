"""CRC-32C, by the C extension of the package `crc32c`.

Owns where the function comes from. The package's own `__init__` asks importlib.metadata for its version, which imports
email, zipfile and shutil on the way: a twentieth of a node's start for a string that nobody reads. So the extension is
loaded by itself where it can be found, and through the package where not.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import Final


def _extension() -> Callable[..., int]:
    package = PathFinder.find_spec("crc32c")
    places = None if package is None else package.submodule_search_locations
    found = None if places is None else PathFinder.find_spec("_crc32c", places)
    if found is None or found.loader is None:
        from crc32c import crc32c as whole_package

        return whole_package
    module = module_from_spec(found)
    found.loader.exec_module(module)
    function: Callable[..., int] = module.crc32c
    return function


crc32c: Final = _extension()
"""CRC-32C of a buffer; a second argument is the CRC of what lies in front of it."""
