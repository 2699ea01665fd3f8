"""Creation and deletion of ACLs.

Owns the checks of CreateAcls and DeleteAcls. Never asks whether a host is an address, nor whether an operation makes
sense for its resource type: Kafka stores both, and they match nothing.

Rules: controller.md C42; security.md A46 to A48.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final
from uuid import UUID

from fenceline.controller.requests import (
    SUCCESS,
    CreateAcls,
    CreateAclsAnswer,
    DeleteAcls,
    DeleteAclsAnswer,
    MatchingAcls,
    RequestOutcome,
)
from fenceline.controller.state import MAX_RECORDS, ControllerState, Decision, refuse_large_batch
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import random_id
from fenceline.metadata.acl_index import AclFilter, AclRule, rule_of
from fenceline.metadata.security_records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from fenceline.rng import Rng
from fenceline.wire.acl_codes import ANY, CLUSTER_NAME, MATCH, AclOperation, PatternType, Permission, ResourceType

MAX_MATCHES: Final = 10 * MAX_RECORDS
"""ACLs in the answer to one DeleteAcls, where an ACL counts for each filter that matches it."""
_RECORD_BYTES: Final = 48
"""Of an ACL's record without its texts."""


def create_acls(state: ControllerState, request: CreateAcls, rng: Rng) -> Decision:
    """Raises PeerError(POLICY_VIOLATION) for too many ACLs. One that exists already is a success without a record."""
    outcomes: list[RequestOutcome] = []
    created: dict[AclRule, None] = {}
    for acl in request.acls:
        reason = _fault(acl)
        if reason is None and not state.acls.holds(acl):
            created[acl] = None
        outcomes.append(SUCCESS if reason is None else _invalid(reason))
    refuse_large_batch(len(created), sum(map(_size, created)))
    records = [AccessControlEntryRecord(random_id(rng), *acl) for acl in created]
    return Decision(records, CreateAclsAnswer(tuple(outcomes)))


def delete_acls(state: ControllerState, request: DeleteAcls) -> Decision:
    """Raises PeerError(INVALID_REQUEST) if more than `MAX_RECORDS` ACLs match."""
    found: list[MatchingAcls] = []
    removed: dict[UUID, None] = {}
    matches = 0
    for wanted in request.filters:
        reason = _filter_fault(wanted)
        if reason is not None:
            found.append(MatchingAcls(_invalid(reason)))
            continue
        matching: list[AclRule] = []
        for acl in state.acls.matching(wanted):
            matching.append(rule_of(acl))
            removed[acl.id] = None
            matches += 1
            if len(removed) > MAX_RECORDS:
                raise PeerError(
                    ErrorCode.INVALID_REQUEST,
                    f"Cannot remove more than {MAX_RECORDS} acls in a single delete operation.",
                )
            if matches > MAX_MATCHES:
                raise PeerError(ErrorCode.INVALID_REQUEST, f"The filters match more than {MAX_MATCHES} times.")
        found.append(MatchingAcls(SUCCESS, tuple(matching)))
    records = [RemoveAccessControlEntryRecord(each) for each in removed]
    return Decision(records, DeleteAclsAnswer(tuple(found)))


def _size(acl: AclRule) -> int:
    """Bytes in the metadata log, roughly."""
    return _RECORD_BYTES + sum(len(text.encode()) for text in (acl.resource_name, acl.principal, acl.host))


def _fault(acl: AclRule) -> str | None:
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not acl.resource_name:
        return "Invalid empty resource name"
    kinds: tuple[tuple[str, type[IntEnum], int], ...] = (
        ("resourceType", ResourceType, acl.resource_type),
        ("patternType", PatternType, acl.pattern_type),
        ("operation", AclOperation, acl.operation),
        ("permissionType", Permission, acl.permission_type),
    )
    for name, values, code in kinds:
        if code not in values._value2member_map_:
            return f"Invalid {name} {_title(name, code)}"
    if ":" not in acl.principal:
        return (
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type from"
            " the principal name)"
        )
    return None


def _title(name: str, code: int) -> str:
    if code == ANY:
        return "ANY"
    return "MATCH" if code == MATCH and name == "patternType" else "UNKNOWN"


def _filter_fault(wanted: AclFilter) -> str | None:
    """Codes that Kafka does not define."""
    if not (_is_filter(ResourceType, wanted.resource_type) and _is_filter(PatternType, wanted.pattern_type, MATCH)):
        return "Unknown patternFilter."
    if not (_is_filter(AclOperation, wanted.operation) and _is_filter(Permission, wanted.permission_type)):
        return "Unknown entryFilter."
    return None


def _is_filter(values: type[IntEnum], code: int, *more: int) -> bool:
    return code == ANY or code in more or code in values._value2member_map_


def _invalid(reason: str) -> RequestOutcome:
    return RequestOutcome(ErrorCode.INVALID_REQUEST, reason)
