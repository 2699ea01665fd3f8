"""The steps of the loss, on a simulated partition that asserts the order of the steps."""

from __future__ import annotations

import pytest

from fenceline.demo.loss import NO_LEADER, DemoLoss, LeaderAtLoss, run_loss
from fenceline.errors import OperatorError


class SimulatedPartition:
    """Two replicas, node 2 leads. Every reaction takes a second; the one named by `stuck` never happens."""

    def __init__(self, stuck: str = "") -> None:
        self.now = 0.0
        self.stuck = stuck
        self.done: list[str] = []
        self._since: dict[str, float] = {}

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def _record(self, what: str) -> None:
        self.done.append(what)
        self._since[what] = self.now

    def _second_after(self, what: str, happens: str) -> bool:
        return happens != self.stuck and what in self._since and self.now >= self._since[what] + 1

    def leader(self) -> LeaderAtLoss:
        if "isolate 2" not in self.done:
            return LeaderAtLoss(2, 4)
        return LeaderAtLoss(3, 5) if self._second_after("isolate 2", "election") else LeaderAtLoss(NO_LEADER, 4)

    def in_sync(self) -> frozenset[int]:
        if self.stuck == "follower":
            return frozenset({2})
        return frozenset({2} if self._second_after("write", "shrink") else {2, 3})

    def isolate_from_brokers(self, node: int) -> str:
        self._record(f"isolate {node} from brokers")
        return "is isolated"

    def isolate(self, node: int) -> None:
        assert self.readers_caught_up(), "no reader has the records yet"
        self._record(f"isolate {node}")

    def write_to_successor(self) -> int:
        assert self.leader().node == 3, "the old leader would lose these records, too"
        self._record("write to successor")
        return 8_000

    def reconnect(self, node: int) -> None:
        assert "write to successor" in self.done, (
            "the log would end below the readers' positions, which is easy to detect"
        )
        self._record(f"reconnect {node}")

    def write_acks_one(self) -> int:
        assert "isolate 2 from brokers" in self.done, "the follower would replicate the records"
        self._record("write")
        return 7_500

    def readers_caught_up(self) -> bool:
        return self.in_sync() == {2} and self._second_after("write", "reading")

    def has_receipt(self) -> bool:
        return self._second_after("reconnect 2", "receipt")


def run(partition: SimulatedPartition, events: list[tuple[float, str]]) -> DemoLoss:
    def record(text: str) -> float:
        events.append((partition.now, text))
        return partition.now

    return run_loss(
        partition, name="flights-1", record=record, clock=partition.clock, sleep=partition.sleep, timeout_s=20
    )


def test_the_order_of_the_steps() -> None:
    partition, events = SimulatedPartition(), list[tuple[float, str]]()
    loss = run(partition, events)
    assert partition.done == ["isolate 2 from brokers", "write", "isolate 2", "write to successor", "reconnect 2"]
    assert (loss.leader, loss.successor, loss.records) == (LeaderAtLoss(2, 4), LeaderAtLoss(3, 5), 7_500)
    assert 0 == loss.isolated_s < loss.reconnected_s == partition.now
    assert [at for at, _ in events] == sorted(at for at, _ in events)
    assert [text for _, text in events] == [
        "Node 2, the leader of flights-1, is isolated",
        "Node 2 accepts 7,500 records with acks=1",
        "Node 2 is the only replica in the ISR: these records are committed",
        "The consumer and the raw table have read these records",
        "Node 2 is unreachable. Unclean election: node 3, which lacks these records, is the leader",
        "Node 3 accepts 8,000 other records, starting at the same offset",
        "Node 2 rejoins, truncates its log and writes a loss receipt",
    ]


@pytest.mark.parametrize(
    ("stuck", "words"),
    [
        ("follower", "flights-1 has a leader and a follower"),
        ("shrink", "node 2 is the only replica in the ISR"),
        ("reading", "the consumer and the raw table have read these records"),
        ("election", "another node leads flights-1"),
        ("receipt", "node 2 has written a receipt for the lost records"),
    ],
)
def test_a_timeout_names_the_condition(stuck: str, words: str) -> None:
    partition = SimulatedPartition(stuck)
    with pytest.raises(OperatorError, match=f"after 20 s waiting until {words}"):
        run(partition, [])
    assert partition.now < 30
