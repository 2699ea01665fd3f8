"""What the sender of a request may do, and how the rules of the metadata come into force.

Rules: security.md A41, A43, A44, A49, A52.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.metadata.security_records import AccessControlEntryRecord
from fenceline.security.acls import AskingPeer
from fenceline.security.rights import Authorization, Denial, RequestRights, java_address
from fenceline.wire.acl_codes import AclOperation, PatternType, Permission, ResourceType
from fenceline.wire.apis import ApiKey
from fenceline.wire.principal import Principal

ANNA = AskingPeer(Principal("User", "anna"), "127.0.0.1")
ADMIN = AskingPeer(Principal("User", "admin"), "127.0.0.1")


def rule(number: int, topic: str, operation: AclOperation, user: str = "User:anna") -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        UUID(int=number), ResourceType.TOPIC, topic, PatternType.LITERAL, user, "*", operation, Permission.ALLOW
    )


def image_with(*rules: AccessControlEntryRecord) -> MetadataImage:
    acls = EMPTY_IMAGE.acls
    for each in rules:
        acls = acls.set(each.id, each)
    return replace(EMPTY_IMAGE, acls=acls)


def authorization(denials: list[Denial] | None = None, *, without_rules: bool = False) -> Authorization:
    heard = denials if denials is not None else []
    rules = Authorization(["User:admin"], allows_without_rules=without_rules, denied=heard.append)
    rules.is_in_force = True
    return rules


def anna(rules: Authorization, request: ApiKey = ApiKey.PRODUCE) -> RequestRights:
    return rules.rights(ANNA, request)


def test_rules_follow_the_metadata() -> None:
    rules = authorization()
    write, read = rule(1, "t", AclOperation.WRITE), rule(2, "t", AclOperation.READ)
    rules.follow(image_with(write))
    assert anna(rules).may_write("t")
    assert not anna(rules).may_read("t")
    rules.follow(image_with(read), [write.id, read.id])
    assert not anna(rules).may_write("t")
    assert anna(rules).may_read("t")
    assert rules.rule_count == 1


def test_a_snapshot_replaces_the_rules() -> None:
    rules = authorization()
    rules.follow(image_with(rule(1, "t", AclOperation.WRITE), rule(2, "t", AclOperation.READ)))
    rules.follow(image_with(rule(3, "u", AclOperation.READ)))
    assert not anna(rules).may_write("t")
    assert not anna(rules).may_read("t")
    assert anna(rules).may_read("u")


@pytest.mark.parametrize("without_rules", [False, True])
def test_before_the_rules_are_in_force_only_super_users_have_rights(without_rules: bool) -> None:
    rules = authorization(without_rules=without_rules)
    rules.is_in_force = False
    assert rules.rights(ADMIN, ApiKey.VOTE).are_known
    assert rules.rights(ADMIN, ApiKey.VOTE).on_cluster(AclOperation.CLUSTER_ACTION)
    assert not anna(rules).are_known
    assert not anna(rules).may_read("t")
    assert not anna(rules).may_any(AclOperation.WRITE, ResourceType.TOPIC)
    rules.is_in_force = True
    assert anna(rules).are_known
    assert anna(rules).may_read("t") is without_rules


def test_denials_are_reported_unless_the_question_is_quiet() -> None:
    denials: list[Denial] = []
    rules = authorization(denials)
    rights = anna(rules, ApiKey.FETCH)
    assert not rights.describes("t")
    assert not rights.may(AclOperation.READ, ResourceType.TOPIC, "t", quiet=True)
    assert denials == []
    assert not rights.may(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "copy-1")
    assert denials == [Denial("User:anna", "127.0.0.1", "WRITE", "TransactionalId:LITERAL:copy-1", "FETCH")]
    assert rules.denied == 1
    assert rules.rights(ADMIN, ApiKey.FETCH).may_read("t")
    assert rules.allowed == 1


def test_a_forwarded_request_has_the_rights_of_its_client() -> None:
    denials: list[Denial] = []
    rules = authorization(denials)
    envelope = rules.rights(ADMIN, ApiKey.ENVELOPE)
    client = envelope.of_client(ANNA.principal, "::1", ApiKey.CREATE_TOPICS)
    assert not client.on_topic(AclOperation.CREATE, "t")
    assert denials == [Denial("User:anna", "0:0:0:0:0:0:0:1", "CREATE", "Topic:LITERAL:t", "CREATE_TOPICS")]


def test_operations_are_those_that_answers_list() -> None:
    rules = authorization()
    rules.follow(image_with(rule(1, "t", AclOperation.READ)))
    assert anna(rules).operations(ResourceType.TOPIC, "t") == 1 << AclOperation.READ | 1 << AclOperation.DESCRIBE
    every = sum(1 << code for code in (3, 4, 5, 6, 7, 8, 10, 11))
    assert rules.rights(ADMIN, ApiKey.METADATA).operations(ResourceType.TOPIC, "t") == every


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "0:0:0:0:0:0:0:1"),
        ("fe80::a:b%eth0", "fe80:0:0:0:0:0:a:b"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("?", "?"),
    ],
)
def test_addresses_are_written_as_java_writes_them(address: str, written: str) -> None:
    assert java_address(address) == written
