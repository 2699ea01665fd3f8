"""Requests in flight: one at a time for each peer and type, each with a timeout.

Owns request ids and the backoff of peers. A change of role forgets all requests: a later response belongs to an
election that is over and is ignored (`gaps.md G10`). Failures of an address are not forgotten: the first ones cause a
short backoff, so that a restarted node is found at once, and the backoff grows to a second while nothing arrives from
there.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fenceline.quorum.duties import Duty, Peer, Send
from fenceline.quorum.messages import RequestMessage
from fenceline.rng import Rng

Slot = tuple[int, type[RequestMessage]]
Address = tuple[str, int]

_SHORT_BACKOFFS: Final = 5
_LONGEST_BACKOFF_MS: Final = 1000
_MAX_ADDRESSES: Final = 1000
"""Above it the counters are reset: a cluster may keep changing its nodes' addresses."""


class InFlight(NamedTuple):
    peer: Peer
    message: RequestMessage
    sent_ms: int
    deadline_ms: int


class QuorumOutbox:
    """See the module."""

    def __init__(self, timeout_ms: int, backoff_ms: int, rng: Rng) -> None:
        """`backoff_ms` is the initial backoff after a failure."""
        self._timeout_ms = timeout_ms
        self._backoff_ms = backoff_ms
        self._rng = rng
        self._next_id = 1
        self._in_flight: dict[int, InFlight] = {}
        self._slots: dict[Slot, int] = {}
        self._not_before: dict[Slot, int] = {}
        self._backoff_until: dict[Address, int] = {}
        """Nothing is sent there until this time."""
        self._failures: dict[Address, int] = {}
        """Consecutive failures; a reachable address has no entry."""

    def send(self, now_ms: int, peer: Peer, message: RequestMessage) -> Duty:
        request_id = self._next_id
        self._next_id += 1
        given_up = self._slots.get((peer.node_id, type(message)))
        if given_up is not None:
            del self._in_flight[given_up]
        self._in_flight[request_id] = InFlight(peer, message, now_ms, now_ms + self._timeout_ms)
        self._slots[peer.node_id, type(message)] = request_id
        return Send(peer, request_id, message)

    def may_send(self, now_ms: int, peer: Peer, kind: type[RequestMessage]) -> bool:
        slot = (peer.node_id, kind)
        if slot in self._slots or self._not_before.get(slot, now_ms) > now_ms:
            return False
        return not self.is_backing_off(now_ms, peer)

    def is_backing_off(self, now_ms: int, peer: Peer) -> bool:
        """Whether its address is in backoff after a failure."""
        return bool(self._backoff_until) and self._backoff_until.get((peer.host, peer.port), now_ms) > now_ms

    def has(self, kind: type[RequestMessage]) -> bool:
        """Whether a request of this type is in flight to any peer."""
        for _, each in self._slots:  # noqa: SIM110 - called after every step of a quorum
            if each is kind:
                return True
        return False

    def give_up(self, kind: type[RequestMessage]) -> None:
        """Forget the requests of this type: their responses come too late."""
        for slot in [slot for slot in self._slots if slot[1] is kind]:
            del self._in_flight[self._slots.pop(slot)]

    def postpone(self, node_id: int, kind: type[RequestMessage], until_ms: int) -> None:
        self._not_before[node_id, kind] = until_ms

    def request_failed(self, now_ms: int, sent: InFlight) -> None:
        """The request failed: back off from its address, counted from when the request was sent."""
        address = (sent.peer.host, sent.peer.port)
        if len(self._failures) >= _MAX_ADDRESSES:
            self._failures.clear()
        failures = self._failures[address] = self._failures.get(address, 0) + 1
        backoff_ms = self._backoff_ms
        if failures > _SHORT_BACKOFFS:
            longest_backoff_ms = min(
                self._backoff_ms << min(failures - _SHORT_BACKOFFS, 20), max(_LONGEST_BACKOFF_MS, self._backoff_ms)
            )
            backoff_ms = longest_backoff_ms // 2 + self._rng.randrange(longest_backoff_ms // 2 + 1)
        self._backoff_until[address] = max(sent.sent_ms + backoff_ms, now_ms + self._backoff_ms)

    @property
    def has_failures(self) -> bool:
        """Whether any address has failed lately."""
        return bool(self._failures)

    def peer_reachable(self, peer: Peer) -> None:
        """A message arrived from the peer."""
        if self._failures:
            self._failures.pop((peer.host, peer.port), None)
            self._backoff_until.pop((peer.host, peer.port), None)

    def complete(self, request_id: int) -> InFlight | None:
        """Remove a request that has ended. None: it was dropped before."""
        found = self._in_flight.pop(request_id, None)
        if found is not None:
            del self._slots[found.peer.node_id, type(found.message)]
        return found

    def expired(self, now_ms: int) -> list[int]:
        return [request_id for request_id, each in self._in_flight.items() if each.deadline_ms <= now_ms]

    def clear(self) -> None:
        self._in_flight.clear()
        self._slots.clear()
        self._not_before.clear()
        self._backoff_until.clear()

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When a request expires, or a slot or an address leaves its backoff."""
        times = [each.deadline_ms for each in self._in_flight.values()]
        if self._not_before:
            times += [at for slot, at in self._not_before.items() if at > now_ms and slot not in self._slots]
        if self._backoff_until:
            times += [at for at in self._backoff_until.values() if at > now_ms]
        return min(times) if times else None
