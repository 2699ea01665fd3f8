"""Sends the requests of `permission_requests` as each of its users, and puts back what they change.

Owns the connections, the login (PLAIN) and what has to be there before. The cluster has one node, combined, whose
listeners are SASL_PLAINTEXT with the users of `jaas`, and an authorizer with `admin` as super user.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final
from uuid import UUID

from fenceline.errors import ErrorCode
from fenceline.sasl.jaas import PLAIN_MODULE
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_response
from tests.security.permission_requests import (
    ABSENT,
    ADMIN,
    BROKER,
    CONTROLLER,
    HIDDEN,
    MADE,
    SEEN,
    NamedRequest,
    acls,
    comparable,
    requests,
    users,
)
from tests.support.raw import ConnectionClosed, RawConnection, plain

PASSWORD: Final = "secret"
TOPIC_DENIED: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_WAIT_S: Final = 60
_ACLS_PER_REQUEST: Final = 1_000


def jaas() -> str:
    """The users of a listener; the node itself logs in as `admin`."""
    options = " ".join(f'user_{name}="{PASSWORD}"' for name in (ADMIN, *users()))
    return f'{PLAIN_MODULE} required username="{ADMIN}" password="{PASSWORD}" {options};'


def settings(own: str, of_controllers: str) -> dict[str, str]:
    """Properties of the node, for a broker's listener and a controllers' listener at these addresses. Without the class
    of the authorizer."""
    return {
        "listeners": f"SASL_PLAINTEXT://{own},CONTROLLER://{of_controllers}",
        "advertised.listeners": f"SASL_PLAINTEXT://{own}",
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas(),
        "listener.name.controller.plain.sasl.jaas.config": jaas(),
        "super.users": f"User:{ADMIN}",
        "delegation.token.secret.key": "secret",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    }


class Session:
    """One connection to each listener for each user."""

    def __init__(self, ports: Mapping[str, int]) -> None:
        """`ports`: of `BROKER` and `CONTROLLER`."""
        self._ports = ports
        self._connections: dict[tuple[str, str], RawConnection] = {}
        self.ids: dict[str, UUID] = {}
        """Of the topics that exist."""

    def close(self) -> None:
        for connection in self._connections.values():
            connection.__exit__(None, None, None)
        self._connections.clear()

    def ask(self, user: str, request: NamedRequest) -> Any:
        """The comparable answer, or "closed"."""
        body = request.body(self.ids)
        key = user, request.listener
        try:
            answered = self._connection(*key).exchange(request.api, request.version, body)
        except ConnectionClosed:
            self._connections.pop(key).__exit__(None, None, None)
            return "closed"
        answer = comparable(plain(read_response(request.api, request.version, answered)), self.ids)
        if request.changes:
            if _creates(answer):
                self._until(self._has_been_made)
            if request.api is ApiKey.DELETE_TOPICS and answer["responses"][0]["error_code"] == 0:
                self._until(self._has_forgotten, answer["responses"][0]["name"])
            self.restore()
        return answer

    def _connection(self, user: str, listener: str) -> RawConnection:
        known = self._connections.get((user, listener))
        if known is None:
            known = self._connections[user, listener] = RawConnection(self._ports[listener])
            assert known.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}).error_code == 0
            token = f"\0{user}\0{PASSWORD}".encode()
            assert known.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token}).error_code == 0
        return known

    # --- what is there ------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """ACLs, topics, groups and transactional ids."""
        wanted = list(acls())
        for start in range(0, len(wanted), _ACLS_PER_REQUEST):
            made = self._admin(ApiKey.CREATE_ACLS, 3, {"creations": wanted[start : start + _ACLS_PER_REQUEST]})
            assert not any(each.error_code for each in made.results)
        self.restore()
        for name in (SEEN, HIDDEN):
            self._until(self._has_producer_id, name)
        for listener in (BROKER, CONTROLLER):
            self._until(self._has_acls, listener, len(wanted))

    def restore(self) -> None:
        """The topics and groups `seen` and `hidden` exist, no others do."""
        self._until(self._has_topics)
        for group in (SEEN, HIDDEN):
            self._until(self._has_offsets, group)
        self._until(self._absent_is_gone)

    def _has_producer_id(self, transactional_id: str) -> bool:
        fields = {"transactional_id": transactional_id, "transaction_timeout": 60_000}
        return bool(self._admin(ApiKey.INIT_PRODUCER_ID, 4, fields).error_code == 0)

    def _has_acls(self, listener: str, count: int) -> bool:
        every = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
        found = self._admin(ApiKey.DESCRIBE_ACLS, 3, every, listener)
        return sum(len(each.acls) for each in found.resources) == count

    def _has_forgotten(self, deleted: str) -> bool:
        found = self._admin(ApiKey.METADATA, 12, {"topics": None})
        return all(each.topic_id != self.ids[deleted] for each in found.topics)

    def _has_been_made(self) -> bool:
        found = self._admin(ApiKey.METADATA, 12, {"topics": None})
        return any(each.name == MADE for each in found.topics)

    def _has_topics(self) -> bool:
        found = self._admin(ApiKey.METADATA, 12, {"topics": None})
        known = {each.name: each for each in found.topics}
        if MADE in known:
            self._admin(ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": MADE, "topic_id": None}], "timeout": 10_000})
            return False
        missing = [name for name in (SEEN, HIDDEN) if name not in known]
        if missing:
            rows = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in missing]
            self._admin(ApiKey.CREATE_TOPICS, 7, {"topics": rows, "timeout": 10_000})
            return False
        self.ids = {name: known[name].topic_id for name in (SEEN, HIDDEN)}
        return all(part.leader_id >= 0 for name in (SEEN, HIDDEN) for part in known[name].partitions)

    def _has_offsets(self, group: str) -> bool:
        """Commit them."""
        self._admin(ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [group]})
        self._admin(ApiKey.FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": [group]})
        rows = [
            {"name": name, "partitions": [{"partition_index": 0, "committed_offset": 5}]} for name in (SEEN, HIDDEN)
        ]
        made = self._admin(ApiKey.OFFSET_COMMIT, 9, {"group_id": group, "topics": rows})
        return all(part.error_code == 0 for topic in made.topics for part in topic.partitions)

    def _absent_is_gone(self) -> bool:
        gone = self._admin(ApiKey.DELETE_GROUPS, 2, {"groups_names": [ABSENT]})
        return bool(gone.results[0].error_code == 69)

    def _admin(self, key: ApiKey, version: int, fields: dict[str, Any], listener: str = BROKER) -> Any:
        return self._connection(ADMIN, listener).call(key, version, fields)

    def _until(self, is_so: Callable[..., bool], *arguments: Any) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not is_so(*arguments):
            assert time.monotonic() < deadline, f"waited in vain: {is_so.__name__} {arguments}"
            time.sleep(0.01)


def _creates(answer: Any) -> bool:
    """Whether the answer to a Metadata request says that the topic `made` will be there soon."""
    topics = answer.get("topics", ())
    return any(each.get("name") == MADE and each["error_code"] != TOPIC_DENIED for each in topics)


def answers(ports: Mapping[str, int]) -> list[dict[str, Any]]:
    """For each request: its answers, the most frequent one first, with the users that get each; "others" for the
    first."""
    session = Session(ports)
    try:
        session.prepare()
        found: list[dict[str, Any]] = []
        for request in requests():
            by_answer: list[tuple[Any, list[str]]] = []
            for user in users():
                answer = session.ask(user, request)
                for known, who in by_answer:
                    if known == answer:
                        who.append(user)
                        break
                else:
                    by_answer.append((answer, [user]))
            by_answer.sort(key=lambda each: -len(each[1]))
            rows = [
                {"users": "others" if number == 0 else who, "answer": answer}
                for number, (answer, who) in enumerate(by_answer)
            ]
            found.append({"request": request.name, "answers": rows})
        return found
    finally:
        session.close()
