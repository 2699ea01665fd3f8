"""Raising kraft.version of a running cluster (since_4_0.md K15): by UpdateFeatures, kept across a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fenceline.errors import ErrorCode
from fenceline.node.metadata.format import format_directory
from fenceline.testing.apache_kafka import free_port
from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from tests.support.raw import RawConnection


def _finalized(connection: RawConnection) -> dict[str, int]:
    fields = {"client_software_name": "test", "client_software_version": "1"}
    answer = connection.call(ApiKey.API_VERSIONS, 4, fields)
    return {each.name: each.max_version_level for each in answer.finalized_features}


def _update(connection: RawConnection, level: int, **more: Any) -> Any:
    update = {"feature": "kraft.version", "max_version_level": level, "upgrade_type": 1}
    fields = {"timeout": 30_000, "feature_updates": [update], **more}
    return connection.call(ApiKey.UPDATE_FEATURES, 2, fields)


def test_kraft_version_upgrade_is_permanent(tmp_path: Path) -> None:
    """A directory without voters takes them from the configuration, which means version 0."""
    format_directory([tmp_path / "data"], cluster_id="AAAAAAAAQACAAAAAAAAAAA", node_id=1)
    voters = {"controller.quorum.voters": f"1@127.0.0.1:{free_port()}", "node.id": "1"}
    with EmbeddedNode(data_dir=tmp_path, overrides=voters) as node, RawConnection(node.port) as connection:
        assert "kraft.version" not in _finalized(connection)
        assert _update(connection, 1, validate_only=True).error_code is ErrorCode.NONE
        assert "kraft.version" not in _finalized(connection), "it was a dry run"
        assert _update(connection, 1).error_code is ErrorCode.NONE
        assert _finalized(connection)["kraft.version"] == 1
        assert _update(connection, 1).error_code is ErrorCode.NONE
        assert _update(connection, 0).error_code is ErrorCode.INVALID_UPDATE_VERSION
    with EmbeddedNode(data_dir=tmp_path, overrides=voters) as node, RawConnection(node.port) as connection:
        assert _finalized(connection)["kraft.version"] == 1
