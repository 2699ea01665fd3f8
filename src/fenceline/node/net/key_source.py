"""The keys that verify tokens (JWKS): from a file, or from the server of an issuer.

Owns the copy of the keys, when it is read again (each `sasl.oauthbearer.jwks.endpoint.refresh.ms`, and for a key that
is not known, at most once a minute for each), and the errors. Reads in threads; without an answer the old keys stay
valid.

Rules: security.md A29, A30.
"""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from fenceline.errors import OperatorError
from fenceline.node.logs import Logger
from fenceline.security.oauth import read_keys

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

log = Logger("server")

_TIMEOUT_S: Final = 10.0
_MAX_BYTES: Final = 1 << 20
_UNKNOWN_EVERY_MS: Final = 60_000
_MAX_UNKNOWN: Final = 16
_MAX_ID_CHARACTERS: Final = 1_000


class KeySource:
    """See the module. Belongs to the event loop."""

    def __init__(self, url: str, *, refresh_ms: int, now_ms: Callable[[], int]) -> None:
        """Reads the keys. `now_ms`: of the monotonic clock. Raises OperatorError."""
        self._url = url
        self._refresh_ms = refresh_ms
        self._now_ms = now_ms
        try:
            self.keys: KeySet = _fetch(url)
        except (OSError, ValueError) as error:
            raise OperatorError(
                f"The keys of {url} cannot be read: {_reason(error)}",
                "Check sasl.oauthbearer.jwks.endpoint.url: https://, http:// or file://.",
            ) from None
        self._next_ms = now_ms() + refresh_ms
        self._asked_ms: dict[str, int] = {}
        self._fetching: asyncio.Future[None] | None = None

    def look(self) -> None:
        """Called for each login: read the keys again if it is time."""
        if self._now_ms() >= self._next_ms:
            self._begin()

    def unknown(self, key_id: str) -> None:
        """A token names a key that is not here: perhaps it is new."""
        now_ms = self._now_ms()
        if (
            len(key_id) > _MAX_ID_CHARACTERS
            or now_ms - self._asked_ms.get(key_id, -_UNKNOWN_EVERY_MS) < _UNKNOWN_EVERY_MS
        ):
            return
        while len(self._asked_ms) >= _MAX_UNKNOWN:
            del self._asked_ms[next(iter(self._asked_ms))]
        self._asked_ms[key_id] = now_ms
        self._begin()

    def _begin(self) -> None:
        if self._fetching is None:
            self._next_ms = self._now_ms() + self._refresh_ms
            self._fetching = asyncio.ensure_future(self._read_again())

    async def _read_again(self) -> None:
        try:
            self.keys = await asyncio.get_running_loop().run_in_executor(None, _fetch, self._url)
        except (OSError, ValueError) as error:
            log.error("keys of tokens not read; the old ones stay valid", url=self._url, reason=_reason(error))
        finally:
            self._fetching = None


def _fetch(url: str) -> KeySet:
    """Raises OSError, ValueError."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return read_keys(Path(unquote(parts.path)).read_bytes())
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{parts.scheme or 'nothing'} is no supported scheme")
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as response:
        content = response.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES} bytes")
    return read_keys(content)


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
