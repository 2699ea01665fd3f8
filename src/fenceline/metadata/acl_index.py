"""Which ACLs a filter matches, by an index of their resources.

Owns the meaning of filters, and an index over the ACLs of an image: a filter with a resource name looks at the ACLs of
that resource only; one without a name looks at all. Updated by deltas. Never decides who may do what.

Rules: security.md A46, A47.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple
from uuid import UUID

from immutables import Map

from fenceline.metadata.changes import Delta
from fenceline.metadata.image import MetadataImage
from fenceline.metadata.security_records import AccessControlEntryRecord
from fenceline.wire.acl_codes import ANY, MATCH, PatternType, ResourceType

WILDCARD: Final = "*"
_NONE: Final[dict[UUID, AccessControlEntryRecord]] = {}


class AclRule(NamedTuple):
    """An ACL without its id. Codes as in `wire.acl_codes`, which need not be valid in a request."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


class AclFilter(NamedTuple):
    """Fields as `AclRule`: None, or `ANY`, matches every value. With the pattern type `MATCH` the name is that of a
    resource: every ACL applies whose pattern matches it."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission_type: int

    def matches(self, acl: AccessControlEntryRecord) -> bool:
        return self._matches_pattern(acl) and (
            self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (ANY, acl.operation)
            and self.permission_type in (ANY, acl.permission_type)
        )

    def _matches_pattern(self, acl: AccessControlEntryRecord) -> bool:
        name, pattern = self.resource_name, self.pattern_type
        if self.resource_type not in (ANY, acl.resource_type) or pattern not in (ANY, MATCH, acl.pattern_type):
            return False
        if name is None or name == acl.resource_name:
            return True
        if pattern != MATCH:
            return False
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name == WILDCARD


def rule_of(acl: AccessControlEntryRecord) -> AclRule:
    return AclRule(
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )


class AclIndex:
    """See the module."""

    __slots__ = ("_acls", "_by_resource", "_lengths", "_rules")

    def __init__(self, image: MetadataImage) -> None:
        self._acls: Map[UUID, AccessControlEntryRecord] = image.acls
        self._by_resource: dict[tuple[int, str], dict[UUID, AccessControlEntryRecord]] = {}
        """By resource type and name, for patterns of both types."""
        self._lengths: dict[int, int] = {}
        """Of the names of prefixed patterns, with the number of ACLs that have it."""
        self._rules: set[AclRule] | None = None
        for acl in image.acls.values():
            self._add(acl)

    def is_of(self, image: MetadataImage) -> bool:
        return self._acls is image.acls

    def update(self, image: MetadataImage, delta: Delta) -> None:
        """The image advanced to `image`, by `delta`."""
        before, self._acls = self._acls, image.acls
        for key in delta.changed_acls:
            removed, added = before.get(key), image.acls.get(key)
            if removed is not None:
                self._remove(removed)
            if added is not None:
                self._add(added)

    def holds(self, rule: AclRule) -> bool:
        """Whether an ACL has exactly these values."""
        if self._rules is None:  # only the active controller asks
            self._rules = {rule_of(acl) for acl in self._acls.values()}
        return rule in self._rules

    def matching(self, wanted: AclFilter) -> Iterator[AccessControlEntryRecord]:
        """The ACLs that the filter matches, in no particular order."""
        return filter(wanted.matches, self._candidates(wanted))

    def _candidates(self, wanted: AclFilter) -> Iterator[AccessControlEntryRecord]:
        name = wanted.resource_name
        if name is None:
            yield from self._acls.values()
            return
        names = {name}
        if wanted.pattern_type == MATCH:
            names.add(WILDCARD)
            names.update(name[:length] for length in self._lengths if length < len(name))
        for kind in ResourceType if wanted.resource_type == ANY else (wanted.resource_type,):
            for each in names:
                yield from self._by_resource.get((kind, each), _NONE).values()

    def _add(self, acl: AccessControlEntryRecord) -> None:
        self._by_resource.setdefault((acl.resource_type, acl.resource_name), {})[acl.id] = acl
        if acl.pattern_type == PatternType.PREFIXED:
            length = len(acl.resource_name)
            self._lengths[length] = self._lengths.get(length, 0) + 1
        if self._rules is not None:
            self._rules.add(rule_of(acl))

    def _remove(self, acl: AccessControlEntryRecord) -> None:
        key = acl.resource_type, acl.resource_name
        held = self._by_resource[key]
        del held[acl.id]
        if not held:
            del self._by_resource[key]
        if acl.pattern_type == PatternType.PREFIXED:
            length = len(acl.resource_name)
            self._lengths[length] -= 1
            if not self._lengths[length]:
                del self._lengths[length]
        if self._rules is not None:
            self._rules.discard(rule_of(acl))
