"""The table of flexible versions against kio."""

from __future__ import annotations

import pytest

from fenceline.wire.apis import NEVER, ApiKey, first_flexible_version, flexible, response_header_version
from tests.wire import kio_schemas


@pytest.mark.parametrize("key", list(ApiKey))
def test_flexible_versions_are_those_of_kio(key: ApiKey) -> None:
    for is_request in (True, False):
        first = kio_schemas.flexible_from(key, is_request=is_request)
        assert first_flexible_version(key) == (NEVER if first is None else first)


@pytest.mark.parametrize("key", list(ApiKey))
def test_header_versions_are_those_of_kio(key: ApiKey) -> None:
    for version in kio_schemas.kio_versions(key):
        for is_request, ours in (
            (True, 2 if flexible(key, version) else 1),
            (False, response_header_version(key, version)),
        ):
            schema = kio_schemas.kio_class(key, version, is_request=is_request).__header_schema__  # type: ignore[attr-defined]
            assert ours == int(schema.__version__), (key, version)


def test_api_versions_is_answered_without_tags() -> None:
    assert flexible(ApiKey.API_VERSIONS, 4)
    assert response_header_version(ApiKey.API_VERSIONS, 4) == 0


def test_unknown_keys_are_not_flexible() -> None:
    assert not flexible(9999, 5)
    assert not flexible(4, 7)
