"""ACL calls of Admin: DescribeAcls, CreateAcls and DeleteAcls.

Owns the values of ACLs and of filters, and their text. Never asks whether an ACL makes sense: the controller does.

Rules: security.md A42 to A47.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from fenceline.client.admin.admin_requests import AdminRequests
from fenceline.client.core.errors import raise_if
from fenceline.wire.acl_codes import ANY, AclOperation, PatternType, Permission, ResourceType
from fenceline.wire.apis import ApiKey


@dataclass(frozen=True, slots=True, order=True)
class AclBinding:
    """An ACL: `principal` (`User:name`, or `User:*` for all), from `host` (an IP address, or `*` for all), may or may
    not do `operation` on resources. With `PatternType.PREFIXED` these are all whose names begin with `resource_name`; a
    literal `*` is every resource of the type. Codes that this client does not know are plain ints."""

    resource_type: ResourceType | int
    resource_name: str
    principal: str
    operation: AclOperation | int
    permission: Permission | int = Permission.ALLOW
    pattern_type: PatternType | int = PatternType.LITERAL
    host: str = "*"

    def __str__(self) -> str:
        name = f"{name_of(ResourceType, self.resource_type)} {self.resource_name!r}"
        if self.pattern_type != PatternType.LITERAL:
            name += f" ({name_of(PatternType, self.pattern_type)})"
        what = f"{name_of(Permission, self.permission)} {name_of(AclOperation, self.operation)}"
        return f"{what} on {name} for {self.principal} from {self.host}"


@dataclass(frozen=True, slots=True)
class AclBindingFilter:
    """Fields as `AclBinding`; `ANY` or None matches every value. With the pattern type `MATCH`, `resource_name` is the
    name of a resource, and every ACL matches that applies to it."""

    resource_type: ResourceType | int = ANY
    resource_name: str | None = None
    principal: str | None = None
    operation: AclOperation | int = ANY
    permission: Permission | int = ANY
    pattern_type: PatternType | int = ANY
    host: str | None = None


def name_of(kind: type[IntEnum], code: int) -> str:
    """The name of a code; one that this client does not know is a number."""
    return kind(code).name if code in kind._value2member_map_ else str(code)


class AclsAdmin(AdminRequests):
    """Part of `AsyncAdmin`."""

    async def describe_acls(
        self, wanted: AclBindingFilter | None = None, *, timeout_ms: float | None = None
    ) -> list[AclBinding]:
        """The ACLs that match the filter (None: all), sorted. Raises PeerError(SECURITY_DISABLED) without an
        authorizer."""
        fields = _filter_fields(wanted or AclBindingFilter())
        response = await self._ask(None, ApiKey.DESCRIBE_ACLS, fields, self._deadline(timeout_ms))
        raise_if(response, "describing ACLs")
        return sorted(_binding(resource, acl) for resource in response.resources for acl in resource.acls)

    async def create_acls(self, bindings: Iterable[AclBinding], *, timeout_ms: float | None = None) -> None:
        """Creates ACLs; one that exists is not an error. If some are invalid the others are created, and the first
        error is raised."""
        wanted = tuple(bindings)
        response = await self._ask_controller(
            ApiKey.CREATE_ACLS,
            {"creations": [_creation(each) for each in wanted]},
            self._deadline(timeout_ms),
            lambda answer: answer.results,
        )
        for binding, result in zip(wanted, response.results, strict=True):
            raise_if(result, f"creating {binding}")

    async def delete_acls(
        self, filters: Sequence[AclBindingFilter], *, timeout_ms: float | None = None
    ) -> list[tuple[AclBinding, ...]]:
        """Deletes the ACLs that match one of the filters, at most 10,000. The ACLs that each filter matched, sorted."""
        response = await self._ask_controller(
            ApiKey.DELETE_ACLS,
            {"filters": [_filter_fields(each) for each in filters]},
            self._deadline(timeout_ms),
            lambda answer: answer.filter_results,
        )
        for wanted, result in zip(filters, response.filter_results, strict=True):
            raise_if(result, f"deleting the ACLs of {wanted}")
        return [tuple(sorted(_binding(acl, acl) for acl in each.matching_acls)) for each in response.filter_results]


def _creation(binding: AclBinding) -> dict[str, Any]:
    return {
        "resource_type": binding.resource_type,
        "resource_name": binding.resource_name,
        "resource_pattern_type": binding.pattern_type,
        "principal": binding.principal,
        "host": binding.host,
        "operation": binding.operation,
        "permission_type": binding.permission,
    }


def _filter_fields(wanted: AclBindingFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": wanted.resource_type,
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": wanted.pattern_type,
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": wanted.operation,
        "permission_type": wanted.permission,
    }


def _binding(resource: Any, acl: Any) -> AclBinding:
    return AclBinding(
        _known(ResourceType, resource.resource_type),
        str(resource.resource_name),
        str(acl.principal),
        _known(AclOperation, acl.operation),
        _known(Permission, acl.permission_type),
        _known(PatternType, resource.pattern_type),
        str(acl.host),
    )


def _known(kind: type[IntEnum], code: int) -> int:
    return kind(code) if code in kind._value2member_map_ else int(code)
