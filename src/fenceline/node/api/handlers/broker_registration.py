"""Requests of brokers and controllers about themselves to the active controller: BrokerRegistration v0-4,
BrokerHeartbeat v0-2, ControllerRegistration v0, and AllocateProducerIds v0. Served on the controllers' listener only.

Owns nothing; the controller decides about registration and fencing.

Rules: controller.md C11-C20, C41; since_4_0.md K4, K22-K25.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fenceline.controller.requests import (
    AllocateProducerIds,
    BrokerHeartbeat,
    RegisterBroker,
    RegisterController,
    SilentBroker,
)
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import ZERO_UUID
from fenceline.metadata.features import Levels
from fenceline.metadata.image import Endpoint
from fenceline.node.context import Api, RequestContext, Submit
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import request_field

if TYPE_CHECKING:
    from fenceline.wire.requests import (
        AllocateProducerIdsRequest,
        BrokerHeartbeatRequest,
        BrokerRegistrationRequest,
        ControllerRegistrationRequest,
        Feature,
        Listener,
    )

_MAX_SILENT_BROKERS: Final = 1000
"""More are ignored: memory is bounded whatever a peer sends."""

Identified: TypeAlias = Callable[[str, str, int, int], None]
"""As `ControllerDriver.broker_identified`: listener, peer, broker id, broker epoch."""


def _endpoints(listeners: Iterable[Listener]) -> tuple[Endpoint, ...]:
    return tuple(Endpoint(each.name, each.host, each.port, each.security_protocol) for each in listeners)


def _features(features: Iterable[Feature]) -> dict[str, Levels]:
    return {each.name: Levels(each.min_supported_version, each.max_supported_version) for each in features}


async def handle_broker_registration(
    submit: Submit, identified: Identified, context: RequestContext, request: BrokerRegistrationRequest
) -> dict[str, Any]:
    """Returns the broker's epoch, which all its later requests carry."""
    answer = await submit(
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
    identified(context.listener, context.peer, request.broker_id, answer.broker_epoch)
    return {"error_code": ErrorCode.NONE, "broker_epoch": answer.broker_epoch}


async def handle_broker_heartbeat(
    submit: Submit, identified: Identified, context: RequestContext, request: BrokerHeartbeatRequest
) -> dict[str, Any]:
    """Returns the broker's state at the controller, and whether it may shut down."""
    cordoned = request_field(request, "cordoned_log_dirs", None)
    identified(context.listener, context.peer, request.broker_id, request.broker_epoch)
    answer = await submit(
        BrokerHeartbeat(
            request.broker_id,
            request.broker_epoch,
            request.current_metadata_offset,
            want_fence=request.want_fence,
            want_shut_down=request.want_shut_down,
            offline_log_dirs=tuple(each or ZERO_UUID for each in request_field(request, "offline_log_dirs", ())),
            cordoned_log_dirs=None if cordoned is None else tuple(each or ZERO_UUID for each in cordoned),
            silent_brokers=tuple(
                SilentBroker(each.broker_id, each.broker_epoch)
                for each in request_field(request, "silent_brokers", ())[:_MAX_SILENT_BROKERS]
            ),
        )
    )
    return {
        "error_code": ErrorCode.NONE,
        "is_caught_up": answer.is_caught_up,
        "is_fenced": answer.is_fenced,
        "should_shut_down": answer.should_shut_down,
    }


async def handle_controller_registration(
    submit: Submit, context: RequestContext, request: ControllerRegistrationRequest
) -> dict[str, Any]:
    try:
        await submit(
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


async def handle_allocate_producer_ids(
    submit: Submit, context: RequestContext, request: AllocateProducerIdsRequest
) -> dict[str, Any]:
    block = await submit(AllocateProducerIds(request.broker_id, request.broker_epoch))
    return {"error_code": ErrorCode.NONE, "producer_id_start": block.first, "producer_id_len": block.size}


def controller_apis(submit: Submit, identified: Identified) -> tuple[Api, ...]:
    return (
        Api(ApiKey.BROKER_REGISTRATION, 0, 4, partial(handle_broker_registration, submit, identified)),
        Api(ApiKey.BROKER_HEARTBEAT, 0, 2, partial(handle_broker_heartbeat, submit, identified)),
        Api(ApiKey.CONTROLLER_REGISTRATION, 0, 0, partial(handle_controller_registration, submit)),
        Api(ApiKey.ALLOCATE_PRODUCER_IDS, 0, 0, partial(handle_allocate_producer_ids, submit)),
    )
