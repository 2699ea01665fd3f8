"""Handlers with the check of their rights before them.

Owns the order: rights, handler, the rest of the answer. Until the rules are in force a request of anybody but a super
user waits for them, and is not refused: a refusal would be wrong, and clients do not repeat it.

Rules: security.md A41, A50, A53, A69.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from fenceline.errors import ErrorCode, InternalError, PeerError
from fenceline.node.api.permissions.checks import Asked, Check
from fenceline.node.api.permissions.table import CONTROLLER_PERMISSIONS, PERMISSIONS
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.context import Answer, Api, Handler, RequestContext
    from fenceline.security.rights import RequestRights

RulesInForce: TypeAlias = Callable[["RequestRights"], Awaitable[object]]
"""Waits until the rules of the metadata log are in force, for a request with these rights."""

_WAIT_S: Final = 30.0
"""How long a request waits for the rules, as Kafka's clients wait for an answer."""


def checked(
    apis: Iterable[Api], images: Callable[[], MetadataImage], in_force: RulesInForce, *, on_controller: bool = False
) -> tuple[Api, ...]:
    """The same APIs, with the checks of the table. Raises InternalError for an API without a row."""
    rows = {**PERMISSIONS, **CONTROLLER_PERMISSIONS} if on_controller else PERMISSIONS
    has_row(rows, (api.key for api in apis))
    return tuple(
        api._replace(handler=_checked(api, rows[api.key].check, images, in_force)) if rows[api.key].needs else api
        for api in apis
    )


def has_row(rows: Mapping[ApiKey, Any], keys: Iterable[ApiKey]) -> None:
    """Raises InternalError if one of these APIs has no row: nobody decided who may use it."""
    missing = [key.name for key in keys if key not in rows]
    if missing:
        raise InternalError(f"APIs without a row in the table of permissions: {', '.join(missing)}")


def _checked(api: Api, check: Check | None, images: Callable[[], MetadataImage], in_force: RulesInForce) -> Handler:
    handler = api.handler

    def handle(context: RequestContext, request: Any) -> Answer | Awaitable[Answer]:
        rights = context.rights
        assert rights is not None, "every request has rights where they are checked"
        if not rights.are_known:
            return wait(context, request)
        if check is None:
            return handler(context, request)
        verdict = check(Asked(rights, context, request, images()))
        if isinstance(verdict, dict):
            return verdict
        answer = handler(context, verdict.request)
        complete = verdict.complete
        if complete is None:
            return answer
        if inspect.isawaitable(answer):

            async def later() -> Answer:
                answered = await answer
                assert isinstance(answered, dict), "only handlers that ask for rights themselves encode their answers"
                return complete(answered)

            return later()
        assert isinstance(answer, dict), "only handlers that ask for rights themselves encode their answers"
        return complete(answer)

    async def wait(context: RequestContext, request: Any) -> Answer:
        rights = context.rights
        assert rights is not None, "every request has rights where they are checked"
        try:
            async with asyncio.timeout(_WAIT_S):
                await in_force(rights)
        except TimeoutError:
            raise PeerError(
                ErrorCode.UNKNOWN_SERVER_ERROR, "This node does not know the rules of the metadata log."
            ) from None
        answer = handle(context, request)
        return await answer if inspect.isawaitable(answer) else answer

    return handle
