"""Which brokers clients are told of in another way than the metadata says, for a moment.

Owns what this node has seen by itself of brokers that ended, and when they were fenced. Never decides who leads or who
is fenced, opens no connection and sets no timer: followers' connections tell it, and it is asked for what holds now.

| broker                                                    | what clients are told that ask about its topics        |
|-----------------------------------------------------------|--------------------------------------------------------|
| leads; closed its connection to this node, or refuses one | LEADER_NOT_AVAILABLE, which it is; they ask again soon |
| was fenced lately                                         | it is still among the brokers, and leads nothing       |

The first holds until it takes a connection again, the metadata has something new of it, or a session is over. It is for
clients that ask before another leads. Who is told of the dead leader once more believes it until its next look:
librdkafka then looks every second only. It ends with a session at the latest: whoever still leads then is heard by the
controller, and it is this node that does not reach it.

The second is for clients that ask afterwards. librdkafka (2.10 and later) gives up the broker that is not named
any more and the partition together, also where the same answer names a new leader: it looks again a second later.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.clock import Clock

STILL_NAMED_MS: Final = 10_000
"""Some steps of any client, and about what a session lasts by default: so long it is named without fast fencing."""


class Absent(NamedTuple):
    """left: their leaders are not told. fenced_lately: they are named among the brokers. By id."""

    left: frozenset[int] = frozenset()
    fenced_lately: frozenset[int] = frozenset()


NOBODY: Final = Absent()


class AbsentBrokers:
    """See the module. All methods belong to the loop."""

    def __init__(self, clock: Clock, *, session_ms: int) -> None:
        """`session_ms`: `broker.session.timeout.ms`, which is the controllers' in truth."""
        self._clock = clock
        self._session_ms = session_ms
        self._left_ms: dict[int, int] = {}
        """Since when, by `Clock.monotonic_ms`. Who is away for too long stays here, and counts only once it came."""
        self._fenced_ms: dict[int, int] = {}
        self._unfenced: set[int] = set()

    def left(self, broker_id: int) -> None:
        """It closed its connection to this node, or refused one."""
        self._left_ms.setdefault(broker_id, self._clock.monotonic_ms())

    def came(self, broker_id: int) -> None:
        """It took a connection, or this node has none to it any more."""
        self._left_ms.pop(broker_id, None)

    def follow(self, image: MetadataImage, changed: Iterable[int]) -> None:
        """What the metadata says of brokers that have changed in it; at first, of all."""
        for broker_id in changed:
            self._left_ms.pop(broker_id, None)
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

    def now(self) -> Absent:
        """What holds at this moment; `NOBODY` itself where there is nothing to tell."""
        if not self._left_ms and not self._fenced_ms:
            return NOBODY
        now_ms = self._clock.monotonic_ms()
        for broker_id, since_ms in list(self._fenced_ms.items()):
            if now_ms >= since_ms + STILL_NAMED_MS:
                del self._fenced_ms[broker_id]
        left = frozenset(each for each, since_ms in self._left_ms.items() if now_ms < since_ms + self._session_ms)
        return Absent(left, frozenset(self._fenced_ms)) if left or self._fenced_ms else NOBODY
