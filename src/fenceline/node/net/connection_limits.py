"""How many connections a node accepts, and how fast: in all, for each listener, and from each address.

Owns the counts of open connections, and the decision about a new one. A connection that comes too fast is not read for
up to a second; one that exceeds the quota of its address is then closed. The listener between brokers does not count
towards `max.connections` of the node if there are others, so that clients cannot shut brokers out.

Kafka lets a connection above `max.connections` wait until another is closed; here it is closed, and the client tries
again.

Rules: security.md A63, A69.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from fenceline.config.connections import OVERRIDES, PER_IP, connection_overrides
from fenceline.errors import OperatorError
from fenceline.quotas.entities import AddressQuotas
from fenceline.quotas.rates import WindowedRate, Windows
from fenceline.quotas.until_idle import UntilIdle

TYPE_KEY: Final = "connection_creation_rate"
_UNLIMITED: Final = 2**31 - 1

Lookup = Callable[[str], str | None]


LIMITS: Final = ("node", "listener", "address", "rate of the address")
"""What a connection may exceed, as in metrics."""
_OF_NODE, _OF_LISTENER, _OF_ADDRESS, _OF_RATE = LIMITS


class Admission(NamedTuple):
    """`refusal` None: the connection is served. It is not read for `delay_ms`, or closed after it."""

    refusal: str | None = None
    delay_ms: int = 0
    limit: str = ""
    """One of `LIMITS`, if the connection is refused."""


class _Limits(NamedTuple):
    most: int
    rate: int


class ConnectionLimits:
    """Belongs to the event loop."""

    def __init__(
        self,
        lookup: Lookup,
        of_listener: Callable[[str], Lookup],
        quotas: Callable[[], Mapping[tuple[tuple[str, str | None], ...], Mapping[str, float]]],
        now_ms: Callable[[], int],
        *,
        windows: Windows = Windows(),  # noqa: B008 - immutable
        exempt_listener: str | None = None,
    ) -> None:
        """`lookup`: broker keys as they are in force; `of_listener`: those with a listener's prefix, None without.
        `quotas`: of the metadata. `exempt_listener`: the one between brokers, if there are others. Raises
        OperatorError."""
        self._lookup = lookup
        self._of_listener = of_listener
        self._quotas = quotas
        self._now_ms = now_ms
        self._windows = windows
        self._exempt = exempt_listener
        self._open: Counter[str] = Counter()
        """By listener."""
        self._from: Counter[str] = Counter()
        """By address."""
        self._rates: dict[str, WindowedRate] = {}
        """By listener, and of all under ""."""
        self._address_quotas = AddressQuotas(TYPE_KEY)
        self._address_rates: UntilIdle[str, WindowedRate] = UntilIdle()
        self._listeners: dict[str, _Limits] = {}
        self.settings_changed()

    def settings_changed(self) -> None:
        """Keys may have other values. Raises OperatorError, and keeps the former ones."""
        overrides = parse_overrides(self._lookup(OVERRIDES) or "")
        self._all = self._limits(self._lookup)
        self._per_address = int(self._lookup(PER_IP) or _UNLIMITED)
        self._overrides = overrides
        self._listeners.clear()

    def open(self, listener: str, address: str) -> Admission:
        """A connection was accepted; it counts until `closed`, whatever the answer."""
        self._open[listener] += 1
        self._from[address] += 1
        return self._admission(listener, address)

    def closed(self, listener: str, address: str) -> None:
        for counter, key in ((self._open, listener), (self._from, address)):
            counter[key] -= 1
            if counter[key] <= 0:
                del counter[key]

    def counts(self, listener: str) -> bool:
        """Whether its connections count towards the limit of the node."""
        return listener != self._exempt

    def surplus(self) -> int:
        """How many connections there are above the limit of the node, after it was lowered."""
        return max(0, self._counted() - self._all.most)

    def _counted(self) -> int:
        return sum(self._open.values()) - (self._open[self._exempt] if self._exempt is not None else 0)

    def _admission(self, listener: str, address: str) -> Admission:
        own = self._listeners.get(listener)
        if own is None:
            own = self._listeners[listener] = self._limits(self._of_listener(listener))
        if self.counts(listener) and self._counted() > self._all.most:
            return Admission("too many connections (max.connections)", limit=_OF_NODE)
        if self._open[listener] > own.most:
            reason = f"too many connections (listener.name.{listener.lower()}.max.connections)"
            return Admission(reason, limit=_OF_LISTENER)
        most = self._overrides.get(address, self._per_address)
        if self._from[address] > most:
            reason = f"more than {most} connections from its address (max.connections.per.ip)"
            return Admission(reason, limit=_OF_ADDRESS)
        return self._pace(listener, address, own)

    def _pace(self, listener: str, address: str, own: _Limits) -> Admission:
        now_ms, longest_ms = self._now_ms(), self._windows.sample_ms
        quota = self._address_quotas.of(self._quotas(), address)
        if quota is not None:
            rate = self._address_rates.of(address, self._new_rate, now_ms)
            rate.record(1, now_ms)
            delay_ms = rate.throttle_ms(quota, now_ms)
            if delay_ms:
                rate.record(-1, now_ms)
                return Admission(f"its address exceeds {TYPE_KEY}={quota:g}", min(delay_ms, longest_ms), _OF_RATE)
        delays = [
            self._record(name, limits.rate, now_ms)
            for name, limits in ((listener, own), ("", self._all))
            if limits.rate < _UNLIMITED and (name or self.counts(listener))
        ]
        return Admission(None, min(max(delays, default=0), longest_ms))

    def _new_rate(self) -> WindowedRate:
        return WindowedRate(self._windows)

    def _record(self, name: str, quota: float, now_ms: int) -> int:
        rate = self._rates.get(name)
        if rate is None:
            rate = self._rates[name] = self._new_rate()
        rate.record(1, now_ms)
        return rate.throttle_ms(quota, now_ms)

    @staticmethod
    def _limits(lookup: Lookup) -> _Limits:
        most, rate = lookup("max.connections"), lookup("max.connection.creation.rate")
        return _Limits(int(most or _UNLIMITED), int(rate or _UNLIMITED))


def parse_overrides(text: str) -> dict[str, int]:
    """`max.connections.per.ip.overrides`: limits by address. Raises OperatorError."""
    found: dict[str, int] = {}
    for host, count in connection_overrides(text):
        try:
            addresses = {str(each[4][0]) for each in socket.getaddrinfo(host, None)}
        except OSError:
            raise OperatorError(f"{OVERRIDES}: {host} cannot be resolved", "Write its address.") from None
        found.update(dict.fromkeys(addresses, count))
    return found
