"""Who may read the metrics endpoint: everybody who reaches it, or those who send the token of a file.

Owns the comparison of the token and the answer to a request without it. The file is read for each request, so that a
new token counts at once; a file that cannot be read, or is empty, lets nobody in. Never logs a token.

Runs in the threads of the endpoint.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from fenceline.errors import OperatorError
from fenceline.node.logs import Logger

log = Logger("metrics")

TOKEN_FILE: Final = "fenceline.metrics.token.file"
_SCHEME: Final = b"bearer"
_MAX_TOKEN_BYTES: Final = 4096

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class MetricsToken:
    """The token that a scraper must send."""

    def __init__(self, path: Path) -> None:
        """Raises OperatorError if there is no token in the file."""
        self._path = path
        self._fault = ""
        if self._read() is None:
            raise OperatorError(f"{TOKEN_FILE}: {self._fault}", "Write a token into the file, in one line.")

    def allows(self, authorization: str | None) -> bool:
        """`authorization`: the header of a request, as WSGI has it (Latin-1)."""
        token = self._read()
        scheme, _, given = (authorization or "").encode("latin-1", "replace").strip().partition(b" ")
        # Compared in any case: the time does not tell whether there is a token.
        is_equal = hmac.compare_digest(given.strip(), token or b"")
        return token is not None and scheme.lower() == _SCHEME and is_equal

    def _read(self) -> bytes | None:
        """None if there is none; says so once."""
        token, fault = b"", ""
        try:
            with self._path.open("rb") as file:
                token = file.read(_MAX_TOKEN_BYTES + 1).strip()
        except OSError as error:
            fault = f"{self._path} cannot be read: {error.strerror}"
        if not fault and (not token or len(token) > _MAX_TOKEN_BYTES or len(token.split()) > 1):
            fault = f"{self._path} has no token of 1 to {_MAX_TOKEN_BYTES} bytes without spaces"
        if fault and fault != self._fault:
            log.error("metrics are refused", reason=fault)
        self._fault = fault
        return None if fault else token


def guarded(app: WsgiApp, token: MetricsToken) -> WsgiApp:
    """The same application for those who have the token, and 401 for others, whatever they ask for."""

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if token.allows(environ.get("HTTP_AUTHORIZATION")):
            return app(environ, start_response)
        body = b"The header Authorization: Bearer, with the token of this node, is missing or wrong.\n"
        headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(body))), ("WWW-Authenticate", "Bearer")]
        start_response("401 Unauthorized", headers)
        return [body]

    return answer


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address; empty: all interfaces."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
