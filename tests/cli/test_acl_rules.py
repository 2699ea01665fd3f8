"""ACLs and filters from the options of `fenceline acls`."""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.cli.acl_rules import AclOptions, bindings, filters, named_resources
from fenceline.client.admin.acls import AclBinding, AclBindingFilter
from fenceline.errors import OperatorError
from fenceline.wire.acl_codes import ANY, MATCH, OPERATIONS, AclOperation, PatternType, Permission
from fenceline.wire.acl_codes import ResourceType as Kind

TOPIC = (Kind.TOPIC, "rain")
GROUP = (Kind.GROUP, "readers")
ID = (Kind.TRANSACTIONAL_ID, "tx")
CLUSTER = (Kind.CLUSTER, "kafka-cluster")
USER = ("User:a",)


def made(*resources: tuple[Kind, str], **more: Any) -> set[str]:
    return {str(each) for each in bindings(AclOptions(resources, **{"allowed": USER, **more}))}


def test_every_kind_of_resource() -> None:
    found = named_resources(["t"], ["g"], ["x"], ["d"], ["User:o"], cluster=True)
    assert [kind for kind, _ in found] == [
        *(Kind.TOPIC, Kind.GROUP, Kind.TRANSACTIONAL_ID, Kind.DELEGATION_TOKEN, Kind.USER, Kind.CLUSTER)
    ]
    assert set(OPERATIONS) == set(Kind)
    assert len(bindings(AclOptions(found, allowed=USER))) == len(found)


def test_defaults() -> None:
    assert bindings(AclOptions((TOPIC,), allowed=USER)) == [
        AclBinding(Kind.TOPIC, "rain", "User:a", AclOperation.ALL, Permission.ALLOW, PatternType.LITERAL, "*")
    ]


def test_each_of_each() -> None:
    options = AclOptions(
        (TOPIC, GROUP),
        "Prefixed",
        ("User:a", "User:b"),
        ("User:c",),
        ("1.2.3.4", "1.2.3.5"),
        (),
        ("Read", "describe-configs", "ALTER_CONFIGS"),
    )
    found = bindings(options)
    assert len(found) == len(set(found)) == 2 * 3 * (2 * 2 + 1)
    assert {each.pattern_type for each in found} == {PatternType.PREFIXED}
    assert {each.host for each in found if each.permission is Permission.DENY} == {"*"}


def test_the_cluster_is_always_literal() -> None:
    [found] = bindings(AclOptions((CLUSTER,), "prefixed", USER, operations=("alter",)))
    assert found.pattern_type is PatternType.LITERAL


def test_shortcuts() -> None:
    assert made(TOPIC, ID, producer=True, idempotent=True) == {
        *(f"ALLOW {name} on TOPIC 'rain' for User:a from *" for name in ("WRITE", "DESCRIBE", "CREATE")),
        *(f"ALLOW {name} on TRANSACTIONAL_ID 'tx' for User:a from *" for name in ("WRITE", "DESCRIBE")),
        "ALLOW IDEMPOTENT_WRITE on CLUSTER 'kafka-cluster' for User:a from *",
    }
    assert made(TOPIC, GROUP, consumer=True) == {
        *(f"ALLOW {name} on TOPIC 'rain' for User:a from *" for name in ("READ", "DESCRIBE")),
        "ALLOW READ on GROUP 'readers' for User:a from *",
    }
    both = made(TOPIC, GROUP, consumer=True, producer=True, pattern="prefixed")
    assert len(both) == 5
    assert "ALLOW READ on TOPIC 'rain' (PREFIXED) for User:a from *" in both


@pytest.mark.parametrize(
    ("resources", "more", "reason"),
    [
        ((), {}, "No resource"),
        ((TOPIC,), {"allowed": ()}, "No principal"),
        ((TOPIC,), {"allowed": ("a",)}, "not a principal"),
        ((TOPIC,), {"denied": ("a",)}, "not a principal"),
        ((TOPIC,), {"operations": ("fly",)}, "'fly' is not a value"),
        ((TOPIC,), {"operations": ("",)}, "'' is not a value"),
        ((TOPIC,), {"operations": ("any",)}, "'any' is not a value"),
        ((TOPIC,), {"operations": ("cluster-action",)}, "CLUSTER_ACTION is not an operation of TOPIC"),
        ((TOPIC, GROUP), {"operations": ("write",)}, "WRITE is not an operation of GROUP"),
        ((TOPIC,), {"pattern": "match"}, "'match' is not a value"),
        ((TOPIC,), {"idempotent": True}, "without --producer"),
        ((TOPIC,), {"producer": True, "operations": ("read",)}, "stand for operations"),
        ((TOPIC,), {"producer": True, "denied": ("User:b",)}, "stand for operations"),
        ((ID,), {"producer": True}, "need a topic"),
        ((TOPIC,), {"consumer": True}, "needs a group"),
        ((TOPIC, CLUSTER), {"producer": True}, "do not concern CLUSTER"),
        ((TOPIC, GROUP), {"producer": True}, "do not concern GROUP"),
    ],
)
def test_contradictions_are_refused(resources: Any, more: dict[str, Any], reason: str) -> None:
    with pytest.raises(OperatorError, match=reason):
        made(*resources, **more)


def test_filters_match_what_was_left_out() -> None:
    assert filters(AclOptions((TOPIC,))) == [AclBindingFilter(Kind.TOPIC, "rain", pattern_type=PatternType.LITERAL)]
    assert filters(AclOptions((TOPIC,), "match")) == [AclBindingFilter(Kind.TOPIC, "rain", pattern_type=MATCH)]
    assert filters(AclOptions((), allowed=USER)) == [AclBindingFilter(principal="User:a", permission=Permission.ALLOW)]
    assert filters(AclOptions((), operations=("write",))) == [AclBindingFilter(operation=AclOperation.WRITE)]
    assert filters(AclOptions((CLUSTER,))) == [AclBindingFilter(Kind.CLUSTER, "kafka-cluster", pattern_type=ANY)]
    named = filters(AclOptions((TOPIC,), "", USER, ("User:b",), (), ("1.2.3.4",), ("read",)))
    assert [(each.principal, each.host, each.permission) for each in named] == [
        ("User:a", None, Permission.ALLOW),
        ("User:b", "1.2.3.4", Permission.DENY),
    ]


def test_filters_of_shortcuts() -> None:
    found = filters(AclOptions((TOPIC, GROUP), allowed=USER, consumer=True))
    assert [(each.resource_type, each.operation) for each in found] == [
        (Kind.TOPIC, AclOperation.READ),
        (Kind.TOPIC, AclOperation.DESCRIBE),
        (Kind.GROUP, AclOperation.READ),
    ]


def test_a_filter_needs_something() -> None:
    """Otherwise `remove --execute` would remove everything."""
    with pytest.raises(OperatorError, match="Neither a resource"):
        filters(AclOptions((), allowed_hosts=("1.2.3.4",)))
