"""ApiVersions v0-4 (KIP-35, KIP-511, KIP-584), encoded by hand because it is the first request of every client.

The response lists exactly the registered APIs. Its header is never flexible (`hot_path.md H9`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from fenceline.errors import ErrorCode
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, write_response
from fenceline.wire.primitives import uvarint

if TYPE_CHECKING:
    from fenceline.node.broker import Broker

_FIRST_FLEXIBLE: Final = 3
_SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_TAG_SUPPORTED_FEATURES: Final = 0
_TAG_FINALIZED_EPOCH: Final = 1
_TAG_FINALIZED_FEATURES: Final = 2


def has_valid_software_name(version: int, body: memoryview) -> bool:
    """Whether the client sends a valid software name and version, as KIP-511 requires from version 3 on.

    Raises MalformedRequest.
    """
    if version < _FIRST_FLEXIBLE:
        return True
    request = read_request(ApiKey.API_VERSIONS, version, body)
    names = (request.client_software_name, request.client_software_version)
    return all(_SOFTWARE_NAME.fullmatch(name) is not None for name in names)


def encode_api_versions(
    version: int, error: ErrorCode, ranges: Mapping[ApiKey, tuple[int, int]], broker: Broker
) -> bytes:
    """The body in `version`: error, api ranges, and from v3 the supported and finalized features.

    INVALID_REQUEST has no ranges; UNSUPPORTED_VERSION has the supported ones, so that the client can downgrade.
    """
    if error is ErrorCode.INVALID_REQUEST:
        return write_response(ApiKey.API_VERSIONS, version, {"error_code": error})
    if version < _FIRST_FLEXIBLE:
        parts = [struct.pack(">hi", error, len(ranges))]
        parts += [struct.pack(">hhh", key, low, high) for key, (low, high) in ranges.items()]
        if version >= 1:
            parts.append(struct.pack(">i", 0))
        return b"".join(parts)
    parts = [struct.pack(">h", error), uvarint(len(ranges) + 1)]
    parts += [struct.pack(">hhhB", key, low, high, 0) for key, (low, high) in ranges.items()]
    parts.append(struct.pack(">i", 0))
    finalized = dict(broker.finalized_features)
    tagged: list[tuple[int, bytes]] = []
    # Before v4 a range may not start at 0, because old clients reject it (KAFKA-17011).
    supported = {name: r for name, r in broker.supported_features.items() if version >= 4 or r[0] > 0}
    if supported:
        rows = b"".join(_string(name) + struct.pack(">hhB", *bounds, 0) for name, bounds in sorted(supported.items()))
        tagged.append((_TAG_SUPPORTED_FEATURES, uvarint(len(supported) + 1) + rows))
    if finalized:
        tagged.append((_TAG_FINALIZED_EPOCH, struct.pack(">q", broker.finalized_features_epoch)))
        rows = b"".join(
            _string(name) + struct.pack(">hhB", level, level, 0) for name, level in sorted(finalized.items())
        )
        tagged.append((_TAG_FINALIZED_FEATURES, uvarint(len(finalized) + 1) + rows))
    parts.append(uvarint(len(tagged)))
    for tag, content in tagged:
        parts += [uvarint(tag), uvarint(len(content)), content]
    return b"".join(parts)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded
