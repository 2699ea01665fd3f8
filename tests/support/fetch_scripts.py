"""Fetch told as scripts: reads, limits, fencing, divergence, sessions (KIP-227), and fetches that wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fenceline.wire.apis import ApiKey
from tests.support.data_session import DataSession

FETCH_VERSIONS: Final = range(4, 19)
_LONG_MS: Final = 30_000


def _fetch(session: DataSession, version: int, *parts: Any, **more: Any) -> Any:
    return session.tell(ApiKey.FETCH, version, session.fetch(parts, **more))


def fetch_every_version(session: DataSession) -> None:
    session.create("f", 2)
    session.produced("f", 0, session.batch(3))
    session.produced("f", 0, session.batch(2))
    for version in FETCH_VERSIONS:
        for isolation in (0, 1):
            _fetch(session, version, ("f", 0, 0), isolation_level=isolation)
            for offset in (1, 3, 4, 5):
                _fetch(session, version, ("f", 0, offset), isolation_level=isolation)
        for offset in (-1, -2, 6, 2**40):
            _fetch(session, version, ("f", 0, offset))
            _fetch(session, version, ("f", 0, offset), isolation_level=1)
        _fetch(session, version, ("f", 0, 0), ("f", 1, 0))
        _fetch(session, version, ("f", 0, 0), ("f", 2, 0), ("f", -1, 0), ("f", 1, 0))
        _fetch(session, version, ("nowhere", 0, 0), ("f", 1, 0))
        _fetch(session, version, ("f", 1, 0), ("nowhere", 0, 0))
        _fetch(session, version)
        _fetch(session, version, ("f", 0, 0), isolation_level=2)


def fetch_below_log_start(session: DataSession) -> None:
    session.create("f")
    for _ in range(3):
        session.produced("f", 0, session.batch(4))
    rows = [{"name": session.name("f"), "partitions": [{"partition_index": 0, "offset": 6}]}]
    session.tell(ApiKey.DELETE_RECORDS, 2, {"topics": rows, "timeout": 10_000})
    for version in (4, 11, 12, 18):
        for offset in (0, 4, 5, 6, 8, 12, 13):
            _fetch(session, version, ("f", 0, offset))
        for last in (0, 1):
            for offset in (0, 5, 6, 12, 13):
                _fetch(session, version, ("f", 0, offset, {"last_fetched_epoch": last}))


def fetch_leader_epochs(session: DataSession) -> None:
    """Fencing comes before all else, and for every kind of reader (`epochs.md E1-E4`, `E8-E11`)."""
    session.create("f", 2)
    session.produced("f", 0, session.batch(5))
    for version in (4, 8, 9, 11, 12, 13, 15, 16, 18):
        for epoch in (-1, 0, 1, 7, -2):
            for offset in (0, 5, 99):
                _fetch(session, version, ("f", 0, offset, {"current_leader_epoch": epoch}))
            _fetch(session, version, ("f", 7, 0, {"current_leader_epoch": epoch}))
            _fetch(session, version, ("f", 1, 0, {"current_leader_epoch": epoch}), ("f", 0, 0))
        for last in (0, 1, 7, -2):
            for offset in (0, 3, 5, 6, -1):
                _fetch(session, version, ("f", 0, offset, {"last_fetched_epoch": last}))
                _fetch(session, version, ("f", 0, offset, {"last_fetched_epoch": last, "current_leader_epoch": 0}))
            _fetch(session, version, ("f", 1, 0, {"last_fetched_epoch": last}))


def fetch_as_a_replica(session: DataSession) -> None:
    session.create("f", 2)
    session.produced("f", 0, session.batch(5))
    for version in (4, 9, 12, 15, 17, 18):
        for replica in (-2, 2, 77):
            state = {"replica_id": replica, "replica_state": {"replica_id": replica, "replica_epoch": -1}}
            for epoch in (-1, 0, 3):
                _fetch(session, version, ("f", 0, 0, {"current_leader_epoch": epoch}), **state)


def fetch_limits(session: DataSession) -> None:
    """`max_bytes` rules (KIP-74): the first batch of an answer comes whole, however large."""
    session.create("f", 4)
    for index in (0, 1, 2):
        for _ in range(3):
            session.produced("f", index, session.batch(1, size_bytes=1000))
    everything = (("f", 0, 0), ("f", 1, 0), ("f", 2, 0), ("f", 3, 0))
    for version in (4, 12, 13, 18):
        for limit in (0, 1, 500, 1500, 2500, 3500, 5000, 10_000):
            _fetch(session, version, *everything, max_bytes=limit)
            _fetch(session, version, *((*part, {"partition_max_bytes": limit}) for part in everything))
            _fetch(session, version, ("f", 0, 1, {"partition_max_bytes": limit}), max_bytes=1)
        _fetch(session, version, *reversed(everything), max_bytes=1500)
        _fetch(session, version, ("f", 3, 0), ("f", 1, 3), ("f", 2, 1), max_bytes=100)
        _fetch(session, version, ("f", 0, 99), ("f", 2, 1), max_bytes=100)
        _fetch(session, version, *everything, min_bytes=0)
        _fetch(session, version, *everything, min_bytes=100_000)


def fetch_two_mentions(session: DataSession) -> None:
    session.create("f")
    session.produced("f", 0, session.batch(3))
    for version in (4, 12, 13):
        _fetch(session, version, ("f", 0, 0), ("f", 0, 2))


# --- sessions -----------------------------------------------------------------------------------------------------


def fetch_evidence_of_nothing(session: DataSession) -> None:
    """A name that is no topic's, under which a node of Fenceline sends the evidence of a loss."""
    for receipt in ("0" * 24, "", "../f-0/lost+found", "a" * 300):
        name = f"__fenceline_evidence/{receipt}"
        for version in (4, 6, 7, 11, 12):
            row = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000, "log_start_offset": -1}
            fields = {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 1_000}
            if version >= 7:
                fields["session_epoch"] = -1
            session.tell(ApiKey.FETCH, version, {**fields, "topics": [{"topic": name, "partitions": [row]}]})


def _session(session: DataSession, version: int, session_id: int, epoch: int, *parts: Any, **more: Any) -> Any:
    return _fetch(session, version, *parts, session_id=session_id, session_epoch=epoch, **more)


def session_life(session: DataSession) -> None:
    for version in (7, 12, 13, 18):
        topic = f"s{version}"
        session.create(topic, 4)
        session.produced(topic, 0, session.batch(2))
        opened = _session(session, version, 0, 0, (topic, 0, 0), (topic, 1, 0), (topic, 2, 0))
        sid = opened.session_id
        _session(session, version, sid, 1)  # records are sent again, nothing else is new
        _session(session, version, sid, 2, (topic, 0, 2))
        _session(session, version, sid, 3)
        session.produced(topic, 1)
        session.produced(topic, 2, session.batch(2))
        _session(session, version, sid, 4)
        _session(session, version, sid, 5, (topic, 1, 1))
        _session(session, version, sid, 6, (topic, 2, 2), (topic, 3, 0))
        _session(session, version, sid, 7)
        _session(session, version, sid, 8, forgotten=[(topic, 0), (topic, 3)])
        session.produced(topic, 0)
        session.produced(topic, 3)
        _session(session, version, sid, 9)
        _session(session, version, sid, 10, (topic, 0, 2))
        _session(session, version, sid, 11, (topic, 0, 3), forgotten=[(topic, 9), ("nowhere", 0)])
        _session(session, version, sid, 12, (topic, 0, 99))
        _session(session, version, sid, 13)
        _session(session, version, sid, 14, (topic, 0, 3))
        _session(session, version, sid, 15)
        _session(session, version, sid, 16, (topic, 0, 0), forgotten=[(topic, 0)])
        _session(session, version, sid, 17)
        _session(session, version, sid, 18, forgotten=[(topic, 1), (topic, 2)])
        _session(session, version, sid, 19)


def session_errors(session: DataSession) -> None:
    for version in (7, 12, 13, 16, 18):
        topic = f"s{version}"
        session.create(topic, 2)
        _session(session, version, 12345, 1, (topic, 0, 0))
        _session(session, version, 0, 1, (topic, 0, 0))
        _session(session, version, 12345, -1, (topic, 0, 0))
        _session(session, version, 12345, 0, (topic, 0, 0))
        _session(session, version, 0, 0)
        _session(session, version, 0, -1)
        sid = _session(session, version, 0, 0, (topic, 0, 0), (topic, 1, 0)).session_id
        for epoch in (2, 5, -2):
            _session(session, version, sid, epoch)
        _session(session, version, sid, 1)
        _session(session, version, sid, 1)
        _session(session, version, sid, 2)
        again = _session(session, version, sid, 0, (topic, 0, 0)).session_id  # opens another, closes this
        _session(session, version, sid, 3)
        _session(session, version, again, 1)
        _session(session, version, again, -1, (topic, 1, 0))
        _session(session, version, again, 2)
        last = _session(session, version, 0, 0, (topic, 0, 0)).session_id
        _session(session, version, last, -1)
        _session(session, version, last, 1)


def session_keeps_what_was_sent(session: DataSession) -> None:
    """Leader epochs and errors inside a session (`epochs.md E5`)."""
    for version in (9, 12, 13, 16, 18):
        topic = f"s{version}"
        session.create(topic, 2)
        sid = _session(
            session,
            version,
            0,
            0,
            (topic, 0, 0, {"current_leader_epoch": 0}),
            (topic, 1, 0, {"current_leader_epoch": 3}),
        ).session_id
        _session(session, version, sid, 1)
        _session(session, version, sid, 2, (topic, 1, 0, {"current_leader_epoch": 0}))
        _session(session, version, sid, 3)
        _session(session, version, sid, 4, (topic, 0, 0, {"current_leader_epoch": 9}))
        _session(session, version, sid, 5)
        _session(session, version, sid, 6, (topic, 0, 5))
        _session(session, version, sid, 7)
        _session(session, version, sid, 8, (topic, 0, 0, {"last_fetched_epoch": 0}))
        _session(session, version, sid, 9, (topic, 0, 0, {"last_fetched_epoch": 5}))


def session_unknown_topics(session: DataSession) -> None:
    for version in (7, 12, 13, 18):
        topic = f"s{version}"
        session.create(topic)
        sid = _session(session, version, 0, 0, (topic, 0, 0), (topic, 5, 0), ("nowhere", 0, 0)).session_id
        _session(session, version, sid, 1)
        _session(session, version, sid, 2, forgotten=[(topic, 5)])
        _session(session, version, sid, 3, forgotten=[("nowhere", 0)])
        _session(session, version, sid, 4)


def session_changes_its_ids(session: DataSession) -> None:
    """A session of names is not continued with topic ids, nor the other way round."""
    session.create("s")
    for first, then in ((12, 13), (13, 12), (7, 12), (13, 18)):
        sid = _session(session, first, 0, 0, ("s", 0, 0)).session_id
        _session(session, then, sid, 1, ("s", 0, 0))
        _session(session, first, sid, 2)
        _session(session, first, sid, 1)


def session_order(session: DataSession) -> None:
    """Within a session nobody starves: what was served goes to the end of the row."""
    for version in (7, 13):
        topic = f"s{version}"
        session.create(topic, 3)
        for index in range(3):
            session.produced(topic, index, session.batch(1, size_bytes=1000))
        parts = [(topic, index, 0) for index in range(3)]
        sid = _session(session, version, 0, 0, *parts, max_bytes=1).session_id
        for epoch in range(1, 6):
            _session(session, version, sid, epoch, max_bytes=1)


def session_of_deleted_topics(session: DataSession) -> None:
    for version in (7, 12, 13, 18):
        topic = f"s{version}"
        session.create(topic)
        session.create(f"{topic}b")
        session.produced(topic)
        opened = _session(session, version, 0, 0, (topic, 0, 0), (f"{topic}b", 0, 0))
        session.delete(topic)
        fields = session.fetch([(topic, 0, 0)])
        for _ in session.until(10):
            answer = session.ask(ApiKey.FETCH, 12, fields)
            if answer.responses[0].partitions[0].error_code:
                break
        _session(session, version, opened.session_id, 1)
        _session(session, version, opened.session_id, 2)


# --- waiting ------------------------------------------------------------------------------------------------------


def _waits(session: DataSession, version: int, parts: list[Any], then: Callable[[], object], **more: Any) -> None:
    fields = session.fetch(parts, max_wait=_LONG_MS, **more)
    future = session.in_background(ApiKey.FETCH, version, fields)
    then()
    session.arrived(ApiKey.FETCH, version, future)


def waiting_for_records(session: DataSession) -> None:
    session.create("w", 2)
    end = 0
    for version in (4, 11, 12, 13, 18):
        _waits(session, version, [("w", 0, end), ("w", 1, 0)], lambda: session.produced("w"))
        end += 1

        def two_batches() -> None:
            session.produced("w", 0, session.batch(1, size_bytes=400))
            session.produced("w", 0, session.batch(1, size_bytes=400))

        _waits(session, version, [("w", 0, end), ("w", 1, 0)], two_batches, min_bytes=700)
        end += 2


def waiting_ends(session: DataSession) -> None:
    """No time left, an error, nothing to wait for: the answer comes at once or when the time is over."""
    session.create("w", 2)
    for version in (4, 12, 13, 18):
        _fetch(session, version, ("w", 0, 0), max_wait=30)
        _fetch(session, version, ("w", 0, 0), ("w", 9, 0), max_wait=30)
        _fetch(session, version, ("w", 0, 7), ("w", 1, 0), max_wait=_LONG_MS)
        _fetch(session, version, ("w", 0, 0, {"current_leader_epoch": 4}), max_wait=30)
        _fetch(session, version, ("nowhere", 0, 0), max_wait=_LONG_MS)
        _fetch(session, version, ("w", 0, 0), min_bytes=0, max_wait=_LONG_MS)
        _fetch(session, version, max_wait=30)


def waiting_in_a_session(session: DataSession) -> None:
    for version in (7, 13, 18):
        topic = f"w{version}"
        session.create(topic, 2)
        sid = _session(session, version, 0, 0, (topic, 0, 0), (topic, 1, 0)).session_id
        _waits(session, version, [], lambda: session.produced(topic), session_id=sid, session_epoch=1)  # noqa: B023
        fields = session.fetch([(topic, 0, 1)], session_id=sid, session_epoch=2, max_wait=30)
        session.tell(ApiKey.FETCH, version, fields)
        _session(session, version, sid, 3, max_wait=30)


SCRIPTS: Final[dict[str, Callable[[DataSession], None]]] = {
    script.__name__: script
    for script in (
        fetch_every_version,
        fetch_below_log_start,
        fetch_leader_epochs,
        fetch_as_a_replica,
        fetch_limits,
        fetch_two_mentions,
        fetch_evidence_of_nothing,
        session_life,
        session_errors,
        session_keeps_what_was_sent,
        session_unknown_topics,
        session_changes_its_ids,
        session_order,
        session_of_deleted_topics,
        waiting_for_records,
        waiting_ends,
        waiting_in_a_session,
    )
}
