"""Names that do not fit into a record are rejected, and the request leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.groups.names import MOST_BYTES, can_be_stored
from tests.groups.consumer_world import ConsumerWorld
from tests.groups.helpers import subscription

TOO_LONG = "x" * (MOST_BYTES + 1)


@pytest.mark.parametrize("unit", ["x", "é", "€", "𝄞"])
def test_limit_counts_bytes_not_characters(unit: str) -> None:
    longest = unit * (MOST_BYTES // len(unit.encode()))
    assert can_be_stored(longest)
    assert not can_be_stored(longest + unit)


def test_group_with_too_long_a_name_is_rejected() -> None:
    world = ConsumerWorld()
    assert world.commit(1, group=TOO_LONG).outcome.errors == (ErrorCode.INVALID_GROUP_ID,)
    assert world.fetch(group=TOO_LONG).outcome.error is ErrorCode.INVALID_GROUP_ID
    assert world.join(group=TOO_LONG).outcome.error is ErrorCode.INVALID_GROUP_ID
    assert world.enter("a", "t", group=TOO_LONG).error is ErrorCode.INVALID_GROUP_ID
    assert world.delete_groups(TOO_LONG) == {TOO_LONG: ErrorCode.INVALID_GROUP_ID}
    assert world.coordinator.list_groups(frozenset(), frozenset()) == []


@pytest.mark.parametrize(
    "names",
    [
        {"instance": TOO_LONG},
        {"instance": TOO_LONG[:-20]},
        {"client_id": TOO_LONG[:-20]},
        {"member_id": TOO_LONG},
        {"protocol_type": TOO_LONG},
        {"protocols": (("range", subscription("t")), (TOO_LONG, b""))},
    ],
)
def test_classic_member_with_too_long_a_name_is_rejected(names: dict[str, Any]) -> None:
    world = ConsumerWorld()
    assert world.join(**names).outcome.error is ErrorCode.INVALID_REQUEST
    assert world.coordinator.list_groups(frozenset(), frozenset()) == []


@pytest.mark.parametrize(
    "names", [{"member_id": TOO_LONG}, {"instance_id": TOO_LONG}, {"subscribed_regex": f"[{TOO_LONG}]"}]
)
def test_consumer_member_with_too_long_a_name_is_rejected(names: dict[str, Any]) -> None:
    world = ConsumerWorld()
    answer = world.enter(names.pop("member_id", "a"), "t", **names)
    assert answer.error is ErrorCode.INVALID_REQUEST
    assert answer.message is not None
    assert answer.message.endswith("is too long.")
    assert world.coordinator.list_groups(frozenset(), frozenset()) == []
