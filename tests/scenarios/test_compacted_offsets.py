"""`__consumer_offsets` is compacted under a coordinator: its answers stay the same, also after a kill -9, when a new
process has loaded the compacted log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from fenceline.client.admin.admin import Admin, NewTopic
from fenceline.client.core.offsets import CommittedOffset
from fenceline.errors import ErrorCode
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition
from fenceline.log.core.checkpoints import read_offsets
from fenceline.log.core.disk import OsDisk
from fenceline.records.decode import decode_all
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from tests.support.committed_offsets import commit, coordinator_of, fetch, heartbeat, join_alone
from tests.support.partition_files import log_bytes
from tests.support.raw import RawConnection

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

SETTINGS: Final = {
    "offsets.topic.num.partitions": "1",
    "offsets.topic.segment.bytes": str(1 << 20),
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.0",
}
PARTITIONS: Final = 500
GROUPS: Final = ("one", "two", "three")
ROUNDS: Final = 40
WHERE: Final = TopicPartition(CONSUMER_OFFSETS_TOPIC, 0)


def is_compacted(node: EmbeddedNode) -> bool:
    """Whether all segments except the active one are compacted."""
    done = read_offsets(OsDisk(), str(node.log_dir / "cleaner-offset-checkpoint")).get(WHERE, 0)
    return 0 < done == max(int(each.stem) for each in (node.log_dir / str(WHERE)).glob("*.log"))


def records_in(data: Path) -> int:
    return sum(len(records) for _, records in decode_all(log_bytes(data, CONSUMER_OFFSETS_TOPIC)))


def test_offsets_members_and_deletions_survive_compaction_and_a_kill() -> None:
    topic = "read"
    with EmbeddedNode(overrides=SETTINGS) as node:
        with Admin(node.bootstrap) as admin:
            admin.create_topics([NewTopic(topic, PARTITIONS, 1)])
        eventually(lambda: coordinator_of(node.port, "one") is not None, "there is a coordinator")
        with RawConnection(node.port) as connection:
            member = eventually(lambda: join_alone(connection, "with a member", 240_000), "it has joined")
            assert commit(connection, "gone", topic, dict.fromkeys(range(PARTITIONS), 1)) == {ErrorCode.NONE}
            for turn in range(ROUNDS):
                for group in GROUPS:
                    offsets = {partition: turn * 1000 + partition for partition in range(PARTITIONS)}
                    assert commit(connection, group, topic, offsets, leader_epoch=turn) == {ErrorCode.NONE}
            # The deletions come after all commits, and these groups commit nothing later.
            with Admin(node.bootstrap) as admin:
                admin.delete_groups(["gone"])
                admin.delete_group_offsets("two", [TopicPartition(topic, 7)])
                for turn in range(4):
                    admin.alter_group_offsets(
                        "filler", {TopicPartition(topic, 0): CommittedOffset(turn, 0, "x" * 4000)}
                    )
        written = ROUNDS * len(GROUPS) * PARTITIONS
        eventually(lambda: is_compacted(node), "all sealed segments are compacted", wait_s=120)
        assert records_in(node.log_dir) < written // 4

        def check() -> None:
            with RawConnection(node.port) as connection:
                expected = {p: ((ROUNDS - 1) * 1000 + p, ROUNDS - 1) for p in range(PARTITIONS)}
                for group in GROUPS:
                    of_group = {**expected, 7: (-1, -1)} if group == "two" else expected
                    reported = eventually(
                        lambda group=group: _fetch_if_loaded(connection, group, topic),  # type: ignore[misc]
                        f"{group} gets its positions",
                    )
                    assert reported == of_group
                assert fetch(connection, "gone", topic, range(3)) == dict.fromkeys(range(3), (-1, -1))
                assert heartbeat(connection, "with a member", member) is ErrorCode.NONE
            with Admin(node.bootstrap) as admin:
                assert "gone" not in [each.group_id for each in admin.list_groups()]

        check()
        node.kill()
        node.start()
        check()
        # New commits are appended after the compacted records.
        with RawConnection(node.port) as connection:
            assert commit(connection, "one", topic, {0: 77_777}, leader_epoch=ROUNDS) == {ErrorCode.NONE}
            assert fetch(connection, "one", topic, [0, 1]) == {
                0: (77_777, ROUNDS),
                1: ((ROUNDS - 1) * 1000 + 1, ROUNDS - 1),
            }


def _fetch_if_loaded(connection: RawConnection, group: str, topic: str) -> dict[int, tuple[int, int]] | None:
    found = fetch(connection, group, topic, range(PARTITIONS))
    return None if isinstance(found, ErrorCode) else found
