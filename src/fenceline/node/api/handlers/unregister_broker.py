"""UnregisterBroker v0 (KIP-631): removing a broker's registration.

Rules: controller.md C19; since_4_0.md K4.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from fenceline.controller.requests import UnregisterBroker
from fenceline.errors import ErrorCode, PeerError
from fenceline.node.context import Api, RequestContext, Submit
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.wire.requests import UnregisterBrokerRequest


async def handle_unregister_broker(
    submit: Submit, context: RequestContext, request: UnregisterBrokerRequest
) -> dict[str, Any]:
    """Its replicas stay assigned to it until they are moved; a broker of that id may register again."""
    try:
        await submit(UnregisterBroker(request.broker_id))
    except PeerError as error:
        return {"error_code": error.code, "error_message": error.message or None}
    return {"error_code": ErrorCode.NONE, "error_message": ""}  # Kafka sends an empty string, not null


def apis(submit: Submit) -> tuple[Api, ...]:
    return (Api(ApiKey.UNREGISTER_BROKER, 0, 0, partial(handle_unregister_broker, submit)),)
