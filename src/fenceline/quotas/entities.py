"""Which quota applies to a client, and with whom it shares it.

Owns the precedence of quotas set for users, client ids, and their defaults. The most specific one applies. All clients
that it is set for share it; one that is set for a default is of each name separately.

Rules: security.md A57.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """The quota of this key for a user with a client id; None: it is not limited."""
    for entity, bucket in _levels(user, client_id):
        of_entity = quotas.get(entity)
        if of_entity is not None and (value := of_entity.get(key)) is not None:
            return AppliedQuota(bucket, value)
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


def connection_quota(quotas: Mapping[QuotaEntity, Mapping[str, float]], key: str, address: str) -> float | None:
    """The quota of an IP address; None: it is not limited."""
    for name in (address, None):
        of_entity = quotas.get(((IP, name),))
        if of_entity is not None and (value := of_entity.get(key)) is not None:
            return value
    return None
