"""The client's side of an incremental fetch session (KIP-227) with one broker: which partitions a Fetch has to name.

Owns what the broker has cached of the session: a request names the partitions that differ from that, and those that are
no longer wanted. Pure; never sends anything. A request whose outcome is unknown ends the session: the next request is a
full one, which closes the old session and opens another.

| state | request (session id, epoch) | next |
|---|---|---|
| no session | (0, 0), all partitions | session, if the response has an id |
| session | (id, n), changes | session, n + 1 |
| ended | (id, 0), all partitions | session, if the response has an id |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from fenceline.errors import ErrorCode
from fenceline.ids import ZERO_UUID, TopicPartition

SESSION_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""The broker has no such session, or another state of it: a full request resolves this."""
_NO_SESSION: Final = 0
_LAST_EPOCH: Final = 2**31 - 1


class PartitionFetch(NamedTuple):
    """last_epoch: epoch of the record before `offset`, -1 unknown. leader_epoch: the leader's, from metadata."""

    tp: TopicPartition
    offset: int
    last_epoch: int
    leader_epoch: int
    max_bytes: int


class SessionRequest(NamedTuple):
    """What one Fetch names. `forgotten`: with the ids under which the broker knows them."""

    session_id: int
    epoch: int
    partitions: Sequence[PartitionFetch]
    forgotten: Sequence[tuple[TopicPartition, UUID]]

    @property
    def is_full(self) -> bool:
        return self.epoch == 0


class IncrementalFetch:
    """One request at a time: `next_request`, then `answered` or `end`."""

    def __init__(self) -> None:
        self._id = _NO_SESSION
        self._epoch = 0
        self._cached: dict[TopicPartition, tuple[PartitionFetch, UUID]] = {}
        self._uses_ids = False

    def __contains__(self, tp: TopicPartition) -> bool:
        """Whether the broker has the partition in the session."""
        return self._epoch > 0 and tp in self._cached

    @property
    def topic_ids(self) -> Mapping[str, UUID]:
        """The topics of the last request's session; a response may have any of them."""
        return {tp.topic: topic_id for tp, (_, topic_id) in self._cached.items()}

    def next_request(
        self, wanted: Sequence[PartitionFetch], ids: Mapping[str, UUID], *, uses_ids: bool
    ) -> SessionRequest:
        """The request for all of `wanted`. `uses_ids`: it names topics by id."""
        if uses_ids != self._uses_ids:
            self.end()
        self._uses_ids = uses_ids
        before = self._cached if self._epoch else {}
        after = {each.tp: (each, ids[each.tp.topic] if uses_ids else ZERO_UUID) for each in wanted}
        changed = [each for tp, (each, topic_id) in after.items() if before.get(tp) != (each, topic_id)]
        # A topic that was created again is another one to the broker.
        forgotten = [
            (tp, topic_id) for tp, (_, topic_id) in before.items() if tp not in after or after[tp][1] != topic_id
        ]
        self._cached = after
        return SessionRequest(self._id, self._epoch, changed, forgotten)

    def answered(self, session_id: int) -> None:
        """The request succeeded. `session_id`: of the response, 0 if the broker keeps no session."""
        if session_id == _NO_SESSION or (self._epoch > 0 and session_id != self._id):
            self._id, self._epoch = _NO_SESSION, 0
        else:
            self._id = session_id
            self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1

    def end(self, code: ErrorCode | None = None) -> None:
        """The request failed, or its outcome is unknown."""
        if code is ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self._id = _NO_SESSION
        self._epoch = 0
