"""CRC-32C, by the C extension of the package `crc32c`.

Owns the import of the function. The package's own `__init__` reads its version from importlib.metadata, which imports
email, zipfile and shutil: a twentieth of a node's start time for an unused string. So the extension is loaded directly
if it can be found, and through the package otherwise.
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
"""CRC-32C of a buffer; a second argument is the CRC of the bytes before it."""
