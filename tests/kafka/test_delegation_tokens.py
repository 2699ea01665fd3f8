"""Delegation tokens here and at Apache Kafka 4.3.1: the same answers, field by field, and Kafka's own clients and tool.

Each step is asked of a node of each kind. Ids, hmacs and times differ: they are replaced by the order in which they
appear, and by hours since the start.

Rules: security.md A26, A32 to A36.
"""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from fenceline.client import Admin
from fenceline.errors import ErrorCode, PeerError
from fenceline.sasl.delegation_tokens import token_password
from fenceline.sasl.jaas import PLAIN_MODULE, SCRAM_MODULE
from fenceline.sasl.scram import ClientExchange
from fenceline.testing.apache_kafka import free_port, run_tool
from fenceline.testing.mixed_cluster import COMBINED, LISTENER, MixedCluster
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.conftest import need_apache_kafka
from tests.scheduling import CLUSTERS
from tests.support.kafka_start import quick_environment
from tests.support.password_node import password_client
from tests.support.raw import ConnectionClosed, RawConnection, plain

pytestmark = [pytest.mark.kafka, pytest.mark.together(CLUSTERS), pytest.mark.timeout(600)]

HOUR_MS: Final = 3_600_000
PASSWORDS: Final = {"broker": "of the broker", **{name: f"of {name}" for name in ("anna", "otto", "eve")}}
USERS: Final = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
LOGIN: Final = f'{PLAIN_MODULE} required username="broker" password="{PASSWORDS["broker"]}" {USERS};'
CREATE, RENEW = ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN
EXPIRE, DESCRIBE = ApiKey.EXPIRE_DELEGATION_TOKEN, ApiKey.DESCRIBE_DELEGATION_TOKEN
SECURED: Final = {
    "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,{LISTENER}:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl.plain.sasl.jaas.config": LOGIN,
    **{
        f"listener.name.sasl.{mechanism}.sasl.jaas.config": f"{SCRAM_MODULE} required;"
        for mechanism in ("scram-sha-256", "scram-sha-512")
    },
    "delegation.token.secret.key": "secret of the nodes",
    "delegation.token.expiry.time.ms": str(4 * HOUR_MS),
    "delegation.token.max.lifetime.ms": str(8 * HOUR_MS),
}


@dataclass(eq=False)
class Asked:
    """One cluster, and the names of what it made."""

    cluster: MixedCluster
    hmacs: list[bytes] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    start_ms: float = field(default_factory=lambda: time.time() * 1000)

    def sasl(self, node: int = 0) -> int:
        return int(self.cluster.nodes[node].settings["listeners"].split("SASL://127.0.0.1:")[1].split(",")[0])

    def ask(self, user: str, key: ApiKey, version: int, node: int = 0, **fields: Any) -> Any:
        """The answer with replaced values. A `hmac` is the number of a token, or bytes."""
        if isinstance(fields.get("hmac"), int):
            fields["hmac"] = self.hmacs[fields["hmac"]]
        port = self.cluster.nodes[node].port if user == "ANONYMOUS" else self.sasl(node)
        try:
            with RawConnection(port) as connection:
                if user.startswith("token "):
                    number = int(user.removeprefix("token "))
                    log_in_by_token(connection, self.ids[number], self.hmacs[number])
                elif user != "ANONYMOUS":
                    log_in(connection, user, PASSWORDS[user])
                answer = connection.call(key, version, fields)
        except ConnectionClosed:
            return "closed"
        if key == CREATE and answer.error_code == 0:
            self.hmacs.append(answer.hmac)
            self.ids.append(answer.token_id)
        return self._replaced(plain_with_times(answer))

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._replaced(each) for each in value]
        if isinstance(value, dict):
            made = {key: self._replaced(each) for key, each in value.items()}
            if isinstance(made.get("tokens"), list):
                made["tokens"].sort(key=lambda token: token["token_id"])
                for token in made["tokens"]:
                    token["renewers"].sort(key=str)
            return made
        if value in self.hmacs:
            return f"hmac {self.hmacs.index(value)}"
        if value in self.ids:
            return f"id {self.ids.index(value)}"
        if isinstance(value, int) and value > 10**12:
            return f"{round((value - self.start_ms) / HOUR_MS)} h"
        return value


def plain_with_times(answer: Any) -> Any:
    """Times as milliseconds, also those that are read as such."""
    found = plain(answer)
    for name in ("issue_timestamp", "expiry_timestamp", "max_timestamp"):
        if name in found:
            value = getattr(answer, name)
            found[name] = None if value is None else int(value.timestamp() * 1000)
    return found


def log_in(connection: RawConnection, user: str, password: str) -> None:
    connection.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
    done = connection.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": f"\0{user}\0{password}".encode()})
    assert done.error_code == 0


def log_in_by_token(
    connection: RawConnection, token_id: str, hmac: bytes, mechanism: str = "SCRAM-SHA-512", **extensions: str
) -> Any:
    """The last answer."""
    exchange = ClientExchange(mechanism, token_id, token_password(hmac), "nonce", {"tokenauth": "true", **extensions})
    connection.call(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": mechanism})
    first = connection.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": exchange.first()})
    if first.error_code:
        return first
    answer = exchange.answer(first.auth_bytes)
    return connection.call(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": answer})


def secured(folder: Path, *kinds: str) -> MixedCluster:
    """With a listener for users on each node."""
    need_apache_kafka()
    (folder / "scratch").mkdir(parents=True, exist_ok=True)
    environment = quick_environment(folder / "scratch")
    made = MixedCluster(folder / "cluster", kinds, settings=SECURED, environment=environment)
    for node in made.nodes:
        own = f"PLAINTEXT://{node.bootstrap},SASL://127.0.0.1:{free_port()}"
        controller = f",{LISTENER}://{node.controller}" if node.is_controller else ""
        node.settings = {"listeners": own + controller, "advertised.listeners": own}
    return made


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Asked]]:
    """Two nodes each; requests to the second are forwarded."""
    with ExitStack() as stack:
        found = {}
        for kind, prefix in (("ours", ""), ("kafka", "kafka:")):
            cluster = secured(tmp_path_factory.mktemp(kind), f"{prefix}{COMBINED}", f"{prefix}broker")
            found[kind] = Asked(stack.enter_context(cluster))
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda asked: (asked.cluster.wait_ready(), asked.cluster.wait_complete()), found.values()))
        yield found


def same(both: dict[str, Asked], user: str, key: ApiKey, version: int, node: int = 0, **fields: Any) -> Any:
    """The answer of both."""
    # A node hears a moment later of what another one has changed.
    for _ in range(100):
        answers = {kind: asked.ask(user, key, version, node, **dict(fields)) for kind, asked in both.items()}
        if key != DESCRIBE or answers["ours"] == answers["kafka"]:
            break
        time.sleep(0.1)
    assert answers["ours"] == answers["kafka"]
    return answers["ours"]


def user(name: str, kind: str = "User") -> dict[str, str]:
    return {"principal_type": kind, "principal_name": name}


def owner(name: str | None, kind: str | None = "User") -> dict[str, Any]:
    return {"owner_principal_type": kind, "owner_principal_name": name}


def test_same_answers(both: dict[str, Asked]) -> None:
    def ask(who: str, key: ApiKey, version: int, code: int | None = 0, **fields: Any) -> Any:
        found = same(both, who, key, version, **fields)
        assert found == "closed" if code is None else found["error_code"] == code
        return found

    made = ask("anna", CREATE, 3, max_lifetime=-1, renewers=[user("otto")])
    assert (made["issue_timestamp"], made["expiry_timestamp"], made["max_timestamp"]) == ("0 h", "4 h", "8 h")
    for version in (1, 2):
        ask("anna", CREATE, version, max_lifetime=2 * HOUR_MS)
    ask("otto", CREATE, 3, max_lifetime=2**63 - 1, renewers=[user("anna"), user("anna"), user("")])
    ask("eve", CREATE, 3, max_lifetime=0, node=1, **owner("anna"), renewers=[user("otto")])
    ask("eve", CREATE, 3, max_lifetime=0, **owner(""))
    ask("eve", CREATE, 3, max_lifetime=0, **owner("staff", "Group"))
    # Refusals
    ask("anna", CREATE, 3, 67, renewers=[user("otto", "Group")])
    ask("anna", CREATE, 1, 67, node=1, renewers=[user("otto"), user("otto", "")])
    for who in ("ANONYMOUS", "token 0", "token 3"):
        for node in (0, 1):
            ask(who, CREATE, 3, 64, node=node, max_lifetime=-1, renewers=[user("otto", "Group")])
            ask(who, RENEW, 2, 64, node=node, hmac=0)
            ask(who, EXPIRE, 2, 64, node=node, hmac=0, expiry_time_period=-1)
            ask(who, DESCRIBE, 3, 64, node=node, owners=None)
    # Who sees what. Without an authorizer everybody sees everything.
    for who in ("anna", "otto", "eve"):
        for version in (1, 2, 3):
            assert len(ask(who, DESCRIBE, version, owners=None)["tokens"]) == 7
        assert ask(who, DESCRIBE, 3, owners=[])["tokens"] == []
        for name in ("anna", "otto", "eve", "nobody", ""):
            ask(who, DESCRIBE, 3, node=1, owners=[user(name)])
        ask(who, DESCRIBE, 3, owners=[user("staff", "Group"), user("anna", "Group"), user("otto"), user("otto")])
    # Renewing and expiring
    for number in (0, 1):
        for version in (1, 2):
            for who in ("anna", "otto"):
                for period in (-1, 0, HOUR_MS, 6 * HOUR_MS, 2**63 - 1):
                    may = 0 if (number, who) != (1, "otto") else 63
                    ask(who, RENEW, version, may, node=number, hmac=number, renew_period=period)
                for period in (HOUR_MS, 6 * HOUR_MS, 2**63 - 1):
                    ask(who, EXPIRE, version, may, node=number, hmac=number, expiry_time_period=period)
    for wrong in (b"", b"x", bytes(64)):
        ask("anna", RENEW, 2, 62, hmac=wrong)
        ask("anna", EXPIRE, 2, 62, hmac=wrong, expiry_time_period=-1)
    ask("eve", RENEW, 2, 63, hmac=4)
    ask("eve", EXPIRE, 2, 63, hmac=4, expiry_time_period=-1)
    # A token that has expired is not renewed; it can be removed.
    ask("anna", EXPIRE, 2, hmac=0, expiry_time_period=0)
    for asked in both.values():
        # Kafka's controller decides by what it has published, a moment after its answer.
        eventually(lambda asked=asked: has_expired(asked), "the token has expired", wait_s=30)  # type: ignore[misc]
    ask("anna", RENEW, 2, 66, hmac=0)
    ask("eve", RENEW, 2, 66, hmac=0)
    ask("anna", EXPIRE, 2, 66, hmac=0, expiry_time_period=HOUR_MS)
    ask("eve", EXPIRE, 2, 63, hmac=0, expiry_time_period=HOUR_MS)
    ask("otto", EXPIRE, 2, hmac=0, node=1, expiry_time_period=-1)
    for asked in both.values():
        eventually(lambda asked=asked: is_removed(asked, 0), "the token is gone", wait_s=30)  # type: ignore[misc]
    assert len(ask("anna", DESCRIBE, 3, node=1, owners=None)["tokens"]) == 6


def is_removed(asked: Asked, number: int) -> bool:
    return bool(asked.ask("anna", EXPIRE, 2, hmac=number, expiry_time_period=-1)["error_code"] == 62)


def has_expired(asked: Asked) -> bool:
    """The first token."""
    found = {each["token_id"]: each for each in asked.ask("anna", DESCRIBE, 3, owners=None)["tokens"]}
    return bool(found["id 0"]["expiry_timestamp"] == "0 h")


# --- Kafka's tool and clients ---


@dataclass(eq=False)
class Tools:
    """Kafka's tools on one cluster."""

    asked: Asked
    folder: Path

    def login(self, user: str) -> list[str]:
        """The options by which a tool logs in."""
        if user.startswith("token "):
            number = int(user.removeprefix("token "))
            mechanism = "SCRAM-SHA-256"
            jaas = (
                f'{SCRAM_MODULE} required username="{self.asked.ids[number]}"'
                f' password="{token_password(self.asked.hmacs[number])}" tokenauth="true";'
            )
        else:
            mechanism = "PLAIN"
            jaas = f'{PLAIN_MODULE} required username="{user}" password="{PASSWORDS[user]}";'
        file = self.folder / f"{user}.properties"
        file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n")
        return ["--bootstrap-server", f"127.0.0.1:{self.asked.sasl()}", "--command-config", str(file)]

    def tokens(self, user: str, *arguments: str) -> str:
        """kafka-delegation-tokens.sh: what it printed, with replaced values."""
        words = [
            token_password(self.asked.hmacs[int(word[1:])]) if re.fullmatch(r"@\d+", word) else word
            for word in arguments
        ]
        printed = run_tool("org.apache.kafka.tools.DelegationTokenCommand", *self.login(user), *words, check=False)
        for token_id, hmac in re.findall(r"^(\S{22})\s+(\S{88})\s", printed, re.MULTILINE):
            if token_id not in self.asked.ids:
                self.asked.ids.append(token_id)
                self.asked.hmacs.append(base64.b64decode(hmac))
        for number, (token_id, hmac) in enumerate(zip(self.asked.ids, self.asked.hmacs, strict=True)):
            printed = printed.replace(token_id, f"ID-{number}").replace(token_password(hmac), f"HMAC-{number}")
        printed = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d", "TIME", re.sub(r"[ \t]+", " ", printed))
        printed = re.sub(r"^\s+at .*\n", "", printed, flags=re.MULTILINE)
        return "\n".join(sorted(printed.splitlines()))


@pytest.fixture(scope="module")
def tools(both: dict[str, Asked], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tools]:
    return {kind: Tools(asked, tmp_path_factory.mktemp(kind)) for kind, asked in both.items()}


def test_kafkas_tool_prints_the_same(tools: dict[str, Tools]) -> None:
    def run(user: str, *arguments: str) -> str:
        printed = {kind: each.tokens(user, *arguments) for kind, each in tools.items()}
        assert printed["ours"] == printed["kafka"]
        return printed["ours"]

    [first] = {len(each.asked.ids) for each in tools.values()}
    hmac = f"@{first}"
    made = run("anna", "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:otto")
    assert f"HMAC-{first}" in made
    run("eve", "--create", "--max-life-time-period", "3600000", "--owner-principal", "User:otto")
    run("anna", "--describe", "--owner-principal", "User:eve")
    run("otto", "--renew", "--renew-time-period", "-1", "--hmac", hmac)
    assert "OwnerMismatch" in run("eve", "--renew", "--renew-time-period", "-1", "--hmac", hmac)
    assert "are not allowed on" in run(f"token {first}", "--create", "--max-life-time-period", "-1")
    run("anna", "--expire", "--expiry-time-period", "3600000", "--hmac", hmac)
    assert "Expired" not in run("anna", "--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    assert "NotFound" in run("anna", "--expire", "--expiry-time-period", "-1", "--hmac", "AAAA")


def test_kafkas_clients_log_in(tools: dict[str, Tools]) -> None:
    asked = tools["ours"].asked
    asked.ask("anna", CREATE, 3, max_lifetime=-1)
    number = len(asked.ids) - 1
    topic = ("--create", "--topic", "by-token", "--partitions", "1")
    login = tools["ours"].login(f"token {number}")
    assert "Created topic" in run_tool("org.apache.kafka.tools.TopicCommand", *login, *topic)
    asked.ask("anna", EXPIRE, 2, hmac=number, expiry_time_period=-1)
    printed = run_tool("org.apache.kafka.tools.TopicCommand", *login, "--list", check=False)
    assert "invalid credentials with SASL mechanism SCRAM-SHA-256" in printed


def test_each_mechanism(both: dict[str, Asked]) -> None:
    """And what both refuse: the hmac of another token, an id that does not exist, a token's id without tokenauth."""
    for asked in both.values():
        for who in ("anna", "otto"):
            asked.ask(who, CREATE, 3, max_lifetime=-1)

    def code(asked: Asked, token_id: str, hmac: bytes, mechanism: str, **extensions: str) -> int:
        with RawConnection(asked.sasl()) as connection:
            return int(log_in_by_token(connection, token_id, hmac, mechanism, **extensions).error_code)

    for asked in both.values():
        token_id, other = asked.ids[-2:]
        hmac = asked.hmacs[-2]
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            # A node hears of a token a moment later.
            eventually(lambda: code(asked, token_id, hmac, mechanism) == 0, "the login", wait_s=30)  # noqa: B023
            assert code(asked, token_id, hmac, mechanism, tokenauth="TRUE") == 0
            assert code(asked, token_id, hmac, mechanism, tokenauth="false") == 58
            assert code(asked, other, hmac, mechanism) == 58
            assert code(asked, "x" * 22, hmac, mechanism) == 58
            assert code(asked, "anna", hmac, mechanism) == 58


@pytest.mark.parametrize("kinds", [(COMBINED, "kafka:broker"), (f"kafka:{COMBINED}", "broker")])
def test_tokens_of_a_mixed_cluster(tmp_path: Path, kinds: tuple[str, str]) -> None:
    """Made through each node, by a controller of either kind, they log in at each node."""

    def code(asked: Asked, node: int, number: int) -> int:
        with RawConnection(asked.sasl(node)) as connection:
            return int(log_in_by_token(connection, asked.ids[number], asked.hmacs[number]).error_code)

    with secured(tmp_path, *kinds) as cluster:
        cluster.wait_ready()
        cluster.wait_complete()
        asked = Asked(cluster)
        for node in (0, 1):
            assert asked.ask("anna", CREATE, 3, node, max_lifetime=-1)["error_code"] == 0
        for node in (0, 1):
            for number in (0, 1):
                eventually(lambda: code(asked, node, number) == 0, "the login", wait_s=30)  # noqa: B023
            found = asked.ask("anna", DESCRIBE, 3, node, owners=None)["tokens"]
            assert [token["hmac"] for token in found] == ["hmac 0", "hmac 1"]
        assert asked.ask("anna", EXPIRE, 2, 1, hmac=0, expiry_time_period=-1)["error_code"] == 0
        for node in (0, 1):
            eventually(lambda: code(asked, node, 0) == 58, "the refusal", wait_s=30)  # noqa: B023
            assert code(asked, node, 1) == 0


# --- our client ---


def brokers_seen(settings: dict[str, Any]) -> int:
    """How many brokers a client with this login hears of. 0 if the login is refused."""
    with Admin(settings) as admin:
        try:
            return len(admin.describe_cluster().brokers)
        except PeerError as error:
            if error.code is not ErrorCode.SASL_AUTHENTICATION_FAILED:
                raise
            return 0


@pytest.mark.parametrize("kind", ["ours", "kafka"])
def test_own_client(both: dict[str, Asked], kind: str) -> None:
    """The calls of Admin, and a login with the token in each form of properties."""
    bootstrap = f"127.0.0.1:{both[kind].sasl()}"
    with Admin(password_client(bootstrap, "anna", PASSWORDS["anna"])) as admin:
        made = admin.create_delegation_token(renewers=["otto"], max_lifetime_ms=2 * HOUR_MS)
        assert (made.owner, made.requester, made.renewers) == ("User:anna", "User:anna", ("User:otto",))
        assert made.max_ms - made.issue_ms == made.expiry_ms - made.issue_ms == 2 * HOUR_MS
        other = admin.create_delegation_token(owner="User:eve")
        assert (other.owner, other.requester) == ("User:eve", "User:anna")
        listed = eventually(
            lambda: {each.token_id: each for each in admin.describe_delegation_tokens(["otto"])}.get(made.token_id),
            "the token is listed",
            wait_s=30,
        )
        assert listed == made
        assert made.password not in repr(made)
        login = {
            **password_client(bootstrap, made.token_id, made.password),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.tokenauth": "true",
        }
        jaas = f'{SCRAM_MODULE} required username="{made.token_id}" password="{made.password}" tokenauth="true";'
        java = {**login, "sasl.username": None, "sasl.password": None, "sasl.tokenauth": None, "sasl.jaas.config": jaas}
        for settings in (login, java):
            # Another node may have listed the token.
            eventually(lambda: brokers_seen(settings), "the login", wait_s=30)  # noqa: B023
            with Admin(settings) as by_token:
                with pytest.raises(PeerError) as error:
                    by_token.describe_delegation_tokens()
                assert error.value.code is ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert admin.renew_delegation_token(made.password, period_ms=HOUR_MS) < made.expiry_ms
        with pytest.raises(PeerError) as error:
            admin.renew_delegation_token(other.hmac)
        assert error.value.code is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        admin.expire_delegation_token(made.hmac)
    with Admin({**login, "sasl.tokenauth": "false"}) as refused, pytest.raises(PeerError) as error:
        refused.describe_cluster()
    assert error.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED
