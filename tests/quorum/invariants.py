"""Invariants of every step of every history, whatever fails (raft.md Q6, Q17, Q32, Q40, Q44, Q50-Q56)."""

from __future__ import annotations

from dataclasses import dataclass, field

from fenceline.quorum.control_records import Voter
from fenceline.quorum.duties import LogLine
from fenceline.quorum.quorum import Quorum
from tests.quorum.memory_log import Entry, MemoryLog


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass
class Node:
    """A machine: its disk persists, its process starts and stops."""

    node_id: int
    local: Voter
    log: MemoryLog
    quorum: Quorum | None = None
    incarnation: int = 0
    high_watermark: int = 0
    ticks_at: int | None = None
    flush_under_way: bool = False
    leads: int = -1
    spins: int = 0
    said: list[LogLine] = field(default_factory=list)


class Checker:
    """The invariants (raft.md Q50-Q56, Q40, Q44), checked at each change."""

    def __init__(self) -> None:
        self.leaders: dict[int, tuple[int, int]] = {}
        self.committed: list[str] = []
        """Hash of the log at the end of each committed offset."""
        self.seen: dict[tuple[int, int], str] = {}
        self.votes: dict[tuple[int, int], int] = {}

    def voted(self, node_id: int, epoch: int, candidate: int) -> None:
        """Q17: one vote for each epoch, whatever happens to the node."""
        given = self.votes.setdefault((node_id, epoch), candidate)
        if given != candidate:
            raise Broken(f"node {node_id} votes for {given} and for {candidate} in epoch {epoch}")

    def elected(self, node: Node, epoch: int) -> None:
        """Q6, Q51, and a leader has all committed records."""
        who = (node.node_id, node.incarnation)
        assert node.quorum is not None, "it leads"
        voters = node.quorum.voter_set
        self.voted(node.node_id, epoch, node.node_id)
        votes = sum(self.votes.get((each, epoch)) == node.node_id for each in voters.ids)
        if votes < voters.majority:
            raise Broken(f"{who} leads epoch {epoch} with {votes} votes of {voters.ids}")
        if self.leaders.setdefault(epoch, who) != who:
            raise Broken(f"two leaders in epoch {epoch}: {self.leaders[epoch]} and {who}")
        log = node.log
        last = len(self.committed)
        if log.end_offset < last:
            raise Broken(f"leader {who} of {epoch} ends at {log.end_offset}, committed is {last}")
        if last > log.start_offset and log.chain_at(last) != self.committed[last - 1]:
            raise Broken(f"leader {who} of {epoch} has another history before {last}")

    def appended(self, entry: Entry) -> None:
        """Log matching: offset and epoch name one history."""
        if self.seen.setdefault((entry.offset, entry.epoch), entry.chain) != entry.chain:
            raise Broken(f"two histories end with offset {entry.offset} in epoch {entry.epoch}")

    def advanced(self, node: Node, offset: int) -> None:
        """Q53, Q56: committed records stay committed."""
        if offset <= node.high_watermark:
            raise Broken(f"node {node.node_id}: high watermark {node.high_watermark} to {offset}")
        if offset > node.log.end_offset:
            raise Broken(f"node {node.node_id}: high watermark {offset} past its log {node.log.end_offset}")
        for at in range(max(node.log.start_offset, min(node.high_watermark, len(self.committed))), offset):
            found = node.log.chain_at(at + 1)
            if at < len(self.committed):
                if self.committed[at] != found:
                    raise Broken(f"node {node.node_id} has another record committed at {at}")
            elif at == len(self.committed):
                self.committed.append(found)
            else:
                raise Broken(f"node {node.node_id} commits {at}, others {len(self.committed)}")

    def majority(self, node: Node, offset: int, nodes: dict[int, Node]) -> None:
        """Q52: records that a leader reports as committed are on the disks of a majority of its voters."""
        assert node.quorum is not None, "it leads"
        if node.log.at(offset - 1).epoch != node.quorum.epoch:
            raise Broken(f"leader {node.node_id} of {node.quorum.epoch} commits a record of another epoch at {offset}")
        want = node.log.chain_at(offset)
        voters = node.quorum.voter_set
        have = 0
        for each in voters.voters:
            other = nodes[each.voter_id]
            if voters.kraft_version and other.local.voter_directory_id != each.voter_directory_id:
                continue
            log = other.log
            if log.start_offset >= offset or (log.flushed_offset >= offset and log.chain_at(offset) == want):
                have += 1
        if have < voters.majority:
            raise Broken(f"leader {node.node_id} commits {offset}, which {have} of {voters.ids} have")

    def voters_change(self, before: tuple[Voter, ...], committed: bool, after: tuple[Voter, ...]) -> None:
        """Q44: one voter at a time, and only after the previous change is committed."""
        keys = [{(each.voter_id, each.voter_directory_id) for each in voters} for voters in (before, after)]
        if len(keys[0] ^ keys[1]) > 1:
            raise Broken(f"voters change from {keys[0]} to {keys[1]}")
        if keys[0] != keys[1] and not committed:
            raise Broken(f"voters change to {keys[1]} before {keys[0]} is committed")
