"""Requests on their way: one at a time for each peer and kind, each with a time limit.

Owns request ids and when a peer may be asked again. A change of role forgets everything: what is answered later belongs
to an election that is over, and is not looked at (`gaps.md G10`).
"""

from __future__ import annotations

from typing import NamedTuple

from fenceline.quorum.duties import Duty, Peer, Send
from fenceline.quorum.messages import RequestMessage

Slot = tuple[int, type[RequestMessage]]


class InFlight(NamedTuple):
    peer: Peer
    message: RequestMessage
    deadline_ms: int


class Outbox:
    """See the module."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._next_id = 1
        self._in_flight: dict[int, InFlight] = {}
        self._slots: dict[Slot, int] = {}
        self._not_before: dict[Slot, int] = {}

    def send(self, now_ms: int, peer: Peer, message: RequestMessage) -> Duty:
        request_id = self._next_id
        self._next_id += 1
        given_up = self._slots.get((peer.node_id, type(message)))
        if given_up is not None:
            del self._in_flight[given_up]
        self._in_flight[request_id] = InFlight(peer, message, now_ms + self._timeout_ms)
        self._slots[peer.node_id, type(message)] = request_id
        return Send(peer, request_id, message)

    def may_send(self, now_ms: int, node_id: int, kind: type[RequestMessage]) -> bool:
        slot = (node_id, kind)
        return slot not in self._slots and self._not_before.get(slot, now_ms) <= now_ms

    def has(self, kind: type[RequestMessage]) -> bool:
        """Whether a request of this kind is on its way to anybody."""
        return any(each is kind for _, each in self._slots)

    def put_off(self, node_id: int, kind: type[RequestMessage], until_ms: int) -> None:
        self._not_before[node_id, kind] = until_ms

    def take(self, request_id: int) -> InFlight | None:
        """The request has ended. None: it was given up before."""
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

    def next_deadline_ms(self, now_ms: int) -> int | None:
        """When a request expires, or a slot that waits may be used again."""
        times = [each.deadline_ms for each in self._in_flight.values()]
        times += [at for slot, at in self._not_before.items() if at > now_ms and slot not in self._slots]
        return min(times, default=None)
