"""The error for bytes that cannot be parsed."""

from __future__ import annotations

from fenceline.errors import FencelineError


class MalformedRequest(FencelineError):
    """The peer's bytes cannot be parsed: truncated, a length out of bounds, null for a non-nullable field.

    There is no response, because nothing after the error can be trusted; the connection is closed. Parsers of
    responses and of stored records raise it too.
    """
