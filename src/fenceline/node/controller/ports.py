"""What the parts of a node's controller use of each other: ports, without behaviour.

`ActiveController` is a `Decider`; `ControllerDriver` is a `LocalController` and a `ControllerClient`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fenceline.controller.requests import Request
    from fenceline.metadata.changes import Delta
    from fenceline.metadata.image import MetadataImage
    from fenceline.quorum.quorum import Quorum


class Decider(Protocol):
    """This node's controller, active or not."""

    own_broker_epoch: int
    """The epoch of this process's broker; -1 until it is registered with any controller."""

    @property
    def node_id(self) -> int: ...

    @property
    def broker_count(self) -> int:
        """Number of registered brokers in the committed image."""
        ...

    def submit(self, request: Request) -> asyncio.Future[Any]:
        """The response once its records are committed; PeerError 41 if this node is not active."""
        ...


class NodeController(Protocol):
    """This node's part of the controllers."""

    @property
    def active(self) -> Decider: ...

    @property
    def has_failed(self) -> bool: ...

    def next_change(self) -> asyncio.Future[None]:
        """Completes when records were applied, or this node starts or stops leading. Shared."""
        ...


class LocalController(NodeController, Protocol):
    """This node's quorum and controller, as seen by the channel to the active one."""

    @property
    def node_id(self) -> int: ...

    @property
    def quorum(self) -> Quorum:
        """For read access."""
        ...

    @property
    def is_active(self) -> bool: ...


class OtherVoters(Protocol):
    """The other voters, as seen by this node."""

    async def has_no_majority(self) -> bool:
        """Whether too few of them are running to elect a leader."""
        ...


class ControllerClient(NodeController, Protocol):
    """The controller, wherever it is, and this node's image: for the parts of a node that register with it."""

    @property
    def image(self) -> MetadataImage: ...

    @property
    def channel(self) -> OtherVoters | None:
        """None: the controller is always this node."""
        ...

    def subscribe(self, listener: Callable[[MetadataImage, Delta], None]) -> None:
        """Call `listener` for each committed change from now on, in order."""
        ...

    def submit(self, request: Request) -> asyncio.Future[Any]:
        """The response of the active controller, once its records are committed. Fails with PeerError."""
        ...
