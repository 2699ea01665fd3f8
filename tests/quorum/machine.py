"""One quorum whose peers are simulated by the test."""

from __future__ import annotations

from random import Random
from typing import Any, TypeVar

from fenceline.quorum.duties import (
    AppendControlBatch,
    AppendFetched,
    Duty,
    PersistElection,
    QuorumAnswer,
    Send,
    Truncate,
)
from fenceline.quorum.election_state import ElectionState
from fenceline.quorum.log_view import VotersAt
from fenceline.quorum.messages import (
    QuorumFetchRequest,
    QuorumFetchResponse,
    RequestMessage,
    ResponseMessage,
    VoteRequest,
    VoteResponse,
)
from fenceline.quorum.quorum import Quorum
from fenceline.quorum.roles import Leader
from fenceline.quorum.settings import QuorumSettings
from tests.quorum.memory_log import Entry, MemoryLog, chain, voter

T = TypeVar("T")


class Machine:
    """Node `me` of `voters`; the duties of each call are in `duties`, and applied to the log."""

    def __init__(
        self,
        *,
        me: int = 1,
        voters: tuple[int, ...] = (1, 2, 3),
        dynamic: bool = True,
        election: ElectionState | None = None,
        history: tuple[int, ...] = (),
        **settings: Any,
    ) -> None:
        """`history`: the epochs of the records in the log, flushed."""
        members = tuple(voter(node_id) for node_id in voters)
        self.log = MemoryLog(VotersAt(-1, 1, members) if dynamic else None)
        for epoch in history:
            self.log.append(epoch, ["old"])
        self.log.flushed_offset = self.log.end_offset
        self.now_ms = 0
        self.duties: list[Duty] = []
        options = QuorumSettings("c", static_voters=() if dynamic else members, **settings)
        self.quorum = Quorum(voter(me), self.log, options, Random(5))
        self.do(self.quorum.start(0, election))

    def do(self, duties: list[Duty]) -> list[Duty]:
        """The driver's part: elections and records are durable at once."""
        self.duties = list(duties)
        for duty in duties:
            if isinstance(duty, PersistElection):
                self.log.election = duty.state
            elif isinstance(duty, AppendControlBatch):
                for record in duty.records:
                    voters = getattr(record, "voters", None)
                    is_set = type(record).__name__ == "KRaftVoters" and voters is not None
                    self.log.append(duty.epoch, [VotersAt(self.log.end_offset, 1, voters) if is_set else record])
                self.flush()
            elif isinstance(duty, AppendFetched):
                for entry in duty.records:  # type: ignore[attr-defined]
                    self.log.append_entry(entry)
                self.duties += self.quorum.appended(self.now_ms)
                self.flush()
            elif isinstance(duty, Truncate):
                self.log.truncate(duty.end_offset)
                self.duties += self.quorum.truncated(self.now_ms)
        return self.duties

    def flush(self) -> None:
        self.log.flushed_offset = self.log.end_offset
        before = self.duties
        self.do(self.quorum.flushed(self.now_ms))
        self.duties = before + self.duties

    def pass_time(self, ms: int) -> list[Duty]:
        self.now_ms += ms
        return self.do(self.quorum.tick(self.now_ms))

    def ask(self, message: RequestMessage) -> Any:
        """The response to a request, None when it is parked."""
        self.do(self.quorum.request(self.now_ms, "t", message))
        return next((duty.message for duty in self.duties if isinstance(duty, QuorumAnswer)), None)

    def found(self, kind: type[T]) -> list[T]:
        """Duties of one kind."""
        return [duty for duty in self.duties if isinstance(duty, kind)]

    def sent(self, kind: type[T]) -> dict[int, T]:
        """Requests of one kind that the last call sent, by node."""
        return {send.destination.node_id: send.message for send in self.found(Send) if isinstance(send.message, kind)}

    def request_id(self, node_id: int, kind: type[RequestMessage]) -> int:
        return next(
            send.request_id
            for send in self.found(Send)
            if send.destination.node_id == node_id and isinstance(send.message, kind)
        )

    def reply(self, request_id: int, message: ResponseMessage) -> list[Duty]:
        return self.do(self.quorum.response(self.now_ms, request_id, message))

    # -- shortcuts ---------------------------------------------------------------------------------------------------

    def to_prospective(self) -> None:
        self.pass_time(2500)

    def to_candidate(self) -> None:
        self.to_prospective()
        ask = self.request_id(2, VoteRequest)
        self.reply(ask, VoteResponse(leader_epoch=self.quorum.epoch, vote_granted=True))

    def to_leader(self) -> Leader:
        self.to_candidate()
        ask = self.request_id(2, VoteRequest)
        self.reply(ask, VoteResponse(leader_epoch=self.quorum.epoch, vote_granted=True))
        role = self.quorum.role
        assert isinstance(role, Leader), role
        return role

    def fetch(
        self, node_id: int, offset: int | None = None, epoch: int | None = None, **changed: Any
    ) -> QuorumFetchRequest:
        """The fetch of node `node_id`, which has all records before `offset` (default: all)."""
        end = self.log.end_offset if offset is None else offset
        fields: dict[str, Any] = {
            "cluster_id": "c",
            "replica_id": node_id,
            "current_leader_epoch": self.quorum.epoch,
            "fetch_offset": end,
            "last_fetched_epoch": (self.log.at(end - 1).epoch if end else 0) if epoch is None else epoch,
            "replica_directory_id": voter(node_id).voter_directory_id,
            "high_watermark": -1,
        }
        return QuorumFetchRequest(**(fields | changed))

    def entries(self, epoch: int, count: int) -> tuple[Entry, ...]:
        """Records of a leader that continue this log."""
        made: list[Entry] = []
        before = self.log.chain_at(self.log.end_offset)
        for offset in range(self.log.end_offset, self.log.end_offset + count):
            before = chain(before, epoch, f"r{offset}")
            made.append(Entry(offset, epoch, f"r{offset}", before))
        return tuple(made)

    def fetched(self, **fields: Any) -> list[Duty]:
        """The leader responds to the pending fetch."""
        given: dict[str, Any] = {"leader_id": self.quorum.leader_id, "leader_epoch": self.quorum.epoch}
        ask = self.request_id(self.quorum.leader_id, QuorumFetchRequest)
        return self.reply(ask, QuorumFetchResponse(**(given | fields)))
