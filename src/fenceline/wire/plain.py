"""Finds the compiled codec of the messages that go with every record (`_plain_fetch.pyx`), where it may be used.

Owns its version. What has another form, and everything where it was not built, is read and written in Python.
"""

from __future__ import annotations

from typing import Final

from fenceline.compiled import compiled

_ABI: Final = 3
"""Changes with every change of `_plain_fetch.pyx`, so that a build of older sources is not used."""

plain_fetch: Final = compiled("fenceline.wire._plain_fetch", _ABI)
"""None: nothing goes the quick way."""
