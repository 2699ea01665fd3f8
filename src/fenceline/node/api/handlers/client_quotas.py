"""DescribeClientQuotas v0-1 and AlterClientQuotas v0-1 (KIP-546, KIP-612).

Owns the filters of a description, which comes from this node's own image, and the translation of changes to the
controller's request.

Rules: security.md A56; controller.md C44.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fenceline.controller.requests import AlterClientQuotas, QuotaAlteration
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.image import QuotaEntity
from fenceline.node.context import Api, NodeView, RequestContext, Submit
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fenceline.wire.requests import (
        AlterClientQuotasRequest,
        ComponentData,
        DescribeClientQuotasRequest,
        EntryData,
    )

_TYPES: Final = ("user", "client-id", "ip")


_SLICE: Final = 2_000
"""Entities that are looked at, or described, before other requests get their turn."""


class _Match(IntEnum):
    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class _Filter(NamedTuple):
    """`parts` are those an entity must have, `kinds` the types that it must have with any name. `size`: how many parts
    it may have; None: any number."""

    parts: tuple[tuple[str, str | None], ...]
    kinds: tuple[str, ...]
    size: int | None

    def matches(self, entity: QuotaEntity) -> bool:
        return (
            (self.size is None or len(entity) == self.size)
            and all(part in entity for part in self.parts)
            and all(any(kind == each for each, _ in entity) for kind in self.kinds)
        )


async def describe_client_quotas(
    node: NodeView, context: RequestContext, request: DescribeClientQuotasRequest
) -> dict[str, Any]:
    """The quotas of all entities that have the types of the filter, and match it in each; with `strict`, no others."""
    try:
        wanted = _filter(request)
    except PeerError as error:
        return {"error_code": error.code, "error_message": error.message, "entries": None}
    entries = []
    for number, (entity, values) in enumerate(node.image.client_quotas.items(), 1):
        if wanted.matches(entity):
            entries.append(
                {
                    "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                    "values": [{"key": key, "value": value} for key, value in values.items()],
                }
            )
        if number % _SLICE == 0:
            await asyncio.sleep(0)  # other requests of this node
    return {"error_code": ErrorCode.NONE, "error_message": "", "entries": entries}


def _filter(request: DescribeClientQuotasRequest) -> _Filter:
    """Raises PeerError."""
    known: dict[str, ComponentData] = {}
    for component in request.components:
        _check(known, component)
        known[component.entity_type] = component
    if "ip" in known and len(known) > 1:
        raise PeerError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with user or clientId"
            " filter component.",
        )
    named = tuple((kind, each.match) for kind, each in known.items() if each.match_type != _Match.SPECIFIED)
    kinds = tuple(kind for kind, each in known.items() if each.match_type == _Match.SPECIFIED)
    return _Filter(named, kinds, len(known) if request.strict else None)


def _check(known: Mapping[str, ComponentData], component: ComponentData) -> None:
    """Raises PeerError."""
    kind, how = component.entity_type, component.match_type
    if not kind:
        raise PeerError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
    if kind in known:
        raise PeerError(ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter.")
    if kind not in _TYPES:
        raise PeerError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
    if how not in _Match._value2member_map_:
        raise PeerError(ErrorCode.INVALID_REQUEST, f"Unknown match type {how}")
    if how == _Match.EXACT and component.match is None:
        raise PeerError(ErrorCode.INVALID_REQUEST, "Request specified MATCH_TYPE_EXACT, but set match string to null.")
    if how != _Match.EXACT and component.match is not None:
        raise PeerError(
            ErrorCode.INVALID_REQUEST,
            f"Request specified MATCH_TYPE_{_Match(how).name}, but also specified a match string.",
        )


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
