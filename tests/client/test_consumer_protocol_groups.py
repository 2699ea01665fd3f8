"""Consumer protocol groups (KIP-848) in Fenceline's admin client and CLI, on Fenceline and on Apache Kafka: they are
described like classic groups, and changes are rejected in the same way while they have members.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.client.admin.admin import Admin
from fenceline.client.core import connection
from fenceline.client.core.offsets import CommittedOffset
from fenceline.client.producer.producer import Producer
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.support.committed_offsets import coordinator_of
from tests.support.consumer_members import BareMember, settle
from tests.support.raw import RawConnection

MakeTopic = Callable[..., str]
PARTITIONS = 3
RECORDS = 20


def command(bootstrap: str, *words: str) -> tuple[int, Any]:
    """Exit code, and the JSON document or the output printed instead of one."""
    done = CliRunner().invoke(app, ["groups", *words, "--json", "--bootstrap", bootstrap])
    return done.exit_code, json.loads(done.stdout) if not done.exit_code else done.output


def commit_as(connection: RawConnection, member: BareMember, group: str, topic: str, offsets: dict[int, int]) -> None:
    partitions = [
        {
            "partition_index": index,
            "committed_offset": offset,
            "committed_leader_epoch": 0,
            "committed_metadata": "",
        }
        for index, offset in offsets.items()
    ]
    fields = {
        "group_id": group,
        "generation_id_or_member_epoch": member.epoch,
        "member_id": member.member_id,
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": partitions}],
    }
    answer = connection.call(ApiKey.OFFSET_COMMIT, 9, fields)
    assert {each.error_code for found in answer.topics for each in found.partitions} == {0}


@pytest.fixture(params=["4.3", "3.9"])
def _release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka 3.7 to 3.9 support the consumer protocol, but their DescribeGroups does not report a group's type."""
    if request.param == "4.3":
        return
    learn = connection._fetch_api_versions

    async def learn_less(made: connection.Connection, config: Any) -> None:
        await learn(made, config)
        made.versions |= {ApiKey.DESCRIBE_GROUPS: (0, 5), ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 0)}

    monkeypatch.setattr(connection, "_fetch_api_versions", learn_less)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_release")
def test_a_group_is_described_listed_reset_and_deleted(
    bootstrap: str, admin: Admin, make_topic: MakeTopic, unique: Callable[[str], str]
) -> None:
    topic, group = make_topic(PARTITIONS), unique("next")
    with Producer(bootstrap) as producer:
        for promise in [producer.send(topic, b"x", partition=n % PARTITIONS) for n in range(PARTITIONS * RECORDS)]:
            promise.result(60)
    host, _, port = bootstrap.rpartition(":")
    # The request creates the offsets topic.
    eventually(lambda: coordinator_of(int(port), group) is not None, "there is a coordinator")
    with RawConnection(int(port), host=host) as connection:
        members = [BareMember(group, f"member-{number}", topic) for number in (1, 2)]
        settle(connection, group, members)
        first, second = members
        commit_as(connection, first, group, topic, dict.fromkeys(first.uses, RECORDS - 5))

        described = admin.describe_groups([group])[group]
        assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", "uniform")
        assert {each.member_id: {tp.partition for tp in each.assignment} for each in described.members} == {
            each.member_id: set(each.uses) for each in members
        }

        _, found = command(bootstrap, "describe", group)
        assert found["state"] == "Stable"
        shares = {each["member"]: each["partitions"] for each in found["members"]}
        assert shares == {each.member_id: [f"{topic}-{index}" for index in sorted(each.uses)] for each in members}
        rows = {row["partition"]: row for row in found["offsets"]}
        assert sorted(rows) == list(range(PARTITIONS)), "a member's partitions are listed even without an offset"
        for index in first.uses:
            shown = [rows[index][name] for name in ("current_offset", "epoch", "log_end", "lag", "mark", "member")]
            assert shown == [RECORDS - 5, 0, RECORDS, 5, None, first.member_id]
        for index in second.uses:
            assert (rows[index]["current_offset"], rows[index]["member"]) == (None, second.member_id)

        _, listed = command(bootstrap, "list", "--lag")
        (row,) = [each for each in listed if each["group"] == group]
        assert (row["type"].lower(), row["state"], row["members"]) == ("consumer", "Stable", 2)
        assert row["lag"] == 5 * len(list(first.uses))

        code, said = command(bootstrap, "reset", group, topic, "--to-earliest", "--execute")
        assert (code, "Stable" in said) == (1, True)
        code, said = command(bootstrap, "delete", group)
        assert (code, "NON_EMPTY_GROUP" in said) == (1, True)
        with pytest.raises(PeerError):
            admin.alter_group_offsets(group, {TopicPartition(topic, 0): CommittedOffset(1)})

        for member in members:
            member.epoch = -1
            assert member.beat(connection) is ErrorCode.NONE
    eventually(lambda: admin.describe_groups([group])[group].state == "Empty", "all have left")
    code, moved = command(bootstrap, "reset", group, topic, "--to-offset", "7", "--execute")
    assert (code, [(row["new_offset"], row["epoch"]) for row in moved["offsets"]]) == (0, [(7, 0)] * PARTITIONS)
    assert set(admin.list_group_offsets(group).values()) == {CommittedOffset(7, 0)}
    assert command(bootstrap, "delete", group) == (0, {"deleted": [group]})
    assert group not in [each.group_id for each in admin.list_groups()]
