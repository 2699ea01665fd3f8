"""A set of voters, and the history of voter sets in a log.

A change replaces the set and changes one voter, so the majorities of consecutive sets overlap (Q44). The newest set of
the log is in force even if not committed; truncating the log restores the one before it (Q40).

Rules: raft.md Q39, Q40, Q44, Q45; snapshots.md N7, N17.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fenceline.errors import InternalError
from fenceline.ids import ZERO_UUID
from fenceline.quorum.control_records import Voter
from fenceline.quorum.log_view import VotersAt
from fenceline.quorum.messages import ReplicaKey


class VoterSet:
    """Immutable. With kraft.version 0 directories are ignored (Q39)."""

    def __init__(self, voters: Iterable[Voter] = (), kraft_version: int = 0, offset: int = -1) -> None:
        self.voters: Final = tuple(sorted(voters, key=lambda voter: voter.voter_id))
        self.kraft_version: Final = kraft_version
        self.offset: Final = offset
        """Offset of the KRAFT_VOTERS record, -1 if it is in no log."""
        self._by_id = {voter.voter_id: voter for voter in self.voters}
        if len(self._by_id) != len(self.voters):
            raise InternalError(f"duplicate id in a voter set: {[voter.voter_id for voter in self.voters]}")
        self._without_directory = {
            voter.voter_id for voter in self.voters if kraft_version == 0 or voter.voter_directory_id == ZERO_UUID
        }
        self._keys = {
            voter_id: ReplicaKey(
                voter_id, ZERO_UUID if voter_id in self._without_directory else each.voter_directory_id
            )
            for voter_id, each in self._by_id.items()
        }

    def __len__(self) -> int:
        return len(self.voters)

    @property
    def ids(self) -> list[int]:
        """Ascending."""
        return list(self._by_id)

    @property
    def majority(self) -> int:
        return len(self.voters) // 2 + 1

    def of(self, voter_id: int) -> Voter | None:
        return self._by_id.get(voter_id)

    def has(self, key: ReplicaKey) -> bool:
        """Q45: compares id and directory, if the set names a directory."""
        voter = self._by_id.get(key.replica_id)
        return voter is not None and (
            key.replica_id in self._without_directory or voter.voter_directory_id == key.replica_directory_id
        )

    def names_no_directory(self, voter: Voter) -> bool:
        """Of a voter of this set."""
        return voter.voter_id in self._without_directory

    def key_of(self, voter: Voter) -> ReplicaKey:
        """Of a voter of this set."""
        return self._keys[voter.voter_id]

    def with_voter(self, voter: Voter) -> tuple[Voter, ...]:
        """The set with `voter` added, or replacing the voter of its id."""
        others = [each for each in self.voters if each.voter_id != voter.voter_id]
        return tuple(sorted([*others, voter], key=lambda each: each.voter_id))

    def without(self, voter_id: int) -> tuple[Voter, ...]:
        return tuple(voter for voter in self.voters if voter.voter_id != voter_id)


class VoterHistory:
    """The voter sets of one log by offset, for an implementation of `LogView.voters`."""

    def __init__(self) -> None:
        self._sets: list[VotersAt] = []

    @property
    def latest(self) -> VotersAt | None:
        return self._sets[-1] if self._sets else None

    def at(self, end_offset: int) -> VotersAt | None:
        """The set to store in a snapshot that ends at `end_offset` (exclusive)."""
        return next((each for each in reversed(self._sets) if each.offset < end_offset), None)

    def add(self, voters: VotersAt) -> None:
        """A KRAFT_VOTERS record was appended, or read at boot, in offset order."""
        if self._sets and voters.offset <= self._sets[-1].offset:
            raise InternalError(f"a voter set at offset {voters.offset} comes after one at {self._sets[-1].offset}")
        self._sets.append(voters)

    def truncate(self, end_offset: int) -> None:
        """The log was truncated to `end_offset`."""
        while self._sets and self._sets[-1].offset >= end_offset:
            self._sets.pop()

    def load(self, voters: VotersAt | None) -> None:
        """A snapshot has replaced the log; it stores `voters`."""
        self._sets = [] if voters is None else [voters]

    def forget_before(self, end_offset: int) -> None:
        """N17: a snapshot ends at `end_offset`; sets before the one it stores are no longer needed."""
        while len(self._sets) > 1 and self._sets[1].offset < end_offset:
            del self._sets[0]
