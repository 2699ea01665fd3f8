"""What a consumer asks of whom, and when it learns of a leader, in the order in which it happens.

Owns a look at a consumer's requests from within its own process, where their order is certain; changes none of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fenceline.client import Consumer, TopicPartition
from fenceline.client.core.cluster import Purpose
from fenceline.wire.apis import ApiKey


class Asked(NamedTuple):
    """A request, before it is sent."""

    key: ApiKey
    node_id: int | None


class Learned(NamedTuple):
    """The partition's leader as known to the consumer from now on; -1: none."""

    leader: int
    epoch: int


class WatchedConsumer:
    """From its making on. `story` is what happened to the partition."""

    def __init__(self, consumer: Consumer, tp: TopicPartition) -> None:
        self.story: list[Asked | Learned] = []
        self._consumer = consumer
        self._tp = tp
        self._cluster = consumer._async.cluster
        consumer._on_loop(self._watch)

    def _watch(self) -> None:
        cluster, metadata = self._cluster, self._cluster.metadata
        link, call, fetch_metadata = cluster.link, cluster.call, cluster.fetch_metadata

        def watched_link(node_id: int, purpose: Purpose = Purpose.CONTROL) -> Any:
            if purpose is Purpose.FETCH:
                self.story.append(Asked(ApiKey.FETCH, node_id))
            return link(node_id, purpose)

        def watched_call(node_id: int | None, api_key: ApiKey, *given: Any, **named: Any) -> Any:
            self.story.append(Asked(api_key, node_id))
            return call(node_id, api_key, *given, **named)

        def watched_fetch_metadata(*given: Any, **named: Any) -> Any:
            self.story.append(Asked(ApiKey.METADATA, None))
            return fetch_metadata(*given, **named)

        cluster.link = watched_link  # type: ignore[method-assign]
        cluster.call = watched_call  # type: ignore[method-assign]
        cluster.fetch_metadata = watched_fetch_metadata  # type: ignore[method-assign]
        for name in ("apply", "accept_hint", "note_epoch"):
            setattr(metadata, name, self._telling(getattr(metadata, name)))
        self._note_leader()

    def _telling(self, change: Any) -> Any:
        def watched(*given: Any, **named: Any) -> Any:
            answer = change(*given, **named)
            self._note_leader()
            return answer

        return watched

    def _note_leader(self) -> None:
        known = Learned(*self._cluster.metadata.leader(self._tp))
        if known not in [each for each in self.story if isinstance(each, Learned)][-1:]:
            self.story.append(known)

    def leave_alone(self) -> None:
        """From now on it has only what answers of Fetch tell it (KIP-951)."""

        def leave() -> None:
            assert self._cluster._refresher is not None
            self._cluster._refresher.cancel()
            self._cluster.request_refresh = lambda: None  # type: ignore[method-assign]

        self._consumer._on_loop(leave)

    def read_from(self) -> list[int | None]:
        """The nodes of the Fetch requests so far."""
        return [each.node_id for each in self.story if isinstance(each, Asked) and each.key is ApiKey.FETCH]

    def asked_since(self, leader: Learned, *keys: ApiKey) -> list[Asked]:
        """Requests of these kinds since it learned last that this is the leader."""
        assert leader in self.story, f"the consumer never learned of {leader}"
        last = len(self.story) - 1 - self.story[::-1].index(leader)
        return [each for each in self.story[last:] if isinstance(each, Asked) and each.key in keys]
