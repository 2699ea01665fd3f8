"""The decisions of the authorizer, against those of Apache Kafka's. Rules: security.md A41 to A45.

`KafkaDecisions.java` asks the StandardAuthorizer of Kafka's jars about generated rules and questions.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from fenceline.metadata.security_records import AccessControlEntryRecord
from fenceline.security.acls import AclAuthorizer, AskingPeer
from fenceline.testing.apache_kafka import DEFAULT_JARS
from fenceline.wire.acl_codes import AclOperation, PatternType, Permission, ResourceType
from fenceline.wire.principal import Principal
from tests.support.recorded import Answer

WORLDS, RULES, QUESTIONS = 600, 14, 60
NAMES = ("a", "ab", "abc", "abcd", "b", "ba", "hardcode", "kafka-cluster", "*")
PRINCIPALS = ("User:a", "User:b", "User:root", "User:*", "Group:a", "Group:*", "User:A", "User:a:b")
HOSTS = ("*", "1.2.3.4", "1.2.3.5", "0:0:0:0:0:0:0:1")
TYPES = (ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)


class World(NamedTuple):
    super_users: tuple[str, ...]
    allows_without_rules: bool
    rules: tuple[AccessControlEntryRecord, ...]
    questions: tuple[tuple[str, str, AclOperation, ResourceType, str | None], ...]
    """Principal, host, operation, type, and name; None: any name."""


def world(seed: int) -> World:
    rng = Random(seed)
    operations = [*rng.sample(list(AclOperation), 4), AclOperation.DESCRIBE, AclOperation.READ, AclOperation.ALL]

    def rule(number: int) -> AccessControlEntryRecord:
        pattern = rng.choice(list(PatternType))
        names = NAMES if pattern is PatternType.LITERAL else NAMES[:-1]
        permission = rng.choice([Permission.ALLOW, Permission.ALLOW, Permission.DENY])
        return AccessControlEntryRecord(
            UUID(int=number + 1),
            rng.choice(TYPES),
            rng.choice(names),
            pattern,
            rng.choice(PRINCIPALS),
            rng.choice(HOSTS),
            rng.choice(operations),
            permission,
        )

    def question() -> tuple[str, str, AclOperation, ResourceType, str | None]:
        who = rng.choice([each for each in PRINCIPALS if "*" not in each])
        name = rng.choice([*NAMES[:-1], "abcde", None])
        return who, rng.choice(HOSTS[1:]), rng.choice([*operations[:-1]]), rng.choice(TYPES), name

    return World(
        ("User:root", "Group:a") if seed % 3 == 0 else (),
        seed % 4 == 0,
        tuple(rule(number) for number in range(rng.randrange(RULES + 1))),
        tuple(question() for _ in range(QUESTIONS)),
    )


def lines(given: World) -> Iterator[str]:
    yield f"world\t{';'.join(given.super_users)}\t{str(given.allows_without_rules).lower()}"
    for each in given.rules:
        fields = (each.resource_type, each.resource_name, each.pattern_type, each.principal, each.host)
        yield "\t".join(map(str, ("rule", *map(_plain, fields), int(each.operation), int(each.permission_type))))
    for who, host, operation, kind, name in given.questions:
        asked = (
            ("may any", who, host, int(operation), int(kind))
            if name is None
            else (
                *("may", who, host, int(operation), int(kind)),
                name,
            )
        )
        yield "\t".join(map(str, asked))


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, int) else value


@pytest.fixture
def kafka_decisions() -> Any:
    """Asks the authorizer of Kafka's jars."""

    def ask(worlds: list[World]) -> list[str]:
        program = Path(__file__).with_name("KafkaDecisions.java")
        command = ["java", "-cp", str(DEFAULT_JARS / "server" / "*"), str(program)]
        text = "".join(f"{line}\n" for given in worlds for line in lines(given))
        printed = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=300).stdout
        answers = "".join(printed.split())
        return [answers[start : start + QUESTIONS] for start in range(0, len(answers), QUESTIONS)]

    return ask


def decisions(given: World) -> str:
    authorizer = AclAuthorizer(given.super_users, allows_without_rules=given.allows_without_rules)
    for rule in given.rules:
        authorizer.add(rule)
    found = []
    for who, host, operation, kind, name in given.questions:
        peer = AskingPeer(Principal(*who.split(":", 1)), host)
        is_allowed = (
            authorizer.may_any(peer, operation, kind) if name is None else authorizer.may(peer, operation, kind, name)
        )
        found.append("1" if is_allowed else "0")
    return "".join(found)


def test_decisions_are_those_of_kafka(answer: Answer) -> None:
    worlds = [world(seed) for seed in range(WORLDS)]
    expected = answer("kafka_decisions", lambda ask: ask(worlds))
    assert len(expected) == WORLDS
    for seed, (given, kafkas) in enumerate(zip(worlds, expected, strict=True)):
        ours = decisions(given)
        differs = [question for question, a, b in zip(given.questions, ours, kafkas, strict=True) if a != b]
        assert not differs, f"seed {seed}: {differs[0]}, Kafka {kafkas}, rules {given.rules}"
    assert 0.2 < "".join(expected).count("1") / (WORLDS * QUESTIONS) < 0.8, "both decisions are tested"


def test_removed_rules_leave_no_trace() -> None:
    """CVE-2024-27309: removing one rule of a resource must not unlock it."""
    for seed in range(WORLDS):
        given, other = world(seed), world(seed + 1_000)
        authorizer = AclAuthorizer(given.super_users, allows_without_rules=given.allows_without_rules)
        foreign = [AccessControlEntryRecord(UUID(int=rule.id.int + 1_000), *_fields(rule)[1:]) for rule in other.rules]
        for rule in (*given.rules, *foreign):
            authorizer.add(rule)
        for question in given.questions:
            _ask(authorizer, question)
        for rule in foreign:
            authorizer.remove(rule)
        found = "".join(str(int(_ask(authorizer, question))) for question in given.questions)
        assert found == decisions(given)


def _fields(rule: AccessControlEntryRecord) -> tuple[Any, ...]:
    return tuple(getattr(rule, name) for name in AccessControlEntryRecord.__slots__)


def _ask(authorizer: AclAuthorizer, question: tuple[str, str, AclOperation, ResourceType, str | None]) -> bool:
    who, host, operation, kind, name = question
    peer = AskingPeer(Principal(*who.split(":", 1)), host)
    return authorizer.may_any(peer, operation, kind) if name is None else authorizer.may(peer, operation, kind, name)
