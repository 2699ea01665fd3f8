"""The one error of this room: bytes that can not be what their sender says they are."""

from __future__ import annotations

from fenceline.errors import FencelineError


class MalformedRequest(FencelineError):
    """The peer's bytes can not be read: cut short, a length that points outside, null where nothing may be null.

    There is nothing to answer, because nothing after the error can be trusted; the connection closes. Parsers of
    responses and of logged records raise it too.
    """
