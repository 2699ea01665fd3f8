"""Requests that are answered with an error, late, twice, or never.

Owns the rules in force, how often each was applied, and what happens to a request that one matches. Requests that no
rule matches are handled as ever. One rule, the first that matches, applies to a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from fenceline.log.core.disk import FileSlice
from fenceline.node.net.connection import PendingAnswer, ServerConnection
from fenceline.node.net.sending import Part
from fenceline.node.net.server import Buffer, Server
from fenceline.testing.lab.fault_state import Effect, RequestFault
from fenceline.testing.lab.nodes.channel import ControlChannel
from fenceline.testing.lab.nodes.error_answers import (
    error_answer,
    is_answered_first,
    with_error,
    with_throttle_time,
)
from fenceline.testing.lab.nodes.links import FaultyLinks
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import Entity, read_request
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.frame import (
    RequestHeader,
    encode_response_frame,
    parse_request_header,
    parse_response_header,
)

Outcome = list[Buffer] | PendingAnswer | None

_TOPIC_NAMES: Final = frozenset({"topic", "name", "topic_name"})
_SIZE_PREFIX_BYTES: Final = 4


class FaultyServer(Server):
    """A server whose requests go through the rules of `faults`, once that is set."""

    faults: RequestFaults | None = None

    def handle(self, connection: ServerConnection, frame: memoryview) -> Outcome:
        faults = self.faults
        if faults is None or not faults.concern(connection):
            return super().handle(connection, frame)
        return faults.handle(connection, frame, super().handle)


class _Request:
    """One request, decoded as far as the rules ask for it."""

    def __init__(self, faults: RequestFaults, connection: ServerConnection, frame: memoryview) -> None:
        self.connection = connection
        self.frame = frame
        self.header: RequestHeader = parse_request_header(frame)
        self._faults = faults
        self._entity: Any = None
        self._is_decoded = False

    @property
    def api(self) -> str:
        return ApiKey(self.header.api_key).name

    @property
    def body(self) -> bytes:
        return bytes(self.frame[self.header.body_position :])

    @property
    def entity(self) -> Any:
        """None for a request that cannot be decoded."""
        if not self._is_decoded:
            self._is_decoded = True
            try:
                self._entity = read_request(self.header.api_key, self.header.api_version, self.body)
            except MalformedRequest:
                self._entity = None
        return self._entity

    def keep(self) -> None:
        """Make the frame last longer than the call that handles it."""
        self.frame = memoryview(bytes(self.frame))

    def topics(self) -> set[str]:
        """The topics that it names; those of a Fetch include the topics of its session."""
        named = set(_topic_names(self.entity, self._faults.topic_name)) if self.entity is not None else set()
        if self.header.api_key == ApiKey.FETCH:
            known = self._faults.fetched_topics.setdefault(self.connection.peer, set())
            known |= named
            return known
        return named

    def groups(self) -> set[str]:
        entity = self.entity
        found = {getattr(entity, "group_id", "")}
        for each in getattr(entity, "groups", None) or ():
            found.add(each if isinstance(each, str) else getattr(each, "group_id", ""))
        if self.header.api_key == ApiKey.FIND_COORDINATOR and getattr(entity, "key_type", 0) == 0:
            found |= {getattr(entity, "key", ""), *getattr(entity, "coordinator_keys", ())}
        return found - {""}

    def as_json(self) -> dict[str, Any]:
        """For a predicate of the laboratory."""
        return {
            "api": self.api,
            "version": self.header.api_version,
            "client_id": self.header.client_id,
            "topics": sorted(self.topics()),
            "groups": sorted(self.groups()),
            "fields": None if self.entity is None else _plain(self.entity),
        }


class RequestFaults:
    """The rules of one node. `topic_name` returns the name of a topic id; None if there is none."""

    def __init__(
        self,
        links: FaultyLinks,
        channel: ControlChannel,
        topic_name: Callable[[UUID], str | None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.topic_name = topic_name
        self.fetched_topics: dict[str, set[str]] = {}
        """By peer, the topics of its Fetch requests while there are rules."""
        self._links = links
        self._channel = channel
        self._loop = loop
        self._rules: tuple[RequestFault, ...] = ()
        self._seen: dict[int, int] = {}
        """By rule, how many requests have matched."""
        self._held: dict[PendingAnswer, None] = {}
        """Answers that never come."""

    def set(self, rules: Iterable[RequestFault]) -> None:
        """Replace the rules; those of before that stay go on counting."""
        self._rules = tuple(rules)
        self._seen = {rule.fault_id: self._seen.get(rule.fault_id, 0) for rule in self._rules}
        if not self._rules:
            self.fetched_topics.clear()

    def concern(self, connection: ServerConnection) -> bool:
        """Whether a request of this connection must be looked at."""
        return bool(self._rules) or connection.peer in self._links.unnamed

    def handle(
        self,
        connection: ServerConnection,
        frame: memoryview,
        handle: Callable[[ServerConnection, memoryview], Outcome],
    ) -> Outcome:
        """As `Server.handle`, which `handle` is."""
        conversation = connection.conversation
        if conversation is not None and conversation.expects_raw_token:
            return handle(connection, frame)
        request = _Request(self, connection, frame)
        if connection.peer in self._links.unnamed:
            self._links.name(connection.peer, request.header.client_id)
        return self._decide(request, iter(self._rules), handle)

    # --- which rule ---------------------------------------------------------------------------------------------------

    def _decide(
        self,
        request: _Request,
        rules: Iterator[RequestFault],
        handle: Callable[[ServerConnection, memoryview], Outcome],
    ) -> Outcome:
        for rule in rules:
            if not self._may_match(rule, request):
                continue
            if not rule.asks:
                if self._counts(rule):
                    return self._apply(rule, request, handle)
                continue
            request.keep()
            later = PendingAnswer()

            def answered(matches: bool, rule: RequestFault = rule, later: PendingAnswer = later) -> None:
                if matches and self._counts(rule):
                    outcome = self._apply(rule, request, handle)
                else:
                    outcome = self._decide(request, rules, handle)
                _give(outcome, later)

            self._channel.ask(rule.fault_id, request.as_json(), answered)
            return later
        return _handled(request, handle)

    def _may_match(self, rule: RequestFault, request: _Request) -> bool:
        header = request.header
        if rule.api is not None and rule.api != header.api_key:
            return False
        if rule.client_id is not None and rule.client_id != header.client_id:
            return False
        if rule.topic is not None and rule.topic not in request.topics():
            return False
        return rule.group is None or rule.group in request.groups()

    def _counts(self, rule: RequestFault) -> bool:
        """Count a request that matches; whether the rule applies to it."""
        seen = self._seen.get(rule.fault_id, 0)
        self._seen[rule.fault_id] = seen + 1
        return seen >= rule.skip and (not rule.times or seen < rule.skip + rule.times)

    # --- what happens -------------------------------------------------------------------------------------------------

    def _apply(
        self, rule: RequestFault, request: _Request, handle: Callable[[ServerConnection, memoryview], Outcome]
    ) -> Outcome:
        self._channel.event(
            "request fault",
            fault=rule.fault_id,
            effect=rule.effect,
            api=request.api,
            client_id=request.header.client_id,
        )
        match rule.effect:
            case Effect.ERROR:
                return self._error(int(rule.value), request, handle)
            case Effect.DELAY:
                return self._delayed(rule.value, request, handle)
            case Effect.THROTTLE:
                request.connection.mute(int(rule.value))
                outcome = _handled(request, handle)
                header = request.header
                return _changed(
                    outcome,
                    lambda answer: with_throttle_time(
                        header.api_key, header.api_version, answer, _body_at(header, answer), int(rule.value)
                    ),
                )
            case Effect.LOSE_REQUEST:
                self._reset(request)
                return self._never()
            case Effect.LOSE_ANSWER:
                _take(_handled(request, handle), lambda buffers: self._reset(request))
                return self._never()
            case Effect.HANG:
                _take(_handled(request, handle), lambda buffers: None)
                return self._never()

    def _error(
        self, code: int, request: _Request, handle: Callable[[ServerConnection, memoryview], Outcome]
    ) -> Outcome:
        header = request.header
        key, version = header.api_key, header.api_version
        if is_answered_first(key):
            return _changed(_handled(request, handle), lambda answer: _with_error(header, answer, code))
        if key == ApiKey.PRODUCE and getattr(request.entity, "acks", 1) == 0:
            return None
        return encode_response_frame(
            key, version, header.correlation_id, error_answer(key, version, request.body, code)
        )

    def _delayed(
        self, delay_s: float, request: _Request, handle: Callable[[ServerConnection, memoryview], Outcome]
    ) -> PendingAnswer:
        request.keep()
        later = PendingAnswer()

        def handle_now() -> None:
            later.on_abandoned(None)
            _give(_handled(request, handle), later)

        timer = self._loop.call_later(delay_s, handle_now)
        later.on_abandoned(timer.cancel)
        return later

    def _reset(self, request: _Request) -> None:
        link = self._links.of(request.connection.peer)
        if link is not None:
            self._loop.call_soon(link.reset)

    def _never(self) -> PendingAnswer:
        never = PendingAnswer()
        self._held[never] = None
        never.on_abandoned(lambda: self._held.pop(never, None))
        return never


class _Taker:
    """Takes the answer of a `PendingAnswer` in place of its connection."""

    def __init__(self, take: Callable[[Sequence[Part] | None], None], fail: Callable[[str], None]) -> None:
        self._take = take
        self._fail = fail

    def answer_pending(
        self, pending: PendingAnswer, buffers: Sequence[Part] | None, on_sent: Callable[[], None] | None = None
    ) -> None:
        self._take(buffers)
        if on_sent is not None:
            on_sent()

    def fail_pending(self, pending: PendingAnswer, reason: str) -> None:
        self._fail(reason)

    def close(self, reason: str, *, quiet: bool = False) -> None:
        self._fail(reason)

    def abort(self) -> None:
        pass


def _handled(request: _Request, handle: Callable[[ServerConnection, memoryview], Outcome]) -> Outcome:
    connection = request.connection
    outcome = handle(connection, request.frame)
    if connection.limited is not None:
        connection.limited.handled()
        connection.limited = None
    return outcome


def _take(
    outcome: Outcome,
    take: Callable[[Sequence[Part] | None], None],
    fail: Callable[[str], None] = lambda reason: None,
) -> None:
    """Call `take` with the answer, now or when it is there."""
    if isinstance(outcome, PendingAnswer):
        outcome.attach(_Taker(take, fail))
    else:
        take(outcome)


def _give(outcome: Outcome, later: PendingAnswer) -> None:
    """Complete `later` with the answer."""
    if isinstance(outcome, PendingAnswer):
        later.on_abandoned(outcome.abandon)
    _take(outcome, later.complete, later.fail)


def _changed(outcome: Outcome, change: Callable[[Sequence[Part]], list[Part]]) -> Outcome:
    """The outcome with a changed answer."""
    if outcome is None:
        return None
    if not isinstance(outcome, PendingAnswer):
        return change(outcome)  # type: ignore[return-value]  # a connection takes any parts
    later = PendingAnswer(lets_follow=outcome.lets_follow)
    later.on_abandoned(outcome.abandon)
    _take(
        outcome,
        lambda buffers: later.complete(None if buffers is None else change(buffers)),
        later.fail,
    )
    return later


def _body_at(header: RequestHeader, answer: Sequence[Part]) -> int:
    """Where the body begins in a frame."""
    first = b"".join(bytes(part) for part in answer[:2] if not isinstance(part, FileSlice))[_SIZE_PREFIX_BYTES:]
    _, start = parse_response_header(header.api_key, header.api_version, first)
    return _SIZE_PREFIX_BYTES + start


def _with_error(header: RequestHeader, answer: Sequence[Part], code: int) -> list[Part]:
    content = b"".join(bytes(part) for part in answer if not isinstance(part, FileSlice))
    body = with_error(header.api_key, header.api_version, content[_body_at(header, answer) :], code)
    return [*encode_response_frame(header.api_key, header.api_version, header.correlation_id, body)]


def _topic_names(value: Any, topic_name: Callable[[UUID], str | None]) -> Iterator[str]:
    """The topics that a decoded request names, by name or by id."""
    if isinstance(value, Entity):
        for name in value.__slots__:
            part = getattr(value, name)
            if name in _TOPIC_NAMES and isinstance(part, str):
                yield part
            elif name == "topic_id" and isinstance(part, UUID):
                found = topic_name(part)
                if found is not None:
                    yield found
            elif name == "topics" and isinstance(part, tuple) and part and isinstance(part[0], str):
                yield from part
            else:
                yield from _topic_names(part, topic_name)
    elif isinstance(value, tuple):
        for each in value:
            yield from _topic_names(each, topic_name)


def _plain(value: Any) -> Any:
    """As JSON; bytes as their number."""
    if isinstance(value, Entity):
        return {name: _plain(getattr(value, name)) for name in value.__slots__}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else str(value)
