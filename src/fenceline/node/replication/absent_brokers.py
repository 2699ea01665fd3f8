"""Brokers for which Metadata responses briefly differ from the metadata image.

Owns this node's own observations of brokers that stopped, and the time they were fenced. Never decides leadership or
fencing, opens no connection and sets no timer: the replica fetchers' connections report here.

| broker                                                    | Metadata responses for its topics                      |
|-----------------------------------------------------------|--------------------------------------------------------|
| leads; closed its connection to this node, or refuses one | LEADER_NOT_AVAILABLE; clients soon ask again           |
| was recently fenced                                       | still listed among the brokers, and leads nothing      |

The first row applies until the broker accepts a connection, its metadata changes, or a session timeout has passed. It
is for clients that refresh their metadata before a new leader is elected: a client that gets the dead leader again
keeps it until its next refresh, in librdkafka a second later. A broker that still leads after a session timeout is in
contact with the controller, so only this node cannot reach it.

The second row is for clients that refresh later. librdkafka (2.10 and later) drops a broker that is no longer listed
together with its partitions, even if the same response names a new leader, and refreshes again a second later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.clock import Clock

STILL_NAMED_MS: Final = 10_000
"""A few refresh intervals of any client, and about the default session timeout: how long a fenced broker stays
listed."""


class Absent(NamedTuple):
    """disconnected: brokers not returned as leaders. recently_fenced: brokers still listed. By id."""

    disconnected: frozenset[int] = frozenset()
    recently_fenced: frozenset[int] = frozenset()


NO_ABSENT: Final = Absent()


class AbsentBrokers:
    """See the module. Event loop only."""

    def __init__(self, clock: Clock, *, session_ms: int) -> None:
        """`session_ms`: `broker.session.timeout.ms`, whose effective value is the controllers'."""
        self._clock = clock
        self._session_ms = session_ms
        self._disconnected_ms: dict[int, int] = {}
        """Since when, by `Clock.monotonic_ms`. An entry older than a session is ignored but stays until the broker
        reconnects."""
        self._fenced_ms: dict[int, int] = {}
        self._unfenced: set[int] = set()

    def disconnected(self, broker_id: int) -> None:
        """The broker closed its connection to this node, or refused one."""
        self._disconnected_ms.setdefault(broker_id, self._clock.monotonic_ms())

    def reconnected(self, broker_id: int) -> None:
        """The broker accepted a connection, or this node no longer has one to it."""
        self._disconnected_ms.pop(broker_id, None)

    def image_changed(self, image: MetadataImage, changed: Iterable[int]) -> None:
        """Apply metadata changes of the brokers in `changed`; at first, of all brokers."""
        for broker_id in changed:
            self._disconnected_ms.pop(broker_id, None)
            broker = image.brokers.get(broker_id)
            if broker is not None and not broker.fenced:
                self._unfenced.add(broker_id)
                self._fenced_ms.pop(broker_id, None)
                continue
            if broker is None:
                self._fenced_ms.pop(broker_id, None)
            elif broker_id in self._unfenced:
                self._fenced_ms[broker_id] = self._clock.monotonic_ms()
            self._unfenced.discard(broker_id)

    def current(self) -> Absent:
        """The current state; `NO_ABSENT` itself if there is none."""
        if not self._disconnected_ms and not self._fenced_ms:
            return NO_ABSENT
        now_ms = self._clock.monotonic_ms()
        for broker_id, since_ms in list(self._fenced_ms.items()):
            if now_ms >= since_ms + STILL_NAMED_MS:
                del self._fenced_ms[broker_id]
        disconnected = frozenset(
            each for each, since_ms in self._disconnected_ms.items() if now_ms < since_ms + self._session_ms
        )
        return Absent(disconnected, frozenset(self._fenced_ms)) if disconnected or self._fenced_ms else NO_ABSENT
