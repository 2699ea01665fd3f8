"""The cases for programs that consume: every situation of the laboratory that a consumer can meet.

Owns the list. A case may leave faults; they end before the program must have recovered.
"""

from __future__ import annotations

import re
import time
from typing import Final

from fenceline.testing.client_check.stage import Case, CaseOutcome, CaseStage, text_of_value

# A connection that is reset or lost is not what these cases are about.
_GONE: Final = r"truncat|diverg|out.?of.?range|(?<!connection )\b(?:re-?set|lost)|data.?loss|missed"
_TRUNCATION: Final = re.compile(_GONE, re.IGNORECASE)
_RANGE: Final = re.compile(rf"{_GONE}|\bgap\b|expired", re.IGNORECASE)
_TOPIC: Final = re.compile(rf"{_GONE}|unknown.?topic|topic.?id|recreat|delet|replaced", re.IGNORECASE)
_DAMAGE: Final = re.compile(r"crc|checksum|corrupt|damaged|invalid|malformed", re.IGNORECASE)
_FAULT_S: Final = 2.0


def _nothing(stage: CaseStage) -> None:
    pass


def _lose_unread(stage: CaseStage) -> CaseOutcome:
    """Records that the program has not read are lost."""
    stage.program.freeze()
    stage.write_unread()
    made = stage.cluster.situations.unclean_election(stage.topic, lose=20)
    stage.program.thaw()
    return CaseOutcome(_texts(made.lost_values))


def _lose_read(stage: CaseStage, *, then_write: int = 0) -> CaseOutcome:
    """Records that the program has processed are lost: its position is behind the end of the log. With more new records
    than were lost, it is valid again, in another history."""
    values: list[str] = []

    def produce() -> None:
        values.extend(stage.fresh_values())
        stage.cluster.produce(stage.topic, values)
        stage.await_processed(values)

    stage.cluster.situations.unclean_election(stage.topic, produce=produce, then_write=then_write)
    return CaseOutcome(frozenset(values))


def _lose_read_and_grow(stage: CaseStage) -> CaseOutcome:
    return _lose_read(stage, then_write=40)


def _out_of_range(stage: CaseStage) -> CaseOutcome:
    stage.program.freeze()
    gone = stage.write_unread()
    stage.cluster.situations.offsets_out_of_range(stage.topic)
    stage.program.thaw()
    return CaseOutcome(frozenset(gone), was_unread=True)


def _expired(stage: CaseStage) -> CaseOutcome:
    stage.program.freeze()
    gone = stage.write_unread()
    stage.cluster.situations.expiry(stage.topic)
    stage.program.thaw()
    return CaseOutcome(frozenset(gone), was_unread=True)


def _recreated(stage: CaseStage) -> None:
    stage.cluster.situations.topic_recreated(stage.topic, write=5)


def _moved(stage: CaseStage) -> None:
    stage.cluster.situations.leader_moved(stage.topic)


def _moving(stage: CaseStage) -> None:
    fault = stage.cluster.situations.moving_leader(stage.topic, pause_s=0.05)
    stage.write()
    fault.undo()


def _killed(stage: CaseStage) -> None:
    stage.cluster.faults.kill(stage.cluster.leader(stage.topic))
    stage.write()


def _frozen(stage: CaseStage) -> None:
    stage.cluster.faults.pause(stage.cluster.leader(stage.topic))
    stage.write()


def _isolated(stage: CaseStage) -> None:
    stage.cluster.situations.isolated_leader(stage.topic)


def _lagging(stage: CaseStage) -> None:
    stage.cluster.situations.lagging_broker(stage.topic)


def _coordinator(stage: CaseStage) -> None:
    stage.cluster.situations.coordinator_moved(stage.group)


def _lost_commit(stage: CaseStage) -> None:
    stage.cluster.situations.lost_commit(stage.group)
    stage.write()
    time.sleep(_FAULT_S)


def _lost_commit_answer(stage: CaseStage) -> None:
    stage.cluster.situations.lost_commit(stage.group, handled=True)
    stage.write()
    time.sleep(_FAULT_S)


def _storm(stage: CaseStage) -> None:
    stage.cluster.situations.rebalance_storm(stage.group)


def _zombie(stage: CaseStage) -> None:
    stage.cluster.situations.zombie_member(stage.group)


def _aborted(stage: CaseStage) -> None:
    stage.cluster.situations.aborted_transaction(stage.topic)


def _hanging(stage: CaseStage) -> None:
    stage.cluster.situations.hanging_transaction(stage.topic)
    stage.write()


def _poison(stage: CaseStage) -> None:
    stage.cluster.situations.poison_record(stage.topic)


def _damaged(stage: CaseStage) -> None:
    stage.program.freeze()
    stage.write_unread()
    stage.cluster.situations.damaged_batch(stage.topic)
    stage.program.thaw()
    time.sleep(_FAULT_S)


def _full_disk(stage: CaseStage) -> None:
    stage.cluster.situations.full_disk(stage.topic)
    time.sleep(_FAULT_S)


def _cut(stage: CaseStage) -> None:
    stage.cluster.faults.cut(stage.cluster.leader(stage.topic), clients=True)
    time.sleep(_FAULT_S)


def _half_open(stage: CaseStage) -> None:
    stage.cluster.faults.half_open(stage.cluster.leader(stage.topic))


def _reset(stage: CaseStage) -> None:
    for node in stage.cluster.broker_ids:
        stage.cluster.faults.reset(node)


def _slow(stage: CaseStage) -> None:
    stage.cluster.faults.delay(stage.cluster.leader(stage.topic), 0.2, jitter_s=0.2, peer="clients")
    stage.write()
    time.sleep(_FAULT_S)


def _throttled(stage: CaseStage) -> None:
    stage.cluster.faults.throttle("Fetch", 500, times=3)
    stage.write()


def _texts(values: list[bytes | None]) -> frozenset[str]:
    return frozenset(map(text_of_value, values))


BASELINE: Final = Case("baseline", "nothing happens", _nothing)
CONSUMER_CASES: Final = (
    Case("lost-unread", "unclean election: unread records are lost", _lose_unread),
    Case("truncated", "unclean election: processed records are lost", _lose_read, True, _TRUNCATION),
    Case(
        "truncated-grown",
        "the same, and the log is longer again",
        _lose_read_and_grow,
        True,
        _TRUNCATION,
    ),
    Case("out-of-range", "unread records are deleted", _out_of_range, True, _RANGE),
    Case("expired", "unread records expire", _expired, True, _RANGE),
    Case("topic-recreated", "the topic is deleted and made anew", _recreated, True, _TOPIC),
    Case("leader-moved", "the leader moves", _moved),
    Case("leader-moving", "the leader moves all the time", _moving),
    Case("leader-killed", "the leader is killed", _killed),
    Case("leader-frozen", "the leader is frozen", _frozen),
    Case("leader-isolated", "the leader is cut off from the other nodes", _isolated),
    Case("lagging-broker", "a broker does not know that it leads", _lagging),
    Case("coordinator-moved", "the coordinator moves", _coordinator),
    Case("lost-commit", "a commit is lost", _lost_commit),
    Case("lost-commit-answer", "the answer to a commit is lost", _lost_commit_answer),
    Case("rebalance-storm", "members join and leave", _storm),
    Case("zombie-member", "the member is removed from its group", _zombie),
    Case("aborted-transaction", "records of an aborted transaction", _aborted),
    Case("hanging-transaction", "a transaction stays open, and is aborted", _hanging),
    Case("poison-record", "a record that is no text", _poison),
    Case("damaged-batch", "a batch with a wrong checksum", _damaged, True, _DAMAGE),
    Case("full-disk", "the leader's disk is full", _full_disk),
    Case("cut", "clients are cut off from the leader", _cut),
    Case("half-open", "connections are half open", _half_open),
    Case("reset", "connections are reset", _reset),
    Case("slow-network", "the network is slow", _slow),
    Case("throttled", "fetches are throttled", _throttled),
)
