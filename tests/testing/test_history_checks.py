"""The history checker finds each kind of anomaly in an artificial history, and none in a correct history."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import pytest

from fenceline.testing.history import ConsumerHistory, History, ProducerHistory
from fenceline.testing.history_checks import Anomaly, AnomalyKind, LossRange, check, summary

P = ("t", 0)


class ArtificialHistory:
    """Ten records of one idempotent producer at offsets 0 to 9, read by one consumer, in two copies of the log."""

    def __init__(self, *, is_idempotent: bool = True) -> None:
        self.history = History()
        self.producer: ProducerHistory = self.history.producer("p", is_idempotent=is_idempotent)
        self.consumer: ConsumerHistory = self.history.consumer("c")
        self.values = [self.producer.next_value() for _ in range(10)]
        for value in self.values:
            self.producer.sent(P, value)
        self.offsets = list(range(10))
        self.log = list(self.values)
        self.other = list(self.values)

    def acknowledge(self, *numbers: int) -> None:
        for number in numbers:
            self.producer.acknowledged(P, self.values[number], number)

    def poll(self, *numbers: int) -> None:
        for number in numbers:
            self.consumer.polled(P, number, self.values[number])

    def found(self, *losses: LossRange) -> list[Anomaly]:
        self.history.log("replica 1", P, self.offsets, self.log)
        self.history.log("replica 2", P, range(len(self.other)), self.other)
        return list(check(self.history, losses))

    def kinds(self, *losses: LossRange) -> set[AnomalyKind]:
        return {each.kind for each in self.found(*losses)}


def test_a_correct_history_has_no_anomaly() -> None:
    made = ArtificialHistory()
    made.acknowledge(*range(8))  # the fate of the last two is unknown
    made.poll(*range(4))
    made.consumer.positioned(P, 2)
    made.poll(*range(2, 10))
    made.history.consumer("late").polled(P, 7, made.values[7])
    assert made.found() == []
    assert summary(made.found()) == ""


def test_lost_write() -> None:
    made = ArtificialHistory()
    made.acknowledge(*range(10))
    del made.log[9], made.offsets[9], made.other[9]
    (found,) = made.found()
    assert (found.kind, found.who, found.offset, found.value) == (AnomalyKind.LOST_WRITE, "p", 9, made.values[9])


def test_lost_write_without_an_offset() -> None:
    made = ArtificialHistory()
    made.producer.acknowledged(P, made.values[9])
    del made.log[9], made.offsets[9], made.other[9]
    assert made.kinds() == {AnomalyKind.LOST_WRITE}


def test_a_write_that_one_copy_lost() -> None:
    made = ArtificialHistory()
    made.acknowledge(9)
    del made.other[9]
    found = made.found()
    assert {each.kind for each in found} == {AnomalyKind.LOST_WRITE, AnomalyKind.COPIES_DIFFER}
    assert {each.who for each in found} == {"replica 2"}


def test_copies_of_different_length_without_an_acknowledgement() -> None:
    made = ArtificialHistory()
    del made.other[9]
    assert made.kinds() == {AnomalyKind.COPIES_DIFFER}


def test_lost_read() -> None:
    made = ArtificialHistory()
    made.poll(*range(10))
    del made.log[9], made.offsets[9], made.other[9]
    assert made.kinds() == {AnomalyKind.LOST_READ}


def test_duplicate() -> None:
    made = ArtificialHistory()
    made.log[7] = made.other[7] = made.values[3]
    (one, two) = made.found()
    assert one.kind is two.kind is AnomalyKind.DUPLICATE
    assert (one.offset, one.value, one.who, two.who) == (7, made.values[3], "replica 1", "replica 2")


def test_a_producer_that_is_not_idempotent_may_repeat_and_reorder() -> None:
    made = ArtificialHistory(is_idempotent=False)
    made.log[7] = made.other[7] = made.values[3]
    made.log[1], made.log[2] = made.log[2], made.log[1]
    made.other[:] = made.log
    made.producer.acknowledged(P, made.values[3], 7)
    assert made.found() == []


def test_two_values_at_one_offset_of_two_copies() -> None:
    made = ArtificialHistory()
    made.other[4] = stranger = made.producer.next_value()
    made.producer.sent(P, stranger)
    assert made.kinds() == {AnomalyKind.INCONSISTENT_OFFSET, AnomalyKind.REORDERED}
    assert next(each for each in made.found() if each.kind is AnomalyKind.INCONSISTENT_OFFSET).offset == 4


def test_two_values_at_one_offset_of_a_consumer_and_the_log() -> None:
    made = ArtificialHistory()
    made.consumer.polled(P, 4, made.values[5])
    (found,) = made.found()
    assert (found.kind, found.offset, found.who) == (AnomalyKind.INCONSISTENT_OFFSET, 4, "c")


def test_an_offset_occurs_twice_in_a_log() -> None:
    made = ArtificialHistory()
    made.offsets[5] = 4
    assert AnomalyKind.INCONSISTENT_OFFSET in made.kinds()


def test_acknowledged_at_another_offset() -> None:
    made = ArtificialHistory()
    made.producer.acknowledged(P, made.values[4], 5)
    (found,) = made.found()
    assert (found.kind, found.offset, found.value) == (AnomalyKind.DISAGREEMENT, 5, made.values[4])


def test_acknowledged_at_two_offsets() -> None:
    made = ArtificialHistory()
    made.acknowledge(4)
    made.producer.acknowledged(P, made.values[4], 5)
    assert made.kinds() == {AnomalyKind.DISAGREEMENT}


def test_rejected_and_written() -> None:
    made = ArtificialHistory()
    made.producer.rejected(P, made.values[4])
    assert made.kinds() == {AnomalyKind.REJECTED_AND_WRITTEN}


def test_rejected_and_not_written() -> None:
    made = ArtificialHistory()
    made.producer.rejected(P, made.values[9])
    del made.log[9], made.offsets[9], made.other[9]
    assert made.found() == []


@pytest.mark.parametrize("where", [("t", 0), ("t", 1)])
def test_a_value_never_sent_to_this_partition(where: tuple[str, int]) -> None:
    made = ArtificialHistory()
    stranger = made.producer.next_value()
    if where != P:
        made.producer.sent(where, stranger)
        made.history.log("replica 1", where, [], [])
    made.log.append(stranger)
    made.offsets.append(10)
    made.other.append(stranger)
    assert made.kinds() == {AnomalyKind.NEVER_SENT}


def test_reordered() -> None:
    made = ArtificialHistory()
    made.log[4], made.log[5] = made.log[5], made.log[4]
    made.other[:] = made.log
    (found,) = made.found()
    # Record 4 is at offset 5, so the next record of its producer must not precede it.
    assert (found.kind, found.offset, found.value) == (AnomalyKind.REORDERED, 4, made.values[5])


def test_poll_skip() -> None:
    made = ArtificialHistory()
    made.poll(0, 1, 3, 4)
    (found,) = made.found()
    assert (found.kind, found.offset, found.value, found.who) == (AnomalyKind.POLL_SKIP, 2, made.values[2], "c")


def test_poll_skip_after_a_seek() -> None:
    made = ArtificialHistory()
    made.poll(0)
    made.consumer.positioned(P, 5)
    made.poll(6)
    (found,) = made.found()
    assert (found.kind, found.offset) == (AnomalyKind.POLL_SKIP, 5)


def test_an_offset_without_a_record_is_not_skipped() -> None:
    made = ArtificialHistory()
    made.poll(0, 1)
    del made.log[2], made.offsets[2]
    made.other = []
    made.poll(3)
    assert made.kinds() == {AnomalyKind.HOLE, AnomalyKind.COPIES_DIFFER}


@pytest.mark.parametrize("again", [3, 2])
def test_nonmonotonic_poll(again: int) -> None:
    made = ArtificialHistory()
    made.poll(2, 3, again)
    (found,) = made.found()
    assert (found.kind, found.offset) == (AnomalyKind.NONMONOTONIC_POLL, again)


def test_hole() -> None:
    made = ArtificialHistory()
    del made.log[4], made.offsets[4]
    made.history.log("replica 1", P, made.offsets, made.log)
    (found,) = check(made.history)
    assert (found.kind, found.offset) == (AnomalyKind.HOLE, 4)


def test_a_reported_loss_is_no_anomaly() -> None:
    """Records 8 and 9 were acknowledged and read, then lost; two others are at these offsets now."""
    made = ArtificialHistory()
    made.acknowledge(*range(10))
    made.poll(*range(10))
    later = [made.producer.next_value() for _ in range(2)]
    for number, value in enumerate(later):
        made.producer.sent(P, value)
        made.producer.acknowledged(P, value, 8 + number)
    made.log[8:] = made.other[8:] = later
    made.consumer.positioned(P, 8)
    for number, value in enumerate(later):
        made.consumer.polled(P, 8 + number, value)
    assert made.found(LossRange(P, 8, 10)) == []
    assert made.kinds(LossRange(P, 9, 10)) == {AnomalyKind.LOST_WRITE, AnomalyKind.INCONSISTENT_OFFSET}
    assert made.kinds(LossRange(("u", 0), 8, 10)) >= {AnomalyKind.LOST_WRITE, AnomalyKind.INCONSISTENT_OFFSET}


def _two_lost_and_two_rewritten(made: ArtificialHistory) -> list[int]:
    """Records 8 and 9 were acknowledged and read, then lost; returns the values at these offsets now."""
    made.acknowledge(*range(10))
    made.poll(*range(10))
    later = [made.producer.next_value() for _ in range(3)]
    for number, value in enumerate(later):
        made.producer.sent(P, value)
        made.producer.acknowledged(P, value, 8 + number)
    made.log[8:] = made.other[8:] = later
    made.offsets.append(10)
    return later


def test_a_receipt_with_values_covers_nothing_else() -> None:
    made = ArtificialHistory()
    later = _two_lost_and_two_rewritten(made)
    made.consumer.positioned(P, 8)
    for number, value in enumerate(later):
        made.consumer.polled(P, 8 + number, value)
    assert made.found(LossRange(P, 8, 10, frozenset(made.values[8:]))) == []
    assert made.kinds(LossRange(P, 8, 10, frozenset(made.values[8:9]))) == {
        AnomalyKind.LOST_WRITE,
        AnomalyKind.INCONSISTENT_OFFSET,
    }
    assert made.kinds(LossRange(P, 8, 9, frozenset(made.values[8:]))) == {
        AnomalyKind.LOST_WRITE,
        AnomalyKind.INCONSISTENT_OFFSET,
    }


def test_an_acknowledgement_without_an_offset_is_covered_by_its_value() -> None:
    made = ArtificialHistory()
    made.producer.acknowledged(P, made.values[9])
    del made.log[9], made.offsets[9], made.other[9]
    assert made.found(LossRange(P, 9, 10, frozenset(made.values[9:]))) == []
    assert made.kinds(LossRange(P, 9, 10)) == {AnomalyKind.LOST_WRITE}


@pytest.mark.parametrize("position", [9, 10, None])
def test_a_consumer_that_crosses_a_truncation_unnoticed(position: int | None) -> None:
    """It continues at 10, or goes back too little."""
    made = ArtificialHistory()
    later = _two_lost_and_two_rewritten(made)
    if position is not None:
        made.consumer.positioned(P, position)
    for number in range(position or 10, 11):
        made.consumer.polled(P, number, later[number - 8])
    (found,) = made.found(LossRange(P, 8, 10))
    assert (found.kind, found.offset, found.value) == (AnomalyKind.CROSSED_TRUNCATION, 8, made.values[8])


def test_a_consumer_that_ends_before_a_truncation_has_crossed_none() -> None:
    made = ArtificialHistory()
    _two_lost_and_two_rewritten(made)
    assert made.found(LossRange(P, 8, 10)) == []


def test_a_check_without_the_log_is_rejected() -> None:
    made = ArtificialHistory()
    with pytest.raises(ValueError, match="t-0"):
        list(check(made.history))


def test_a_summary_counts_all_and_shows_some() -> None:
    made = ArtificialHistory()
    made.acknowledge(*range(10))
    made.log.clear()
    made.offsets.clear()
    made.other.clear()
    lines = summary(made.found()).splitlines()
    assert lines[0] == "10 LOST_WRITE"
    assert lines[1] == f"LOST_WRITE: t-0 offset 0, value {made.values[0]}, p: acknowledged, but not in the log"
    assert len(lines) == 6


# --- random histories -----------------------------------------------------------------------------------------------


def _random_history(rng: random.Random) -> tuple[History, list[tuple[int, int]]]:
    """Three producers into one partition: each record is written, not written, or written without a response."""
    history = History()
    producers = [history.producer(f"p{number}") for number in range(3)]
    log: list[tuple[int, int]] = []
    for _ in range(60):
        producer = rng.choice(producers)
        value = producer.next_value()
        producer.sent(P, value)
        match rng.choice(("told", "told", "told", "told without offset", "not told", "refused", "never came")):
            case "told":
                producer.acknowledged(P, value, len(log))
            case "told without offset":
                producer.acknowledged(P, value)
            case "refused":
                producer.rejected(P, value)
                continue
            case "never came":
                continue
        log.append((len(log), value))
    for number in range(3):
        consumer = history.consumer(f"c{number}")
        position = rng.randrange(len(log))
        consumer.positioned(P, position)
        while position < len(log):
            if rng.random() < 0.05:
                position = rng.randrange(len(log))
                consumer.positioned(P, position)
            consumer.polled(P, *log[position])
            position += 1
    return history, log


def _drop(log: list[tuple[int, int]], at: int) -> Iterable[tuple[int, int]]:
    return log[:at] + log[at + 1 :]


def _drop_and_close_up(log: list[tuple[int, int]], at: int) -> Iterable[tuple[int, int]]:
    values = [value for _, value in log]
    return enumerate(values[:at] + values[at + 1 :])


def _repeat(log: list[tuple[int, int]], at: int) -> Iterable[tuple[int, int]]:
    return [*log, (len(log), log[at][1])]


def _swap(log: list[tuple[int, int]], at: int) -> Iterable[tuple[int, int]]:
    values = [value for _, value in log]
    values[at], values[-1] = values[-1], values[at]
    return enumerate(values)


@pytest.mark.parametrize("seed", range(40))
def test_random_histories_have_no_anomaly(seed: int) -> None:
    history, log = _random_history(random.Random(seed))
    history.log("end", P, *zip(*log, strict=True))
    assert summary(check(history)) == ""


@pytest.mark.parametrize("fault", [_drop, _drop_and_close_up, _repeat, _swap])
@pytest.mark.parametrize("seed", range(20))
def test_random_histories_with_a_fault_have_an_anomaly(
    seed: int, fault: Callable[[list[tuple[int, int]], int], Iterable[tuple[int, int]]]
) -> None:
    rng = random.Random(seed)
    history, log = _random_history(rng)
    history.log("end", P, *zip(*fault(log, rng.randrange(len(log) - 1)), strict=True))
    assert summary(check(history)) != ""
