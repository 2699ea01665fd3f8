"""UpdateFeatures v0-2 (KIP-584): raising and lowering finalized feature levels.

Owns the difference between the versions: version 0 has "downgrades allowed" instead of an upgrade type, and from
version 2 on the first failure is the result of the whole request.

Rules: controller.md C38; since_4_0.md K1, K2, K4.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fenceline.controller.requests import FeatureUpdate, UpdateFeatures, UpgradeType
from fenceline.errors import ErrorCode, PeerError
from fenceline.node.context import Api, RequestContext, Submit
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import request_field

if TYPE_CHECKING:
    from fenceline.wire.requests import FeatureUpdateKey, UpdateFeaturesRequest

_KNOWN_TYPES: Final = frozenset(int(each) for each in UpgradeType)
_LAST_WITH_RESULTS: Final = 1
_NO_ERROR: Final = "NONE"
"""Kafka's message for a success."""


async def handle_update_features(
    submit: Submit, context: RequestContext, request: UpdateFeaturesRequest
) -> dict[str, Any]:
    """All levels change, or none."""
    updates = tuple(
        FeatureUpdate(each.feature, each.max_version_level, _upgrade_type(context.api_version, each))
        for each in request.feature_updates
    )
    validate_only = request_field(request, "validate_only", False)
    try:
        answer = await submit(UpdateFeatures(updates, validate_only))
    except PeerError as error:
        return {"error_code": error.code, "error_message": error.message or None}
    results = answer.features if context.api_version <= _LAST_WITH_RESULTS else ()
    return {
        "error_code": answer.outcome.code,
        "error_message": answer.outcome.message,
        "results": [
            {"feature": each.name, "error_code": ErrorCode.NONE, "error_message": _NO_ERROR} for each in results
        ],
    }


def _upgrade_type(version: int, update: FeatureUpdateKey) -> UpgradeType:
    if version == 0:
        return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
    kind = update.upgrade_type
    return UpgradeType(kind) if kind in _KNOWN_TYPES else UpgradeType.UNKNOWN


def apis(submit: Submit) -> tuple[Api, ...]:
    return (Api(ApiKey.UPDATE_FEATURES, 0, 2, partial(handle_update_features, submit)),)
