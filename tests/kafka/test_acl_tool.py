"""Kafka 4.3.1's kafka-acls on a Fenceline and on a Kafka cluster with an authorizer: the same arguments, the same
output.

Rules: security.md A46 to A48.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fenceline.client.admin.acls import AclBindingFilter
from fenceline.client.admin.admin import Admin
from tests.kafka.side_by_side import Both, both_clusters
from tests.scheduling import CLUSTERS

pytestmark = [pytest.mark.kafka, pytest.mark.together(CLUSTERS), pytest.mark.timeout(600)]

SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
BROKERS = ("--bootstrap-server", "@brokers")
CONTROLLERS = ("--bootstrap-controller", "@controllers")
USER = ("--allow-principal", "User:a")


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with both_clusters(tmp_path_factory.mktemp("acls"), SETTINGS) as both:
        yield both


@pytest.fixture
def both(clusters: Both) -> Iterator[Both]:
    """Without ACLs; any difference in the test's commands fails it."""
    for side in clusters.sides:
        with Admin(side.words["@brokers"]) as admin:
            admin.delete_acls([AclBindingFilter()])
        side.settle()
    yield clusters
    clusters.check()


def change(both: Both, *arguments: str, listener: tuple[str, str] = BROKERS) -> None:
    both.run("acls", *listener, *arguments)


def listed(both: Both, *arguments: str, listener: tuple[str, str] = BROKERS) -> str:
    return both.run("acls", *listener, "--list", *arguments)


@pytest.mark.parametrize("listener", [BROKERS, CONTROLLERS], ids=["brokers", "controllers"])
def test_rules_are_added_listed_and_removed(both: Both, listener: tuple[str, str]) -> None:
    assert not listed(both, listener=listener)
    change(both, "--add", *USER, "--operation", "Read", "--topic", "rain", listener=listener)
    change(both, "--add", *USER, "--operation", "Read", "--topic", "rain", listener=listener)
    change(
        both,
        "--add",
        *("--allow-principal", "User:b", "--allow-host", "1.2.3.4", "--deny-principal", "User:c"),
        *("--operation", "Delete", "--operation", "Describe", "--topic", "r", "--group", "*"),
        *("--resource-pattern-type", "prefixed"),
        listener=listener,
    )
    shown = listed(both, listener=listener)
    assert "name=rain" in shown
    for asked in (
        ("--topic", "rain"),
        ("--topic", "rain", "--resource-pattern-type", "match"),
        ("--topic", "rain", "--resource-pattern-type", "any"),
        ("--topic", "r", "--resource-pattern-type", "prefixed"),
        ("--group", "g", "--resource-pattern-type", "match"),
        ("--principal", "User:a"),
        ("--principal", "User:a", "--topic", "rain"),
        ("--principal", "User:nobody"),
        ("--cluster",),
    ):
        listed(both, *asked, listener=listener)
    change(both, "--remove", "--force", *USER, "--operation", "Write", "--topic", "rain", listener=listener)
    change(both, "--remove", "--force", *USER, "--operation", "Read", "--topic", "rain", listener=listener)
    listed(both, listener=listener)
    change(both, "--remove", "--force", "--topic", "rain", "--resource-pattern-type", "match", listener=listener)
    assert "Topic" not in listed(both, "--topic", "rain", "--resource-pattern-type", "match", listener=listener)


def test_every_kind_of_resource(both: Both) -> None:
    for kind, operations in (
        (("--topic", "*"), ("All", "AlterConfigs", "DescribeConfigs", "Create", "Delete", "Alter")),
        (("--group", "x"), ("Read", "Describe", "Delete", "DescribeConfigs", "AlterConfigs")),
        (("--cluster",), ("ClusterAction", "IdempotentWrite", "Alter", "Create")),
        (("--transactional-id", "x"), ("Write", "Describe", "TwoPhaseCommit")),
        (("--delegation-token", "x"), ("Describe",)),
        (("--user-principal", "x"), ("CreateTokens", "DescribeTokens")),
    ):
        for operation in operations:
            change(both, "--add", *USER, "--operation", operation, *kind)
        assert operations[0].upper()[:3] in listed(both, *kind)


def test_shortcuts(both: Both) -> None:
    change(both, "--add", *USER, "--producer", "--topic", "rain", "--transactional-id", "x", "--idempotent")
    change(both, "--add", *USER, "--consumer", "--topic", "rain", "--group", "x")
    assert "IDEMPOTENT_WRITE" in listed(both)
    change(both, "--remove", "--force", *USER, "--consumer", "--topic", "rain", "--group", "x")
    listed(both)


def test_refused_rules(both: Both) -> None:
    for bad in (
        ("--allow-principal", "a", "--topic", "rain"),
        (*USER, "--topic", "rain", "--operation", "ClusterAction"),
        (*USER, "--topic", ""),
        (*USER, "--topic", "rain", "--resource-pattern-type", "match"),
        (*USER,),
        ("--topic", "rain"),
    ):
        # The tool lists operations in no fixed order.
        both.refuse("acls", *BROKERS, "--add", *bad, leave_out=r"operations \[.*\]")
    assert not listed(both)
