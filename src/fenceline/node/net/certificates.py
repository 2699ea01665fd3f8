"""The certificates of one node: which stores its listeners, and its own connections to listeners, use.

Owns the precedence of the configs in the metadata log (the ten store keys with a listener's prefix, set for this
broker) over the node's file, and the check before a request changes them. `watched_context` reads the stores.

A node starts with the stores of its file. Those of the metadata log replace them when the node has the committed
metadata; while it catches up, older ones are not tried. Until `started` they are not compared with those of the file,
which other nodes may not trust any more: Kafka compares them, and keeps those of the file.

Rules: security.md A9 to A11.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from fenceline.config.broker import PER_LISTENER_CONFIGS, listener_prefix
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.metadata.image import ConfigResource, ConfigResourceType

if TYPE_CHECKING:
    from collections.abc import Callable

    from fenceline.config.node import NodeConfig
    from fenceline.metadata.changes import Delta
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.net.watched_context import Context, MakeContext, WatchedContext
    from fenceline.tls.settings import Lookup

_NOTHING: Final[Mapping[str, str]] = {}


class FollowedMetadata(Protocol):
    """As `ControllerDriver`."""

    @property
    def is_behind(self) -> bool: ...

    def subscribe(self, listener: Callable[[MetadataImage, Delta], None], /) -> None: ...

    def next_change(self) -> asyncio.Future[None]: ...


class NodeCertificates:
    """See the module. Belongs to the event loop."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._resource = ConfigResource(ConfigResourceType.BROKER, str(config.node_id))
        self._overrides = _NOTHING
        self._contexts: list[tuple[str, WatchedContext[Any]]] = []
        self._metadata: FollowedMetadata | None = None
        self._is_starting = True
        self._waits = False
        """For the committed metadata, to use `_overrides`."""

    def watch(self, listener: str, make: MakeContext[Context], *, is_own: bool) -> WatchedContext[Context]:
        """The context for a listener of this node (`is_own`), or for connections to listeners of this name. Raises
        OperatorError for unusable certificates."""
        from fenceline.node.net.watched_context import WatchedContext

        watched = WatchedContext(
            self._lookup(listener, _NOTHING),
            listener,
            make,
            between_brokers=is_own and listener == self._config.inter_broker_listener,
        )
        self._contexts.append((listener, watched))
        if self._overrides:
            self._use_soon()
        return watched

    def follow(self, metadata: FollowedMetadata) -> None:
        """Use what the metadata says from now on."""
        self._metadata = metadata
        metadata.subscribe(self._on_image)

    async def started(self) -> None:
        """Waits for the stores that the node knows of; from now on others have to fit those in use."""
        await self.settled()
        self._is_starting = False

    async def settled(self) -> None:
        """Waits until the stores that the node knows of are in use, or are found to be unusable."""
        if self._waits and self._metadata is not None and not self._metadata.is_behind:
            self._use()
        for _, watched in self._contexts:
            await watched.settled()

    async def check(self, wanted: Mapping[str, str], named: Iterable[str]) -> None:
        """Whether this broker could use its complete new set of overrides; `named` are the keys of the request, whose
        files are read again. Raises PeerError (INVALID_REQUEST)."""
        named = frozenset(named)
        for listener, watched in self._contexts:
            keys = {listener_prefix(listener) + key for key in PER_LISTENER_CONFIGS}
            if not any(key in named or wanted.get(key) != self._overrides.get(key) for key in keys):
                continue
            try:
                await watched.check(self._lookup(listener, wanted))
            except OperatorError as error:
                message = f"{error.message}. {error.advice}" if error.advice else error.message
                raise PeerError(ErrorCode.INVALID_REQUEST, message) from None

    def _lookup(self, listener: str, overrides: Mapping[str, str]) -> Lookup:
        static, prefix = self._config.for_listener(listener), listener_prefix(listener)

        def lookup(key: str) -> str | None:
            own = overrides.get(prefix + key) if key in PER_LISTENER_CONFIGS else None
            return static(key) if own is None else own

        return lookup

    def _on_image(self, image: MetadataImage, delta: Delta) -> None:
        if self._resource in delta.changed_configs:
            self._overrides = image.config(*self._resource)
            self._use_soon()

    def _use_soon(self) -> None:
        if self._contexts and not self._waits:
            self._waits = True
            asyncio.get_running_loop().call_soon(self._use)

    def _use(self, _: object = None) -> None:
        assert self._metadata is not None, "it has given an image"
        if self._metadata.is_behind:
            self._metadata.next_change().add_done_callback(self._use)
            return
        self._waits = False
        for listener, watched in self._contexts:
            watched.use(self._lookup(listener, self._overrides), is_start=self._is_starting)
