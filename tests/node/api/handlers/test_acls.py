"""Administration of ACLs: answers of Apache Kafka 4.3.1 with its StandardAuthorizer, and of the handlers here with a
controller behind them. Rules: security.md A40, A46 to A48; controller.md C42."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import Any, Final

import pytest

from fenceline.errors import ErrorCode
from fenceline.node.api.handlers import acls
from fenceline.testing.apache_kafka import ApacheKafka, small_kafka
from fenceline.wire.acl_codes import ANY, MATCH, AclOperation, PatternType, Permission, ResourceType
from fenceline.wire.apis import ApiKey
from tests.support.handler_sides import ControllerHandlers, KafkaBroker, Step
from tests.support.raw import ConnectionClosed, plain
from tests.support.recorded import Answer, as_recorded

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
READ, WRITE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.ALL
ALLOW, DENY = Permission.ALLOW, Permission.DENY

Call = Callable[[ApiKey, int, Mapping[str, Any]], Any]
"""The entity of the answer; raises ConnectionClosed."""

_NAMES: Final = (
    *("resource_type", "resource_name", "resource_pattern_type", "principal", "host", "operation", "permission_type"),
)
_FILTER_NAMES: Final = (
    *("resource_type_filter", "resource_name_filter", "pattern_type_filter", "principal_filter", "host_filter"),
    *("operation", "permission_type"),
)
RULE: Final = (TOPIC, "rain", LITERAL, "User:a", "*", READ, ALLOW)
EVERY: Final = (ANY, None, ANY, None, None, ANY, ANY)


def acl(**changes: Any) -> dict[str, Any]:
    return {**dict(zip(_NAMES, RULE, strict=True)), **changes}


def wanted(**changes: Any) -> dict[str, Any]:
    given = {**dict(zip(_NAMES, EVERY, strict=True)), **changes}
    return dict(zip(_FILTER_NAMES, given.values(), strict=True))


def create(*rules: dict[str, Any], version: int = 3) -> Step:
    return ApiKey.CREATE_ACLS, version, {"creations": rules}


def delete(*filters: dict[str, Any], version: int = 3) -> Step:
    return ApiKey.DELETE_ACLS, version, {"filters": filters}


def describe(version: int = 3, **changes: Any) -> Step:
    return ApiKey.DESCRIBE_ACLS, version, wanted(**changes)


MANY: Final = 10_001
SCRIPTS: Final[dict[str, list[Step]]] = {
    "created, described and deleted": [
        describe(),
        create(acl(), acl(permission_type=DENY), acl(host="1.2.3.4"), acl(resource_type=GROUP, operation=ALL)),
        describe(),
        create(acl(), acl(operation=WRITE), acl(operation=WRITE)),
        *(describe(version) for version in (1, 2, 3)),
        delete(wanted(permission_type=DENY), version=1),
        delete(wanted(permission_type=DENY), version=2),
        delete(wanted(resource_type=TOPIC, resource_name="rain"), wanted(principal="User:a"), wanted(host="nowhere")),
        describe(),
        create(),
        delete(),
        create(acl(), version=1),
        create(acl(resource_pattern_type=PREFIXED), version=2),
        delete(wanted()),
    ],
    "filters": [
        create(
            *(
                acl(resource_name=name, resource_pattern_type=pattern)
                for pattern, names in ((LITERAL, ("a", "ab", "abc", "*")), (PREFIXED, ("a", "ab", "abcd", "*")))
                for name in names
            ),
            acl(resource_type=GROUP, resource_name="ab"),
            acl(resource_type=GROUP, resource_name="*", principal="User:*"),
            acl(resource_type=CLUSTER, resource_name="kafka-cluster", operation=AclOperation.ALTER),
            acl(resource_type=ResourceType.USER, resource_name="ab", operation=AclOperation.CREATE_TOKENS),
            acl(resource_type=ResourceType.DELEGATION_TOKEN, resource_name="ab", operation=AclOperation.DESCRIBE),
            acl(resource_type=ResourceType.TRANSACTIONAL_ID, resource_name="ab", operation=15),
        ),
        *(
            describe(resource_type=kind, resource_name=name, resource_pattern_type=pattern)
            for kind in (ANY, TOPIC, GROUP)
            for name in (None, "", "a", "ab", "abc", "*", "x", "abcde")
            for pattern in (ANY, MATCH, LITERAL, PREFIXED)
        ),
        *(describe(principal=name) for name in ("User:a", "User:*", "User:b", "a", "")),
        *(describe(host=name) for name in ("*", "1.2.3.4", "")),
        *(describe(operation=operation) for operation in range(1, 17)),
        *(describe(permission_type=permission) for permission in range(1, 5)),
        *(describe(resource_type=kind) for kind in range(1, 9)),
        *(describe(resource_pattern_type=pattern) for pattern in range(1, 6)),
        describe(resource_type=-1),
        delete(
            *(wanted(resource_type=kind) for kind in (-1, 8, 99)),
            *(wanted(resource_pattern_type=pattern) for pattern in (-1, 5)),
            *(wanted(operation=operation) for operation in (-1, 16)),
            *(wanted(permission_type=permission) for permission in (-1, 4)),
            wanted(resource_type=TOPIC, resource_name="ab", resource_pattern_type=MATCH),
            wanted(resource_type=TOPIC, resource_name="ab", resource_pattern_type=ANY),
            wanted(resource_name="*", resource_pattern_type=LITERAL),
        ),
        describe(),
        delete(wanted()),
    ],
    "bad ACLs": [
        create(
            acl(resource_name=""),
            acl(resource_type=CLUSTER),
            acl(resource_type=CLUSTER, resource_name=""),
            acl(resource_type=CLUSTER, resource_name="*"),
            acl(resource_type=8),
            acl(resource_type=-1),
            acl(resource_pattern_type=5),
            acl(operation=16),
            acl(permission_type=4),
            acl(principal=""),
            acl(principal="a"),
            acl(principal="User"),
        ),
        create(
            acl(principal=":"),
            acl(principal="User:"),
            acl(principal=":a"),
            acl(principal="Nonsense:a:b"),
            acl(host=""),
            acl(host="no such host"),
            acl(host="10.0.0.0/8"),
            acl(resource_name="\u00fc \t\n"),
            acl(resource_name="x" * 1000),
            acl(resource_name=".."),
            acl(operation=AclOperation.CREATE_TOKENS),
            acl(resource_type=CLUSTER, resource_name="kafka-cluster", resource_pattern_type=PREFIXED),
            acl(resource_type=GROUP, operation=AclOperation.CLUSTER_ACTION),
        ),
        describe(),
        delete(wanted()),
    ],
    "UNKNOWN": [
        *(create(acl(), acl(**{name: 0})) for name in ("resource_type", "resource_pattern_type", "operation")),
        create(acl(), acl(permission_type=0)),
        *(describe(**{name: 0}) for name in ("resource_type", "resource_pattern_type", "operation")),
        describe(permission_type=0),
        *(delete(wanted(), wanted(**{name: 0})) for name in ("resource_type", "resource_pattern_type", "operation")),
        delete(wanted(), wanted(permission_type=0)),
        describe(),
    ],
    "more than one batch": [
        create(*(acl(resource_name=f"n{number}") for number in range(MANY))),
        describe(resource_name="n0"),
        create(*(acl(resource_name=f"n{number}") for number in range(MANY - 1)), acl(resource_name="")),
        create(*(acl(resource_name=f"n{number}") for number in range(MANY))),
        describe(resource_name="n10000"),
        delete(wanted(), wanted(resource_name="n0")),
        delete(wanted(resource_name="n0"), wanted(resource_type=TOPIC)),
        describe(resource_name="n0"),
        delete(wanted(resource_name="n0", resource_pattern_type=MATCH), wanted(resource_name="n0")),
        delete(wanted(resource_type=TOPIC)),
        describe(),
    ],
}


def run(call: Call, steps: list[Step], settle: Callable[[], None] = lambda: None) -> list[Any]:
    """Answers in an order that both sides share."""
    found = []
    for key, version, fields in steps:
        try:
            found.append(_comparable(plain(call(key, version, fields))))
        except ConnectionClosed:
            found.append("closed")
        if key is not ApiKey.DESCRIBE_ACLS:
            settle()
    return found


def _comparable(answer: dict[str, Any]) -> dict[str, Any]:
    for resource in answer.get("resources", ()):
        resource["acls"].sort(key=repr)
    if "resources" in answer:
        answer["resources"].sort(key=repr)
    for each in answer.get("filter_results", ()):
        each["matching_acls"].sort(key=repr)
        if len(each["matching_acls"]) > 100:
            each["matching_acls"] = len(each["matching_acls"])
    if "results" in answer:
        answer["results"] = [[len(list(same)), each] for each, same in groupby(answer["results"])]
    return answer


@pytest.fixture(scope="module")
def authorizing_kafka() -> Iterator[ApacheKafka]:
    overrides = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with small_kafka(overrides=overrides) as kafka:
        yield kafka


@pytest.fixture
def open_kafka() -> Iterator[ApacheKafka]:
    """Without an authorizer."""
    with small_kafka() as kafka:
        yield kafka


def settle(side: KafkaBroker) -> None:
    """Wait until the broker knows all changes."""
    barrier = acl(resource_name="barrier", principal="User:barrier")
    found = wanted(principal="User:barrier")

    def is_there() -> bool:
        return bool(side.call(ApiKey.DESCRIBE_ACLS, 3, found).resources)

    side.carry_out(create(barrier), is_there)
    side.carry_out(delete(found), lambda: not is_there())


def handlers(*, is_enabled: bool = True) -> ControllerHandlers:
    return ControllerHandlers(partial(acls.apis, is_enabled=is_enabled))


@pytest.mark.parametrize("name", SCRIPTS)
def test_answers_are_those_of_kafka(name: str, answer: Answer) -> None:
    def asked(kafka: ApacheKafka) -> list[Any]:
        side = KafkaBroker(kafka)
        return run(side.call, SCRIPTS[name], partial(settle, side))

    theirs = answer("authorizing_kafka", asked)
    for step, expected, found in zip(SCRIPTS[name], theirs, run(handlers().call, SCRIPTS[name]), strict=True):
        assert as_recorded(found) == expected, f"{step[0].name} v{step[1]} {str(step[2])[:300]}"


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("resource_type", ANY, "Invalid resourceType ANY"),
        ("resource_pattern_type", ANY, "Invalid patternType ANY"),
        ("resource_pattern_type", MATCH, "Invalid patternType MATCH"),
        ("operation", ANY, "Invalid operation ANY"),
        ("permission_type", ANY, "Invalid permissionType ANY"),
    ],
)
def test_only_filters_have_any(name: str, code: int, reason: str) -> None:
    """Kafka fails the whole request with UNKNOWN_SERVER_ERROR."""
    side = handlers()
    [answer] = run(side.call, [create(acl(), acl(**{name: code}))])
    assert answer["results"] == [
        [1, {"error_code": 0, "error_message": ""}],
        [1, {"error_code": ErrorCode.INVALID_REQUEST, "error_message": reason}],
    ]
    assert len(side.cluster.image.acls) == 1


def test_without_an_authorizer(answer: Answer) -> None:
    steps = [describe(), create(acl(), acl()), delete(wanted(), wanted()), create(acl(resource_type=0))]

    def asked(kafka: ApacheKafka) -> list[Any]:
        return run(KafkaBroker(kafka).call, steps)

    assert as_recorded(run(handlers(is_enabled=False).call, steps)) == answer("open_kafka", asked)


def test_size_of_an_answer_is_limited() -> None:
    """Filters that match the same ACLs again and again. Kafka has no limit."""
    side = handlers()
    rules = [acl(resource_name=f"n{number}") for number in range(1_000)]
    [_, answer] = run(side.call, [create(*rules), delete(*[wanted()] * 101)])
    assert {each["error_code"] for each in answer["filter_results"]} == {ErrorCode.INVALID_REQUEST}
    assert len(side.cluster.image.acls) == 1_000


def test_size_of_the_records_is_limited() -> None:
    """Kafka answers UNKNOWN_SERVER_ERROR to the larger request."""
    side = handlers()
    rules = [acl(resource_name=f"{number}".ljust(30_000)) for number in range(290)]
    too_large, fits = run(side.call, [create(*rules), create(*rules[:270])])
    assert {each["error_code"] for _, each in too_large["results"]} == {ErrorCode.POLICY_VIOLATION}
    assert {each["error_code"] for _, each in fits["results"]} == {ErrorCode.NONE}
    assert len(side.cluster.image.acls) == 270
