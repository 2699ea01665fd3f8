"""DescribeClientQuotas v0-1 and AlterClientQuotas v0-1 (KIP-546, KIP-612).

Owns the filters of a description, which comes from this node's own image, and the translation of changes to the
controller's request.

Rules: security.md A56; controller.md C44.
"""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fenceline.controller.requests import AlterClientQuotas, QuotaAlteration
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.image import QuotaEntity
from fenceline.node.context import Api, NodeView, RequestContext, Submit
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.wire.requests import (
        AlterClientQuotasRequest,
        ComponentData,
        DescribeClientQuotasRequest,
        EntryData,
    )

_TYPES: Final = ("user", "client-id", "ip")


class _Match(IntEnum):
    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


def describe_client_quotas(
    node: NodeView, context: RequestContext, request: DescribeClientQuotasRequest
) -> dict[str, Any]:
    """The quotas of all entities that have the types of the filter, and match it in each; with `strict`, no others."""
    wanted: dict[str, ComponentData] = {}
    for component in request.components:
        fault = _fault(wanted, component)
        if fault is not None:
            return {"error_code": fault.code, "error_message": fault.message, "entries": None}
        wanted[component.entity_type] = component
    if "ip" in wanted and len(wanted) > 1:
        message = "Invalid entity filter combination: an IP filter cannot be used with user or client id filters."
        return {"error_code": ErrorCode.INVALID_REQUEST, "error_message": message, "entries": None}
    entries = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "values": [{"key": key, "value": value} for key, value in values.items()],
        }
        for entity, values in node.image.client_quotas.items()
        if _matches(entity, wanted, strict=request.strict)
    ]
    return {"error_code": ErrorCode.NONE, "error_message": None, "entries": entries}


def _fault(known: dict[str, ComponentData], component: ComponentData) -> PeerError | None:
    kind = component.entity_type
    if not kind:
        return PeerError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
    if kind in known:
        return PeerError(ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter.")
    if kind not in _TYPES:
        return PeerError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
    match component.match_type:
        case _Match.EXACT if component.match is None:
            return PeerError(ErrorCode.INVALID_REQUEST, "An exact match needs a name.")
        case _Match.DEFAULT | _Match.SPECIFIED if component.match is not None:
            return PeerError(ErrorCode.INVALID_REQUEST, "Only an exact match has a name.")
        case _Match.EXACT | _Match.DEFAULT | _Match.SPECIFIED:
            return None
    return PeerError(ErrorCode.INVALID_REQUEST, f"Unknown match type {component.match_type}")


def _matches(entity: QuotaEntity, wanted: dict[str, ComponentData], *, strict: bool) -> bool:
    names = dict(entity)
    if strict and len(names) != len(wanted):
        return False
    for kind, component in wanted.items():
        if kind not in names:
            return False
        if component.match_type == _Match.EXACT and names[kind] != component.match:
            return False
        if component.match_type == _Match.DEFAULT and names[kind] is not None:
            return False
    return True


async def alter_client_quotas(
    submit: Submit, context: RequestContext, request: AlterClientQuotasRequest
) -> dict[str, Any]:
    """One result for each entity."""
    outcomes: dict[QuotaEntity, tuple[ErrorCode, str | None]] = {}
    alterations: list[QuotaAlteration] = []
    for entry in request.entries:
        entity = _entity(entry)
        if len({kind for kind, _ in entity}) < len(entity):
            outcomes[entity] = ErrorCode.INVALID_REQUEST, "Invalid client quota entity: a type appears more than once"
            continue
        values = tuple((each.key, None if each.remove else each.value) for each in entry.ops)
        alterations.append(QuotaAlteration(entity, values))
    if alterations:
        try:
            answer = await submit(AlterClientQuotas(tuple(alterations), request.validate_only))
            outcomes.update((entity, (outcome.code, outcome.message)) for entity, outcome in answer.entities)
        except PeerError as error:
            outcomes.update((each.entity, (error.code, error.message or None)) for each in alterations)
    return {
        "entries": [
            {
                "error_code": code,
                "error_message": message,
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            }
            for entity, (code, message) in outcomes.items()
        ]
    }


def _entity(entry: EntryData) -> QuotaEntity:
    parts = ((each.entity_type, each.entity_name) for each in entry.entity)
    return tuple(sorted(parts, key=lambda part: (part[0], part[1] or "")))


def apis(node: NodeView, submit: Submit) -> tuple[Api, ...]:
    return (
        Api(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, partial(describe_client_quotas, node)),
        *controller_apis(submit),
    )


def controller_apis(submit: Submit) -> tuple[Api, ...]:
    return (Api(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, partial(alter_client_quotas, submit)),)
