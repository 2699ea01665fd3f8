"""The state machine as a table: each state, request and relation of the request's identity to the current one.

A cell is an error code or 0 (nothing is written), or the state of the record that is written with what is added to the
epoch, and behind a colon the code of the response if it is not 0.

The current identity is (5, 10), its last epoch 9, the producer id before it 4. Rules: transactions.md X7 to X16.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.transactions import decisions
from fenceline.transactions.messages import (
    NO_IDENTITY,
    AddPartitions,
    EndTransaction,
    InitProducer,
    PartitionsAdded,
    ProducerIdentity,
)
from fenceline.transactions.model import Change, Transaction, check_step
from fenceline.transactions.states import TransactionState
from tests.transactions.world import A, B, World

TABLE: Final = """
request     identity  Empty           Ongoing           PrepareCommit  PrepareAbort  CompleteCommit  CompleteAbort
add         current   Ongoing+0       Ongoing+0         51             51            Ongoing+0       Ongoing+0
add         last      90              90                90             90            90              90
add         older     90              90                90             90            90              90
add         newer     90              90                90             90            90              90
add         other     49              49                49             49            49              49
add         previous  49              49                49             49            49              49
again       current   Ongoing+0       0                 51             51            Ongoing+0       Ongoing+0
verify      current   120             0                 51             51            120             120
verify      last      90              90                90             90            90              90
verify      newer     90              90                90             90            90              90
verify      other     49              49                49             49            49              49
commit4     current   48              PrepareCommit+0   51             48            0               48
commit4     last      90              90                90             90            90              90
commit4     newer     90              90                90             90            90              90
commit4     other     49              49                49             49            49              49
abort4      current   48              PrepareAbort+0    48             51            48              0
abort4      last      90              90                90             90            90              90
abort4      newer     90              90                90             90            90              90
abort4      other     49              49                49             49            49              49
commit5     current   48              PrepareCommit+1   90             90            48              48
commit5     last      90              90                51             48            0               48
commit5     older     90              90                90             90            90              90
commit5     newer     90              90                90             90            90              90
commit5     other     49              49                49             49            49              49
commit5     previous  49              49                49             49            49              49
abort5      current   PrepareAbort+1  PrepareAbort+1    90             90            PrepareAbort+1  PrepareAbort+1
abort5      last      90              90                48             51            48              0
abort5      older     90              90                90             90            90              90
abort5      newer     90              90                90             90            90              90
abort5      other     49              49                49             49            49              49
abort5      previous  49              49                49             49            49              49
init        none      Empty+1         PrepareAbort+1:51 51             51            Empty+1         Empty+1
init        current   Empty+1         PrepareAbort+1:51 51             51            Empty+1         Empty+1
init        last      Empty+0         PrepareAbort+1:51 51             51            Empty+0         Empty+0
init        older     90              PrepareAbort+1:51 51             51            90              90
init        newer     90              PrepareAbort+1:51 51             51            90              90
init        other     90              90                90             90            90              90
init        previous  90              PrepareAbort+1:51 51             51            90              90
"""
IDENTITIES: Final = {
    "none": NO_IDENTITY,
    "current": ProducerIdentity(5, 10),
    "last": ProducerIdentity(5, 9),
    "older": ProducerIdentity(5, 8),
    "newer": ProducerIdentity(5, 11),
    "other": ProducerIdentity(6, 10),
    "previous": ProducerIdentity(4, 32_766),
}
NOW_MS: Final = 2_000


def known(state: TransactionState) -> Transaction:
    partitions = frozenset() if state.is_at_rest else frozenset({A})
    return Transaction(
        5, 10, 60_000, state, partitions, start_ms=1_000, last_update_ms=1_000, previous_producer_id=4, last_epoch=9,
        client_version=2,
    )  # fmt: skip


def decide(request: str, identity: ProducerIdentity, before: Transaction) -> Any:
    match request:
        case "add" | "again":
            added = AddPartitions("x", identity, (A,) if request == "again" else (B,), transaction_version=2)
            return decisions.add_partitions(before, added, 2, NOW_MS)
        case "verify":
            return decisions.verify_partitions(before, AddPartitions("x", identity, (A,), verify_only=True))
        case "init":
            return decisions.init_producer(before, InitProducer("x", 60_000, identity), 2, lambda: 99, NOW_MS)
        case _:
            version, commit = int(request[-1]), request.startswith("commit")
            return decisions.end_transaction(
                before, EndTransaction("x", identity, commit, version), 2, lambda: 99, NOW_MS
            )


def cell(request: str, identity: ProducerIdentity, before: Transaction) -> str:
    try:
        decision = decide(request, identity, before)
    except PeerError as error:
        return str(error.code.value)
    if isinstance(decision, PartitionsAdded):
        return str(decision.errors[0].value)
    if not isinstance(decision, Change):
        return str(decision.error.value)
    check_step(before, decision.after)
    assert decision.after.last_update_ms == NOW_MS
    outcome: Any = decision.outcome
    code = outcome.errors[0] if isinstance(outcome, PartitionsAdded) else outcome.error
    suffix = f":{code.value}" if code else ""
    return f"{decision.after.state.title}+{decision.after.epoch - before.epoch}{suffix}"


ROWS: Final = [line.split() for line in TABLE.strip().splitlines()]
CELLS: Final = [
    (row[0], row[1], state, expected) for row in ROWS[1:] for state, expected in zip(ROWS[0][2:], row[2:], strict=True)
]


@pytest.mark.parametrize(("request_name", "identity", "state", "expected"), CELLS)
def test_cell(request_name: str, identity: str, state: str, expected: str) -> None:
    before = known(next(each for each in TransactionState if each.title == state))
    assert cell(request_name, IDENTITIES[identity], before) == expected


def test_every_state_is_in_the_table() -> None:
    assert ROWS[0][2:] == [state.title for state in TransactionState]


X15: Final = """
state           abort:retry  abort:current   commit:retry  commit:current
Empty           90           PrepareAbort+1  90            48
CompleteAbort   0            PrepareAbort+1  48            48
CompleteCommit  48           PrepareAbort+1  0             48
"""


@pytest.mark.parametrize("row", [line.split() for line in X15.strip().splitlines()[1:]])
def test_ends_at_rest(row: list[str]) -> None:
    """transactions.md X15, its table as it stands there."""
    before = known(next(each for each in TransactionState if each.title == row[0]))
    columns = [("abort5", "last"), ("abort5", "current"), ("commit5", "last"), ("commit5", "current")]
    assert [cell(request, IDENTITIES[identity], before) for request, identity in columns] == row[1:]


@pytest.mark.parametrize("request_name", ["add", "init", "commit4", "abort4", "commit5", "abort5"])
def test_a_pending_change_delays_everything(request_name: str) -> None:
    """transactions.md X3; a verification looks at the committed value."""
    world = World()
    identity = world.begun(A)
    world.holds = True
    world.add(identity, B)
    assert world.add(identity, A, verify_only=True).errors == (ErrorCode.NONE,)
    assert world.add(identity, B, verify_only=True).errors == (ErrorCode.TRANSACTION_ABORTABLE,)
    if request_name == "add":
        assert world.add(identity, ("a", 5)).errors == (ErrorCode.CONCURRENT_TRANSACTIONS,)
    elif request_name == "init":
        assert world.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    else:
        outcome = world.end(identity, commit=request_name.startswith("commit"), version=int(request_name[-1]))
        assert outcome.error is ErrorCode.CONCURRENT_TRANSACTIONS


@pytest.mark.parametrize(
    ("request_name", "expected"), [("commit5", "PrepareCommit+1"), ("abort5", "PrepareAbort+1"), ("add", "Ongoing+0")]
)
def test_a_level_that_cannot_store_the_clients_version(request_name: str, expected: str) -> None:
    """transactions.md X27: at transaction.version 0 Kafka cannot write client version 2, and the id is blocked."""
    before = known(TransactionState.ONGOING)
    identity = IDENTITIES["current"]
    if request_name == "add":
        added = AddPartitions("x", identity, (B,), transaction_version=2)
        decision: Any = decisions.add_partitions(before, added, 0, 1)
    else:
        commit = request_name == "commit5"
        decision = decisions.end_transaction(before, EndTransaction("x", identity, commit), 0, lambda: 99, 1)
    assert decision.after.client_version == 0
    assert f"{decision.after.state.title}+{decision.after.epoch - before.epoch}" == expected
    assert decisions.completed(replace(known(TransactionState.PREPARE_ABORT)), 0, 1).client_version == 0


@pytest.mark.parametrize("level", [0, 1, 2])
def test_fence_by_level(level: int) -> None:
    """transactions.md X16."""
    after = decisions.fenced(known(TransactionState.ONGOING), level, lambda: 99, NOW_MS)
    assert (after.state, after.epoch, after.fenced) == (TransactionState.PREPARE_ABORT, 11, True)
    assert (after.last_epoch, after.client_version) == (10 if level == 2 else -1, level)


@pytest.mark.parametrize(
    ("epoch", "level", "expected"), [(32_766, 2, (32_767, 99)), (32_766, 1, (32_767, -1)), (32_767, 1, (32_767, -1))]
)
def test_fence_at_the_last_epochs(epoch: int, level: int, expected: tuple[int, int]) -> None:
    """transactions.md X16, X17; KAFKA-20090: an id at 32767 is not stuck."""
    before = replace(known(TransactionState.ONGOING), epoch=epoch)
    after = decisions.fenced(before, level, lambda: 99, NOW_MS)
    assert (after.epoch, after.next_producer_id) == expected
    ended = decisions.completed(after, level, NOW_MS)
    assert ended.identity == ((99, 0) if level == 2 else (5, 32_767))
    change = decisions.init_producer(ended, InitProducer("x", 1), level, lambda: 100, NOW_MS)
    assert change.after.identity == ((99, 1) if level == 2 else (100, 0))
