"""Requests about ACLs that no client sends, and very many ACLs: the right code or a closed connection, and the node
answers the next request. Rules: security.md A46, A47, A69."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import write_request
from tests.support.raw import ConnectionClosed, RawConnection

BATCHES, PER_REQUEST = 10, 10_000
INVALID, TOO_MANY = 42, 44
RULE = {
    "resource_type": 2,
    "resource_name": "rain",
    "resource_pattern_type": 3,
    "principal": "User:a",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
EVERY = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    overrides = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedNode(overrides=overrides) as started:
        yield started


@pytest.fixture
def connection(node: EmbeddedNode) -> Iterator[RawConnection]:
    """Still answers after the test. Its ACLs are removed."""
    with RawConnection(node.port) as opened:
        yield opened
        assert delete(opened, EVERY) == 0
        assert count(opened) == 0
    assert node.is_running
    assert "request failed" not in node.errors


def count(connection: RawConnection, **wanted: Any) -> int:
    found = connection.call(ApiKey.DESCRIBE_ACLS, 3, {**EVERY, **wanted})
    assert found.error_code == 0
    return sum(len(each.acls) for each in found.resources)


def create(connection: RawConnection, *rules: dict[str, Any]) -> set[int]:
    answer = connection.call(ApiKey.CREATE_ACLS, 3, {"creations": [{**RULE, **each} for each in rules]})
    assert len(answer.results) == len(rules)
    return {int(each.error_code) for each in answer.results}


def delete(connection: RawConnection, *filters: dict[str, Any]) -> int:
    """The first code."""
    answer = connection.call(ApiKey.DELETE_ACLS, 3, {"filters": filters})
    assert len(answer.filter_results) == len(filters)
    return int(answer.filter_results[0].error_code)


NAMES = {
    "nothing but spaces": " ",
    "control characters": "\0\t\r\n\x1b[2J",
    "other letters": "d\u00e9j\u00e0 \u96e8 \U0001f327",
    "direction marks": "\u202eniar",
    "a path": "../../etc/passwd",
    "a pattern": "rain*",
    "a regular expression": "(a+)+$",
    "a format": "%s%n{0.__class__}",
    "a topic that cannot be": "a b/c:d",
    "the longest": "x" * 32_767,
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_odd_names_are_kept_as_they_are(connection: RawConnection, name: str) -> None:
    for changed in ({"resource_name": name}, {"principal": f"User:{name}"[:32_767]}, {"host": name}):
        assert create(connection, changed, {**changed, "resource_pattern_type": 4}) == {0}
        assert count(connection) == 2
        found = connection.call(ApiKey.DESCRIBE_ACLS, 3, EVERY).resources[0]
        kept = {"resource_name": found.resource_name, "principal": found.acls[0].principal, "host": found.acls[0].host}
        assert kept == {name: {**RULE, **changed}[name] for name in kept}
        filters = {f"{key}_filter": value for key, value in changed.items()}
        assert count(connection, **filters) == 2
        assert delete(connection, {**EVERY, **filters}) == 0
        assert count(connection) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"resource_name": ""},
        {"resource_type": 4},
        *({"principal": principal} for principal in ("", "a", "User", "*")),
        *({"resource_type": code} for code in (1, 8, 127, -1, -128)),
        *({"resource_pattern_type": code} for code in (1, 2, 5, 127, -1)),
        *({"operation": code} for code in (1, 16, 127, -1)),
        *({"permission_type": code} for code in (1, 4, 127, -1)),
    ],
    ids=repr,
)
def test_a_wrong_rule_does_not_harm_the_others(connection: RawConnection, changes: dict[str, Any]) -> None:
    assert create(connection, {}, changes, {"host": "1.2.3.4"}) == {0, INVALID}
    assert count(connection) == 2


@pytest.mark.parametrize("changes", [{"operation": 13}, {"resource_type": 3, "operation": 9}], ids=repr)
def test_operations_that_do_not_fit_are_kept(connection: RawConnection, changes: dict[str, Any]) -> None:
    """As in Kafka: they match no request."""
    assert create(connection, changes) == {0}


def test_unknown_codes_close_the_connection(node: EmbeddedNode, connection: RawConnection) -> None:
    wrong = [
        *((ApiKey.CREATE_ACLS, {"creations": [RULE, {**RULE, name: 0}]}) for name in RULE if "type" in name),
        (ApiKey.CREATE_ACLS, {"creations": [{**RULE, "operation": 0}]}),
        *((ApiKey.DESCRIBE_ACLS, {**EVERY, name: 0}) for name in EVERY),
        *((ApiKey.DELETE_ACLS, {"filters": [EVERY, {**EVERY, name: 0}]}) for name in EVERY),
    ]
    for key, fields in wrong:
        for version in (1, 2, 3):
            with RawConnection(node.port) as other, pytest.raises(ConnectionClosed):
                other.call(key, version, fields)
    assert count(connection) == 0


def test_damaged_requests_close_the_connection(node: EmbeddedNode, connection: RawConnection) -> None:
    body = write_request(ApiKey.CREATE_ACLS, 1, {"creations": [RULE]})
    compact = write_request(ApiKey.CREATE_ACLS, 3, {"creations": [RULE]})
    at = body.index(b"rain")
    damaged = [
        (1, struct.pack(">i", 2**31 - 1) + body[4:]),
        (1, struct.pack(">i", -1) + body[4:]),
        (1, body[:-1]),
        (1, body[: at - 2] + struct.pack(">h", 32_767) + body[at:]),
        (1, body[: at - 2] + struct.pack(">h", -1) + body[at:]),
        (1, body[:at] + b"\xff\xfe\xfd\xfc" + body[at + 4 :]),
        (3, b"\xff\xff\xff\xff\x0f" + compact[1:]),
        (3, b"\xff" * 6 + compact[1:]),
        (3, b""),
    ]
    for version, content in damaged:
        with RawConnection(node.port) as other, pytest.raises(ConnectionClosed):
            other.exchange(ApiKey.CREATE_ACLS, version, content)
    assert count(connection) == 0


def test_many_filters(connection: RawConnection) -> None:
    """The answer has a limit, not only the number of ACLs."""
    assert create(connection, *({"resource_name": f"n{number}"} for number in range(1_000))) == {0}
    assert delete(connection, *[EVERY] * 10_000) == INVALID
    assert count(connection) == 1_000
    assert delete(connection, *[{**EVERY, "resource_name_filter": "nothing"}] * 10_000) == 0
    assert delete(connection, *({**EVERY, "resource_name_filter": f"n{number}"} for number in range(1_000))) == 0


@pytest.mark.long
def test_a_hundred_thousand_rules(connection: RawConnection) -> None:
    for batch in range(BATCHES):
        rules = [{"resource_name": f"n{number}", "principal": f"User:{batch}"} for number in range(PER_REQUEST)]
        assert create(connection, *rules) == {0}
    assert create(connection, *({"resource_name": f"m{number}"} for number in range(PER_REQUEST + 1))) == {TOO_MANY}
    assert count(connection, resource_name_filter="n77") == BATCHES
    assert count(connection, resource_name_filter="n77", pattern_type_filter=2) == BATCHES
    assert count(connection, principal_filter="User:3") == PER_REQUEST
    assert count(connection) == BATCHES * PER_REQUEST
    assert delete(connection, EVERY) == INVALID
    for batch in range(BATCHES):
        assert delete(connection, {**EVERY, "principal_filter": f"User:{batch}"}) == 0
    assert count(connection) == 0
