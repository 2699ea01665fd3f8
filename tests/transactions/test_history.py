"""What the log of the state topic says about past transactions (`transactions.md X61`)."""

from __future__ import annotations

import pytest

from fenceline.transactions.history import TransactionHistory
from fenceline.transactions.messages import ProducerIdentity
from fenceline.transactions.records import decode
from tests.transactions.world import ID, A, B, World


def history_of(world: World, *producer_ids: int, without: frozenset[int] = frozenset()) -> TransactionHistory:
    """`without`: positions in the log that compaction has removed."""
    found = TransactionHistory(producer_ids)
    for position, (key, value) in enumerate(world.log[0]):
        if position not in without:
            found.add(key, value)
    return found


@pytest.mark.parametrize("commit", [True, False])
def test_transactions_of_an_epoch_each(commit: bool) -> None:
    """Transaction version 2: the decision has the next epoch, the records in partitions have the one before."""
    world = World()
    first = world.begun(A)
    world.end(first, commit=not commit)
    second = ProducerIdentity(first.producer_id, first.epoch + 1)
    world.add(second, A, B)
    world.end(second, commit=commit)
    found = history_of(world, first.producer_id)
    for identity, partitions, outcome in ((first, {A}, not commit), (second, {A, B}, commit)):
        past = found.of(*identity, A, world.wall_ms)
        assert past is not None
        assert (past.transactional_id, past.partitions, past.commit) == (ID, partitions, outcome)
    assert found.of(*first, B, world.wall_ms) is None, "it had no records there"
    assert found.of(first.producer_id, second.epoch + 1, A, world.wall_ms) is None
    assert history_of(world, 77).of(*first, A, world.wall_ms) is None


def test_many_transactions_of_one_epoch_are_told_apart_by_time() -> None:
    """Before transaction version 2: that of the records is the first that was decided after them."""
    world = World(level=0)
    identity = world.begun(A, version=0)
    decided = []
    for number in range(4):
        if number:
            world.add(identity, A)
        world.advance(1_000)
        decided.append(world.wall_ms)
        world.end(identity, commit=number % 2 == 0, version=3)
        world.advance(1_000)
    found = history_of(world, identity.producer_id)
    for number, at_ms in enumerate(decided):
        past = found.of(*identity, A, at_ms - 500)
        assert past is not None
        assert past.commit is (number % 2 == 0)
    newest = found.of(*identity, A, decided[-1] + 100_000)
    assert newest is not None
    assert newest.commit is False, "clocks differ: the newest one"


def test_open_transaction_is_undecided() -> None:
    world = World()
    identity = world.begun(A)
    past = history_of(world, identity.producer_id).of(*identity, A, world.wall_ms)
    assert past is not None
    assert past.commit is None


def test_fenced_transaction_is_aborted() -> None:
    """A new producer's InitProducerId and a time-out raise the epoch: the transaction is of the one before."""
    world = World()
    identity = world.begun(A)
    world.init()
    past = history_of(world, identity.producer_id).of(*identity, A, world.wall_ms)
    assert past is not None
    assert past.commit is False


def test_only_the_newest_record_is_left_after_compaction() -> None:
    """The outcome is known, the partitions are not."""
    world = World()
    identity = world.begun(A, B)
    world.end(identity, commit=True)
    last = len(world.log[0]) - 1
    past = history_of(world, identity.producer_id, without=frozenset(range(last))).of(*identity, A, world.wall_ms)
    assert past is not None
    assert (past.commit, past.partitions) == (True, frozenset())


def test_abort_of_nothing_is_no_transaction_of_a_partition() -> None:
    world = World()
    identity = world.begun(A)
    world.end(identity, commit=True)
    following = ProducerIdentity(identity.producer_id, identity.epoch + 1)
    world.end(following, commit=False)
    states = [decode(key, value) for key, value in world.log[0]]
    assert len(states) > 4, "the abort has records"
    found = history_of(world, identity.producer_id)
    past = found.of(*identity, A, world.wall_ms)
    assert past is not None
    assert past.commit is True
    assert found.of(*following, A, world.wall_ms) is None


def test_records_belong_to_one_transaction_only_if_their_epoch_has_no_other() -> None:
    world = World()
    first = world.begun(A)
    world.end(first, commit=True)
    second = ProducerIdentity(first.producer_id, first.epoch + 1)
    world.add(second, A)
    found = history_of(world, first.producer_id)
    past = found.only(*first, A)
    assert past is not None
    assert past.commit
    undecided = found.only(*second, A)
    assert undecided is not None
    assert undecided.commit is None

    world = World(level=0)
    identity = world.begun(A, version=0)
    world.end(identity, commit=True, version=3)
    world.add(identity, A)
    found = history_of(world, identity.producer_id)
    assert found.of(*identity, A, 0) is not None
    assert found.only(*identity, A) is None, "before transaction version 2 it may be either"


def test_producers_of_which_nothing_was_read() -> None:
    world = World()
    identity = world.begun(A)
    assert history_of(world, identity.producer_id, 77).unknown == {77}
