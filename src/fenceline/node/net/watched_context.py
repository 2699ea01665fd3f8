"""A context of TLS that follows the stores of its certificates: their files, and the configs that name them.

Owns when the files are looked at (for a new connection, at most every ten seconds, and when the configs change), the
exchange of the context, and the warnings before a certificate expires. New connections use the new certificates; open
ones keep theirs. Stores that cannot be used change nothing: the error is logged once. Files are read in threads, up to
a limit, and only if they are regular ones: their names come from requests.

Kafka reads the files again only when the broker's configs change.

Rules: security.md A9, A10, A13, A69.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeAlias, TypeVar

from fenceline.errors import OperatorError
from fenceline.node.logs import Logger
from fenceline.tls.handshakes import check_handshakes, check_own_handshake
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
_MAX_FILE_BYTES: Final = 4 << 20
"""More than the authorities of an operating system."""

Context = TypeVar("Context")
"""As the TLS library has it."""
MakeContext: TypeAlias = Callable[[TlsSettings, TlsMaterial, str], Context]


class WatchedContext(Generic[Context]):
    """See the module. Belongs to the event loop."""

    def __init__(
        self,
        lookup: Lookup,
        listener: str,
        make: MakeContext[Context],
        *,
        between_brokers: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Reads the certificates. Raises OperatorError if they are unusable. `between_brokers`: nodes must be able to
        connect to each other with them (A9)."""
        self._lookup = lookup
        self._listener = listener
        self._where = f"Listener {listener}"
        self._make = make
        self._between_brokers = between_brokers
        self._now_s = now_s
        self._settings = read_settings(lookup, self._where)
        self._seen = _fingerprint(lookup)
        self.material = read_material(lookup, self._where, read_store)
        self._context = make(self._settings, self.material, self._where)
        if between_brokers:
            check_own_handshake(self._settings, self.material, self._where)
        self._look_at_s = now_s() + _LOOK_EVERY_S
        self._warn_at_s = now_s()
        self._looking: asyncio.Future[None] | None = None
        self._looks_again = False
        self._is_start = False
        self._warn_if_it_expires()

    @property
    def expires(self) -> datetime | None:
        """When the own certificate expires, in UTC; None without one."""
        return self.material.identity.expires if self.material.identity is not None else None

    def for_connection(self) -> Context:
        """The context for a new connection. Files that have changed are read in a thread, for later ones."""
        if self._now_s() >= self._look_at_s and self._looking is None:
            self._look()
        return self._context

    def use(self, lookup: Lookup, *, is_start: bool = False) -> None:
        """The configs have changed: the stores are looked at, and used by new connections once they are read.
        `is_start`: they are not compared with those in use, which were only to last until the configs are known."""
        self._lookup, self._is_start = lookup, is_start
        if self._looking is None:
            self._look()
        else:
            self._looks_again = True

    async def settled(self) -> None:
        """Waits until the stores of the last `use` are read."""
        while self._looking is not None:
            await asyncio.wait((self._looking,))

    async def check(self, lookup: Lookup) -> None:
        """Raises OperatorError if `use` would not exchange the certificates for those of `lookup`."""
        await asyncio.get_running_loop().run_in_executor(None, self._read, lookup, self.material)

    def _look(self) -> None:
        self._look_at_s = self._now_s() + _LOOK_EVERY_S
        self._looks_again = False
        before = None if self._is_start else self.material
        self._is_start = False
        looking = asyncio.get_running_loop().run_in_executor(None, self._read_again, self._lookup, before)
        self._looking = asyncio.ensure_future(self._exchange(looking))

    async def _exchange(self, looking: asyncio.Future[tuple[TlsMaterial, Context] | None]) -> None:
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
            if self._looks_again:
                self._look()

    def _read_again(self, lookup: Lookup, before: TlsMaterial | None) -> tuple[TlsMaterial, Context] | None:
        """In a thread. None if nothing has changed. Raises OperatorError."""
        seen = _fingerprint(lookup)
        if seen == self._seen:
            return None
        self._seen = seen
        return self._read(lookup, before)

    def _read(self, lookup: Lookup, before: TlsMaterial | None) -> tuple[TlsMaterial, Context]:
        """In a thread. Raises OperatorError for stores that must not replace `before`."""
        try:
            return self._read_checked(lookup, before)
        except OperatorError:
            raise
        except Exception as error:  # the libraries have many for damaged certificates
            raise OperatorError(
                f"{self._where}: the certificates cannot be used: {error}", "Check the files and their passwords."
            ) from error

    def _read_checked(self, lookup: Lookup, before: TlsMaterial | None) -> tuple[TlsMaterial, Context]:
        material = read_material(lookup, self._where, read_store)
        if before is not None:
            check_exchange(
                before,
                material,
                allows_other_name=lookup("ssl.allow.dn.changes") == "true",
                allows_other_alternatives=lookup("ssl.allow.san.changes") == "true",
            )
        context = self._make(self._settings, material, self._where)
        if self._between_brokers:
            if before is not None:
                check_handshakes(self._settings, before, material, self._where)
            check_own_handshake(self._settings, material, self._where)
        return material, context

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


def _fingerprint(lookup: Lookup) -> tuple[object, ...]:
    """Changes whenever the stores do."""
    return tuple(map(lookup, STORE_KEYS)), tuple(_state_of(lookup(key)) for key in _FILES)


def _state_of(location: str | None) -> tuple[int, int, int] | None:
    """Changes whenever the file does."""
    if not location:
        return None
    try:
        found = os.stat(location)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_store(location: str) -> bytes:
    """The content of a store. Raises OSError, also for what is not a regular file or larger than any store."""
    # A FIFO without a writer must not block the thread.
    with open(os.open(location, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is not a regular file")
        content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise OSError(f"it is larger than {_MAX_FILE_BYTES} bytes")
    return content
