"""Requests of brokers and controllers about themselves to the active controller: BrokerRegistration v0-4,
BrokerHeartbeat v0-2, ControllerRegistration v0, and AllocateProducerIds v0. Served on the controllers' listener only.

Owns nothing; the controller decides about registration and fencing.

Rules: controller.md C11-C20, C41; since_4_0.md K4, K22-K25.
"""

from __future__ import annotations

from typing import Any, Final

from fenceline.controller.requests import AllocateProducerIds, BrokerHeartbeat, RegisterBroker, RegisterController
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import ZERO_UUID
from fenceline.metadata.features import Levels
from fenceline.metadata.image import Endpoint
from fenceline.node.context import Api, RequestContext
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import request_field


def _endpoints(listeners: Any) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(each.name, each.host, each.port, each.security_protocol) for each in listeners)


def _features(features: Any) -> dict[str, Levels]:
    return {each.name: Levels(each.min_supported_version, each.max_supported_version) for each in features}


async def handle_broker_registration(context: RequestContext, request: Any) -> dict[str, Any]:
    """Returns the broker's epoch, which all its later requests carry."""
    answer = await context.broker.controller.submit(
        RegisterBroker(
            broker_id=request.broker_id,
            cluster_id=request.cluster_id,
            incarnation_id=request.incarnation_id or ZERO_UUID,
            endpoints=_endpoints(request.listeners),
            features=_features(request.features),
            rack=request.rack,
            log_dirs=tuple(each or ZERO_UUID for each in request_field(request, "log_dirs", ())),
            previous_broker_epoch=request_field(request, "previous_broker_epoch", -1),
            is_migrating_zk_broker=request_field(request, "is_migrating_zk_broker", False),
        )
    )
    context.broker.controller.broker_identified(context.listener, context.peer, request.broker_id, answer.broker_epoch)
    return {"error_code": ErrorCode.NONE, "broker_epoch": answer.broker_epoch}


async def handle_broker_heartbeat(context: RequestContext, request: Any) -> dict[str, Any]:
    """Returns the broker's state at the controller, and whether it may shut down."""
    cordoned = request_field(request, "cordoned_log_dirs", None)
    context.broker.controller.broker_identified(context.listener, context.peer, request.broker_id, request.broker_epoch)
    answer = await context.broker.controller.submit(
        BrokerHeartbeat(
            request.broker_id,
            request.broker_epoch,
            request.current_metadata_offset,
            want_fence=request.want_fence,
            want_shut_down=request.want_shut_down,
            offline_log_dirs=tuple(each or ZERO_UUID for each in request_field(request, "offline_log_dirs", ())),
            cordoned_log_dirs=None if cordoned is None else tuple(each or ZERO_UUID for each in cordoned),
        )
    )
    return {
        "error_code": ErrorCode.NONE,
        "is_caught_up": answer.is_caught_up,
        "is_fenced": answer.is_fenced,
        "should_shut_down": answer.should_shut_down,
    }


async def handle_controller_registration(context: RequestContext, request: Any) -> dict[str, Any]:
    try:
        await context.broker.controller.submit(
            RegisterController(
                request.controller_id,
                request.incarnation_id or ZERO_UUID,
                _endpoints(request.listeners),
                _features(request.features),
                request.zk_migration_ready,
            )
        )
    except PeerError as error:
        return {"error_code": error.code, "error_message": error.message or None}
    return {"error_code": ErrorCode.NONE, "error_message": ""}  # Kafka sends an empty string, not null


async def handle_allocate_producer_ids(context: RequestContext, request: Any) -> dict[str, Any]:
    block = await context.broker.controller.submit(AllocateProducerIds(request.broker_id, request.broker_epoch))
    return {"error_code": ErrorCode.NONE, "producer_id_start": block.first, "producer_id_len": block.size}


CONTROLLER_APIS: Final = (
    Api(ApiKey.BROKER_REGISTRATION, 0, 4, handle_broker_registration),
    Api(ApiKey.BROKER_HEARTBEAT, 0, 2, handle_broker_heartbeat),
    Api(ApiKey.CONTROLLER_REGISTRATION, 0, 0, handle_controller_registration),
    Api(ApiKey.ALLOCATE_PRODUCER_IDS, 0, 0, handle_allocate_producer_ids),
)
