"""Finds the compiled codec for the messages of the data path (`_plain_fetch.pyx`), if it may be used.

Owns its version. Messages in another form, and all messages if it was not built, are read and written in Python.
"""

from __future__ import annotations

from typing import Final

from fenceline.compiled import compiled

_ABI: Final = 5
"""Changes with every change of `_plain_fetch.pyx`, so that an outdated build is not used."""

plain_fetch: Final = compiled("fenceline.wire._plain_fetch", _ABI)
"""None: there is no fast path."""
