"""A range reader on a log that diverged from the planned one: `gaps.md G6`, `epochs.md` E8-E13."""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.client.core.deadline import Deadline
from fenceline.client.core.epoch_history import EpochStart
from fenceline.client.core.errors import EpochMismatchError, LogTruncationError
from fenceline.client.producer.producer import Producer
from fenceline.client.reader import reader as reader_module
from fenceline.client.reader.ranges import OffsetRange
from fenceline.client.reader.reader import RangeReader
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import ScriptedCluster

_QUICK = {"retry.backoff.ms": 10, "retry.backoff.max.ms": 50, "fetch.max.wait.ms": 50}


def _write(cluster: ScriptedCluster, tp: TopicPartition, prefix: str, count: int) -> None:
    """One record a batch."""
    with Producer(cluster.bootstrap, **_QUICK, **{"batch.size": 1, "linger.ms": 0}) as producer:
        for number in range(count):
            producer.send(tp.topic, f"{prefix}{number}".encode(), partition=tp.partition)
            producer.flush()


def _foreign(cluster: ScriptedCluster) -> TopicPartition:
    """Read: 0@0 2@6 up to 12. The leader's log: 0@0 1@4, 20 records, leader epoch 3."""
    (tp,) = cluster.add_topic("t")
    log = cluster.logs[tp]
    _write(cluster, tp, "a", 4)
    log.elect(1)
    _write(cluster, tp, "b", 16)
    log.leader_epoch = 2
    log.elect(1)
    return tp


@pytest.mark.parametrize("versions", [{}, {ApiKey.FETCH: (4, 11)}])
def test_long_enough_log_of_an_older_epoch_is_a_divergence(versions: dict[ApiKey, tuple[int, int]]) -> None:
    with ScriptedCluster(versions=versions) as cluster:
        tp = _foreign(cluster)
        with RangeReader(cluster.bootstrap, **_QUICK) as reader:
            known = OffsetRange(12, 16, 2, epochs=(EpochStart(0, 0), EpochStart(2, 6)))
            with pytest.raises(LogTruncationError) as error:
                list(reader.read({tp: known}))
            assert (error.value.divergent_offset, error.value.divergent_epoch) == (4, 0)
            # With only the last epoch known, no divergence point is certain.
            with pytest.raises(LogTruncationError) as error:
                list(reader.read({tp: (12, 16, 2)}))
            assert error.value.divergent_offset == -1


def test_records_before_an_unexpected_epoch_are_returned_and_the_rest_rejected() -> None:
    with ScriptedCluster() as cluster:
        tp = _foreign(cluster)
        with RangeReader(cluster.bootstrap, **_QUICK) as reader:
            for planned, first in [
                # The log's epoch is newer than planned, older than planned, or in between.
                ((EpochStart(0, 0),), 4),
                ((EpochStart(0, 0), EpochStart(2, 6)), 4),
                ((EpochStart(0, 0), EpochStart(1, 4), EpochStart(2, 9)), 9),
                ((EpochStart(0, 0), EpochStart(1, 2)), 2),
            ]:
                progress: dict[TopicPartition, int] = {}
                batches = reader.read({tp: OffsetRange(0, 12, -1, 2, epochs=planned)}, progress=progress)
                rows: list[int] = []
                with pytest.raises(EpochMismatchError) as error:
                    rows.extend(offset for batch in batches for offset in batch.column("offset").to_pylist())
                assert (error.value.offset, rows, progress) == (first, list(range(first)), {tp: first})
            exact = (EpochStart(0, 0), EpochStart(1, 4))
            assert sum(b.num_rows for b in reader.read({tp: OffsetRange(2, 12, 0, 1, epochs=exact)})) == 10
            # Below the planned epoch history nothing can be determined.
            assert sum(b.num_rows for b in reader.read({tp: OffsetRange(2, 12, 0, 1, epochs=exact[1:])})) == 10


def test_reader_long_polls_the_broker() -> None:
    with ScriptedCluster() as cluster:
        (tp,) = cluster.add_topic("t")
        _write(cluster, tp, "a", 4)
        with RangeReader(cluster.bootstrap, **_QUICK) as reader:
            assert not reader.wait_for_change({tp: (4, 0)}, 20)
            assert reader.wait_for_change({tp: (3, 0)}, 20)
            cluster.logs[tp].elect(1, cut_to=2)
            _write(cluster, tp, "b", 2)
            # A diverged log ends the wait, although there are no records after the position.
            assert reader.wait_for_change({tp: (4, 0)}, 20)


@pytest.mark.parametrize("versions", [{}, {ApiKey.FETCH: (4, 11)}])
def test_all_lookups_for_one_loss_share_one_timeout(
    monkeypatch: pytest.MonkeyPatch, versions: dict[ApiKey, tuple[int, int]]
) -> None:
    """`default.api.timeout.ms` covers the log end lookup and all epoch lookups of the search together."""
    deadlines: list[Deadline] = []

    def observe(ask: Any) -> Any:
        async def noted(cluster: Any, wanted: Any, *, deadline: Deadline) -> Any:
            deadlines.append(deadline)
            return await ask(cluster, wanted, deadline=deadline)

        return noted

    for name in ("list_offsets", "offsets_for_leader_epoch"):
        monkeypatch.setattr(reader_module, name, observe(getattr(reader_module, name)))
    with ScriptedCluster(versions=versions) as cluster:
        tp = _foreign(cluster)
        # No leader knows epoch 9, so the position is out of range; and the log has no epoch 2.
        planned = (EpochStart(0, 0), EpochStart(2, 6), EpochStart(9, 11))
        with RangeReader(cluster.bootstrap, **_QUICK) as reader:
            batches = reader.read({tp: OffsetRange(12, 16, 9, epochs=planned)})
            with pytest.raises(LogTruncationError) as error:
                list(batches)
    assert (error.value.divergent_offset, error.value.divergent_epoch) == (4, 0)
    assert len(deadlines) >= 2
    assert len(set(map(id, deadlines))) == 1
