"""Real processes under the operations and faults of simulated clusters, Fenceline alone and mixed with Kafka 4.3.1.

Clients and operators use every API while nodes are killed, stopped, frozen, isolated, and lose disks and clock time.
Afterwards every acknowledged record is readable, was deleted by a request or by retention, or is covered by a receipt
whose evidence contains it; no log start has moved without a cause, no topic contains records of a deleted topic of the
same name, every replica is in sync and equals the others, and no node logs an internal error. `make soak` runs each
cluster for fifteen minutes (FENCELINE_CHAOS_MINUTES sets another duration, FENCELINE_CHAOS_SEED a single seed).
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from fenceline.client import Consumer
from fenceline.client.admin.admin import Admin
from fenceline.client.core.offsets import LATEST
from fenceline.ids import LOSSES_TOPIC, TopicPartition
from fenceline.losses.receipt import Receipt, decode
from fenceline.testing.mixed_cluster import COMBINED
from fenceline.testing.simulation.operations import FAULTS, OPERATIONS, Fault
from fenceline.testing.waiting import eventually
from tests.scheduling import CLUSTERS
from tests.support.chaos_cluster import KAFKA, NOT_BY_PROCESSES, WAIT_S, ChaosCluster
from tests.support.chaos_model import Topic, ghosts, moved_starts, unaccounted
from tests.support.chaos_operations import Load, Operators, topics
from tests.support.partition_files import values
from tests.testing.echo_peer import need_cuts

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quiet_clients"), pytest.mark.together(CLUSTERS)]

ALONE = (COMBINED,) * 3
MIXED = (COMBINED, COMBINED, KAFKA)
_UNREGISTER = "unregister"
_KINDS = [pytest.param(ALONE, id="alone"), pytest.param(MIXED, id="mixed", marks=pytest.mark.kafka)]


def test_every_listed_operation_and_fault_is_driven_or_exempted(tmp_path: Path) -> None:
    chaos = ChaosCluster(tmp_path, ALONE, random.Random(1))
    operators = Operators(chaos, topics(), random.Random(2))
    assert {*operators.driven, *operators.by_others} == set(OPERATIONS)
    assert not operators.driven.keys() & operators.by_others.keys()
    assert {*chaos.strikes, Fault.STRANDED, *NOT_BY_PROCESSES} == set(FAULTS)
    assert not chaos.strikes.keys() & NOT_BY_PROCESSES.keys()
    assert all(NOT_BY_PROCESSES.values())


@pytest.mark.timeout(600)
def test_a_short_run_of_operations_and_faults(tmp_path: Path) -> None:
    play(tmp_path, ALONE, minutes=None, longest_s=2.0, strikes=(Fault.KILL, Fault.DIRECTORY_LOST, Fault.STRANDED))


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kinds", _KINDS)
def test_a_long_run_of_operations_and_faults(kinds: tuple[str, ...], tmp_path: Path) -> None:
    play(tmp_path, kinds, minutes=float(os.environ.get("FENCELINE_CHAOS_MINUTES", "15")), longest_s=8.0, strikes=())


def play(
    root: Path, kinds: tuple[str, ...], *, minutes: float | None, longest_s: float, strikes: tuple[Fault, ...]
) -> None:
    need_cuts()
    seed = int(os.environ.get("FENCELINE_CHAOS_SEED") or random.randrange(2**32))
    print(f"seed {seed}")
    rng = random.Random(seed)
    chaos = ChaosCluster(root, kinds, random.Random(rng.random()))
    operators = Operators(chaos, topics(), random.Random(rng.random()))
    with chaos.cluster:
        chaos.cluster.wait_ready()
        chaos.cluster.wait_complete()
        operators.create_all()
        loads = [Load(chaos.bootstrap, topic) for topic in operators.topics.values()]
        for load in loads:
            load.start()
        deadline = time.monotonic() + 60 * minutes if minutes is not None else None
        done: Counter[str] = Counter()
        try:
            _rounds(chaos, operators, rng, longest_s, strikes, deadline, done)
            chaos.mend()
            operators.bring_back()
            for load in loads:
                load.is_over.set()
            for load in loads:
                load.join(60)
            everything = list(operators.topics.values())
            operators.in_sync(everything)
            receipts = _receipts(chaos)
            logs = {topic.name: operators.read(topic) for topic in everything}
            operators.one(next(each for each in operators.driven if each.value == "fetch committed"))
            for node in chaos.nodes:
                node.send_signal(15)
            codes = {node.node_id: node._ended(WAIT_S) for node in chaos.ours}
        finally:
            print("\n".join(chaos.story))
        for node in chaos.ours:
            chaos.keep_output(node)
    counts: Counter[str] = Counter()
    missing = [each for topic in everything for each in unaccounted(topic, logs[topic.name], receipts, counts)]
    print(
        f"seed {seed}: {dict(counts)}; faults {dict(done)}; operations {dict(operators.done)}; {len(receipts)} receipts"
    )
    assert missing == []
    assert [each for topic in everything for each in ghosts(topic, logs[topic.name])] == []
    assert [each for topic in everything for each in moved_starts(topic, logs[topic.name])] == []
    assert [each for topic in everything for each in _differing(chaos, topic)] == []
    assert operators.wrong == []
    assert [load.failure for load in loads if load.failure is not None] == []
    assert [line for line in chaos.said if "Traceback" in line or "internal error" in line] == []
    assert set(codes.values()) == {0}
    assert counts["readable"] > 0
    if minutes is not None and minutes >= 5:
        assert [each for each in operators.driven if not operators.done[each]] == []


def _rounds(
    chaos: ChaosCluster,
    operators: Operators,
    rng: random.Random,
    longest_s: float,
    strikes: tuple[Fault, ...],
    deadline: float | None,
    done: Counter[str],
) -> None:
    """Inject faults one by one, in rounds of random order, while operations run."""
    is_over = threading.Event()
    failures: list[BaseException] = []

    def operate() -> None:
        try:
            while not is_over.is_set():
                turn = list(operators.driven)
                operators_rng.shuffle(turn)
                for operation in turn:
                    if is_over.is_set():
                        return
                    operators.one(operation)
                    time.sleep(0.1)
        except BaseException as error:
            failures.append(error)

    operators_rng = random.Random(rng.random())
    thread = threading.Thread(target=operate, name="operators", daemon=True)
    thread.start()
    try:
        while not failures and (deadline is None or time.monotonic() < deadline):
            turn: list[Fault | str] = list(strikes) or [*chaos.strikes, Fault.KILL, Fault.STRANDED, _UNREGISTER]
            if not strikes:
                rng.shuffle(turn)
            for fault in turn:
                if failures or (deadline is not None and time.monotonic() > deadline):
                    break
                _strike(chaos, operators, rng, fault, rng.random() ** 2 * longest_s)
                done[fault] += 1
                time.sleep(1.0)
            if deadline is None:
                break
    finally:
        is_over.set()
        thread.join(WAIT_S)
    if failures:
        raise failures[0]
    assert not thread.is_alive(), "an operation does not return"


def _strike(chaos: ChaosCluster, operators: Operators, rng: random.Random, fault: Fault | str, lasts_s: float) -> None:
    if fault == _UNREGISTER:
        operators.unregister()
    elif fault is Fault.STRANDED:
        operators.in_sync([operators.topics["torn"]])
        operators.strand()
    else:
        assert isinstance(fault, Fault)
        chaos.strike(fault, rng.choice([node for node in chaos.nodes if chaos.may_strike(fault, node)]), lasts_s)


def _receipts(chaos: ChaosCluster) -> list[Receipt]:
    """All receipts in the ledger, once no node has an undelivered one."""

    def all_delivered() -> bool:
        return not [
            path
            for node in chaos.ours
            for log_dir in node.log_dirs
            for pattern in ("*/lost+found/*.due", "*/lost+found/*.intended", "*.due")
            for path in log_dir.glob(pattern)
        ]

    eventually(all_delivered, "all receipts are delivered", wait_s=WAIT_S)
    ledger = TopicPartition(LOSSES_TOPIC, 0)
    with Admin({"bootstrap.servers": chaos.bootstrap}) as admin:
        if LOSSES_TOPIC not in admin.metadata().topics:
            return []
        end = admin.list_offsets({ledger: LATEST})[ledger].offset
    receipts: dict[str, Receipt] = {}
    with Consumer({"bootstrap.servers": chaos.bootstrap}) as consumer:
        consumer.assign([ledger])
        consumer.seek(ledger, 0)

        def is_read() -> bool:
            for record in consumer.poll(200):
                receipt = decode(bytes(record.value or b""))
                receipts[receipt.id] = receipt
            return consumer.position(ledger) >= end

        eventually(is_read, "the ledger is read", wait_s=WAIT_S)
    return list(receipts.values())


def _differing(chaos: ChaosCluster, topic: Topic) -> list[str]:
    """Replicas whose records differ at offsets that both have. The nodes must have stopped."""
    if topic.is_compacted:
        return []
    found = []
    for index in range(4):
        replicas = {
            f"node {node.node_id}": values(log_dir, topic.name, index)
            for node in chaos.nodes
            for log_dir in node.log_dirs
            if (log_dir / f"{topic.name}-{index}").is_dir()
        }
        held = {where: records for where, records in replicas.items() if records}
        for (one, records), (other, others) in pairwise(held.items()):
            begin = max(min(records), min(others))
            here = {offset: value for offset, value in records.items() if offset >= begin}
            there = {offset: value for offset, value in others.items() if offset >= begin}
            if here != there:
                first = min(each for each in here.keys() | there.keys() if here.get(each) != there.get(each))
                found.append(f"{topic.name}-{index} of {one} and {other} differ from offset {first} on")
    return found
