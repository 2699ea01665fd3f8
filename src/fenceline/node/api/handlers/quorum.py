"""Requests between quorum nodes, and of operators about the quorum: Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch and
FetchSnapshot of the metadata log, DescribeQuorum, AddRaftVoter, RemoveRaftVoter, UpdateRaftVoter.

Owns nothing: `quorum.codec` translates, the quorum answers. All of them are served on the controllers' listener;
brokers forward DescribeQuorum and voter changes to the active controller.

Rules: raft.md Q13, Q14, Q37; since_4_0.md K4, K5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from fenceline.errors import PeerError
from fenceline.node.context import Answer, AnswerOnce, Api, RequestContext
from fenceline.quorum.codec import VERSIONS
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.quorum.messages import RequestMessage, ResponseMessage
    from fenceline.quorum.quorum import Quorum
    from fenceline.wire.entities import Entity

_FOR_CLIENTS: Final = (ApiKey.DESCRIBE_QUORUM, ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER)


class QuorumPort(Protocol):
    """What these handlers use of `ControllerDriver`."""

    @property
    def node_id(self) -> int: ...
    @property
    def quorum(self) -> Quorum: ...
    def ask(self, message: RequestMessage) -> asyncio.Future[ResponseMessage]: ...
    def wall_time_ms(self, monotonic_ms: int) -> int: ...


def _handle(
    key: ApiKey, controller: QuorumPort, context: RequestContext, request: Entity
) -> Answer | Awaitable[Answer]:
    from fenceline.quorum.codec.requests import UnexpectedPartition, read_request
    from fenceline.quorum.codec.responses import answer_fields, closing

    try:
        message = read_request(key, context.api_version, request)
    except UnexpectedPartition as wrong:
        return wrong.answer
    answer = controller.ask(message)

    def fields() -> dict[str, Any]:
        if isinstance(answer.exception(), PeerError):
            quorum = controller.quorum
            known = quorum.leader_id if quorum.leader_id != controller.node_id else -1
            return answer_fields(closing(message, known, quorum.epoch), context.api_version, controller.wall_time_ms)
        return answer_fields(answer.result(), context.api_version, controller.wall_time_ms)

    return fields() if answer.done() else AnswerOnce(answer, fields)


def controller_apis(controller: QuorumPort) -> tuple[Api, ...]:
    return tuple(Api(key, low, high, partial(_handle, key, controller)) for key, (low, high) in VERSIONS.items())


def apis(controller: QuorumPort) -> tuple[Api, ...]:
    return tuple(api for api in controller_apis(controller) if api.key in _FOR_CLIENTS)
