"""Envelope v0: a request that a broker hands on for one of its clients (KIP-590).

Owns the wrapping: the embedded request is answered by the controller's own handler for it, header and all. Who is not
the active controller, or ends to be it before the answer is there, says so in the envelope: the broker then asks the
next one, and its client does not notice. What is wrong with the envelope itself is told by the codes that Kafka uses:
97 for a principal, 42 for an address or a request that nobody hands on, 35 for a request that can not be read.

Rules: controller.md C1, C2; since_4_0.md K4.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from fenceline.errors import ErrorCode, PeerError
from fenceline.node.handlers.registry import Api, RequestContext
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, write_response
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.frame import encode_response_frame, parse_request_header
from fenceline.wire.principal import decode_principal

if TYPE_CHECKING:
    from fenceline.node.controller_listener import ControllerServices

FORWARDED: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.UPDATE_FEATURES,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.ADD_RAFT_VOTER,
        ApiKey.REMOVE_RAFT_VOTER,
        ApiKey.UNREGISTER_BROKER,
    }
)
"""What may be in an envelope: the requests of clients that only the active controller can answer."""

_ADDRESS_SIZES: Final = (4, 16)
"""Of an IP address."""
_ANOTHER_LEADS: Final = (ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_LEADER_OR_FOLLOWER)


async def handle_envelope(context: RequestContext, request: Any) -> dict[str, Any]:
    controller = context.broker.controller
    epoch = controller.active_epoch
    if epoch < 0:
        return _refused(ErrorCode.NOT_CONTROLLER)
    try:
        decode_principal(request.request_principal)
    except MalformedRequest:
        return _refused(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE)
    if len(request.client_host_address) not in _ADDRESS_SIZES:
        return _refused(ErrorCode.INVALID_REQUEST)
    data = memoryview(request.request_data)
    try:
        header = parse_request_header(data)
    except MalformedRequest:
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    key, version = header.api_key, header.api_version
    if key in ApiKey._value2member_map_ and key not in FORWARDED:
        return _refused(ErrorCode.INVALID_REQUEST)
    api = cast("ControllerServices", context.broker).apis.get(key)
    if api is None:
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    if not api.min_version <= version <= api.max_version:
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    inner = replace(
        context,
        api_version=version,
        correlation_id=header.correlation_id,
        client_id=header.client_id,
        is_forwarded=True,
    )
    try:
        answer = api.handler(inner, read_request(key, version, data[header.body_position :]))
        if inspect.isawaitable(answer):
            answer = await answer
    except MalformedRequest:
        return _refused(ErrorCode.UNSUPPORTED_VERSION)
    except PeerError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            return _refused(ErrorCode.NOT_CONTROLLER)
        answer = {"error_code": error.code, "error_message": error.message}
    if controller.active_epoch != epoch and _says_that_another_leads(answer):
        return _refused(ErrorCode.NOT_CONTROLLER)
    body = answer if isinstance(answer, bytes) else write_response(api.key, version, answer)
    frame = b"".join(encode_response_frame(key, version, header.correlation_id, body))
    return {"error_code": ErrorCode.NONE, "response_data": frame[4:]}


def _says_that_another_leads(answer: Any) -> bool:
    """Whether some part of an answer is refused because this controller ended to be the active one. What was done
    before that, as its own removal, stays done."""
    if isinstance(answer, Mapping):
        code = answer.get("error_code")
        return code in _ANOTHER_LEADS or any(map(_says_that_another_leads, answer.values()))
    return isinstance(answer, list | tuple) and any(map(_says_that_another_leads, answer))


def _refused(code: ErrorCode) -> dict[str, Any]:
    return {"error_code": code, "response_data": None}


CONTROLLER_APIS: Final = (Api(ApiKey.ENVELOPE, 0, 0, handle_envelope),)
