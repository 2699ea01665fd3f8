"""The usage of all clients of one node, beside their quotas: for how long each is throttled.

Owns the rates of the clients that have a quota; those of others are not measured. Never delays anything: the server
does.

Rules: security.md A57 to A61.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from fenceline.metadata.image import QuotaEntity
from fenceline.quotas.entities import AppliedQuota, Bucket, applied_quota
from fenceline.quotas.rates import LONGEST_MS, TokenBucket, WindowedRate, Windows
from fenceline.quotas.until_idle import UntilIdle

_MOST_KNOWN: Final = 10_000
"""Clients whose quotas are remembered until a quota changes."""
_PERCENT_OF_NS: Final = 100 / 1e9


class QuotaKind(StrEnum):
    """By its key in the metadata."""

    PRODUCE = "producer_byte_rate"
    FETCH = "consumer_byte_rate"
    REQUEST = "request_percentage"
    MUTATION = "controller_mutation_rate"


class _Usage:
    """Of one kind, except mutations."""

    def __init__(self, kind: QuotaKind, windows: Windows) -> None:
        self._kind = kind
        self._windows = windows
        self._longest_ms = windows.sample_ms if kind is QuotaKind.REQUEST else LONGEST_MS
        self._rates: UntilIdle[Bucket, WindowedRate] = UntilIdle()
        self._applied: dict[tuple[str, str], AppliedQuota | None] = {}
        self._quotas: Mapping[QuotaEntity, Mapping[str, float]] = {}
        self.throttled = 0
        """How often a client was throttled."""
        self.throttled_ms = 0
        """For how long, in all."""

    def set_quotas(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> bool:
        """Whether there is one of this kind."""
        self._quotas = quotas
        self._applied.clear()
        return any(self._kind in of_entity for of_entity in quotas.values())

    def applied(self, user: str, client_id: str) -> AppliedQuota | None:
        client = (user, client_id)
        if client not in self._applied:
            if len(self._applied) >= _MOST_KNOWN:
                self._applied.clear()
            self._applied[client] = applied_quota(self._quotas, self._kind, user, client_id)
        return self._applied[client]

    def rate(self, bucket: Bucket, now_ms: int) -> WindowedRate:
        return self._rates.of(bucket, lambda: WindowedRate(self._windows), now_ms)

    def record(self, quota: AppliedQuota, value: float, now_ms: int) -> int:
        """How long the client is throttled, in milliseconds."""
        rate = self.rate(quota.bucket, now_ms)
        rate.record(value, now_ms)
        throttle_ms = min(rate.throttle_ms(quota.value, now_ms), self._longest_ms)
        self.throttled += throttle_ms > 0
        self.throttled_ms += throttle_ms
        return throttle_ms


class ClientQuotas:
    """See the module."""

    def __init__(self, windows: Windows, mutation_windows: Windows) -> None:
        """`mutation_windows`: `controller.quota.window.*`."""
        self._mutation_windows = mutation_windows
        self._usage = {kind: _Usage(kind, windows) for kind in QuotaKind}
        self._buckets: UntilIdle[Bucket, TokenBucket] = UntilIdle()
        self.is_active = False
        """Whether clients have quotas; otherwise nothing here needs to be called."""
        self._limited: dict[tuple[str, str], bool] = {}
        self._fetch_window_s = (windows.samples - 1) * windows.sample_ms / 1_000
        self._has_request_quota = False

    @property
    def throttled(self) -> Mapping[str, int]:
        """How often clients were throttled, by the key of the quota."""
        return {kind.value: usage.throttled for kind, usage in self._usage.items()}

    @property
    def throttled_ms(self) -> Mapping[str, int]:
        """For how long they were throttled, in all."""
        return {kind.value: usage.throttled_ms for kind, usage in self._usage.items()}

    def follow(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        """The quotas of the metadata have changed. Usage is kept."""
        found = {kind: usage.set_quotas(quotas) for kind, usage in self._usage.items()}
        self.is_active = any(found.values())
        self._limited.clear()
        self._has_request_quota = found[QuotaKind.REQUEST]

    def limits(self, user: str, client_id: str) -> bool:
        """Whether the client has a quota."""
        client = (user, client_id)
        found = self._limited.get(client)
        if found is None:
            if len(self._limited) >= _MOST_KNOWN:
                self._limited.clear()
            found = any(usage.applied(user, client_id) is not None for usage in self._usage.values())
            self._limited[client] = found
        return found

    # -- bytes and time ------------------------------------------------------------------------------------------------

    def record(self, kind: QuotaKind, user: str, client_id: str, value: float, now_ms: int) -> int:
        """Count bytes; for how long the client is throttled, in milliseconds."""
        usage = self._usage[kind]
        quota = usage.applied(user, client_id)
        return 0 if quota is None else usage.record(quota, value, now_ms)

    def take_back(self, kind: QuotaKind, user: str, client_id: str, value: float, now_ms: int) -> None:
        """Bytes were counted and not sent."""
        usage = self._usage[kind]
        quota = usage.applied(user, client_id)
        if quota is not None:
            usage.rate(quota.bucket, now_ms).record(-value, now_ms)

    def most_to_fetch(self, user: str, client_id: str) -> int | None:
        """The bytes that the quota allows in a whole window: more would throttle the client for ever. None: any."""
        quota = self._usage[QuotaKind.FETCH].applied(user, client_id)
        return None if quota is None else int(quota.value * self._fetch_window_s)

    def record_time(self, user: str, client_id: str, elapsed_ns: int, now_ms: int) -> int:
        """Count the time of a request; for how long the client is throttled, at most one sample."""
        if not self._has_request_quota:
            return 0
        return self.record(QuotaKind.REQUEST, user, client_id, elapsed_ns * _PERCENT_OF_NS, now_ms)

    # -- mutations of the controller -----------------------------------------------------------------------------------

    def mutations(self, user: str, client_id: str, now_ms: int, *, is_strict: bool) -> MutationQuota | None:
        """What one request of a client may change; None: the client is not limited. `is_strict`: the client understands
        that a change is refused."""
        usage = self._usage[QuotaKind.MUTATION]
        quota = usage.applied(user, client_id)
        if quota is None:
            return None

        def full() -> TokenBucket:
            return TokenBucket(self._mutation_windows, quota.value, now_ms)

        return MutationQuota(self._buckets.of(quota.bucket, full, now_ms), quota.value, usage, is_strict=is_strict)


class MutationQuota:
    """What one request may change. While the bucket is overdrawn, a change of a strict one is refused; otherwise it is
    carried out, and the client is throttled."""

    __slots__ = ("_bucket", "_is_strict", "_quota", "_since_ms", "_throttle_ms", "_usage")

    def __init__(self, bucket: TokenBucket, quota: float, usage: _Usage, *, is_strict: bool) -> None:
        self._bucket = bucket
        self._quota = quota
        self._usage = usage
        self._is_strict = is_strict
        self._throttle_ms = 0
        self._since_ms = 0
        """When the throttle time was computed."""

    def takes(self, partitions: int, now_ms: int) -> bool:
        """Whether so many partitions may be created or deleted; if so they are counted."""
        bucket = self._bucket
        bucket.refill(self._quota, now_ms)
        is_refused = self._is_strict and bucket.tokens < 0
        if not is_refused:
            bucket.tokens -= partitions
        if (is_refused or not self._is_strict) and bucket.tokens < 0:
            before_ms = self._throttle_ms
            self._throttle_ms, self._since_ms = bucket.throttle_ms(self._quota), now_ms
            self._usage.throttled += before_ms == 0
            self._usage.throttled_ms += self._throttle_ms - before_ms
        return not is_refused

    def throttle_ms(self, now_ms: int) -> int:
        """For how long the client is throttled from now on."""
        return max(0, self._throttle_ms - (now_ms - self._since_ms))
