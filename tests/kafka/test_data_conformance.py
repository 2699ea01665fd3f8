"""The data path and the coordinator of transactions against a real Kafka 4.3.1: the same requests, the same answers,
field by field.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from fenceline.testing.apache_kafka import ApacheKafka
from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_response
from tests.support.coordinator_scripts import SCRIPTS as COORDINATOR_SCRIPTS
from tests.support.data_scripts import SCRIPTS
from tests.support.data_session import DataSession, differences
from tests.support.fetch_scripts import SCRIPTS as FETCH_SCRIPTS
from tests.support.raw import RawConnection
from tests.support.recorded import Answer, as_recorded
from tests.support.transaction_scripts import SCRIPTS as TRANSACTION_SCRIPTS

ALL_SCRIPTS = SCRIPTS | FETCH_SCRIPTS | TRANSACTION_SCRIPTS | COORDINATOR_SCRIPTS


@pytest.mark.parametrize("script", ALL_SCRIPTS.values(), ids=ALL_SCRIPTS)
def test_same_answers(script: Callable[[DataSession], None], answer: Answer, fenceline_node: EmbeddedNode) -> None:
    def seen(node: ApacheKafka | EmbeddedNode) -> list[Any]:
        with DataSession(node.port) as session:
            script(session)
        return session.seen

    theirs, ours = answer("apache_kafka", seen), as_recorded(seen(fenceline_node))
    assert len(ours) == len(theirs) > 0
    found = [
        f"{number} {their[0]}{difference}"
        for number, (their, our) in enumerate(zip(theirs, ours, strict=True))
        for difference in differences(their[1], our[1])
    ]
    assert not found, "\n".join(found[:20])


@pytest.mark.kafka
def test_api_versions_are_within_kafkas(apache_kafka: ApacheKafka, fenceline_node: EmbeddedNode) -> None:
    """Kafka supports every version that Fenceline supports; the features are equal."""
    for version in range(5):
        with RawConnection(apache_kafka.port) as kafka, RawConnection(fenceline_node.port) as node:
            theirs, ours = (each.call(ApiKey.API_VERSIONS, version, _SOFTWARE) for each in (kafka, node))
        known = {row.api_key: (row.min_version, row.max_version) for row in theirs.api_keys}
        for row in ours.api_keys:
            low, high = known[row.api_key]
            assert low <= row.min_version <= row.max_version <= high, row
        assert ours.error_code == theirs.error_code == 0
        if version >= 3:
            for field in ("supported_features", "finalized_features"):
                assert _rows(getattr(ours, field)) == _rows(getattr(theirs, field)), (version, field)
            assert ours.finalized_features_epoch > 0


@pytest.mark.kafka
def test_api_versions_of_unnamed_software(apache_kafka: ApacheKafka, fenceline_node: EmbeddedNode) -> None:
    names = ("a b", "", "-a", "a.", "x", "librdkafka", "a-b.c1", "\u00e4")
    for name, version in ((name, version) for name in names for version in (3, 4)):
        fields = (
            {"client_software_name": name, "client_software_version": "1"},
            _SOFTWARE | {"client_software_version": name},
        )
        for each in fields:
            answers = []
            for port in (apache_kafka.port, fenceline_node.port):
                with RawConnection(port) as connection:
                    answers.append(connection.call(ApiKey.API_VERSIONS, version, each))
            theirs, ours = answers
            assert ours.error_code == theirs.error_code, (each, version)
            assert bool(ours.api_keys) == bool(theirs.api_keys), (each, version)


@pytest.mark.kafka
def test_api_versions_request_of_an_unknown_version(apache_kafka: ApacheKafka, fenceline_node: EmbeddedNode) -> None:
    """An unsupported version is answered in version 0: error 35 and the supported versions."""
    for version in (5, 99):
        answers = []
        for port in (apache_kafka.port, fenceline_node.port):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(b"\0\0\0\x0c" + struct.pack(">hhih", 18, version, 7, 1) + b"x\0")
                (size,) = struct.unpack(">i", _exactly(connection, 4))
                answers.append(_exactly(connection, size))
        theirs, ours = answers
        assert theirs[:4] == ours[:4] == struct.pack(">i", 7)
        reported = [read_response(ApiKey.API_VERSIONS, 0, answer[4:]) for answer in answers]
        assert [each.error_code for each in reported] == [35, 35]
        # Kafka 4.3 lists ApiVersions alone; Fenceline's list is a superset that any client accepts.
        assert {(r.api_key, r.min_version, r.max_version) for r in reported[0].api_keys} <= {
            (r.api_key, r.min_version, r.max_version) for r in reported[1].api_keys
        }


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        piece = connection.recv(size - len(received))
        assert piece, "closed"
        received += piece
    return received


_SOFTWARE = {"client_software_name": "tests", "client_software_version": "1.0"}


def _rows(features: tuple[object, ...]) -> set[tuple[object, ...]]:
    return {tuple(getattr(row, name) for name in row.__slots__) for row in features}  # type: ignore[attr-defined]
