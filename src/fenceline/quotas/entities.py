"""Which quota applies to a client, and with whom it shares it.

Owns the precedence of quotas set for users, client ids, and their defaults. The most specific one applies. All clients
that it is set for share it; one that is set for a default is of each name separately.

Rules: security.md A57.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final, NamedTuple, TypeAlias

from fenceline.metadata.image import QuotaEntity

USER: Final = "user"
CLIENT: Final = "client-id"
IP: Final = "ip"

Bucket: TypeAlias = tuple[str | None, str | None]
"""Who shares a quota: a user and a client id. None: whoever."""


class AppliedQuota(NamedTuple):
    bucket: Bucket
    value: float


def applied_quota(
    quotas: Mapping[QuotaEntity, Mapping[str, float]], key: str, user: str, client_id: str
) -> AppliedQuota | None:
    """The quota of this key for a user with a client id; None: it is not limited. NaN, which Kafka's controller stores,
    is no limit, as in Kafka."""
    for entity, bucket in _levels(user, client_id):
        of_entity = quotas.get(entity)
        if of_entity is not None and (value := of_entity.get(key)) is not None:
            return AppliedQuota(bucket, value) if math.isfinite(value) else None
    return None


def _levels(user: str, client_id: str) -> tuple[tuple[QuotaEntity, Bucket], ...]:
    """The entities that a client belongs to, the most specific first, and who shares the quota of each."""
    both, of_user, of_client = (user, client_id), (user, None), (None, client_id)
    return (
        (((CLIENT, client_id), (USER, user)), both),
        (((CLIENT, None), (USER, user)), both),
        (((USER, user),), of_user),
        (((CLIENT, client_id), (USER, None)), both),
        (((CLIENT, None), (USER, None)), both),
        (((USER, None),), of_user),
        (((CLIENT, client_id),), of_client),
        (((CLIENT, None),), of_client),
    )


class AddressQuotas:
    """Those of IP addresses, whatever form their names have: an IPv6 address can be written in many. The lowest one
    applies if an address has several names. Host names, which Kafka's controller accepts, match no address."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._known: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self._values: dict[str | None, float] = {}
        """By address in its canonical form; None: of the others."""

    def of(self, quotas: Mapping[QuotaEntity, Mapping[str, float]], address: str) -> float | None:
        """`quotas`: of the metadata, which is another mapping when one has changed. None: it is not limited."""
        if quotas is not self._known:
            self._known, self._values = quotas, self._read(quotas)
        if not self._values:
            return None
        own = self._values.get(_canonical(address))
        applied = self._values.get(None) if own is None else own
        return applied if applied is not None and math.isfinite(applied) else None

    def _read(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> dict[str | None, float]:
        found: dict[str | None, float] = {}
        for entity, values in quotas.items():
            if self._key in values and len(entity) == 1 and entity[0][0] == IP:
                name = entity[0][1]
                address = None if name is None else _canonical(name)
                value = values[self._key] if math.isfinite(values[self._key]) else math.inf
                found[address] = min(value, found.get(address, math.inf))
        return found


def _canonical(text: str) -> str:
    """Of an address; other text stays. An IPv4 address in the form of IPv6 is the IPv4 address."""
    try:
        found = ip_address(text.partition("%")[0])
    except ValueError:
        return text
    return str(getattr(found, "ipv4_mapped", None) or found)
