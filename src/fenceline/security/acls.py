"""The rules of the metadata log (ACLs), and what they allow: the decisions of Kafka's standard authorizer.

A rule says that a principal, from a host, may or may not do an operation on the resources of one type that its pattern
matches. Super users may do everything. For others, a rule that denies takes precedence over rules that allow. If no
rule matches the resource, access is denied, unless `allow.everyone.if.no.acl.found` is set.

Owns the decisions, and an index so that a decision does not look at the rules of other resources. Never looks at a
request: `fenceline.security.permissions` will say what a request needs.

Rules: security.md A41 to A45.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fenceline.metadata.security_records import AccessControlEntryRecord
from fenceline.wire.acl_codes import AclOperation, PatternType, Permission, ResourceType
from fenceline.wire.principal import Principal

WILDCARD: Final = "*"
"""As a name: every resource of the type. As a host: every host."""
EVERYBODY: Final = "User:*"
"""Matches principals of every type."""
MAX_CACHED: Final = 10_000
"""Decisions that are remembered until a rule changes."""


_IMPLIED_BY: Final = {
    AclOperation.DESCRIBE: frozenset((AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER)),
    AclOperation.DESCRIBE_CONFIGS: frozenset((AclOperation.ALTER_CONFIGS,)),
}
_FIRST_NAME: Final = "hardcode"
"""Kafka tries this name first when it looks for any resource (A45)."""
_NOTHING: Final[frozenset[AclOperation]] = frozenset()


class AskingPeer(NamedTuple):
    """Who asks. `host` is the text of an address, as Java writes it (A43)."""

    principal: Principal
    host: str


@dataclass(slots=True)
class _TypeRules:
    """The rules of one resource type."""

    literal: dict[str, list[AccessControlEntryRecord]] = field(default_factory=dict)
    """By name; those for every name under `WILDCARD`."""
    prefixed: dict[str, list[AccessControlEntryRecord]] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()
    """Of the prefixes, ascending."""

    def matching(self, name: str) -> Iterator[AccessControlEntryRecord]:
        yield from self.literal.get(name, ())
        if name != WILDCARD:
            yield from self.literal.get(WILDCARD, ())
        for length in self.lengths:
            if length > len(name):
                return
            yield from self.prefixed.get(name[:length], ())

    def add(self, rule: AccessControlEntryRecord) -> None:
        of = self.literal if rule.pattern_type == PatternType.LITERAL else self.prefixed
        of.setdefault(rule.resource_name, []).append(rule)
        if of is self.prefixed and len(rule.resource_name) not in self.lengths:
            self.lengths = tuple(sorted((*self.lengths, len(rule.resource_name))))

    def remove(self, rule: AccessControlEntryRecord) -> None:
        of = self.literal if rule.pattern_type == PatternType.LITERAL else self.prefixed
        left = [each for each in of.get(rule.resource_name, ()) if each.id != rule.id]
        if left:
            of[rule.resource_name] = left
        else:
            of.pop(rule.resource_name, None)
            self.lengths = tuple(sorted({len(prefix) for prefix in self.prefixed}))


class AclAuthorizer:
    """See the module. Add and remove rules as the metadata does."""

    def __init__(self, super_users: Iterable[str] = (), *, allows_without_rules: bool = False) -> None:
        """`super_users`: `Type:name` each. `allows_without_rules`: `allow.everyone.if.no.acl.found`."""
        self._super_users = frozenset(super_users)
        self._allows_without_rules = allows_without_rules
        self._types: dict[int, _TypeRules] = {}
        self._decided: dict[tuple[AskingPeer, int, int, str], bool] = {}

    def add(self, rule: AccessControlEntryRecord) -> None:
        self._types.setdefault(rule.resource_type, _TypeRules()).add(rule)
        self._decided.clear()

    def remove(self, rule: AccessControlEntryRecord) -> None:
        found = self._types.get(rule.resource_type)
        if found is not None:
            found.remove(rule)
            self._decided.clear()

    def may(self, peer: AskingPeer, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        """Whether the peer may do this to the resource of this name."""
        key = (peer, operation, resource, name)
        known = self._decided.get(key)
        if known is None:
            if len(self._decided) >= MAX_CACHED:
                self._decided.clear()
            known = self._decided[key] = self._decide(peer, operation, resource, name)
        return known

    def _decide(self, peer: AskingPeer, operation: AclOperation, resource: ResourceType, name: str) -> bool:
        principal = str(peer.principal)
        if principal in self._super_users:
            return True
        rules = self._types.get(resource)
        matching = list(rules.matching(name)) if rules is not None else []
        if not matching:
            return self._allows_without_rules
        implying = _IMPLIED_BY.get(operation, _NOTHING)
        is_allowed = False
        for rule in matching:
            if rule.principal not in (principal, EVERYBODY) or rule.host not in (peer.host, WILDCARD):
                continue
            is_same = rule.operation in (operation, AclOperation.ALL)
            if rule.permission_type == Permission.DENY:
                if is_same:
                    return False
            elif is_same or rule.operation in implying:
                is_allowed = True
        return is_allowed

    def may_any(self, peer: AskingPeer, operation: AclOperation, resource: ResourceType) -> bool:
        """Whether the peer may do this to at least one resource of the type, which need not exist (A45)."""
        principal = str(peer.principal)
        if principal in self._super_users:
            return True
        rules = self._types.get(resource, _TypeRules())

        def applying(found: Iterable[AccessControlEntryRecord], permission: Permission) -> bool:
            return any(
                rule.permission_type == permission
                and rule.principal in (principal, EVERYBODY)
                and rule.host in (peer.host, WILDCARD)
                and rule.operation in (operation, AclOperation.ALL)
                for rule in found
            )

        everything = rules.literal.get(WILDCARD, ())
        if applying(everything, Permission.DENY):
            return False
        if self.may(peer, operation, resource, _FIRST_NAME):
            return True
        if applying(everything, Permission.ALLOW):
            return True
        denied_names = {name for name, found in rules.literal.items() if applying(found, Permission.DENY)}
        denied_prefixes = {name for name, found in rules.prefixed.items() if applying(found, Permission.DENY)}

        def is_denied(name: str, *, is_literal: bool) -> bool:
            if is_literal and name in denied_names:
                return True
            return any(name[:length] in denied_prefixes for length in range(1, len(name) + 1))

        return any(
            applying(found, Permission.ALLOW) and not is_denied(name, is_literal=is_literal)
            for of, is_literal in ((rules.literal, True), (rules.prefixed, False))
            for name, found in of.items()
            if name != WILDCARD
        )
