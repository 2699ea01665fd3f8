"""What checking a Produce request costs with 10,000 ACLs: nodes with and without an authorizer, the same client.

The client sends small requests in windows, so that a broker is always busy and its CPU time is that of its requests.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from tests.support.raw import RawConnection

from benchmarks.harness import SIDES, STARTERS, Figures, Subject, cpu_of
from fenceline.records.build import build_batch
from fenceline.testing.apache_kafka import free_port
from fenceline.wire.acl_codes import AclOperation, PatternType, Permission, ResourceType
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import write_request
from fenceline.wire.frame import encode_request_frame

RULES: Final = 10_000
REQUESTS: Final = 150_000
WINDOW: Final = 200
_AT_ONCE: Final = 1_000
_LOGIN: Final = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" password="secret"'
    ' user_admin="secret" user_anna="secret";'
)
_AUTHORIZER: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
}


def run(figures: Figures, repeats: int) -> None:
    with ExitStack() as stack:
        subjects = {
            (side, with_rules): stack.enter_context(_started(side, with_rules=with_rules))
            for side in SIDES
            for with_rules in (False, True)
        }
        costs: dict[tuple[str, bool], float] = {}
        for attempt in range(2 + repeats):
            for (side, with_rules), subject in subjects.items():
                costs[side, with_rules] = _cost_us(subject)
                if attempt >= 2:
                    name = f"a Produce request, {'10,000 rules' if with_rules else 'no authorizer'}: broker CPU"
                    figures.add(name, side, costs[side, with_rules], "us")
            for side in SIDES:
                if attempt >= 2:
                    figures.add("what the rules cost", side, costs[side, True] - costs[side, False], "us")


@contextmanager
def _started(side: Any, *, with_rules: bool) -> Iterator[Subject]:
    port = free_port()
    overrides = {
        # Both starters name their listener so.
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": _LOGIN,
        **(_AUTHORIZER if with_rules else {}),
    }
    subject: Subject = STARTERS[side](port=port, overrides=overrides)
    try:
        with _logged_in(subject, "admin") as admin:
            topic = {"name": "t", "num_partitions": 1, "replication_factor": 1}
            admin.call(ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 30_000})
            if with_rules:
                rules = list(_rules())
                for first in range(0, len(rules), _AT_ONCE):
                    made = admin.call(ApiKey.CREATE_ACLS, 3, {"creations": rules[first : first + _AT_ONCE]})
                    assert not any(each.error_code for each in made.results), made
        yield subject
    finally:
        subject.close()


def _rules() -> Iterator[dict[str, Any]]:
    """Of many users and topics; one of each kind applies to the client."""
    for number in range(RULES):
        is_own = number % 2_500 == 0
        yield {
            "resource_type": ResourceType.TOPIC,
            "resource_name": "t" if is_own else f"t{number}",
            "resource_pattern_type": PatternType.PREFIXED if number % 2 else PatternType.LITERAL,
            "principal": f"User:{'anna' if is_own and not number else f'u{number}'}",
            "host": "*",
            "operation": AclOperation.WRITE,
            "permission_type": Permission.ALLOW,
        }


def _logged_in(subject: Subject, user: str) -> RawConnection:
    host, _, port = subject.bootstrap.rpartition(":")
    connection = RawConnection(int(port), host=host)
    assert connection.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}).error_code == 0
    token = f"\0{user}\0secret".encode()
    assert connection.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token}).error_code == 0
    return connection


def _cost_us(subject: Subject) -> float:
    """Broker CPU of one request."""
    batch = bytes(build_batch([(0, None, bytes(100), ())]))
    data = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
    fields = {"transactional_id": None, "acks": 1, "timeout": 30_000, "topic_data": data}
    frame = b"".join(encode_request_frame(ApiKey.PRODUCE, 9, 1, "bench", write_request(ApiKey.PRODUCE, 9, fields)))
    with _logged_in(subject, "anna") as connection:
        answer_bytes = len(connection.exchange(ApiKey.PRODUCE, 9, write_request(ApiKey.PRODUCE, 9, fields)))
        with cpu_of(subject.pid) as used:
            for _ in range(REQUESTS // WINDOW):
                connection.socket.sendall(frame * WINDOW)
                for _ in range(WINDOW):
                    (size,) = struct.unpack(">i", connection.receive(4))
                    assert size >= answer_bytes, "an error"
                    connection.receive(size)
            return used() / REQUESTS * 1e6
