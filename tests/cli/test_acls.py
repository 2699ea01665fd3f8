"""`fenceline acls` and the calls of Admin: against a Fenceline node and Apache Kafka, both with an authorizer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fenceline.client.admin.acls import AclBinding, AclBindingFilter
from fenceline.client.admin.admin import Admin
from fenceline.errors import ErrorCode, PeerError
from fenceline.testing.mixed_cluster import COMBINED
from fenceline.testing.node import EmbeddedNode
from fenceline.testing.waiting import eventually
from fenceline.wire.acl_codes import MATCH, AclOperation, PatternType, ResourceType
from tests.cli.command_target import CommandTarget, one_node

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


class Target(CommandTarget):
    """The node that commands run against."""

    def __init__(self, bootstrap: str, controller: str = "") -> None:
        super().__init__("acls", bootstrap, controller)

    def rules(self, *arguments: str) -> list[str]:
        rows = self.run_json("list", *arguments)
        return [" ".join(map(str, row.values())) for row in rows]

    def check_rules(self, expected: list[str], *arguments: str) -> None:
        """Kafka's broker follows its controller."""

        def same() -> bool:
            found = self.rules(*arguments)
            assert found == expected, found
            return True

        eventually(same)


@pytest.fixture(scope="module")
def fenceline_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with one_node(tmp_path_factory.mktemp("fenceline"), COMBINED, AUTHORIZER) as addresses:
        yield Target(*addresses)


@pytest.fixture(scope="module")
def kafka_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with one_node(tmp_path_factory.mktemp("kafka"), f"kafka:{COMBINED}", AUTHORIZER) as addresses:
        yield Target(*addresses)


@pytest.fixture(params=[pytest.param("kafka", marks=pytest.mark.kafka), "fenceline"])
def target(request: pytest.FixtureRequest) -> Target:
    """Without ACLs."""
    found: Target = request.getfixturevalue(f"{request.param}_target")
    with Admin(found.bootstrap) as admin:
        admin.delete_acls([AclBindingFilter()])
    found.check_rules([])
    return found


def test_rules_are_added_listed_and_removed(target: Target) -> None:
    assert target.run() == "There are no ACLs.\n"
    shown = target.run("add", "--allow-principal", "User:anna", "--producer", "--topic", "rain", "--dry-run")
    assert "These would be added" in shown
    target.check_rules([])
    target.run("add", "--allow-principal", "User:anna", "--producer", "--topic", "rain")
    target.run(
        "add",
        *("--deny-principal", "User:ben", "--deny-host", "1.2.3.4", "--operation", "read"),
        *("--topic", "ra", "--resource-pattern-type", "prefixed"),
    )
    prefixed = "TOPIC ra PREFIXED User:ben 1.2.3.4 READ DENY"
    literal = [f"TOPIC rain LITERAL User:anna * {name} ALLOW" for name in ("WRITE", "CREATE", "DESCRIBE")]
    target.check_rules([prefixed, *literal])
    target.check_rules([prefixed], "--principal", "User:ben")
    target.check_rules(literal, "--topic", "rain")
    target.check_rules([prefixed, *literal], "--topic", "rain", "--resource-pattern-type", "match")
    target.check_rules([], "--topic", "rain", "--cluster", "--resource-pattern-type", "prefixed")

    wanted = ("remove", "--topic", "rain", "--operation", "create")
    assert target.run_json(*wanted)["executed"] is False
    target.check_rules([prefixed, *literal])
    [removed] = target.run_json(*wanted, "--execute")["removed"]
    assert removed["operation"] == "CREATE"
    target.check_rules([prefixed, literal[0], literal[2]])
    assert "Removed" in target.run("remove", "--deny-principal", "User:ben", "--execute")
    assert target.run("remove", "--deny-principal", "User:ben", "--execute") == "No ACL matches.\n"
    target.check_rules([literal[0], literal[2]])


def test_every_kind_of_resource(target: Target) -> None:
    target.run(
        "add",
        *("--allow-principal", "User:*", "--topic", "*", "--group", "g", "--transactional-id", "x"),
        *("--delegation-token", "d", "--user-principal", "User:o", "--cluster"),
    )
    target.check_rules(
        [
            "TOPIC * LITERAL User:* * ALL ALLOW",
            "GROUP g LITERAL User:* * ALL ALLOW",
            "CLUSTER kafka-cluster LITERAL User:* * ALL ALLOW",
            "TRANSACTIONAL_ID x LITERAL User:* * ALL ALLOW",
            "DELEGATION_TOKEN d LITERAL User:* * ALL ALLOW",
            "USER User:o LITERAL User:* * ALL ALLOW",
        ]
    )


def test_through_controllers(target: Target) -> None:
    where = ("-c", target.controller)
    target.run("add", "--allow-principal", "User:a", "--topic", "rain", *where)
    target.check_rules(["TOPIC rain LITERAL User:a * ALL ALLOW"])
    target.check_rules(["TOPIC rain LITERAL User:a * ALL ALLOW"], *where)
    target.run("remove", "--allow-principal", "User:a", "--execute", *where)
    target.check_rules([])


def test_errors_are_readable(target: Target) -> None:
    assert "not a principal" in target.run("add", "--allow-principal", "anna", "--topic", "rain", code=1)
    assert "Neither a resource" in target.run("remove", "--execute", code=1)
    empty = target.run("add", "--allow-principal", "User:a", "--topic", "", code=1)
    assert "INVALID_REQUEST" in empty
    assert "empty resource name" in empty


def test_calls_of_admin(target: Target) -> None:
    rain = AclBinding(ResourceType.TOPIC, "rain", "User:a", AclOperation.READ)
    every = AclBinding(ResourceType.TOPIC, "r", "User:b", AclOperation.ALL, pattern_type=PatternType.PREFIXED)
    empty = AclBinding(ResourceType.TOPIC, "", "User:c", AclOperation.ALL)
    with Admin(target.bootstrap) as admin:
        admin.create_acls([rain, every])
        admin.create_acls([rain])
        with pytest.raises(PeerError) as refused:
            admin.create_acls([empty, rain])
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        assert "ALLOW ALL on TOPIC '' for User:c from *" in refused.value.message
        target.check_rules(["TOPIC r PREFIXED User:b * ALL ALLOW", "TOPIC rain LITERAL User:a * READ ALLOW"])
        named = AclBindingFilter(ResourceType.TOPIC, "rain", pattern_type=MATCH)
        assert admin.describe_acls(named) == [every, rain]
        assert admin.describe_acls() == [every, rain]
        assert admin.describe_acls(AclBindingFilter(principal="User:b")) == [every]
        assert admin.delete_acls([AclBindingFilter(principal="User:a"), named]) == [(rain,), (every, rain)]
        assert admin.delete_acls([]) == []


def test_without_an_authorizer() -> None:
    with EmbeddedNode() as node:
        target = Target(node.bootstrap, "")
        assert "SECURITY_DISABLED" in target.run(code=1)
        assert "SECURITY_DISABLED" in target.run("add", "--allow-principal", "User:a", "--topic", "t", code=1)
        assert "SECURITY_DISABLED" in target.run("remove", "--topic", "t", "--execute", code=1)
