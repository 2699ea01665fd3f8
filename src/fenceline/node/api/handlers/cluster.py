"""DescribeCluster v0-2 (KIP-700, KIP-919, KIP-1073).

Owns nothing; reads the brokers from the image. On a broker's listener a request for controllers is rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import ErrorCode
from fenceline.node.api.handlers.metadata_encoding import (
    CLUSTER_OPERATIONS,
    OPERATIONS_NOT_ASKED,
    controller_for_clients,
)
from fenceline.node.context import Api, NodeView, RequestContext
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import request_field

if TYPE_CHECKING:
    from fenceline.metadata.image import Endpoint
    from fenceline.quorum.control_records import VoterEndpoint
    from fenceline.quorum.quorum import Quorum
    from fenceline.wire.requests import DescribeClusterRequest

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


def handle_describe_cluster(node: NodeView, context: RequestContext, request: DescribeClusterRequest) -> dict[str, Any]:
    """Brokers with the listener of the request; fenced ones only if v2 asks for them."""
    kind = request_field(request, "endpoint_type", _BROKERS)
    if kind != _BROKERS and kind != _CONTROLLERS:
        return _rejected(ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {kind}")
    if kind == _CONTROLLERS:
        return _rejected(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
    image = node.image
    with_fenced = request_field(request, "include_fenced_brokers", False)
    brokers = []
    for broker in sorted(image.brokers.values(), key=lambda one: one.id):
        endpoint = broker.endpoint(context.listener)
        if endpoint is None or (broker.fenced and not with_fenced):
            continue
        brokers.append(
            {
                "broker_id": broker.id,
                "host": endpoint.host,
                "port": endpoint.port,
                "rack": broker.rack,
                "is_fenced": broker.fenced,
            }
        )
    asked = request.include_cluster_authorized_operations
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "endpoint_type": _BROKERS,
        "cluster_id": node.cluster_id,
        "controller_id": controller_for_clients(image, node.node_id),
        "brokers": brokers,
        "cluster_authorized_operations": CLUSTER_OPERATIONS if asked else OPERATIONS_NOT_ASKED,
    }


def handle_describe_controllers(
    node: NodeView, quorum_of_node: Callable[[], Quorum], context: RequestContext, request: DescribeClusterRequest
) -> dict[str, Any]:
    """KIP-919: registered controllers and voters with the listener of the request; `controller_id` is the leader."""
    kind = request_field(request, "endpoint_type", _BROKERS)
    if kind != _CONTROLLERS:
        return _rejected(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint of type BROKER",
        )
    quorum = quorum_of_node()
    # Kafka lists registrations only; voters without one are listed too.
    known: dict[int, tuple[Endpoint | VoterEndpoint, ...]] = {each.voter_id: each.endpoints for each in quorum.voters}
    known.update({each.id: each.endpoints for each in node.image.controllers.values()})
    controllers = []
    for node_id, endpoints in sorted(known.items()):
        endpoint = next((each for each in endpoints if each.name == context.listener), None)
        if endpoint is not None:
            controllers.append({"broker_id": node_id, "host": endpoint.host, "port": endpoint.port, "rack": None})
    asked = request.include_cluster_authorized_operations
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "endpoint_type": _CONTROLLERS,
        "cluster_id": node.cluster_id,
        "controller_id": quorum.leader_id,
        "brokers": controllers,
        "cluster_authorized_operations": CLUSTER_OPERATIONS if asked else OPERATIONS_NOT_ASKED,
    }


def _rejected(code: ErrorCode, message: str) -> dict[str, Any]:
    return {
        "error_code": code,
        "error_message": message,
        "endpoint_type": _BROKERS,
        "cluster_id": "",
        "controller_id": -1,
        "brokers": (),
        "cluster_authorized_operations": OPERATIONS_NOT_ASKED,
    }


def apis(node: NodeView) -> tuple[Api, ...]:
    return (Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, partial(handle_describe_cluster, node)),)


def controller_apis(node: NodeView, quorum: Callable[[], Quorum]) -> tuple[Api, ...]:
    return (Api(ApiKey.DESCRIBE_CLUSTER, 0, 2, partial(handle_describe_controllers, node, quorum)),)
