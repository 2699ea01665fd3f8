"""ElectLeaders v0-2 (KIP-460): preferred and unclean elections requested by an operator.

Owns nothing; the controller decides who can lead. Version 0 supports preferred elections only.

Rules: controller.md C29; since_4_0.md K4.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fenceline.controller.partition_requests import ElectionType, ElectLeaders
from fenceline.errors import ErrorCode, PeerError
from fenceline.node.context import Api, RequestContext, Submit
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import request_field

if TYPE_CHECKING:
    from fenceline.wire.requests import ElectLeadersRequest


async def handle_elect_leaders(submit: Submit, context: RequestContext, request: ElectLeadersRequest) -> dict[str, Any]:
    """Each partition succeeds or fails alone; for all partitions, only those that needed an election are returned."""
    wanted = (
        None
        if request.topic_partitions is None
        else tuple((topic.topic, tuple(topic.partitions)) for topic in request.topic_partitions)
    )
    kind = request_field(request, "election_type", int(ElectionType.PREFERRED))
    try:
        answer = await submit(ElectLeaders(kind, wanted))
    except PeerError as error:
        rows = [(name, [(index, error.code, error.message) for index in indexes]) for name, indexes in wanted or ()]
        return {"error_code": error.code, "replica_election_results": [_topic(name, row) for name, row in rows]}
    return {
        "error_code": ErrorCode.NONE,
        "replica_election_results": [
            _topic(name, [(each.index, each.outcome.code, each.outcome.message) for each in elected])
            for name, elected in answer.topics
        ],
    }


def _topic(name: str, rows: Sequence[tuple[int, ErrorCode, str | None]]) -> dict[str, Any]:
    results = [{"partition_id": index, "error_code": code, "error_message": message} for index, code, message in rows]
    return {"topic": name, "partition_result": results}


def apis(submit: Submit) -> tuple[Api, ...]:
    return (Api(ApiKey.ELECT_LEADERS, 0, 2, partial(handle_elect_leaders, submit)),)
