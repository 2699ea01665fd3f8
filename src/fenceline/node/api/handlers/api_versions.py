"""ApiVersions v0-4 (KIP-35, KIP-511, KIP-584), encoded by hand because it is the first request of every client.

The response lists exactly the registered APIs. Its header is never flexible (`hot_path.md H9`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from fenceline.errors import ErrorCode
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, write_response
from fenceline.wire.extensions import LEVEL_TAG, SOFTWARE_NAME
from fenceline.wire.frame import encode_response_frame
from fenceline.wire.primitives import uvarint

if TYPE_CHECKING:
    from fenceline.metadata.features import Levels
    from fenceline.node.context import Api, NodeView, RequestContext
    from fenceline.node.net.server import Buffer, RawApi

MIN_VERSION: Final = 0
MAX_VERSION: Final = 4
ANY_VERSION: Final = (-(2**15), 2**15 - 1)
"""A request in any version gets an answer."""
_FIRST_FLEXIBLE: Final = 3
_SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_TAG_SUPPORTED_FEATURES: Final = 0
_TAG_FINALIZED_EPOCH: Final = 1
_TAG_FINALIZED_FEATURES: Final = 2


def software_of(version: int, body: memoryview) -> str | None:
    """The name of the client's software; "" before version 3. None: name or version is not valid (KIP-511).

    Raises MalformedRequest.
    """
    if version < _FIRST_FLEXIBLE:
        return ""
    request = read_request(ApiKey.API_VERSIONS, version, body)
    name: str = request.client_software_name
    names = (name, request.client_software_version)
    return name if all(_SOFTWARE_NAME.fullmatch(each) is not None for each in names) else None


def api_ranges(apis: Iterable[Api], raw: Mapping[ApiKey, RawApi]) -> dict[ApiKey, tuple[int, int]]:
    """The versions of each registered API, as advertised."""
    ranges = {api.key: (api.min_version, api.max_version) for api in apis}
    ranges.update({key: (low, high) for key, (low, high, _) in raw.items()})
    ranges[ApiKey.API_VERSIONS] = (MIN_VERSION, MAX_VERSION)
    if ApiKey.PRODUCE in ranges:
        # Older librdkafka (2.0 for one) takes a minimum version above 2 for a server that supports no codec but zstd.
        # Kafka also advertises 0, and closes the connection of a client that uses it.
        ranges[ApiKey.PRODUCE] = (0, ranges[ApiKey.PRODUCE][1])
    return dict(sorted(ranges.items()))


class ApiVersions:
    """The ApiVersions handler. A version above `MAX_VERSION` is answered in version 0 with UNSUPPORTED_VERSION, so that
    clients can downgrade (KIP-35)."""

    def __init__(
        self,
        node: NodeView,
        ranges: Mapping[ApiKey, tuple[int, int]],
        *,
        supported: Mapping[str, Levels],
        finalized: Callable[[], Mapping[str, int]],
        fenceline_level: int = 0,
    ) -> None:
        """`supported` and `finalized`: the levels of features (KIP-584). `fenceline_level`: see `wire.extensions`."""
        self._node = node
        self._range_count = len(ranges)
        self._ranges = b"".join(struct.pack(">hhh", key, low, high) for key, (low, high) in ranges.items())
        self._flexible_ranges = uvarint(len(ranges) + 1) + b"".join(
            struct.pack(">hhhB", key, low, high, 0) for key, (low, high) in ranges.items()
        )
        self._supported_rows = {
            # Before v4 a range may not start at 0, because old clients reject it (KAFKA-17011).
            is_v4: [_level_row(name, *levels) for name, levels in sorted(supported.items()) if is_v4 or levels[0] > 0]
            for is_v4 in (False, True)
        }
        self._finalized = finalized
        self._fenceline_level = fenceline_level
        self._encoded_features: dict[tuple[bool, bool], tuple[dict[str, int], int, bytes]] = {}
        """By whether it is v4, and for a node of Fenceline: the finalized levels and their epoch, and the tagged fields
        that tell them. Each new connection asks, and few of these answers differ."""

    def handle(self, context: RequestContext, body: memoryview) -> list[Buffer]:
        version, error, software = context.api_version, ErrorCode.NONE, None
        if not MIN_VERSION <= version <= MAX_VERSION:
            version, error = 0, ErrorCode.UNSUPPORTED_VERSION
        elif (software := software_of(version, body)) is None:
            error = ErrorCode.INVALID_REQUEST
        throttle_ms = context.throttle_ms
        if throttle_ms and context.quotas is not None:
            context.quotas.mute(throttle_ms)
        answer = self.encode(version, error, throttle_ms, is_for_node=software == SOFTWARE_NAME)
        return encode_response_frame(ApiKey.API_VERSIONS, version, context.correlation_id, answer)

    def encode(self, version: int, error: ErrorCode, throttle_ms: int = 0, *, is_for_node: bool = False) -> bytes:
        """The body in `version`: error, api ranges, and from v3 the supported and finalized features; `is_for_node`:
        with the extensions that this node takes part in.

        INVALID_REQUEST has no ranges; UNSUPPORTED_VERSION has the supported ones, so that the client can downgrade.
        """
        if error is ErrorCode.INVALID_REQUEST:
            return write_response(ApiKey.API_VERSIONS, version, {"error_code": error, "throttle_time": throttle_ms})
        if version < _FIRST_FLEXIBLE:
            behind = struct.pack(">i", throttle_ms) if version >= 1 else b""
            return struct.pack(">hi", error, self._range_count) + self._ranges + behind
        return b"".join(
            (
                struct.pack(">h", error),
                self._flexible_ranges,
                struct.pack(">i", throttle_ms),
                self._features(is_v4=version >= 4, is_for_node=is_for_node),
            )
        )

    def _features(self, *, is_v4: bool, is_for_node: bool) -> bytes:
        """The tagged fields with the supported and the finalized features."""
        finalized, epoch = self._finalized(), self._node.image.offset
        known = self._encoded_features.get((is_v4, is_for_node))
        if known is not None and known[1] == epoch and known[0] == finalized:
            return known[2]
        tagged: list[tuple[int, bytes]] = []
        supported = self._supported_rows[is_v4]
        if supported:
            tagged.append((_TAG_SUPPORTED_FEATURES, uvarint(len(supported) + 1) + b"".join(supported)))
        if finalized:
            tagged.append((_TAG_FINALIZED_EPOCH, struct.pack(">q", epoch)))
            rows = b"".join(_level_row(name, level, level) for name, level in sorted(finalized.items()))
            tagged.append((_TAG_FINALIZED_FEATURES, uvarint(len(finalized) + 1) + rows))
        if is_for_node and self._fenceline_level:
            tagged.append((LEVEL_TAG, struct.pack(">h", self._fenceline_level)))
        parts = [uvarint(len(tagged))]
        for tag, content in tagged:
            parts += [uvarint(tag), uvarint(len(content)), content]
        encoded = b"".join(parts)
        self._encoded_features[is_v4, is_for_node] = dict(finalized), epoch, encoded
        return encoded


def _level_row(name: str, low: int, high: int) -> bytes:
    return _string(name) + struct.pack(">hhB", low, high, 0)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded
