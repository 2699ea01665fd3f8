"""How the demo makes a log lose records that were acknowledged and read: the steps, and what each waits for.

The leader of a partition is cut off from the other brokers and goes on taking records with acks=1. Its follower does
not come for them, so it is soon alone in sync (not before it takes some: who has everything stays in sync however long
it is silent), and everybody reads them. Then it is gone; the only replica left lacks them and is elected uncleanly.
When the first one comes back it cuts them off.

Owns the order, the patience and the words. Starts, cuts and asks through `Stage` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from fenceline.errors import OperatorError

NOBODY: Final = -1
_LOOK_S: Final = 0.1


class Leader(NamedTuple):
    """Of the busy partition. `node` is NOBODY while nobody leads."""

    node: int
    epoch: int


class Stage(Protocol):
    """The busy partition, its brokers, and those who read it. Every question is asked anew."""

    def leader(self) -> Leader: ...

    def in_sync(self) -> frozenset[int]: ...

    def cut_off(self, node: int) -> str:
        """From the other brokers only: controllers and clients still reach it. What was done to it, in words."""
        ...

    def take_away(self, node: int) -> None:
        """Nobody reaches it any more."""
        ...

    def go_on(self) -> int:
        """Records that the new leader takes, more than the old one took; how many."""
        ...

    def bring_back(self, node: int) -> None: ...

    def write(self) -> int:
        """Records that the leader takes with acks=1; how many."""
        ...

    def have_read(self) -> bool:
        """Whether the table and the consumer have everything that was written."""
        ...

    def has_receipt(self) -> bool:
        """Whether the cluster tells of the loss."""
        ...


@dataclass(frozen=True, slots=True)
class Loss:
    """What happened. `records`: those that `leader` took alone. Times are those that `tell` gave."""

    leader: Leader
    successor: Leader
    records: int
    cut_off_s: float
    back_s: float


def lose(
    stage: Stage,
    *,
    name: str,
    tell: Callable[[str], float],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    patience_s: float = 30.0,
) -> Loss:
    """Play it to the end; `name` is the partition's, `tell` takes what happens and says when that was. Raises
    OperatorError where a step takes more than `patience_s`.
    """

    def wait(holds: Callable[[], bool], what: str) -> None:
        limit = clock() + patience_s
        while not holds():
            if clock() >= limit:
                raise OperatorError(
                    f"The demo waited {patience_s:.0f} s in vain: {what}",
                    "The machine may be overloaded; run the demo again when it is not.",
                )
            sleep(_LOOK_S)

    wait(lambda: stage.leader().node != NOBODY and len(stage.in_sync()) > 1, f"{name} has a leader and a follower")
    old = stage.leader()
    cut_off_s = tell(f"node {old.node}, which leads {name}, {stage.cut_off(old.node)}")
    records = stage.write()
    tell(f"node {old.node} takes {records:,} records with acks=1")
    wait(lambda: stage.in_sync() == {old.node}, f"node {old.node} is alone in sync")
    tell(f"node {old.node} is alone in sync: these records are committed")
    wait(stage.have_read, "the table and the consumer have these records")
    tell("the consumer and the table have them")
    stage.take_away(old.node)
    wait(lambda: stage.leader().node not in (NOBODY, old.node), f"another node leads {name}")
    new = stage.leader()
    tell(f"node {old.node} is gone; node {new.node}, which lacks them, is elected uncleanly")
    tell(f"node {new.node} takes {stage.go_on():,} others in their place")
    stage.bring_back(old.node)
    wait(stage.has_receipt, f"node {old.node} cuts off what the new leader does not have")
    back_s = tell(f"node {old.node} is back, has cut them off, and has written a receipt")
    return Loss(old, new, records, cut_off_s, back_s)
