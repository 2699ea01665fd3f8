"""Makes a partition lose records that were acknowledged and read: the steps, and the condition that each waits for.

The leader of a partition is isolated from the other brokers and still accepts records with acks=1. Its follower does
not fetch them and leaves the ISR (only after the leader has appended some: a follower that has everything stays in sync
however long it is silent). The records are committed, and consumers read them. Then the leader becomes unreachable;
the only other replica lacks the records and is elected uncleanly. When the old leader rejoins, it truncates them.

Owns the order of the steps, the timeouts and the texts of the timeline. Acts on the cluster through
`PartitionControl` only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from fenceline.errors import OperatorError

NO_LEADER: Final = -1
_POLL_S: Final = 0.1


class LeaderAtLoss(NamedTuple):
    """The leader of the busy partition. `node` is NO_LEADER while it has none."""

    node: int
    epoch: int


class PartitionControl(Protocol):
    """The busy partition, its brokers and its readers. No answer is cached."""

    def leader(self) -> LeaderAtLoss: ...

    def in_sync(self) -> frozenset[int]: ...

    def isolate_from_brokers(self, node: int) -> str:
        """Isolate the node from the other brokers; the controller and clients still reach it. Returns what was done."""
        ...

    def isolate(self, node: int) -> None:
        """Isolate the node completely."""
        ...

    def write_to_successor(self) -> int:
        """Send more records to the new leader than the old one acknowledged. Returns their number."""
        ...

    def reconnect(self, node: int) -> None: ...

    def write_acks_one(self) -> int:
        """Send records to the leader with acks=1. Returns their number."""
        ...

    def readers_caught_up(self) -> bool:
        """Whether the table and the consumer have everything that was written."""
        ...

    def has_receipt(self) -> bool:
        """Whether the cluster has receipts for all lost records."""
        ...


@dataclass(frozen=True, slots=True)
class DemoLoss:
    """The loss that happened. `records`: the number of records that only `leader` had. Times are those of `record`."""

    leader: LeaderAtLoss
    successor: LeaderAtLoss
    records: int
    isolated_s: float
    reconnected_s: float


def run_loss(
    partition: PartitionControl,
    *,
    name: str,
    record: Callable[[str], float],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    timeout_s: float = 30.0,
) -> DemoLoss:
    """Run all steps. `name` is that of the partition; `record` adds an event to the timeline and returns its time.

    Raises OperatorError if a step takes longer than `timeout_s`.
    """

    def wait(holds: Callable[[], bool], what: str) -> None:
        limit = clock() + timeout_s
        while not holds():
            if clock() >= limit:
                raise OperatorError(
                    f"Timed out after {timeout_s:.0f} s waiting until {what}",
                    "The machine may be overloaded. Run the demo again when it is less busy.",
                )
            sleep(_POLL_S)

    wait(
        lambda: partition.leader().node != NO_LEADER and len(partition.in_sync()) > 1,
        f"{name} has a leader and a follower",
    )
    old = partition.leader()
    isolated_s = record(f"Node {old.node}, the leader of {name}, {partition.isolate_from_brokers(old.node)}")
    records = partition.write_acks_one()
    record(f"Node {old.node} accepts {records:,} records with acks=1")
    wait(lambda: partition.in_sync() == {old.node}, f"node {old.node} is the only replica in the ISR")
    record(f"Node {old.node} is the only replica in the ISR: these records are committed")
    wait(partition.readers_caught_up, "the consumer and the raw table have read these records")
    record("The consumer and the raw table have read these records")
    partition.isolate(old.node)
    wait(lambda: partition.leader().node not in (NO_LEADER, old.node), f"another node leads {name}")
    new = partition.leader()
    record(
        f"Node {old.node} is unreachable. Unclean election: node {new.node}, which lacks these records, is the leader"
    )
    record(f"Node {new.node} accepts {partition.write_to_successor():,} other records, starting at the same offset")
    partition.reconnect(old.node)
    wait(partition.has_receipt, f"node {old.node} has written a receipt for the lost records")
    reconnected_s = record(f"Node {old.node} rejoins, truncates its log and writes a loss receipt")
    return DemoLoss(old, new, records, isolated_s, reconnected_s)
