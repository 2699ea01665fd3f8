"""Requests to a transaction coordinator, told as scripts: every version, in every state that a client can see.

An answer that says that the coordinator is busy is not noted: the request is sent again. States between a decision and
its markers last for a moment only, and are seen by the tests of the state machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from fenceline.errors import ErrorCode
from fenceline.wire.apis import ApiKey
from tests.support.data_session import DataSession

Script: TypeAlias = Callable[[DataSession], None]

_BUSY: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
    }
)
_PATIENCE_S: Final = 60
_TIMEOUT_MS: Final = 60_000
_GROUP, _TRANSACTION = 0, 1
_INTERNAL: Final = "__consumer_offsets"


class _Identity(NamedTuple):
    producer_id: int
    epoch: int


_NOBODY: Final = _Identity(-1, -1)


def _codes(value: Any) -> set[int]:
    """All error codes anywhere in an answer."""
    if isinstance(value, dict):
        return {code for name, item in value.items() for code in _codes_of(name, item)}
    return {code for item in value for code in _codes(item)} if isinstance(value, list) else set()


def _codes_of(name: str, item: Any) -> set[int]:
    return {item} if name.endswith("error_code") and isinstance(item, int) else _codes(item)


def _told(session: DataSession, api: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
    """Ask until the coordinator is not busy, and note that answer."""
    for _ in session.until(_PATIENCE_S):
        answer = session.ask(api, version, fields)
        shown = session.comparable(api, answer)
        if _BUSY.isdisjoint(_codes(shown)):
            session.note(f"{api.name} v{version}", shown)
            return answer
    raise AssertionError("unreachable")


def _ready(session: DataSession) -> None:
    """The internal topics exist, and are led."""
    for kind in (_GROUP, _TRANSACTION):
        for _ in session.until(_PATIENCE_S):
            if not session.ask(ApiKey.FIND_COORDINATOR, 3, {"key": "anybody", "key_type": kind}).error_code:
                break


def _init(
    session: DataSession,
    name: str | None,
    *,
    version: int = 5,
    timeout_ms: int = _TIMEOUT_MS,
    before: _Identity = _NOBODY,
) -> _Identity:
    fields = {
        "transactional_id": session.name(name) if name else name,
        "transaction_timeout": timeout_ms,
        "producer_id": before.producer_id,
        "producer_epoch": before.epoch,
    }
    answer = _told(session, ApiKey.INIT_PRODUCER_ID, version, fields)
    return _Identity(answer.producer_id, answer.producer_epoch)


def _add(
    session: DataSession,
    name: str,
    identity: _Identity,
    *parts: tuple[str, int],
    version: int = 3,
    verify: bool = False,
) -> None:
    topics = [
        {"name": session.name(topic), "partitions": [index for _, index in rows]}
        for topic, rows in groupby(parts, key=itemgetter(0))
    ]
    transactional_id = session.name(name) if name else name
    if version <= 3:
        fields: dict[str, Any] = {
            "v3_and_below_transactional_id": transactional_id,
            "v3_and_below_producer_id": identity.producer_id,
            "v3_and_below_producer_epoch": identity.epoch,
            "v3_and_below_topics": topics,
        }
    else:
        transaction = {
            "transactional_id": transactional_id,
            "producer_id": identity.producer_id,
            "producer_epoch": identity.epoch,
            "verify_only": verify,
            "topics": topics,
        }
        fields = {"transactions": [transaction]}
    _told(session, ApiKey.ADD_PARTITIONS_TO_TXN, version, fields)


def _add_group(session: DataSession, name: str, identity: _Identity, group: str, *, version: int = 3) -> None:
    fields = {
        "transactional_id": session.name(name),
        "producer_id": identity.producer_id,
        "producer_epoch": identity.epoch,
        "group_id": session.name(group) if group else group,
    }
    _told(session, ApiKey.ADD_OFFSETS_TO_TXN, version, fields)


def _end(session: DataSession, name: str, identity: _Identity, *, commit: bool = True, version: int = 4) -> _Identity:
    fields = {
        "transactional_id": session.name(name),
        "producer_id": identity.producer_id,
        "producer_epoch": identity.epoch,
        "committed": commit,
    }
    answer = _told(session, ApiKey.END_TXN, version, fields)
    return _Identity(answer.producer_id, answer.producer_epoch) if version >= 5 else identity


def _commit_offset(
    session: DataSession,
    name: str,
    identity: _Identity,
    group: str,
    offset: int,
    *,
    version: int = 4,
    generation: int = -1,
    member: str = "",
) -> None:
    partition = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": 3,
        "committed_metadata": "m",
    }
    fields = {
        "transactional_id": session.name(name),
        "group_id": session.name(group),
        "producer_id": identity.producer_id,
        "producer_epoch": identity.epoch,
        "generation_id": generation,
        "member_id": member,
        "group_instance_id": None,
        "topics": [{"name": session.name("t"), "partitions": [partition]}],
    }
    _told(session, ApiKey.TXN_OFFSET_COMMIT, version, fields)


def _offset(session: DataSession, group: str, *, stable: bool) -> None:
    """What a group has committed: of both kinds of readers, pending offsets are busy for one of them."""
    topics = [{"name": session.name("t"), "partition_indexes": [0]}]
    asked = {"group_id": session.name(group), "member_id": None, "member_epoch": -1, "topics": topics}
    fields = {"groups": [asked], "require_stable": stable}
    session.tell(ApiKey.OFFSET_FETCH, 9, fields)


def _produce(
    session: DataSession, name: str, identity: _Identity, sequence: int, *, version: int, index: int = 0
) -> None:
    """Until the leader has asked the coordinator."""
    records = session.batch(
        producer_id=identity.producer_id, producer_epoch=identity.epoch, base_sequence=sequence, transactional=True
    )
    fields = session.produce("t", index, records, transactional_id=session.name(name))
    _told(session, ApiKey.PRODUCE, version, fields)


def _describe(session: DataSession, *names: str) -> None:
    """Without the time of the start. Once its markers are written."""
    wanted = {"transactional_ids": [session.name(name) if name else name for name in names]}
    for _ in session.until(_PATIENCE_S):
        answer = session.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, wanted)
        shown = session.comparable(ApiKey.DESCRIBE_TRANSACTIONS, answer)
        rows = shown["transaction_states"]
        if _BUSY.isdisjoint(_codes(shown)) and not any("Prepare" in each["transaction_state"] for each in rows):
            for each in rows:
                each["transaction_start_time"] = each["transaction_start_time"] is not None
            session.note("describe", rows)
            return


def _setup(session: DataSession) -> None:
    _ready(session)
    session.create("t", 2)


def producer_ids(session: DataSession) -> None:
    """InitProducerId: versions, ids, time-outs, and the identity of the producer before."""
    _ready(session)
    for version in range(6):
        _init(session, "versions", version=version)
    for version in (0, 5):
        _init(session, "", version=version)
        assert _init(session, None, version=version).epoch == 0
    for timeout_ms in (0, -1, 1, 900_000, 900_001, 2**31 - 1):
        _init(session, "timeouts", timeout_ms=timeout_ms)
    _init(session, "long" * 8_000)
    first = _init(session, "before")
    second = _init(session, "before", before=first)
    for before in (first, second, second, _Identity(second.producer_id, 40), _Identity(first.producer_id + 7_000, 0)):
        _init(session, "before", before=before)
    for before in (_Identity(-1, 3), _Identity(3, -1), _Identity(-2, -1)):
        _init(session, "before", before=before)
    _init(session, "unknown", before=_Identity(90_000_000, 0))
    _init(session, None, before=_Identity(5, 5))


def partitions_that_are_added(session: DataSession) -> None:
    _setup(session)
    for version in range(4):
        name = f"add{version}"
        known = _init(session, name)
        _add(session, name, known, ("t", 0), version=version)
        _add(session, name, known, ("t", 0), ("t", 1), version=version)
        _add(session, name, known, ("t", 7), version=version)
        _add(session, name, known, ("nowhere", 0), ("t", 1), version=version)
        _add(session, name, _Identity(known.producer_id, known.epoch + 1), ("t", 0), version=version)
        _add(session, name, _Identity(known.producer_id + 50_000, known.epoch), ("t", 0), version=version)
        _add(session, name, known, (_INTERNAL, 0), version=version)
        _describe(session, name)
    _add(session, "nobody", _Identity(1, 0), ("t", 0))
    _add(session, "", _Identity(1, 0), ("t", 0))
    known = _init(session, "none")
    _add(session, "none", known)
    _describe(session, "none")


def ends_of_transactions(session: DataSession) -> None:
    """EndTxn in each version and state: repeated, crosswise, of others."""
    _setup(session)
    for version in range(6):
        name = f"end{version}"
        known = _init(session, name)
        _end(session, name, known, version=min(version, 4))
        for commit in (True, False):
            _add(session, name, known, ("t", 0))
            ended = _end(session, name, known, commit=commit, version=version)
            _describe(session, name)
            _end(session, name, known, commit=commit, version=version)
            _end(session, name, known, commit=not commit, version=version)
            known = ended
        _end(session, name, _Identity(known.producer_id, known.epoch + 5), version=version)
        _end(session, name, _Identity(known.producer_id + 50_000, known.epoch), version=version)
        _init(session, name)
        _end(session, name, known, version=version)
    _end(session, "nobody", _Identity(1, 0))


def ends_without_partitions(session: DataSession) -> None:
    """Version 5 bumps the epoch of an empty transaction that is aborted, and does not commit one."""
    _ready(session)
    known = _init(session, "empty")
    _end(session, "empty", known, commit=True, version=5)
    known = _end(session, "empty", known, commit=False, version=5)
    _describe(session, "empty")
    known = _end(session, "empty", known, commit=False, version=5)
    _end(session, "empty", _Identity(known.producer_id, max(known.epoch - 1, 0)), commit=False, version=5)
    _describe(session, "empty")


def producers_that_replace_others(session: DataSession) -> None:
    """What was open is aborted, and the old producer is fenced everywhere."""
    _setup(session)
    old = _init(session, "shared")
    _add(session, "shared", old, ("t", 0))
    new = _init(session, "shared")
    _describe(session, "shared")
    _add(session, "shared", old, ("t", 0))
    _add_group(session, "shared", old, "g")
    _end(session, "shared", old)
    _end(session, "shared", old, version=5)
    _init(session, "shared", before=old)
    _add(session, "shared", new, ("t", 1))
    newest = _init(session, "shared", before=new)
    _describe(session, "shared")
    _end(session, "shared", newest, commit=False)


def offsets_of_groups(session: DataSession) -> None:
    """Pending, committed, aborted; and members that are not of the group."""
    _setup(session)
    known = _init(session, "mover")
    for version in range(4):
        _add_group(session, "mover", known, f"g{version}", version=version)
    _add_group(session, "mover", known, "")
    _add_group(session, "nobody", known, "g")
    _add_group(session, "mover", _Identity(known.producer_id, known.epoch + 1), "g")
    for version in range(5):
        _commit_offset(session, "mover", known, "g0", 10 + version, version=version)
        _offset(session, "g0", stable=False)
    _offset(session, "g0", stable=True)
    _end(session, "mover", known)
    _describe(session, "mover")
    _offset(session, "g0", stable=True)
    _add_group(session, "mover", known, "g0")
    _commit_offset(session, "mover", known, "g0", 77)
    _end(session, "mover", known, commit=False)
    _describe(session, "mover")
    _offset(session, "g0", stable=True)
    _add_group(session, "mover", known, "g0")
    _commit_offset(session, "mover", known, "g0", 78, generation=5, member="somebody")
    _commit_offset(session, "mover", known, "g0", 79, generation=0, member="")
    _commit_offset(session, "mover", known, "g0", 80, version=2)
    _end(session, "mover", known, commit=False)


def implicit_partitions(session: DataSession) -> None:
    """Transaction version 2: the leader of a partition and the group's coordinator add what is written."""
    _setup(session)
    known = _init(session, "implicit")
    _produce(session, "implicit", known, 0, version=12)
    _produce(session, "implicit", known, 0, version=12, index=1)
    _describe(session, "implicit")
    _commit_offset(session, "implicit", known, "gi", 5, version=5)
    following = _end(session, "implicit", known, version=5)
    _describe(session, "implicit")
    _produce(session, "implicit", known, 1, version=12)
    _commit_offset(session, "implicit", known, "gi", 6, version=5)
    _produce(session, "implicit", following, 0, version=12)
    _end(session, "implicit", known, commit=False, version=5)
    _describe(session, "implicit")
    last = _end(session, "implicit", following, commit=False, version=5)
    _end(session, "implicit", following, commit=False, version=5)
    _end(session, "implicit", last, commit=True, version=5)
    _offset(session, "gi", stable=True)


def partitions_that_were_not_added(session: DataSession) -> None:
    """Transaction version 1 and below: a batch of a partition that the coordinator does not know is rejected."""
    _setup(session)
    known = _init(session, "explicit")
    _produce(session, "explicit", known, 0, version=11)
    _add(session, "explicit", known, ("t", 0))
    _produce(session, "explicit", known, 0, version=11)
    _produce(session, "explicit", known, 0, version=11, index=1)
    _end(session, "explicit", known)
    _describe(session, "explicit")
    _produce(session, "explicit", known, 1, version=11)
    _produce(session, "nobody", known, 1, version=11)
    _commit_offset(session, "explicit", known, "ge", 5)


def questions_of_leaders(session: DataSession) -> None:
    """AddPartitionsToTxn in versions 4 and 5, as brokers send it."""
    _setup(session)
    known = _init(session, "asked")
    for version in (4, 5):
        _add(session, "asked", known, ("t", 0), version=version, verify=True)
        _add(session, "asked", known, ("t", 0), version=version)
        _add(session, "asked", known, ("t", 0), ("t", 1), version=version, verify=True)
        _add(session, "asked", known, ("nowhere", 0), ("t", 0), version=version, verify=True)
        _add(session, "asked", _Identity(known.producer_id, known.epoch + 1), ("t", 0), version=version, verify=True)
        _add(session, "asked", _Identity(known.producer_id + 9_000, 0), ("t", 0), version=version, verify=True)
        _add(session, "nobody", known, ("t", 0), version=version, verify=True)
        _add(session, "nobody", known, ("t", 0), version=version)
        _end(session, "asked", known)
        _describe(session, "asked")
        _add(session, "asked", known, ("t", 0), version=version, verify=True)


def listings(session: DataSession) -> None:
    """ListTransactions by state, producer and duration; DescribeTransactions of ids that are not there."""
    _setup(session)
    known = _init(session, "listed")
    _add(session, "listed", known, ("t", 0))
    ended = _init(session, "ended")
    _add(session, "ended", ended, ("t", 1))
    _end(session, "ended", ended)
    _describe(session, "listed", "ended", "nobody", "")
    mine = {session.name("listed"), session.name("ended")}
    for version in range(2):
        for states in ([], ["Ongoing"], ["CompleteCommit", "Empty"], ["NoSuchState", "Ongoing"], ["ongoing"]):
            for producer_ids in ([], [known.producer_id], [ended.producer_id, 5]):
                fields: dict[str, Any] = {"state_filters": states, "producer_id_filters": producer_ids}
                if version:
                    fields["duration_filter"] = -1
                _listed(session, version, fields, mine)
    for duration_ms in (0, 3_600_000):
        fields = {"state_filters": [], "producer_id_filters": [], "duration_filter": duration_ms}
        _listed(session, 1, fields, mine)
    _end(session, "listed", known, commit=False)


def _listed(session: DataSession, version: int, fields: Mapping[str, Any], mine: set[str]) -> None:
    """Of the ids of this script: the server has others."""
    answer = session.ask(ApiKey.LIST_TRANSACTIONS, version, fields)
    rows = [each for each in answer.transaction_states if each.transactional_id in mine]
    session.note(
        f"list {version} {fields['state_filters']}",
        [
            int(answer.error_code),
            sorted(answer.unknown_state_filters),
            sorted([each.transactional_id.rsplit("-", 1)[0], each.transaction_state] for each in rows),
        ],
    )


def coordinators_that_are_looked_for(session: DataSession) -> None:
    _ready(session)
    for version in range(1, 7):
        for name in ("someone", "", "x" * 32_767):
            if version <= 3:
                fields: dict[str, Any] = {"key": name, "key_type": 1}
            else:
                fields = {"key_type": 1, "coordinator_keys": [name, "another"]}
            _told(session, ApiKey.FIND_COORDINATOR, version, fields)


SCRIPTS: Final[dict[str, Script]] = {
    script.__name__: script
    for script in (
        producer_ids,
        partitions_that_are_added,
        ends_of_transactions,
        ends_without_partitions,
        producers_that_replace_others,
        offsets_of_groups,
        implicit_partitions,
        partitions_that_were_not_added,
        questions_of_leaders,
        listings,
        coordinators_that_are_looked_for,
    )
}
