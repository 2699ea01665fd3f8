"""Changes of the quotas of users, client ids and addresses.

Owns the checks of AlterClientQuotas. Never enforces a quota: brokers do, and the active controller that of its changes
(`fenceline.quotas`).

Rules: controller.md C44; security.md A56.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

from fenceline.controller.requests import (
    SUCCESS,
    AlterClientQuotas,
    AlterClientQuotasAnswer,
    RequestOutcome,
)
from fenceline.controller.state import ControllerState, Decision
from fenceline.errors import ErrorCode
from fenceline.metadata.image import QuotaEntity
from fenceline.metadata.security_records import ClientQuotaRecord, QuotaEntityPart

_OF_CLIENTS: Final = frozenset(("user", "client-id"))
_OF_ADDRESSES: Final = frozenset(("ip",))
_ANY_SIZE: Final = float("inf")
_MOST: Final[Mapping[frozenset[str], Mapping[str, float]]] = {
    _OF_CLIENTS: {
        "producer_byte_rate": 2.0**63 - 1,
        "consumer_byte_rate": 2.0**63 - 1,
        "request_percentage": _ANY_SIZE,
        "controller_mutation_rate": _ANY_SIZE,
    },
    _OF_ADDRESSES: {"connection_creation_rate": 2.0**31 - 1},
}
"""By entity types: the keys, and the largest value of each."""
_INTEGRAL: Final = frozenset(("producer_byte_rate", "consumer_byte_rate", "connection_creation_rate"))
_TOLERANCE: Final = 1e-6
"""Of whole numbers: clients send them as floating-point ones."""


def alter_client_quotas(state: ControllerState, request: AlterClientQuotas) -> Decision:
    """Each entity succeeds or fails separately. One that is named twice fails; Kafka carries out the first mention, and
    answers that it failed."""
    records: list[ClientQuotaRecord] = []
    outcomes: dict[QuotaEntity, RequestOutcome] = {}
    changes: dict[QuotaEntity, dict[str, float | None]] = {}
    for alteration in request.alterations:
        entity, values = alteration.entity, dict(alteration.values)
        outcomes[entity] = SUCCESS
        if entity in changes:
            outcomes[entity] = _invalid("The quotas of an entity can be changed once in a request")
        elif len(values) < len(alteration.values):
            outcomes[entity] = _invalid("A quota of an entity can be changed once in a request")
        changes[entity] = values
    for entity, values in changes.items():
        if outcomes[entity].failed:
            continue
        reason = _fault(entity, values)
        if reason is not None:
            outcomes[entity] = _invalid(reason)
            continue
        known: Mapping[str, float] = state.image.client_quotas.get(entity) or {}
        parts = tuple(QuotaEntityPart(kind, name) for kind, name in entity)
        for key, value in values.items():
            if value is None and key in known:
                records.append(ClientQuotaRecord(parts, key, 0.0, True))
            elif value is not None and known.get(key) != value:
                records.append(ClientQuotaRecord(parts, key, value))
    return Decision([] if request.validate_only else records, AlterClientQuotasAnswer(tuple(outcomes.items())))


def _fault(entity: QuotaEntity, values: Mapping[str, float | None]) -> str | None:
    if not entity:
        return "Invalid empty client quota entity"
    kinds = {kind for kind, _ in entity}
    if not kinds <= _OF_CLIENTS | _OF_ADDRESSES:
        return f"Unhandled client quota entity type: {', '.join(sorted(kinds - _OF_CLIENTS - _OF_ADDRESSES))}"
    if any(name == "" for _, name in entity):
        return "Empty names of quota entities are not supported"
    if kinds & _OF_ADDRESSES and kinds & _OF_CLIENTS:
        return "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
    address = dict(entity).get("ip")
    if address is not None and not _is_address(address):
        return f"{address} is not a valid IP address"
    most = _MOST[_OF_ADDRESSES if kinds & _OF_ADDRESSES else _OF_CLIENTS]
    for key, value in values.items():
        if value is None:
            continue
        if key not in most:
            return f"Invalid configuration key {key}"
        if not value > 0:
            return f"Quota {key} must be greater than 0"
        if value > most[key]:
            return f"The value of {key} is too large"
        if key in _INTEGRAL and abs(value - round(value)) > _TOLERANCE:
            return f"{key} cannot be a fractional value"
    return None


def _is_address(text: str) -> bool:
    """Kafka resolves names too, on each node for itself."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _invalid(reason: str) -> RequestOutcome:
    return RequestOutcome(ErrorCode.INVALID_REQUEST, reason)
