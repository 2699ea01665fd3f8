"""The index of ACLs finds what a look at every ACL finds, while ACLs come and go. Rules: security.md A46, A47."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest

from fenceline.metadata.acl_index import AclFilter, AclIndex, AclRule, rule_of
from fenceline.metadata.delta import apply
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.metadata.records import MetadataRecord
from fenceline.metadata.security_records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from fenceline.wire.acl_codes import ANY, MATCH, PatternType

NAMES = ("a", "ab", "abc", "abcd", "b", "*", "\u00fc", "a\u0000")
TYPES = (2, 3, 4, 7)
ROUNDS, STEPS = 40, 30


def rule(rng: Random, number: int) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        UUID(int=number),
        rng.choice(TYPES),
        rng.choice(NAMES),
        rng.choice((3, 4)),
        rng.choice(("User:a", "User:b", "User:*")),
        rng.choice(("*", "1.2.3.4")),
        rng.choice((2, 3, 4)),
        rng.choice((2, 3)),
    )


def wanted(rng: Random) -> AclFilter:
    return AclFilter(
        rng.choice((ANY, ANY, *TYPES, 99)),
        rng.choice((None, *NAMES, "abcde", "")),
        rng.choice((ANY, MATCH, MATCH, *PatternType, 99)),
        rng.choice((None, None, "User:a", "nobody")),
        rng.choice((None, None, "*")),
        rng.choice((ANY, ANY, 3)),
        rng.choice((ANY, ANY, 3)),
    )


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_index_finds_what_a_scan_finds(seed: int) -> None:
    rng = Random(seed)
    image, index = EMPTY_IMAGE, AclIndex(EMPTY_IMAGE)
    asks_for_rules = bool(seed % 2)
    for step in range(STEPS):
        made = {rule_of(each): each for each in (rule(rng, step * 100 + number) for number in range(rng.randrange(5)))}
        records: list[MetadataRecord] = [each for key, each in made.items() if key not in rules_of(image)]
        gone = rng.sample(sorted(image.acls), min(len(image.acls), rng.randrange(4)))
        records += [RemoveAccessControlEntryRecord(each) for each in gone]
        image, delta = apply(image, records, image.offset + len(records), 1)
        index.update(image, delta)
        assert index.is_of(image)
        for _ in range(10):
            question = wanted(rng)
            found = sorted(each.id for each in index.matching(question))
            assert found == sorted(each.id for each in image.acls.values() if question.matches(each)), question
        if asks_for_rules:
            check_rules(index, image, rng)
    check_rules(index, image, rng)
    fresh = AclIndex(image)
    assert (fresh._by_resource, fresh._lengths) == (index._by_resource, index._lengths)


def rules_of(image: MetadataImage) -> set[AclRule]:
    """Controllers write no rule twice."""
    return {rule_of(each) for each in image.acls.values()}


def check_rules(index: AclIndex, image: MetadataImage, rng: Random) -> None:
    there = rules_of(image)
    for asked in (*there, *(rule_of(rule(rng, 0)) for _ in range(5))):
        assert index.holds(asked) is (asked in there)
