"""Envelope v0: a request that a broker forwards for one of its clients (KIP-590).

Owns the wrapping: the embedded request, with its header, is answered by the controller's own handler, with the rights
of the client (security.md A52). A controller that
is not active, or is no longer active when the response is ready, returns NOT_CONTROLLER in the envelope: the broker
then forwards to the next one, and its client does not notice. Errors of the envelope itself have Kafka's codes: 97 for
a bad principal, 42 for an address or an API that is not forwarded, 35 for a request that cannot be parsed.

Rules: controller.md C1, C2; since_4_0.md K4.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import ErrorCode, PeerError
from fenceline.node.context import Api, RequestContext
from fenceline.wire.apis import FORWARDED, ApiKey
from fenceline.wire.entities import read_request, write_response
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.frame import encode_response_frame, parse_request_header
from fenceline.wire.principal import decode_principal

if TYPE_CHECKING:
    from fenceline.wire.requests import EnvelopeRequest


_ADDRESS_SIZES: Final = (4, 16)
"""Sizes of an IP address."""
_ANOTHER_LEADS: Final = (ErrorCode.NOT_CONTROLLER, ErrorCode.NOT_LEADER_OR_FOLLOWER)


async def handle_envelope(
    active_epoch: Callable[[], int], by_key: Mapping[int, Api], context: RequestContext, request: EnvelopeRequest
) -> dict[str, Any]:
    """`active_epoch`: the epoch in which this node is the active controller; -1: it is not. `by_key`: its APIs."""
    epoch = active_epoch()
    if epoch < 0:
        return _rejected(ErrorCode.NOT_CONTROLLER)
    try:
        principal = decode_principal(request.request_principal)
    except MalformedRequest:
        return _rejected(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE)
    if len(request.client_host_address) not in _ADDRESS_SIZES:
        return _rejected(ErrorCode.INVALID_REQUEST)
    data = memoryview(request.request_data)
    try:
        header = parse_request_header(data)
    except MalformedRequest:
        return _rejected(ErrorCode.UNSUPPORTED_VERSION)
    key, version = header.api_key, header.api_version
    if key in ApiKey._value2member_map_ and key not in FORWARDED:
        return _rejected(ErrorCode.INVALID_REQUEST)
    api = by_key.get(key)
    if api is None:
        return _rejected(ErrorCode.UNSUPPORTED_VERSION)
    if not api.min_version <= version <= api.max_version:
        return _rejected(ErrorCode.UNSUPPORTED_VERSION)
    host = str(ip_address(request.client_host_address))
    inner = replace(
        context,
        api_version=version,
        correlation_id=header.correlation_id,
        client_id=header.client_id,
        client_host=host,
        principal=principal,
        rights=context.rights.of_client(principal, host, key) if context.rights is not None else None,
        is_forwarded=True,
    )
    try:
        embedded = read_request(key, version, data[header.body_position :])
        if api.check is not None:
            api.check(embedded)
        answer = api.handler(inner, embedded)
        if inspect.isawaitable(answer):
            answer = await answer
    except MalformedRequest:
        return _rejected(ErrorCode.UNSUPPORTED_VERSION)
    except PeerError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            return _rejected(ErrorCode.NOT_CONTROLLER)
        answer = {"error_code": error.code, "error_message": error.message}
    if active_epoch() != epoch and _has_leadership_error(answer):
        return _rejected(ErrorCode.NOT_CONTROLLER)
    if inner.throttle_ms and isinstance(answer, dict):
        # The broker that forwarded the request mutes its client.
        answer = {**answer, "throttle_time": inner.throttle_ms}
    body = answer if isinstance(answer, bytes) else write_response(api.key, version, answer)
    frame = b"".join(encode_response_frame(key, version, header.correlation_id, body))
    return {"error_code": ErrorCode.NONE, "response_data": frame[4:]}


def _has_leadership_error(answer: Any) -> bool:
    """Whether part of the response failed because this controller is no longer active. Changes made before that, such
    as its own removal, remain."""
    if isinstance(answer, Mapping):
        code = answer.get("error_code")
        return code in _ANOTHER_LEADS or any(map(_has_leadership_error, answer.values()))
    return isinstance(answer, list | tuple) and any(map(_has_leadership_error, answer))


def _rejected(code: ErrorCode) -> dict[str, Any]:
    return {"error_code": code, "response_data": None}


def controller_apis(active_epoch: Callable[[], int], enclosed: Iterable[Api]) -> tuple[Api, ...]:
    by_key = {int(api.key): api for api in enclosed}
    return (Api(ApiKey.ENVELOPE, 0, 0, partial(handle_envelope, active_epoch, by_key)),)
