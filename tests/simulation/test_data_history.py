"""The history of a partition with log starts, batches of another incarnation, and compacted logs."""

from __future__ import annotations

import pytest

from fenceline.records.batch import assign_in_place, read_header
from fenceline.records.build import build_batch
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.data_history import BatchId, PartitionHistory
from fenceline.testing.simulation.world import StoredBatch

MARK = b"4c0736b0"


def stored(base_offset: int, *rows: tuple[bytes | None, bytes | None], epoch: int = 0) -> StoredBatch:
    batch = bytearray(build_batch([(1000, key, value, ()) for key, value in rows]))
    assign_in_place(memoryview(batch), 0, base_offset, epoch)
    return StoredBatch(base_offset, read_header(batch).next_offset, epoch, bytes(batch))


def test_a_log_start_needs_a_request() -> None:
    history = PartitionHistory("t0-0")
    history.starts_at(0, by_retention=True, where="n1")
    with pytest.raises(InvariantBroken, match="log start"):
        history.starts_at(5, by_retention=True, where="n1")
    history.deletable = 7
    history.starts_at(5, by_retention=False, where="n1")
    history.starts_at(7, by_retention=False, where="n2")
    with pytest.raises(InvariantBroken, match="up to 7 only"):
        history.starts_at(8, by_retention=False, where="n1")


def test_retention_moves_the_log_start_to_a_segment() -> None:
    history = PartitionHistory("t0-0")
    history.has_retention = True
    history.starts_at(5, by_retention=True, where="n1")
    history.starts_at(5, by_retention=False, where="n2")
    with pytest.raises(InvariantBroken, match="log start"):
        history.starts_at(6, by_retention=False, where="n1")


def test_a_batch_of_another_incarnation() -> None:
    history = PartitionHistory("t0-0", MARK)
    history.wrote(stored(0, (None, b"value " + MARK)), None, "n1")
    with pytest.raises(InvariantBroken, match="incarnation"):
        history.wrote(stored(1, (None, b"value 82e53860")), BatchId(0, 0), "n1")


def test_an_unclean_leader_with_a_later_log_start_keeps_deleted_records() -> None:
    history = PartitionHistory("t0-0")
    batches = [stored(offset, (None, b"x")) for offset in range(4)]
    history.commit(batches, "n1")
    history.adopt_unclean_log(batches[2:3], 2, 3, 1)
    assert history.batches == batches[:3]
    assert history.lost_batches == batches[3:]


def test_an_unclean_leader_whose_log_starts_within_a_batch_lacks_the_rest() -> None:
    history = PartitionHistory("t0-0")
    batches = [stored(0, (None, b"x")), stored(1, (None, b"x"), (None, b"x"))]
    history.commit(batches, "n1")
    history.adopt_unclean_log([], 2, 2, 1)
    assert history.end == 1
    assert history.lost_batches == batches[1:]


class TestCompacted:
    def history(self) -> PartitionHistory:
        history = PartitionHistory("t0-0")
        batches = [stored(0, (b"a", b"1"), (b"b", b"1")), stored(2, (b"a", b"2")), stored(3, (b"b", None))]
        for batch in batches:
            history.wrote(batch, None, "n1")
        history.commit(batches, "n1")
        history.becomes_compacted()
        return history

    def test_the_last_record_of_each_key_survives(self) -> None:
        assert self.history().survivors(0) == {2}
        assert self.history().survivors(3) == set()

    def test_a_batch_may_lose_superseded_records(self) -> None:
        history = self.history()
        history.compare(stored(1, (b"b", b"1")), "n1")
        history.wrote(stored(1, (b"b", b"1")), None, "n2")
        history.read(BatchId(1, 0), stored(1, (b"b", b"1")).content, None, "consumer")

    def test_a_changed_record_is_detected(self) -> None:
        with pytest.raises(InvariantBroken, match="log matching"):
            self.history().compare(stored(1, (b"b", b"9")), "n1")
        with pytest.raises(InvariantBroken, match="of epoch 0 is committed"):
            self.history().compare(stored(1, (b"b", b"1"), epoch=1), "n1")

    def test_a_stale_leader_may_return_records_lost_in_an_unclean_election(self) -> None:
        """It cannot detect this; a leader of the newest history must not return them (operations, game 25003157)."""
        history = self.history()
        other = stored(1, (b"b", b"9"), epoch=1)
        history.wrote(other, None, "n3")
        with pytest.raises(InvariantBroken, match="of epoch 0 is committed"):
            history.read(BatchId(1, 1), other.content, None, "consumer")
        history.last_unclean = 2
        history.read(BatchId(1, 1), other.content, None, "consumer")

    def test_an_unclean_leader_has_compacted_records_and_none_of_other_epochs(self) -> None:
        history = PartitionHistory("t0-0")
        batches = [stored(0, (b"a", b"1")), stored(1, (b"b", b"1")), stored(2, (b"c", b"1"), epoch=1)]
        history.becomes_compacted()
        history.commit(batches, "n1")
        log = [batches[1], stored(2, (b"d", b"1")), stored(3, (b"a", b"2"))]
        history.adopt_unclean_log(log, 0, 4, 2, lambda offset: 0)
        assert history.batches == batches[:2]
        assert history.lost_batches == batches[2:]


def test_a_reader_crosses_deleted_records_and_no_truncation() -> None:
    """The log was deleted up to 5 and continues there: its earlier batches are known from other logs only."""
    history, batch = PartitionHistory("t0-0"), stored(5, (None, b"value"), epoch=3)
    history.wrote(batch, None, "n1")
    history.commit([stored(0, *[(None, b"gone")] * 5), batch], "n1")
    history.read(BatchId(5, 3), batch.content, BatchId(4, 1), "consumer1")
    history.wrote(batch, BatchId(3, 2), "n2")
    with pytest.raises(InvariantBroken, match="a truncation was not detected"):
        history.read(BatchId(5, 3), batch.content, BatchId(4, 1), "consumer1")
