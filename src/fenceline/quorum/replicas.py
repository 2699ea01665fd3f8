"""The leader's knowledge of the replicas that fetch from it, and what follows from it: high watermark, check-quorum,
successors.

Pure arithmetic over fetches. A replica counts as a voter while the newest voter set has its key. There may be thousands
of observers: none of them is looked at when another replica fetches.

Rules: raft.md Q22, Q26, Q27, Q32, Q34, Q37; epochs.md E32; gaps.md G30.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from fenceline.quorum.control_records import Voter
from fenceline.quorum.messages import ReplicaKey, ReplicaState
from fenceline.quorum.voter_set import VoterSet


@dataclass(slots=True)
class ReplicaProgress:
    """Times on the quorum's clock; None = never in this term."""

    key: ReplicaKey
    end_offset: int | None = None
    last_fetch_ms: int | None = None
    leader_end_then: int = 0
    """The leader's end offset at that fetch."""
    caught_up_ms: int | None = None
    contact_ms: int | None = None
    """Last valid Fetch or FetchSnapshot (Q27)."""


class QuorumReplicas:
    """The replicas of a leader in the epoch that began at `since_ms`."""

    def __init__(self, local_id: int, since_ms: int, max_observers: int) -> None:
        self._local_id = local_id
        self._since_ms = since_ms
        self._max = max_observers
        self._all: dict[ReplicaKey, ReplicaProgress] = {}
        self._of_id: dict[int, list[ReplicaProgress]] = {}
        self._voters: VoterSet | None = None
        self._by_voter: dict[int, ReplicaProgress | None] = {}
        """The keys of `_voters` that name a directory; reset when a replica is added or removed."""
        self._earliest_contact_ms = since_ms
        """No observer's contact is earlier."""
        self.changes = 0
        """Number of replicas that were added or removed."""

    def contact(self, key: ReplicaKey, now_ms: int) -> ReplicaProgress | None:
        """A valid request of `key` arrived. None: the limit of remembered replicas is reached."""
        replica = self._all.get(key)
        if replica is None:
            if len(self._all) >= self._max:
                return None
            replica = self._all[key] = ReplicaProgress(key)
            self._of_id.setdefault(key.replica_id, []).append(replica)
            self._changed()
        replica.contact_ms = now_ms
        return replica

    def fetched(self, key: ReplicaKey, offset: int, leader_end: int, now_ms: int) -> None:
        """A valid Fetch: `key` has everything before `offset` on disk (Q26, E32)."""
        replica = self.contact(key, now_ms)
        if replica is None:
            return
        if offset >= leader_end:
            replica.caught_up_ms = now_ms
        elif replica.last_fetch_ms is not None and offset >= replica.leader_end_then:
            replica.caught_up_ms = max(replica.caught_up_ms or 0, replica.last_fetch_ms)
        replica.end_offset = offset
        replica.last_fetch_ms = now_ms
        replica.leader_end_then = leader_end

    def of_voter(self, voters: VoterSet, voter: Voter) -> ReplicaProgress | None:
        """If the set names no directory: the replica of that id with the latest contact."""
        if voters is not self._voters:
            self._begin_set(voters)
        if voter.voter_id in self._by_voter:
            return self._by_voter[voter.voter_id]
        if not voters.names_no_directory(voter):
            replica = self._by_voter[voter.voter_id] = self._all.get(voters.key_of(voter))
            return replica
        return max(self._of_id.get(voter.voter_id, ()), key=lambda each: each.contact_ms or 0, default=None)

    def _begin_set(self, voters: VoterSet) -> None:
        self._voters = voters
        self._by_voter = {}
        self._earliest_contact_ms = self._since_ms  # a voter of before may be an observer now

    def _changed(self) -> None:
        self._by_voter.clear()
        self.changes += 1

    def of(self, key: ReplicaKey) -> ReplicaProgress | None:
        return self._all.get(key)

    def majority_end(self, voters: VoterSet, own_end: int) -> int:
        """Q32: the offset that a majority of the voters has reached, -1 = unknown. `own_end`: the leader's flushed end
        (G35), which counts only if it is a voter."""
        ends: list[int] = []
        for voter in voters.voters:
            if voter.voter_id == self._local_id:
                ends.append(own_end)
            else:
                replica = self.of_voter(voters, voter)
                ends.append(-1 if replica is None or replica.end_offset is None else replica.end_offset)
        ends.sort(reverse=True)
        return ends[len(ends) // 2] if ends else -1

    def majority_lost_at_ms(self, voters: VoterSet, leader_is_voter: bool, timeout_ms: int) -> int | None:
        """Q34: when contact with a majority will have been missing for `timeout_ms`. None: no other voter is needed."""
        needed = voters.majority - (1 if leader_is_voter else 0)
        if needed <= 0:
            return None
        contacts: list[int] = []
        for voter in voters.voters:
            if voter.voter_id != self._local_id:
                replica = self.of_voter(voters, voter)
                contact = None if replica is None else replica.contact_ms
                contacts.append(self._since_ms if contact is None else max(contact, self._since_ms))
        contacts.sort(reverse=True)
        return contacts[needed - 1] + timeout_ms

    def successors(self, voters: VoterSet) -> tuple[ReplicaKey, ...]:
        """Q22: the other voters in descending order of log end."""
        others = [voter for voter in voters.voters if voter.voter_id != self._local_id]

        def end(voter: Voter) -> tuple[int, int]:
            replica = self.of_voter(voters, voter)
            return (-(-1 if replica is None or replica.end_offset is None else replica.end_offset), voter.voter_id)

        return tuple(ReplicaKey(voter.voter_id, voter.voter_directory_id) for voter in sorted(others, key=end))

    def slowest_offset(self, since_ms: int) -> int | None:
        """The smallest end offset of the replicas in contact since `since_ms`; 0 for one with an unknown offset. None:
        there is none."""
        contacts = [each for each in self._all.values() if each.contact_ms is not None and each.contact_ms >= since_ms]
        return min((each.end_offset or 0 for each in contacts), default=None)

    def forget_observers(self, voters: VoterSet, before_ms: int) -> None:
        """Those without contact since `before_ms`. They are looked at only when one of them may have none."""
        if voters is not self._voters:
            self._begin_set(voters)
        if before_ms <= self._earliest_contact_ms:
            return
        contacts: list[int] = []
        for key, replica in list(self._all.items()):
            if voters.has(key):
                continue
            contact_ms = replica.contact_ms or 0
            if contact_ms < before_ms:
                del self._all[key]
                self._of_id[key.replica_id].remove(replica)
                if not self._of_id[key.replica_id]:
                    del self._of_id[key.replica_id]
                self._changed()
            else:
                contacts.append(contact_ms)
        self._earliest_contact_ms = min(contacts, default=before_ms)

    def describe_voters(self, voters: VoterSet, own_end: int, now_ms: int) -> tuple[ReplicaState, ...]:
        """Q37. The leader itself has fetched and caught up now, as in Kafka."""
        states: list[ReplicaState] = []
        for voter in voters.voters:
            directory = voter.voter_directory_id
            if voter.voter_id == self._local_id:
                states.append(ReplicaState(voter.voter_id, directory, own_end, now_ms, now_ms))
            else:
                states.append(_state(voter.voter_id, directory, self.of_voter(voters, voter)))
        return tuple(states)

    def describe_observers(self, voters: VoterSet) -> tuple[ReplicaState, ...]:
        found = [each for key, each in self._all.items() if not voters.has(key)]
        return tuple(
            _state(each.key.replica_id, each.key.replica_directory_id, each)
            for each in sorted(found, key=lambda each: each.key)
        )


def _state(replica_id: int, directory: UUID, replica: ReplicaProgress | None) -> ReplicaState:
    if replica is None:
        return ReplicaState(replica_id, directory, -1, None, None)
    end = -1 if replica.end_offset is None else replica.end_offset
    return ReplicaState(replica_id, directory, end, replica.last_fetch_ms, replica.caught_up_ms)
