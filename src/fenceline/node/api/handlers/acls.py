"""DescribeAcls v1-3, CreateAcls v1-3 and DeleteAcls v1-3 (KIP-140, KIP-290, KIP-801).

Owns the translation to the controller's requests; descriptions come from this node's own image, through an index that
follows the image once it has been needed. Without an authorizer all three fail with SECURITY_DISABLED. Never checks
whether the client may do it.

Rules: security.md A40, A46 to A48.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fenceline.controller.requests import CreateAcls, DeleteAcls
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.acl_index import AclFilter, AclIndex, AclRule
from fenceline.node.context import Api, NodeView, RequestContext, Submit
from fenceline.wire.acl_codes import UNKNOWN
from fenceline.wire.apis import ApiKey
from fenceline.wire.errors import MalformedRequest

if TYPE_CHECKING:
    from fenceline.metadata.changes import Delta
    from fenceline.metadata.image import MetadataImage
    from fenceline.metadata.security_records import AccessControlEntryRecord
    from fenceline.wire.requests import (
        CreateAclsRequest,
        DeleteAclsFilter,
        DeleteAclsRequest,
        DescribeAclsRequest,
    )

_SLICE: Final = 2_000
"""ACLs that are described before other requests get their turn."""
_DISABLED: Final = "No Authorizer is configured."
_DISABLED_HERE: Final = "No Authorizer is configured on the broker"


class ImageAcls:
    """The index of this node's image, made when it is first needed."""

    def __init__(self, node: NodeView) -> None:
        self._node = node
        self._index: AclIndex | None = None

    def follow(self, image: MetadataImage, delta: Delta) -> None:
        """The node's image advanced."""
        if self._index is not None:
            self._index.update(image, delta)

    @property
    def index(self) -> AclIndex:
        image = self._node.image
        if self._index is None or not self._index.is_of(image):
            self._index = AclIndex(image)
        return self._index


async def describe_acls(acls: ImageAcls, context: RequestContext, request: DescribeAclsRequest) -> dict[str, Any]:
    """The ACLs that match the filter, by resource pattern."""
    matching = list(acls.index.matching(_filter(request)))
    resources: dict[tuple[int, str, int], dict[str, Any]] = {}
    for number, acl in enumerate(matching, 1):
        key = (acl.resource_type, acl.resource_name, acl.pattern_type)
        found = resources.get(key)
        if found is None:
            found = resources[key] = {**dict(zip(_PATTERN, key, strict=True)), "acls": []}
        found["acls"].append(_entry(acl))
        if number % _SLICE == 0:
            await asyncio.sleep(0)  # other requests of this node
    return {"error_code": ErrorCode.NONE, "error_message": "", "resources": list(resources.values())}


_PATTERN: Final = ("resource_type", "resource_name", "pattern_type")


def _entry(acl: AccessControlEntryRecord | AclRule) -> dict[str, Any]:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission_type,
    }


def _filter(asked: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    return AclFilter(
        asked.resource_type_filter,
        asked.resource_name_filter,
        asked.pattern_type_filter,
        asked.principal_filter,
        asked.host_filter,
        asked.operation,
        asked.permission_type,
    )


async def create_acls(submit: Submit, context: RequestContext, request: CreateAclsRequest) -> dict[str, Any]:
    """One result for each ACL."""
    wanted = tuple(
        AclRule(
            each.resource_type,
            each.resource_name,
            each.resource_pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        for each in request.creations
    )
    try:
        answer = await submit(CreateAcls(wanted))
        outcomes = [(outcome.code, outcome.message or "") for outcome in answer.outcomes]
    except PeerError as error:
        outcomes = [(error.code, error.message)] * len(wanted)
    return {"results": [{"error_code": code, "error_message": message} for code, message in outcomes]}


async def delete_acls(submit: Submit, context: RequestContext, request: DeleteAclsRequest) -> dict[str, Any]:
    """One result for each filter, with the ACLs that it matched."""
    wanted = tuple(map(_filter, request.filters))
    try:
        found = (await submit(DeleteAcls(wanted))).filters
    except PeerError as error:
        return {"filter_results": [_failed(error.code, error.message) for _ in wanted]}
    results = []
    for outcome, acls in found:
        matching = [{**dict(zip(_PATTERN, acl, strict=False)), **_entry(acl)} for acl in acls]
        results.append({"error_code": outcome.code, "error_message": outcome.message, "matching_acls": matching})
    return {"filter_results": results}


def _failed(code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {"error_code": code, "error_message": message, "matching_acls": []}


# --- without an authorizer --------------------------------------------------------------------------------------------


def describe_disabled(context: RequestContext, request: DescribeAclsRequest) -> dict[str, Any]:
    return {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": _DISABLED_HERE, "resources": []}


def create_disabled(context: RequestContext, request: CreateAclsRequest) -> dict[str, Any]:
    failed = {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": _DISABLED}
    return {"results": [failed for _ in request.creations]}


def delete_disabled(context: RequestContext, request: DeleteAclsRequest) -> dict[str, Any]:
    return {"filter_results": [_failed(ErrorCode.SECURITY_DISABLED, _DISABLED) for _ in request.filters]}


# --- registration -----------------------------------------------------------------------------------------------------


def _check_filter(asked: DescribeAclsRequest | DeleteAclsFilter) -> None:
    codes = (asked.resource_type_filter, asked.pattern_type_filter, asked.operation, asked.permission_type)
    if UNKNOWN in codes:
        raise MalformedRequest("a filter of ACLs contains UNKNOWN elements")


def _check_filters(request: DeleteAclsRequest) -> None:
    for each in request.filters:
        _check_filter(each)


def _check_creations(request: CreateAclsRequest) -> None:
    for each in request.creations:
        if UNKNOWN in (each.resource_type, each.resource_pattern_type, each.operation, each.permission_type):
            raise MalformedRequest("an ACL contains UNKNOWN elements")


def apis(
    node: NodeView,
    submit: Submit,
    subscribe: Callable[[Callable[[MetadataImage, Delta], None]], None],
    *,
    is_enabled: bool,
) -> tuple[Api, ...]:
    """Of brokers and of controllers. `subscribe`: calls its argument for each change of the node's image."""
    acls = ImageAcls(node)
    if is_enabled:
        subscribe(acls.follow)
    return (
        Api(
            ApiKey.DESCRIBE_ACLS,
            1,
            3,
            partial(describe_acls, acls) if is_enabled else describe_disabled,
            _check_filter,
        ),
        Api(
            ApiKey.CREATE_ACLS, 1, 3, partial(create_acls, submit) if is_enabled else create_disabled, _check_creations
        ),
        Api(ApiKey.DELETE_ACLS, 1, 3, partial(delete_acls, submit) if is_enabled else delete_disabled, _check_filters),
    )
