"""Rules broken on purpose: some random world must detect each, otherwise those worlds prove nothing about it.

A row has the rule, its place in the code, and the text that replaces it. The texts are those of the sources: a change
of the source needs a change of its row.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import pytest

from fenceline.controller import (
    alter_partition,
    brokers,
    elections,
    partition_changes,
    partitions,
    reassignments,
    registrations,
    replica_index,
    state,
)
from fenceline.errors import InternalError
from fenceline.metadata import topics_delta
from tests.controller.world import run_history


class Break(NamedTuple):
    rule: str
    module: ModuleType
    whole: str
    broken: str


BREAKS = (
    Break(
        "C16: a fenced broker leaves every ISR",
        partition_changes,
        "tuple(member for member in partition.isr if member != broker)",
        "partition.isr",
    ),
    Break(
        "C26: only active brokers lead",
        partition_changes,
        "(broker == arriving or image.is_active(broker))",
        "broker in image.brokers",
    ),
    Break(
        "C20: a replica in a failed directory does not lead",
        state,
        "if directory == LOST_DIRECTORY or directory in failed:",
        "if directory == LOST_DIRECTORY:",
    ),
    Break(
        "V11: an unclean leader is alone in sync and RECOVERING",
        elections,
        "state = LeaderRecoveryState.RECOVERING\n        elif",
        "pass\n        elif",
    ),
    Break(
        "V10: no leader outside the ISR while a member is alive",
        elections,
        "(replica in isr if isr else replica in elr)",
        "replica in (*isr, *elr)",
    ),
    Break("V12: no unclean election unless it is enabled", elections, "if election is Election.UNCLEAN:", "if True:"),
    Break("K21: enough in-sync replicas clear the eligible ones", elections, "if len(isr) >= min_isr:", "if False:"),
    Break(
        "K21: an in-sync replica is not also eligible",
        elections,
        "candidates = {*partition.elr, *partition.isr}.intersection(replicas) - set(isr) - {unclean_shutdown}",
        "candidates = {*partition.elr, *partition.isr}.intersection(replicas) - {unclean_shutdown}",
    ),
    Break(
        "K23: an unclean stop ends eligibility",
        registrations,
        "changes.leave(some, existing.id, unclean=not clean)",
        "pass",
    ),
    Break(
        "C27: a replica set that loses a member begins an epoch",
        elections,
        "elif replicas is not partition.replicas and not set(partition.replicas) <= set(replicas):",
        "elif False:",
    ),
    Break(
        "C28: without eligible replicas the last member stays in sync",
        elections,
        "if not isr and not elr_enabled:",
        "if False:",
    ),
    Break(
        "C33: a move ends when the new replicas are in sync",
        elections,
        "    if adding or removing:\n        isr, replicas",
        "    if False:\n        isr, replicas",
    ),
    Break(
        "C9: a change without effect is not written",
        elections,
        "        return None\n    return PartitionChangeRecord(",
        "        pass\n    return PartitionChangeRecord(",
    ),
    Break(
        "C9: every change increments the partition epoch",
        topics_delta,
        "old.partition_epoch + 1,",
        "old.partition_epoch,",
    ),
    Break(
        "C14: a leader does not shut down",
        brokers,
        "BrokerControlState.CONTROLLED_SHUTDOWN if state.index.leads_any(broker.id) else",
        "BrokerControlState.UNFENCED if not request.want_shut_down else",
    ),
    Break(
        "C16: an unfenced broker leads partitions without a leader",
        brokers,
        "changes.elect(some, arriving=broker.id, failed_directories=failed)",
        "pass",
    ),
    Break(
        "C19: an unregistered broker leaves the ISR",
        registrations,
        "in_isr(broker.id), broker.id, unclean=True",
        "in_elr(broker.id), broker.id, unclean=True",
    ),
    Break(
        "C32: removed replicas stay until the move ends",
        reassignments,
        "target_replicas=target + removing,",
        "target_replicas=target,",
    ),
    Break(
        "C34: a cancelled move drops the new replicas",
        reassignments,
        "isr = tuple(replica for replica in partition.isr if replica not in partition.adding)",
        "isr = partition.isr",
    ),
    Break(
        "V17: only for the current partition epoch",
        alter_partition,
        "if requested.partition_epoch < partition.partition_epoch:",
        "if False:",
    ),
    Break("V18: only the leader changes the ISR", alter_partition, "if broker_id != partition.leader:", "if False:"),
    Break("V20: a recovering leader is alone", alter_partition, "len(members) > 1 or partition", "partition"),
    Break(
        "V22: only active brokers are in sync",
        alter_partition,
        "if not all(_is_eligible(state, member) for member in requested.new_isr):",
        "if False:",
    ),
    Break("V22, E36: replicas only", alter_partition, "or not members <= set(partition.replicas) ", ""),
    Break(
        "G45: enabling unclean elections takes effect",
        partitions,
        "    if not changed:\n        return []",
        "    return [*changed, *changed]",
    ),
    Break("the index of leaders", replica_index, "_discard(self._leads[partition.leader], topic_id, bits)", "pass"),
)


@contextmanager
def broken(each: Break) -> Iterator[None]:
    """The functions of the module run the changed text inside this context."""
    source = inspect.getsource(each.module)
    assert source.count(each.whole) == 1, f"{each.module.__name__} has {source.count(each.whole)} of: {each.whole}"
    namespace: dict[str, Any] = {"__name__": each.module.__name__}
    exec(compile(source.replace(each.whole, each.broken), each.module.__name__, "exec"), namespace)
    kept = []
    for real, changed in _functions(each.module.__dict__, namespace):
        if real.__code__ != changed.__code__:
            kept.append((real, real.__code__))
            real.__code__ = changed.__code__
    assert kept, "the changed text changes no function"
    try:
        yield
    finally:
        for real, code in kept:
            real.__code__ = code


def _functions(before: Any, after: Any) -> Iterator[tuple[FunctionType, FunctionType]]:
    for name, real in list(before.items()):
        changed = after.get(name)
        if isinstance(real, FunctionType) and isinstance(changed, FunctionType):
            yield real, changed
        elif isinstance(real, type) and isinstance(changed, type) and real.__module__ == before["__name__"]:
            yield from _functions({**vars(real), "__name__": real.__module__}, vars(changed))


_SEEDS = 120


@pytest.mark.parametrize("each", BREAKS, ids=lambda each: each.rule)
def test_some_world_detects_the_broken_rule(each: Break) -> None:
    with broken(each):
        for seed in range(_SEEDS):
            try:
                run_history(seed)
            except (AssertionError, InternalError, ValueError, KeyError):
                return
    pytest.fail(f"{_SEEDS} worlds live without this rule")


def test_no_rule_stays_broken() -> None:
    for seed in range(3):
        run_history(seed)
