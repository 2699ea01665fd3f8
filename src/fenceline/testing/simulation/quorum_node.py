"""A node of the scenario `quorum`: the production driver of a node of several, whose leader appends what clients
propose.

Owns the replacement of the active controller: proposals, and the clients waiting for them. No controller decides
anything here, so the log is determined by the quorum alone.
"""

from __future__ import annotations

from typing import Final

from fenceline.errors import ErrorCode, PeerError
from fenceline.log.core.errors import StorageError
from fenceline.metadata.image import ConfigResourceType
from fenceline.metadata.records import ConfigRecord
from fenceline.node.metadata.batches import record_batch
from fenceline.testing.simulation.cluster_driver import ClusterDriver
from fenceline.testing.simulation.network import Frame, Lost, Reply

_METADATA_VERSION: Final = 25


class SimulatedQuorumNode(ClusterDriver):
    """One process of a node."""

    _leads = -1
    """The epoch in which clients are served."""
    _proposed: list[tuple[int, Reply]]
    """(end offset, callback of the client), ascending."""

    async def live_and_serve(self) -> None:
        """See `ClusterDriver`. Raises OperatorError."""
        self._proposed = []
        await self.begin(self.handle)
        await self.live()

    # -- callbacks of the quorum ---------------------------------------------------------------------------------------

    def committed(self, offset: int) -> None:
        super().committed(offset)
        while self._proposed and self._proposed[0][0] <= offset:
            end_offset, reply = self._proposed.pop(0)
            reply((0, end_offset - 1), None)

    def became_leader(self, epoch: int, start_offset: int) -> None:
        self._leads = epoch

    def lost_leadership(self, epoch: int) -> None:
        super().lost_leadership(epoch)
        self._leads = -1
        proposed, self._proposed = self._proposed, []
        for _, reply in proposed:  # in doubt
            reply((int(ErrorCode.NOT_LEADER_OR_FOLLOWER), -1), None)

    # -- clients -------------------------------------------------------------------------------------------------------

    def handle(self, source: int, message: Frame, reply: Reply) -> None:
        """A request of another node, or of a client: a tuple of name and value."""
        if not isinstance(message, tuple):
            self.handle_message(message, reply)
            return
        try:
            name, value = message
            self._propose(name, value, reply)
        except StorageError as error:
            reply(None, Lost(error.message))
        except PeerError as error:
            reply((int(error.code), -1), None)

    def _propose(self, name: str, value: str, reply: Reply) -> None:
        """Replies (0, offset) when it is committed. Raises PeerError if this node does not lead, or StorageError."""
        if self._leads < 0 or self.has_failed:
            raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node does not lead.")
        record = ConfigRecord(int(ConfigResourceType.BROKER), "", name, value)
        batch = record_batch([record], _METADATA_VERSION, self.process.clock.now_ms())
        end_offset = self.driver.append(batch, self._leads) + 1
        if end_offset <= self.high_watermark:
            reply((0, end_offset - 1), None)
        else:
            self._proposed.append((end_offset, reply))
