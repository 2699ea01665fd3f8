"""Changes of the quotas of users, client ids and addresses.

Owns the checks of AlterClientQuotas. Never enforces a quota: brokers do, and the active controller that of its changes
(`fenceline.quotas`).

Rules: controller.md C44; security.md A56.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from math import fmod
from typing import Final, NamedTuple

from fenceline.controller.requests import (
    SUCCESS,
    AlterClientQuotas,
    AlterClientQuotasAnswer,
    RequestOutcome,
)
from fenceline.controller.state import ControllerState, Decision, refuse_large_batch
from fenceline.errors import ErrorCode
from fenceline.metadata.image import QuotaEntity
from fenceline.metadata.security_records import ClientQuotaRecord, QuotaEntityPart

_OF_CLIENTS: Final = frozenset(("user", "client-id"))
_OF_ADDRESSES: Final = frozenset(("ip",))


class _ValuesOfKey(NamedTuple):
    """Values of one key: up to `largest`, and only whole ones if they have a `size`, as its name in messages."""

    largest: float
    size: str = ""


_ANY: Final = _ValuesOfKey(float("inf"))
_INT: Final = _ValuesOfKey(2.0**31 - 1, "an INT")
_LONG: Final = _ValuesOfKey(2.0**63 - 1, "a LONG")
_KEYS: Final[Mapping[frozenset[str], Mapping[str, _ValuesOfKey]]] = {
    _OF_CLIENTS: {
        "producer_byte_rate": _LONG,
        "consumer_byte_rate": _LONG,
        "request_percentage": _ANY,
        "controller_mutation_rate": _ANY,
    },
    _OF_ADDRESSES: {"connection_creation_rate": _INT},
}
"""By entity types."""
_TOLERANCE: Final = 1e-6
"""A value may be above a whole number by this: clients send them as floating-point ones."""
_RECORD_BYTES: Final = 64
"""Of a quota's record without the names of its entity."""


def alter_client_quotas(state: ControllerState, request: AlterClientQuotas) -> Decision:
    """Each entity succeeds or fails separately. One that is named twice fails; Kafka carries out the first mention, and
    answers that it failed. Raises PeerError(POLICY_VIOLATION) for too many changes."""
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
    refuse_large_batch(len(records), sum(map(_size, records)))
    return Decision([] if request.validate_only else records, AlterClientQuotasAnswer(tuple(outcomes.items())))


def _fault(entity: QuotaEntity, values: Mapping[str, float | None]) -> str | None:
    if not entity:
        return "Invalid empty client quota entity"
    kinds = {kind for kind, _ in entity}
    if not kinds <= _OF_CLIENTS | _OF_ADDRESSES:
        return f"Unhandled client quota entity type: {', '.join(sorted(kinds - _OF_CLIENTS - _OF_ADDRESSES))}"
    for kind, name in entity:
        if name == "":
            return f"Empty {kind} not supported"
    if kinds & _OF_ADDRESSES and kinds & _OF_CLIENTS:
        return "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
    address = dict(entity).get("ip")
    if address is not None and not _is_address(address):
        return f"{address} is not a valid IP address"
    return _fault_of_values(values, _KEYS[_OF_ADDRESSES if kinds & _OF_ADDRESSES else _OF_CLIENTS])


def _fault_of_values(values: Mapping[str, float | None], keys: Mapping[str, _ValuesOfKey]) -> str | None:
    """A key that is removed may have any name."""
    for key, value in values.items():
        if value is None:
            continue
        kind = keys.get(key)
        if kind is None:
            return f"Invalid configuration key {key}"
        # Not a number is refused as well. Kafka takes it.
        if not value > 0:
            return f"Quota {key} must be greater than 0"
        if value > kind.largest:
            return f"Proposed value for {key} is too large for {kind.size}."
        if kind.size and fmod(value, 1) > _TOLERANCE:
            return f"{key} cannot be a fractional value."
    return None


def _size(record: ClientQuotaRecord) -> int:
    """Bytes in the metadata log, roughly."""
    return _RECORD_BYTES + sum(len((part.entity_name or "").encode()) for part in record.entity)


def _is_address(text: str) -> bool:
    """Kafka resolves names too, on each node for itself. A zone (`fe80::1%eth0`) makes sense on one node only."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return "%" not in text


def _invalid(reason: str) -> RequestOutcome:
    return RequestOutcome(ErrorCode.INVALID_REQUEST, reason)
