"""What is known of many clients, as long as it matters.

Owns when a client is forgotten: once its rate or bucket is what a new client's would be. Looking for these costs little
on average, since it is done again only when twice as many clients are known. Of more than `MOST_KNOWN` clients that
matter, those that came first are forgotten: a peer can choose any number of names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from typing import Final, Generic, Protocol, TypeVar

MOST_KNOWN: Final = 100_000
_FIRST_LOOK: Final = 1_000


class CanBeIdle(Protocol):
    """A rate or a bucket."""

    def is_idle(self, now_ms: int) -> bool: ...


K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=CanBeIdle)


class UntilIdle(Generic[K, V]):
    """A mapping whose values go when they are idle."""

    def __init__(self, most_known: int = MOST_KNOWN) -> None:
        self._most_known = most_known
        self._values: dict[K, V] = {}
        self._look_at = min(_FIRST_LOOK, most_known)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[K]:
        return iter(self._values)

    def of(self, key: K, make: Callable[[], V], now_ms: int) -> V:
        """The value of the key; `make` gives that of a new one."""
        found = self._values.get(key)
        if found is None:
            if len(self._values) >= self._look_at:
                self._forget(now_ms)
            found = self._values[key] = make()
        return found

    def _forget(self, now_ms: int) -> None:
        kept = {key: value for key, value in self._values.items() if not value.is_idle(now_ms)}
        surplus = len(kept) - self._most_known // 2
        if len(kept) >= self._most_known:
            kept = dict(islice(kept.items(), surplus, None))
        self._values = kept
        self._look_at = min(max(_FIRST_LOOK, 2 * len(kept)), self._most_known)
