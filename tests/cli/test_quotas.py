"""`fenceline quotas` and the calls of Admin: against a Fenceline node and Apache Kafka. Rules: security.md A56."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.client_quotas import AnyName, ClientQuotaAlteration, EntityQuotas
from fenceline.errors import ErrorCode, PeerError
from fenceline.testing.mixed_cluster import COMBINED
from fenceline.testing.waiting import eventually
from tests.cli.command_target import CommandTarget, one_node

Row: TypeAlias = tuple[dict[str, str | None], dict[str, float]]

pytestmark = pytest.mark.timeout(120)


class Target(CommandTarget):
    """The node that commands run against."""

    def __init__(self, bootstrap: str, controller: str = "") -> None:
        super().__init__("quotas", bootstrap, controller)

    def check_quotas(self, expected: list[Row], *arguments: str) -> None:
        """Kafka's broker follows its controller."""

        def same() -> bool:
            found = [(row["entity"], row["quotas"]) for row in self.run_json("list", *arguments)]
            assert found == expected, found
            return True

        eventually(same)


@pytest.fixture(scope="module")
def fenceline_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with one_node(tmp_path_factory.mktemp("fenceline"), COMBINED) as addresses:
        yield Target(*addresses)


@pytest.fixture(scope="module")
def kafka_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with one_node(tmp_path_factory.mktemp("kafka"), f"kafka:{COMBINED}") as addresses:
        yield Target(*addresses)


@pytest.fixture(params=[pytest.param("kafka", marks=pytest.mark.kafka), "fenceline"])
def target(request: pytest.FixtureRequest) -> Target:
    """Without quotas."""
    found: Target = request.getfixturevalue(f"{request.param}_target")
    with Admin(found.bootstrap) as admin:
        known = admin.describe_client_quotas()
        admin.alter_client_quotas([ClientQuotaAlteration(each.entity, dict.fromkeys(each.values)) for each in known])
    found.check_quotas([])
    return found


def test_quotas_are_set_listed_and_removed(target: Target) -> None:
    assert target.run("list") == "There are no quotas.\n"
    shown = target.run("set", "producer_byte_rate=1048576", "request_percentage=12.5", "--user", "anna")
    assert shown == "Set producer_byte_rate, request_percentage of user-principal 'anna'.\n"
    target.run("set", "consumer_byte_rate=5e6", "--user", "anna", "--client", "app")
    target.run("set", "consumer_byte_rate=10", "--client-defaults")
    target.run("set", "connection_creation_rate=3", "--ip", "1.2.3.4")
    anna: Row = ({"user": "anna"}, {"producer_byte_rate": 1048576.0, "request_percentage": 12.5})
    app_of_anna: Row = ({"user": "anna", "client-id": "app"}, {"consumer_byte_rate": 5e6})
    each_client: Row = ({"client-id": None}, {"consumer_byte_rate": 10.0})
    address: Row = ({"ip": "1.2.3.4"}, {"connection_creation_rate": 3.0})
    target.check_quotas([each_client, address, anna, app_of_anna])
    target.check_quotas([anna, app_of_anna], "--user", "anna")
    target.check_quotas([app_of_anna], "--client", "app")
    target.check_quotas([each_client], "--client-defaults")
    target.check_quotas([], "--user-defaults")
    target.check_quotas([address], "--ip", "1.2.3.4")
    lines = [line.split("│") for line in target.run("list", "--user", "anna").splitlines() if "anna" in line]
    assert [[cell.strip() for cell in cells if cell.strip()] for cells in lines] == [
        ["anna", "-", "-", "producer_byte_rate", "1048576"],
        ["anna", "-", "-", "request_percentage", "12.5"],
        ["anna", "app", "-", "consumer_byte_rate", "5000000"],
    ]
    assert "(default)" in target.run("list", "--client-defaults")

    removed = target.run_json("remove", "producer_byte_rate", "consumer_byte_rate", "--user", "anna")
    assert removed == {"entity": {"user": "anna"}, "removed": ["producer_byte_rate"]}
    target.check_quotas([each_client, address, (anna[0], {"request_percentage": 12.5}), app_of_anna])
    assert "Removed request_percentage of" in target.run("remove", "--user", "anna")
    target.check_quotas([app_of_anna], "--user", "anna")
    assert target.run("remove", "--user", "anna") == "There is no such quota of user-principal 'anna'.\n"
    target.run("remove", "--client-defaults")
    target.run("remove", "--user", "anna", "--client", "app")
    target.check_quotas([address])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("set", "producer_byte_rate=1"), "does not say whose"),
        (("remove",), "does not say whose"),
        (("set", "producer_byte_rate=1", "--user", "a", "--user-defaults"), "--user and --user-defaults"),
        (("set", "connection_creation_rate=1", "--ip", "1.2.3.4", "--client", "a"), "or of addresses"),
        (("set", "producer_byte_rate", "--user", "a"), "has no value"),
        (("set", "producer_byte_rate=much", "--user", "a"), "is not a number"),
        (("set", "request_percentage=nan", "--user", "a"), "is not a number"),
        (("set", "request_percentage=inf", "--user", "a"), "is not a number"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], message: str) -> None:
    assert message in Target("127.0.0.1:1").run(*arguments, code=1)


@pytest.mark.parametrize(
    "arguments",
    [
        ("producer_byte_rate=0", "--user", "a"),
        ("producer_byte_rate=1.5", "--user", "a"),
        ("no_such_key=1", "--user", "a"),
        ("connection_creation_rate=1", "--user", "a"),
        ("producer_byte_rate=1", "--ip", "1.2.3.4"),
        ("producer_byte_rate=1", "--user", ""),
    ],
)
def test_refused_quotas(target: Target, arguments: tuple[str, ...]) -> None:
    assert "INVALID_REQUEST" in target.run("set", *arguments, code=1)
    target.check_quotas([])


def test_calls_of_admin(target: Target) -> None:
    anna: dict[str, str | None] = {"user": "anna"}
    both: dict[str, str | None] = {"user": "anna", "client-id": None}
    with Admin(target.bootstrap) as admin:
        with pytest.raises(PeerError) as refused:
            admin.alter_client_quotas(
                [
                    ClientQuotaAlteration({"user": "otto"}, {"producer_byte_rate": -1}),
                    ClientQuotaAlteration(anna, {"producer_byte_rate": 7}),
                    ClientQuotaAlteration(both, {"producer_byte_rate": 8}),
                ]
            )
        assert refused.value.code is ErrorCode.INVALID_REQUEST
        assert "changing the quotas of user-principal 'otto'" in refused.value.message
        of_anna, of_both = EntityQuotas(anna, {"producer_byte_rate": 7}), EntityQuotas(both, {"producer_byte_rate": 8})
        eventually(lambda: admin.describe_client_quotas() == [of_anna, of_both])
        assert admin.describe_client_quotas(anna, strict=True) == [of_anna]
        assert admin.describe_client_quotas({"user": AnyName.ANY}) == [of_anna, of_both]
        assert admin.describe_client_quotas({"client-id": None, "user": AnyName.ANY}) == [of_both]
        assert admin.describe_client_quotas({"client-id": "app"}) == []
        admin.alter_client_quotas([ClientQuotaAlteration(anna, {"producer_byte_rate": None})], validate_only=True)
        assert admin.describe_client_quotas(anna, strict=True) == [of_anna]
        admin.alter_client_quotas([])
        for wanted, code in (
            ({"topic": "a"}, ErrorCode.UNSUPPORTED_VERSION),
            ({"ip": "1.2.3.4", "user": "a"}, ErrorCode.INVALID_REQUEST),
        ):
            with pytest.raises(PeerError) as refused:
                admin.describe_client_quotas(wanted)
            assert refused.value.code is code
