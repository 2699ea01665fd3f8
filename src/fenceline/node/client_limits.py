"""The quotas of clients at one node: they follow the metadata, and each request is told of its own.

Owns the clock of the quotas and their metrics. The arithmetic is in `fenceline.quotas`; the server mutes connections.
Without a quota in the metadata a request costs one look at `is_active`.

Rules: security.md A57 to A61.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fenceline.node.metric_families import counter_by
from fenceline.quotas.client_quotas import ClientQuotas, MutationQuota, QuotaKind
from fenceline.quotas.rates import Windows

if TYPE_CHECKING:
    from fenceline.config.node import NodeConfig
    from fenceline.metadata.changes import Delta
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.clock import Clock
    from fenceline.wire.principal import Principal


class NodeQuotas:
    """Belongs to the event loop."""

    def __init__(
        self, config: NodeConfig, clock: Clock, subscribe: Callable[[Callable[[MetadataImage, Delta], None]], None]
    ) -> None:
        """`subscribe`: to the changes of the metadata."""
        self._clock = clock
        self._quotas = ClientQuotas(_windows(config, ""), _windows(config, "controller."))
        subscribe(self._on_image)

    def _on_image(self, image: MetadataImage, delta: Delta) -> None:
        if delta.changed_client_quotas:
            self._quotas.follow(image.client_quotas)

    @property
    def is_active(self) -> bool:
        """Whether any client has a quota."""
        return self._quotas.is_active

    def of(self, principal: Principal, client_id: str | None, mute: Callable[[int], None]) -> PeerQuotas | None:
        """Those of the sender of a request; None: it has none. `mute`: its connection is not read for so many
        milliseconds."""
        user, client = principal.name, client_id or ""
        return PeerQuotas(self._quotas, self._clock, user, client, mute) if self._quotas.limits(user, client) else None

    def mutations(self, principal: Principal, client_id: str | None, *, is_strict: bool) -> RequestMutations | None:
        """What a request of the sender may change in the metadata; None: it is not limited."""
        if not self._quotas.is_active:
            return None
        now_ms = self._clock.monotonic_ms()
        quota = self._quotas.mutations(principal.name, client_id or "", now_ms, is_strict=is_strict)
        return None if quota is None else RequestMutations(quota, self._clock)

    def collect(self) -> Iterator[Any]:
        """A Prometheus collector."""
        name, help_text = "fenceline_throttled", "How often clients were throttled, by quota"
        yield counter_by("quota", name, help_text, self._quotas.throttled)
        name, help_text = "fenceline_throttle_seconds", "For how long clients were throttled in all, by quota"
        seconds = {quota: total_ms / 1_000 for quota, total_ms in self._quotas.throttled_ms.items()}
        yield counter_by("quota", name, help_text, seconds)


class RequestMutations:
    """What one request may change: a `PartitionMutations` of the controller."""

    __slots__ = ("_clock", "_quota")

    def __init__(self, quota: MutationQuota, clock: Clock) -> None:
        self._quota = quota
        self._clock = clock

    def takes(self, partitions: int) -> bool:
        return self._quota.takes(partitions, self._clock.monotonic_ms())

    @property
    def throttle_ms(self) -> int:
        """For how long the sender is throttled."""
        return self._quota.throttle_ms(self._clock.monotonic_ms())


class PeerQuotas:
    """The quotas of the sender of one request."""

    __slots__ = ("_began_ns", "_client_id", "_clock", "_quotas", "_user", "is_exempt", "mute")

    def __init__(
        self, quotas: ClientQuotas, clock: Clock, user: str, client_id: str, mute: Callable[[int], None]
    ) -> None:
        self._quotas = quotas
        self._clock = clock
        self._user = user
        self._client_id = client_id
        self.mute = mute
        self.is_exempt = False
        """Whether the request's time does not count: it comes from a broker."""
        self._began_ns = time.perf_counter_ns()

    def time_throttle_ms(self) -> int:
        """For how long the client is throttled because of the time that its earlier requests took."""
        return self._record_time(0)

    def handled(self) -> None:
        """The request has been handled, or waits; count its time so far."""
        if not self.is_exempt:
            self._record_time(time.perf_counter_ns() - self._began_ns)

    def produced(self, size_bytes: int) -> int:
        """The size of a Produce request; for how long the client is throttled, in milliseconds."""
        return self._record(QuotaKind.PRODUCE, size_bytes)

    def fetched(self, size_bytes: int) -> int:
        """The records of a response; for how long the client is throttled, in milliseconds."""
        return self._record(QuotaKind.FETCH, size_bytes)

    def not_fetched(self, size_bytes: int) -> None:
        """The records were not sent after all."""
        self._quotas.take_back(QuotaKind.FETCH, self._user, self._client_id, size_bytes, self._clock.monotonic_ms())

    def most_to_fetch(self, asked_bytes: int) -> int:
        """Of the bytes that a fetch asks for, what its quota allows in a window."""
        most = self._quotas.most_to_fetch(self._user, self._client_id)
        return asked_bytes if most is None else min(asked_bytes, most)

    def _record_time(self, elapsed_ns: int) -> int:
        return self._quotas.record_time(self._user, self._client_id, elapsed_ns, self._clock.monotonic_ms())

    def _record(self, kind: QuotaKind, size_bytes: int) -> int:
        return self._quotas.record(kind, self._user, self._client_id, size_bytes, self._clock.monotonic_ms())


def _windows(config: NodeConfig, prefix: str) -> Windows:
    count = config.get_int(f"{prefix}quota.window.num")
    return Windows(count, config.get_int(f"{prefix}quota.window.size.seconds") * 1_000)
