"""A context of TLS that follows the files of its certificates.

Owns when the files are looked at (for a new connection, at most every ten seconds), the exchange of the context, and
the warnings before a certificate expires. New connections use the new certificates; open ones keep theirs. A file that
cannot be used changes nothing: the error is logged once.

Kafka reads the files again only when the broker's configs change.

Rules: security.md A10, A13, A69.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from fenceline.errors import OperatorError
from fenceline.node.logs import Logger
from fenceline.tls.settings import (
    STORE_KEYS,
    Lookup,
    TlsMaterial,
    TlsSettings,
    check_exchange,
    read_material,
    read_settings,
)

log = Logger("server")

_LOOK_EVERY_S: Final = 10.0
_WARN_BEFORE: Final = timedelta(days=30)
_WARN_EVERY_S: Final = 24 * 3600.0
_FILES: Final = tuple(key for key in STORE_KEYS if key.endswith(".location"))

MakeContext = Callable[[TlsSettings, TlsMaterial, str], ssl.SSLContext]


class WatchedContext:
    """See the module. Belongs to the event loop."""

    def __init__(
        self,
        lookup: Lookup,
        listener: str,
        make: MakeContext,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads the certificates. Raises OperatorError if they are unusable."""
        self._lookup = lookup
        self._listener = listener
        self._where = f"Listener {listener}"
        self._make = make
        self._now_s = now_s
        self._settings = read_settings(lookup, self._where)
        self._seen = self._fingerprint()
        self.material = read_material(lookup, self._where, _read_file)
        self._context = make(self._settings, self.material, self._where)
        self._look_at_s = now_s() + _LOOK_EVERY_S
        self._warn_at_s = now_s()
        self._looking: asyncio.Future[None] | None = None
        self._warn_if_it_expires()

    @property
    def expires(self) -> datetime | None:
        """When the own certificate expires, in UTC; None without one."""
        return self.material.identity.expires if self.material.identity is not None else None

    def for_connection(self) -> ssl.SSLContext:
        """The context for a new connection. Files that have changed are read in a thread, for later ones."""
        if self._now_s() >= self._look_at_s and self._looking is None:
            self._look_at_s = self._now_s() + _LOOK_EVERY_S
            looking = asyncio.get_running_loop().run_in_executor(None, self._read_again)
            self._looking = asyncio.ensure_future(self._exchange(looking))
        return self._context

    async def _exchange(self, looking: asyncio.Future[tuple[TlsMaterial, ssl.SSLContext] | None]) -> None:
        try:
            found = await looking
            if found is not None:
                self.material, self._context = found
                name = self.material.identity.name if self.material.identity is not None else ""
                log.info("certificates exchanged", listener=self._listener, name=name, expires=str(self.expires))
            self._warn_if_it_expires()
        except OperatorError as error:
            log.error("certificates not exchanged", listener=self._listener, reason=error.message, advice=error.advice)
        finally:
            self._looking = None

    def _read_again(self) -> tuple[TlsMaterial, ssl.SSLContext] | None:
        """In a thread. None if nothing has changed. Raises OperatorError."""
        seen = self._fingerprint()
        if seen == self._seen:
            return None
        self._seen = seen
        lookup = self._lookup
        material = read_material(lookup, self._where, _read_file)
        if self.material.identity is not None:
            check_exchange(
                self.material.identity,
                material.identity,
                allows_other_name=lookup("ssl.allow.dn.changes") == "true",
                allows_other_alternatives=lookup("ssl.allow.san.changes") == "true",
            )
        return material, self._make(self._settings, material, self._where)

    def _fingerprint(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_state_of(self._lookup(key)) for key in _FILES)

    def _warn_if_it_expires(self) -> None:
        expires = self.expires
        if expires is None or expires - datetime.now(UTC) > _WARN_BEFORE or self._now_s() < self._warn_at_s:
            return
        self._warn_at_s = self._now_s() + _WARN_EVERY_S
        log.warning(
            "certificate expires soon, or has expired",
            listener=self._listener,
            expires=expires.isoformat(),
            advice="Replace the files of ssl.keystore.location; no restart is needed.",
        )


def _state_of(location: str | None) -> tuple[int, int, int] | None:
    """Changes whenever the file does."""
    if not location:
        return None
    try:
        found = os.stat(location)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read_file(location: str) -> bytes:
    return Path(location).read_bytes()
