"""Quotas of clients: DescribeClientQuotas and AlterClientQuotas (KIP-546, KIP-612).

Owns the values of entities and filters. Never asks whether a quota makes sense: the controller does.

Rules: security.md A56.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from fenceline.client.admin.admin_requests import AdminRequests
from fenceline.client.core.errors import raise_if
from fenceline.wire.apis import ApiKey

ClientQuotaEntity: TypeAlias = Mapping[str, str | None]
"""Names by type: `user` and `client-id`, one or both, or `ip`. The name None is the default: all names that have no
quota of their own."""

_EXACT: Final = 0
_DEFAULT: Final = 1
_SPECIFIED: Final = 2


class AnyName(Enum):
    """In a filter: every name of a type, and its default."""

    ANY = "any"


class EntityQuotas(NamedTuple):
    """The quotas of an entity by their keys, such as `producer_byte_rate` (bytes per second)."""

    entity: ClientQuotaEntity
    values: Mapping[str, float]


class ClientQuotaAlteration(NamedTuple):
    """New quotas of an entity by their keys; None removes one. Other keys keep their values."""

    entity: ClientQuotaEntity
    values: Mapping[str, float | None]


class ClientQuotasAdmin(AdminRequests):
    """Part of `AsyncAdmin`."""

    async def describe_client_quotas(
        self,
        wanted: Mapping[str, str | AnyName | None] | None = None,
        *,
        strict: bool = False,
        timeout_ms: float | None = None,
    ) -> list[EntityQuotas]:
        """The quotas of the entities that have all types of `wanted`, each with the given name (None: the default of
        the type); with `strict`, and no other types. Without `wanted`: all. Sorted by entity.

        Raises PeerError: INVALID_REQUEST, UNSUPPORTED_VERSION for an unknown type or a broker before Kafka 2.6.
        """
        components = [_component(kind, name) for kind, name in (wanted or {}).items()]
        fields = {"components": components, "strict": strict}
        answer = await self._ask(None, ApiKey.DESCRIBE_CLIENT_QUOTAS, fields, self._deadline(timeout_ms))
        raise_if(answer, "describing quotas")
        found = [
            EntityQuotas(_entity(each.entity), {str(pair.key): float(pair.value) for pair in each.values})
            for each in answer.entries or ()
        ]
        return sorted(found, key=_order)

    async def alter_client_quotas(
        self,
        alterations: Iterable[ClientQuotaAlteration],
        *,
        validate_only: bool = False,
        timeout_ms: float | None = None,
    ) -> None:
        """Set and remove quotas. If some alterations are invalid the others are carried out, and the first error is
        raised. An entity may be named once."""
        entries = [
            {
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in each.entity.items()],
                "ops": [
                    {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
                    for key, value in each.values.items()
                ],
            }
            for each in alterations
        ]
        answer = await self._ask_controller(
            ApiKey.ALTER_CLIENT_QUOTAS,
            {"entries": entries, "validate_only": validate_only},
            self._deadline(timeout_ms),
            lambda found: found.entries,
        )
        for each in answer.entries:
            raise_if(each, f"changing the quotas of {quota_entity_text(_entity(each.entity))}")


def quota_entity_text(entity: ClientQuotaEntity) -> str:
    """As Kafka's tools print it: `user-principal 'anna', client-id 'app'`."""
    named = {"user": "user-principal"}
    parts = (
        f"the default {named.get(kind, kind)}" if name is None else f"{named.get(kind, kind)} '{name}'"
        for kind, name in _in_order(entity)
    )
    return ", ".join(parts)


def _component(kind: str, name: str | AnyName | None) -> dict[str, Any]:
    how = _DEFAULT if name is None else _SPECIFIED if name is AnyName.ANY else _EXACT
    return {"entity_type": kind, "match_type": how, "match": name if how == _EXACT else None}


def _entity(parts: Any) -> dict[str, str | None]:
    return dict(_in_order({part.entity_type: part.entity_name for part in parts}))


def _in_order(entity: ClientQuotaEntity) -> list[tuple[str, str | None]]:
    """User before client id."""
    return sorted(entity.items(), key=lambda part: part[0], reverse=True)


def _order(found: EntityQuotas) -> list[tuple[str, bool, str]]:
    return [(kind, name is not None, name or "") for kind, name in found.entity.items()]
