"""The script of the loss, played on a made-up stage that knows what may happen when."""

from __future__ import annotations

import pytest

from fenceline.demo.loss import NOBODY, Leader, Loss, lose
from fenceline.errors import OperatorError


class MadeUp:
    """Two replicas, 2 leads. Everything takes a second; `stuck` never happens."""

    def __init__(self, stuck: str = "") -> None:
        self.now = 0.0
        self.stuck = stuck
        self.done: list[str] = []
        self._since: dict[str, float] = {}

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def _did(self, what: str) -> None:
        self.done.append(what)
        self._since[what] = self.now

    def _a_second_after(self, what: str, happens: str) -> bool:
        return happens != self.stuck and what in self._since and self.now >= self._since[what] + 1

    def leader(self) -> Leader:
        if "take away 2" not in self.done:
            return Leader(2, 4)
        return Leader(3, 5) if self._a_second_after("take away 2", "election") else Leader(NOBODY, 4)

    def in_sync(self) -> frozenset[int]:
        if self.stuck == "follower":
            return frozenset({2})
        return frozenset({2} if self._a_second_after("write", "shrink") else {2, 3})

    def cut_off(self, node: int) -> str:
        self._did(f"cut off {node}")
        return "is cut off"

    def take_away(self, node: int) -> None:
        assert self.have_read(), "else nobody has anything to lose"
        self._did(f"take away {node}")

    def go_on(self) -> int:
        assert self.leader().node == 3, "else they would be lost, too"
        self._did("go on")
        return 8_000

    def bring_back(self, node: int) -> None:
        assert "go on" in self.done, "else the log would be shorter than what was read, which anybody notices"
        self._did(f"bring back {node}")

    def write(self) -> int:
        assert "cut off 2" in self.done, "else the follower would have them"
        self._did("write")
        return 7_500

    def have_read(self) -> bool:
        return self.in_sync() == {2} and self._a_second_after("write", "reading")

    def has_receipt(self) -> bool:
        return self._a_second_after("bring back 2", "receipt")


def played(stage: MadeUp, told: list[tuple[float, str]]) -> Loss:
    def tell(text: str) -> float:
        told.append((stage.now, text))
        return stage.now

    return lose(stage, name="flights-1", tell=tell, clock=stage.clock, sleep=stage.sleep, patience_s=20)


def test_the_order_of_things() -> None:
    stage, told = MadeUp(), list[tuple[float, str]]()
    loss = played(stage, told)
    assert stage.done == ["cut off 2", "write", "take away 2", "go on", "bring back 2"]
    assert (loss.leader, loss.successor, loss.records) == (Leader(2, 4), Leader(3, 5), 7_500)
    assert 0 == loss.cut_off_s < loss.back_s == stage.now
    assert [at for at, _ in told] == sorted(at for at, _ in told)
    assert [text for _, text in told] == [
        "node 2, which leads flights-1, is cut off",
        "node 2 takes 7,500 records with acks=1",
        "node 2 is alone in sync: these records are committed",
        "the consumer and the table have them",
        "node 2 is gone; node 3, which lacks them, is elected uncleanly",
        "node 3 takes 8,000 others in their place",
        "node 2 is back, has cut them off, and has written a receipt",
    ]


@pytest.mark.parametrize(
    ("stuck", "words"),
    [
        ("follower", "flights-1 has a leader and a follower"),
        ("shrink", "node 2 is alone in sync"),
        ("reading", "the table and the consumer have these records"),
        ("election", "another node leads flights-1"),
        ("receipt", "node 2 cuts off what the new leader does not have"),
    ],
)
def test_what_does_not_happen_is_named(stuck: str, words: str) -> None:
    stage = MadeUp(stuck)
    with pytest.raises(OperatorError, match=f"waited 20 s in vain: {words}"):
        played(stage, [])
    assert stage.now < 30
